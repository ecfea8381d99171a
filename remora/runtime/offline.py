"""A memory directory without its actors: journal and long-term memory as they lie there, for checks, backups and repairs."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from remora.config import Config
from remora.errors import InvalidInput, JournalDamaged
from remora.runtime.reembed import Leftover, Place, place_of
from remora.storage.journal import SqliteJournal
from remora.storage.journal_mark import mark_path, marked, missing
from remora.storage.longterm import LanceStore
from remora.storage.outline import Outlines, outlined

__all__ = ["JOURNAL", "Lost", "Offline", "lost_commits", "offline", "require_memory"]

JOURNAL = "journal.db"
"""Name of the journal in a memory directory."""

_decode_leftovers = msgspec.json.Decoder(tuple[Leftover, ...]).decode


class Offline(msgspec.Struct, frozen=True):
    """What a directory holds, opened.

    Attributes:
        journal: its journal; committing.
        name: of the directory where long-term memory is, or is to be.
        place: where long-term memory is; None where the directory has none, or never had.
        embedder: name and dimension of what made its vectors.
        shards: tables over which users are spread.
        whole: it holds all that it should; otherwise it is being made anew, or is to be.
        leftovers: directories that were in use before it.
        config: sizes and intervals.
    """

    journal: SqliteJournal
    name: str
    place: Place | None
    embedder: str
    shards: int
    whole: bool
    leftovers: tuple[Leftover, ...]
    config: Config

    @property
    def directories(self) -> tuple[str, ...]:
        """Names of the directories of long-term memory, the one in use first; none where it is elsewhere."""
        if not self.embedder or self.config.long_term.uri.reveal():
            return ()
        return (self.name, *(one.name for one in self.leftovers))

    def outlines(self, *, lost: Mapping[str, str] | None = None) -> AbstractAsyncContextManager[Outlines]:
        """All rows of long-term memory in outline; `place` must not be None. `lost`: tables that were put aside, and why."""
        assert self.place is not None
        return outlined(self.place, shards=self.shards, lost=lost)

    @asynccontextmanager
    async def store(self, *, sync: bool = True) -> AsyncIterator[LanceStore]:
        """Long-term memory itself; `place` must not be None. `sync`: what is written is on disk when that is told."""
        assert self.place is not None
        config = msgspec.structs.replace(self.config.long_term, shards=self.shards)
        dimension = int(self.embedder.rpartition("/")[2]) or None
        store = await LanceStore.open(self.place, dimension=dimension, config=config, sync=sync)
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()


@asynccontextmanager
async def offline(directory: Path, config: Config, *, journal: Path | None = None) -> AsyncIterator[Offline]:
    """Open what a directory holds; whoever calls owns the directory.

    Args:
        directory: where it is.
        config: whose `long_term.uri` says where long-term memory is, if not in the directory.
        journal: the journal's file, if it is not the directory's own.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: the journal cannot be opened.
    """
    opened = await SqliteJournal.open(journal or directory / JOURNAL, durability="power")
    error: Exception | None = None
    try:
        memory = await _described(opened, directory, config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(opened.run)
            try:
                yield memory
            except Exception as e:  # raised outside of the group, which would wrap it
                error = e
            tasks.cancel_scope.cancel()
        if error is not None:
            raise error
    finally:
        with anyio.CancelScope(shield=True):
            await opened.aclose()


async def _described(journal: SqliteJournal, directory: Path, config: Config) -> Offline:
    names = ("embedder", "longterm", "shards", "reembed", "leftover")
    settings = {name: await journal.setting(name) or "" for name in names}
    name = settings["longterm"] or "longterm"
    place: Place | None = None
    if settings["embedder"]:  # else no runtime ever used long-term memory here
        place = place_of(_base(directory, config), name)
        if isinstance(place, Path) and not await anyio.to_thread.run_sync(place.is_dir):
            place = None
    return Offline(
        journal,
        name,
        place,
        settings["embedder"],
        int(settings["shards"] or config.long_term.shards),
        not settings["reembed"],
        _decode_leftovers(settings["leftover"]) if settings["leftover"] else (),
        config,
    )


def _base(directory: Path, config: Config) -> Place:
    return config.long_term.uri.reveal() or directory


class Lost(msgspec.Struct, frozen=True):
    """Acknowledged commits that are gone.

    Attributes:
        what: which, in words.
        promised: they were to survive the loss of power, at durability ``power``.
    """

    what: str
    promised: bool


def lost_commits(journal: Path) -> Lost | None:
    """What a journal lacks, by its commit mark; None for nothing. Blocks on the file system.

    Raises:
        JournalDamaged: SQLite cannot read it.
    """
    mark = marked(mark_path(journal))
    if mark is None:
        return None
    try:
        with closing(sqlite3.connect(journal)) as database:
            what = missing(mark, database)
    except sqlite3.DatabaseError as e:
        raise JournalDamaged(f"{journal} is damaged, or no SQLite file: {e}; restore a backup") from e
    return Lost(what, mark.durability == "power") if what else None


def require_memory(directory: Path) -> None:
    """Blocks on the file system.

    Raises:
        InvalidInput: there is no memory in this directory.
    """
    if not (directory / JOURNAL).is_file():
        raise InvalidInput(f"there is no memory in {directory}")
