"""A journal in PostgreSQL: ``pip install 'remora[cluster]'`` (docs/how-to/postgresql.md)."""

from __future__ import annotations

try:
    import asyncpg as _asyncpg  # noqa: F401
except ImportError as e:
    raise ImportError("a journal in PostgreSQL needs asyncpg: pip install 'remora[cluster]'") from e

from remora.faces import publish
from remora.storage.postgres.journal import PostgresJournal

__all__ = ["PostgresJournal"]

publish(__name__, __all__, globals())
