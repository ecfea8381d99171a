"""The journal in PostgreSQL that a configuration names."""

from __future__ import annotations

from pathlib import Path

from remora.config import JournalConfig
from remora.errors import ConfigError
from remora.runtime.threads import run_in_thread
from remora.storage.journal_port import Journal
from remora.storage.layout import MOVING_SETTING, SHARDS_FILE, ShardPlace, check_unmoved, read_move

_COMMAND_S = 10.0


async def open_database(
    config: JournalConfig,
    directory: Path | None,
    *,
    place: ShardPlace | None = None,
    wait_s: float | None = None,
    address: str = "",
) -> Journal:
    """Open the journal of ``journal.dsn``.

    Args:
        config: says where it is.
        directory: of the memory.
        place: which shard it is; None for a memory in one piece.
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
    await run_in_thread(check_directory, directory)
    try:
        from remora.storage.postgres import PostgresJournal  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise ConfigError(str(e), key="journal.dsn") from e
    journal = await PostgresJournal.open(
        config.dsn.reveal(),
        schema=config.schema,
        memory=config.memory if place is None or place.shards == 1 else place.title,
        durability=config.durability,
        command_timeout_s=min(_COMMAND_S, config.lease_s),
        max_batch_writes=config.max_batch_writes,
        lease_s=config.lease_s,
        wait_s=wait_s,
        address=address,
    )
    if await journal.setting(MOVING_SETTING):
        await journal.aclose()
        raise ConfigError(
            f"the journal in the schema {config.schema} is being moved, and that was interrupted: "
            "run the same remora reshard --to again",
            key="journal.dsn",
        )
    return journal


def check_directory(directory: Path) -> None:
    """Check that a directory has no journal of its own, which one in PostgreSQL would hide.

    Raises:
        ConfigError: it has one.
        StorageError: its journal is being moved into PostgreSQL.
    """
    move = read_move(directory)
    if move is not None and move.to == "postgresql" and not move.schema:
        check_unmoved(directory)
    if any((directory / name).exists() for name in ("journal.db", SHARDS_FILE)):
        raise ConfigError(
            f"{directory} has a journal of its own, which journal.dsn would hide: move it into "
            f"PostgreSQL (remora reshard {directory} --to postgresql), or name another directory",
            key="journal.dsn",
        )
