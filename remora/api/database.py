"""The journal in PostgreSQL that a configuration names."""

from __future__ import annotations

from pathlib import Path

from remora.config import JournalConfig
from remora.errors import ConfigError
from remora.runtime.threads import run_in_thread
from remora.storage.journal_port import Journal

__all__ = ["open_database"]

_COMMAND_S = 10.0


async def open_database(
    config: JournalConfig,
    directory: Path | None,
    *,
    wait_s: float | None = None,
    address: str = "",
) -> Journal:
    """Open the journal of ``journal.dsn``.

    Args:
        config: says where it is.
        directory: of the memory.
        wait_s: see `PostgresJournal.open`.
        address: see there.

    Raises:
        ConfigError: the directory has a journal of its own, asyncpg is missing, or see there.
        StorageError: see there.
    """
    if directory is None:
        raise ConfigError(
            "journal.dsn names a database, and this runtime is in memory: give it a directory, or "
            "leave the key out",
            key="journal.dsn",
        )
    if await run_in_thread((directory / "journal.db").exists):
        raise ConfigError(
            f"{directory} has a journal of its own, which journal.dsn would hide: export it "
            "(Runtime.export), and import it into a memory in another directory",
            key="journal.dsn",
        )
    try:
        from remora.storage.postgres import PostgresJournal  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise ConfigError(str(e), key="journal.dsn") from e
    return await PostgresJournal.open(
        config.dsn.reveal(),
        schema=config.schema,
        memory=config.memory,
        durability=config.durability,
        command_timeout_s=min(_COMMAND_S, config.lease_s),
        max_batch_writes=config.max_batch_writes,
        lease_s=config.lease_s,
        wait_s=wait_s,
        address=address,
    )
