"""Which version of each table counts, where a table is at an object store.

A directory belongs to one process, and its record of versions lies next to the tables
(`storage/lance/record.py`). An object store has no owner: a process that was replaced can still
write. So the version that counts is noted in the journal, which refuses a former owner's writes
(`Journal.epoch`): what that one commits to a table afterwards counts for nobody, and the new owner
undoes it (`storage/lance/object_table.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import anyio
import msgspec

from remora.storage.ports import Journal


class VersionNote(msgspec.Struct, frozen=True):
    """The note of the tables at one address.

    Attributes:
        tables: the version of each table that counts, by name.
        refill: rows were lost, and are to be written again from the journal.
    """

    tables: dict[str, int]
    refill: bool = False


class TableVersions(Protocol):
    """Where versions are noted."""

    @property
    def owned(self) -> bool:
        """Return whether this process may write.

        Otherwise it only reads what the owner has noted.
        """
        ...

    async def read(self) -> VersionNote | None:
        """Return what is noted; None if nothing ever was.

        Raises:
            StorageError: it cannot be read.
        """
        ...

    async def note(self, tables: Mapping[str, int], *, refill: bool | None = None) -> None:
        """Note, durably, that these versions count from now on; other tables' stay.

        With nothing to note it still checks that the journal is this process's.

        Args:
            tables: the versions, by table.
            refill: whether rows were lost; None for as before.

        Raises:
            OwnershipLost: another process owns the journal; nothing was noted.
            StorageError: it may not be noted.
        """
        ...


def versions_setting(directory: str) -> str:
    """The journal's setting that has the versions of a directory's tables."""
    return f"versions:{directory}"


class JournalVersions:
    """`TableVersions` in a setting of the journal.

    Args:
        journal: the journal.
        directory: the name of the tables' directory, or of what stands for it at an address.
        owned: see `TableVersions`; None where the journal is this process's. One that is only read
            has no epoch.

    Attributes:
        owned: see `TableVersions`.
    """

    def __init__(self, journal: Journal, directory: str, *, owned: bool | None = None) -> None:
        self.owned = journal.epoch > 0 if owned is None else owned
        self._journal = journal
        self._setting = versions_setting(directory)
        self._lock = anyio.Lock()

    async def read(self) -> VersionNote | None:
        """See `TableVersions.read`."""
        noted = await self._journal.setting(self._setting)
        return msgspec.json.decode(noted, type=VersionNote) if noted else None

    async def note(self, tables: Mapping[str, int], *, refill: bool | None = None) -> None:
        """See `TableVersions.note`."""
        async with self._lock:
            noted = await self.read() or VersionNote({})
            after = VersionNote(
                {**noted.tables, **tables}, noted.refill if refill is None else refill
            )
            await self._journal.change_settings(
                {self._setting: msgspec.json.encode(after).decode()}
            )
