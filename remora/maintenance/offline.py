"""A memory directory without its actors: journal and long-term memory, for checks and repairs."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import msgspec

from remora.config import Config
from remora.errors import InvalidInput, JournalDamaged
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import Place, TableDirectory, list_directories, location_of
from remora.storage.journal_port import running_journal
from remora.storage.lance.objects import is_object_store
from remora.storage.lance.scan import TableScan, open_scan
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import JournalVersions
from remora.storage.layout import explain_missing
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.mark import is_of_another_journal, mark_path, missing_commits, read_mark
from remora.storage.sqlite.peek import peek_format
from remora.storage.sqlite.schema import FORMAT

JOURNAL = "journal.db"
"""Name of the journal in a memory directory."""


class Offline(msgspec.Struct, frozen=True):
    """An opened directory without actors.

    Attributes:
        journal: its journal; committing.
        used: the directory of long-term memory in use; None if there never was one.
        place: where that is; None where it does not exist.
        whole: it is complete; otherwise it is being rebuilt, or is to be.
        leftovers: directories that were in use before it.
        config: sizes and intervals.
    """

    journal: SqliteJournal
    used: TableDirectory | None
    place: Place | None
    whole: bool
    leftovers: tuple[TableDirectory, ...]
    config: Config

    @property
    def directories(self) -> tuple[str, ...]:
        """Names of the directories of long-term memory, the one in use first.

        None where it is elsewhere.
        """
        if self.used is None or self.config.long_term.uri.reveal():
            return ()
        return tuple(one.name for one in (self.used, *self.leftovers))

    @asynccontextmanager
    async def scan(self, *, lost: Mapping[str, str] | None = None) -> AsyncIterator[TableScan]:
        """A scan of long-term memory; `place` must not be None.

        `lost`: tables that were quarantined, and why.
        """
        assert self.place is not None
        assert self.used is not None
        noted = None
        if is_object_store(self.place):
            noted = await JournalVersions(self.journal, self.used.name).read()
        async with open_scan(
            self.place,
            shards=self.used.shards,
            digests=self.used.digests,
            lost=lost,
            config=self.config.long_term.object_store,
            versions=None if noted is None else noted.tables,
        ) as scan:
            yield scan

    @asynccontextmanager
    async def store(
        self, *, sync: bool = True, mirrored: bool = False
    ) -> AsyncIterator[LanceStore]:
        """Long-term memory itself; `place` must not be None.

        Args:
            sync: writes are on disk when they are acknowledged.
            mirrored: what is open is a copy, so tables at an address are only read.
        """
        assert self.place is not None
        assert self.used is not None
        config = msgspec.structs.replace(self.config.long_term, shards=self.used.shards)
        store = await LanceStore.open(
            self.place,
            dimension=self.used.dimension,
            config=config,
            digests=self.used.digests,
            sync=sync,
            versions=JournalVersions(
                self.journal, self.used.name, owned=False if mirrored else None
            ),
        )
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()


@asynccontextmanager
async def offline(
    directory: Path, config: Config, *, journal: Path | None = None
) -> AsyncIterator[Offline]:
    """Open what a directory holds. Requires exclusive access.

    Args:
        directory: where it is.
        config: whose `long_term.uri` says where long-term memory is, if not in the directory.
        journal: the journal's file, if it is not the directory's own.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: the journal cannot be opened.
    """
    async with running_journal(
        await SqliteJournal.open(journal or directory / JOURNAL, durability="power")
    ) as opened:
        yield await _describe(opened, directory, config)


async def _describe(journal: SqliteJournal, directory: Path, config: Config) -> Offline:
    found = await list_directories(journal)
    whole = not await journal.setting("reembed")
    if not found:  # no runtime ever used long-term memory here
        return Offline(journal, None, None, whole, (), config)
    used, *leftovers = found
    place: Place | None = location_of(config.long_term.uri.reveal() or directory, used.name)
    if isinstance(place, Path) and not await run_in_thread(place.is_dir):
        place = None
    return Offline(journal, used, place, whole, tuple(leftovers), config)


async def migrate_journal(directory: Path) -> None:
    """Bring a journal of an earlier remora up to date, so that its tables can be copied.

    Requires exclusive access.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: the journal cannot be opened.
    """
    journal = directory / JOURNAL
    if await run_in_thread(peek_format, journal) < FORMAT:
        await (await SqliteJournal.open(journal, durability="power")).aclose()


class LostCommits(msgspec.Struct, frozen=True):
    """Acknowledged commits that the journal has lost.

    Attributes:
        what: which, in words.
        where: the file that lacks them.
        why: what happened to it.
        promised: they were to survive the loss of power, at durability ``power``.
    """

    what: str
    where: str
    why: str
    promised: bool


def find_lost_commits(journal: Path) -> LostCommits | None:
    """Return what a journal lacks, by its commit mark; None for nothing. Blocks on the file system.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    mark = read_mark(mark_path(journal))
    if mark is None:
        return None
    try:
        with closing(sqlite3.connect(journal)) as database:
            if is_of_another_journal(mark, database):
                what = f"the commits of the journal that {mark_path(journal).name} is of"
                return LostCommits(what, journal.name, "was replaced by another", promised=True)
            what = missing_commits(mark, database)
    except sqlite3.DatabaseError as e:
        raise JournalDamaged(
            f"{journal} is damaged, or no SQLite file: {e}; restore a backup"
        ) from e
    where, why = f"{journal.name}-wal", "was cut short or lost"
    return LostCommits(what, where, why, mark.durability == "power") if what else None


def require_memory(directory: Path) -> None:
    """Blocks on the file system.

    Raises:
        InvalidInput: there is no memory in this directory.
    """
    if (directory / JOURNAL).is_file():
        return
    if mark_path(directory / JOURNAL).exists():
        raise InvalidInput(
            f"there is no memory in {directory}: {JOURNAL} is missing, though other files of one "
            "are there; restore the whole directory from a backup"
        )
    raise InvalidInput(explain_missing(directory))
