"""Connections to PostgreSQL, and what its errors mean.

What PostgreSQL says of a failure may quote rows, so only its name and SQLSTATE are told.
"""

from __future__ import annotations

from typing import Any

import asyncpg
import msgspec

from remora.errors import ConfigError

READERS = 4
"""Connections of a journal that read, at most."""
CONNECTIONS = READERS + 2
"""Connections of a journal, at most: one writes, and one renews the lease."""

WRITING: Any = "read-write"
"""Of several hosts in an address, the one that takes writes. What reads asks that one as well: a
standby is behind."""

BROKEN = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ValueError,
)
"""What asyncpg raises, and what a value that it cannot send raises; see `is_broken`."""

ESCAPED = "with %40 for an @ in the password, %2F for a / and %23 for a #"
"""How an address has what would end its parts."""

_CONNECTION_STATES = ("08", "57P", "53300")  # lost, ended by the server, or none is left
_CONTENT_STATES = ("22", "23", "54")  # a value, a constraint, a limit
_TIME_LIMITS = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "55P03": "lock_timeout",
    "57014": "statement_timeout, or an administrator",
    "57P05": "idle_session_timeout",
}
"""Settings of a role, by the SQLSTATE with which PostgreSQL ends what takes longer."""


class Address(msgspec.Struct, frozen=True):
    """Where the database is.

    Attributes:
        dsn: as libpq and asyncpg take it; several hosts may be named.
        schema: that has the journal's tables.
        command_timeout_s: after so many seconds without an answer the connection counts as broken.
    """

    dsn: str
    schema: str
    command_timeout_s: float


async def connect(address: Address) -> asyncpg.Connection[Any]:
    """A new connection.

    Raises:
        ConfigError: the address is none.
        OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError: it is refused.
    """
    try:
        return await asyncpg.connect(
            address.dsn,
            timeout=address.command_timeout_s,
            command_timeout=address.command_timeout_s,
            target_session_attrs=WRITING,
        )
    except ValueError as e:  # ClientConfigurationError is one, and so is a port that is no number
        raise ConfigError(
            f"the address of PostgreSQL cannot be read ({type(e).__name__}); it must be like "
            f"postgresql://user:password@host:5432/database, {ESCAPED}"
        ) from e


def is_broken(error: BaseException) -> bool:
    """Return whether the connection broke, so that what became of the statement is not known."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_CONNECTION_STATES)
    # TimeoutError is an OSError; the other is a statement on a connection that is being ended
    if isinstance(error, OSError | asyncpg.InternalClientError):
        return True
    return isinstance(error, asyncpg.InterfaceError) and not isinstance(error, ValueError)


def is_of_content(error: BaseException) -> bool:
    """Return whether a failure may be the fault of one write alone."""
    if isinstance(error, asyncpg.PostgresError):
        return (error.sqlstate or "").startswith(_CONTENT_STATES)
    return isinstance(error, ValueError)  # asyncpg cannot send a value


def describe(error: BaseException) -> str:
    """The error without what it may quote."""
    state = getattr(error, "sqlstate", None)
    name = type(error).__name__
    limit = f", by {_TIME_LIMITS[state]}" if state in _TIME_LIMITS else ""
    return f"{name}, SQLSTATE {state}{limit}" if state else name


def is_over_time(error: BaseException) -> bool:
    """Return whether a time limit of the role, or of the server, ended it."""
    return getattr(error, "sqlstate", None) in _TIME_LIMITS
