"""Reading a memory that another process may own: one moment of it, and no write.

The owner never waits for a reader: SQLite's readers block no writer, and LanceDB's files do not
change once they exist. But a read transaction keeps the write-ahead log from being started again,
so it must be short. What takes long, an export for instance, reads a copy of the journal.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora.api.base import BaseRuntime
from remora.api.options import SharedModels
from remora.api.runtime import Runtime
from remora.api.shards import change_options, options_of
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import find_shards, shard_of
from remora.config import Config
from remora.errors import EmbedderChanged, InvalidInput, LongTermError, ModelError
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import FIRST_DIRECTORY
from remora.storage.lance.copy import link_tables
from remora.storage.layout import check_unmoved, explain_missing
from remora.storage.sqlite.read_only import ReadOnlyJournal

_JOURNAL = "journal.db"
_LONGEST_PAUSE_S = 1.0
_SEARCH_S = 30.0  # with three busy processes, a page's took 4 s


def find_journals(directory: Path, user: str | None = None) -> list[Path]:
    """The journals of a memory's shards, by number; only that of a user's shard, if one is named.

    Blocks on the file system. A server may own the directory.

    Raises:
        InvalidInput: there is no memory.
        DirectoryUnusable: ``shards.json`` cannot be used, or the memory is in PostgreSQL.
    """
    shards = find_shards(directory)
    if not any((shard / _JOURNAL).is_file() for shard in shards):
        if (directory / "journal.mark").exists():
            raise InvalidInput(
                f"journal.db of {directory} is missing: restore the whole directory from a backup; "
                f"remora verify --dir {directory} says more"
            )
        check_unmoved(directory)
        raise InvalidInput(
            f"{explain_missing(directory)}; name another directory with --dir, or fill one with "
            "remora replay"
        )
    if user is not None:
        shards = [shards[shard_of(user, len(shards))]]
    return [shard / _JOURNAL for shard in shards]


def without_long_term(config: Config) -> Config:
    """The configuration of a runtime that has the journal alone."""
    return msgspec.structs.replace(
        config,
        long_term=msgspec.structs.replace(config.long_term, enabled=False),
        models=msgspec.structs.replace(config.models, embedder="none", reranker="none"),
    )


class MemoryReader:
    """Opens a memory to read it, as it is at that moment, as often as it is asked.

    No file of the directory changes. Readers of the journal alone come one after the other, with
    pauses as long as they took: the owner can empty its write-ahead log between two of them.

    A person waits for the answer, and this process may have a low priority. So a search has half a
    minute, not the deadlines of a server's calls, and begins when models and tables are loaded.

    Args:
        directory: of the memory.
        config: what answers depend on: counter, embedder, weights of recall.
    """

    def __init__(self, directory: Path, config: Config) -> None:
        self.directory = directory
        self.config = _with_patience(config)
        self._turn = anyio.Lock()
        self._pause_until = 0.0
        self._models: dict[bool, SharedModels] = {False: SharedModels(), True: SharedModels()}

    @asynccontextmanager
    async def keep_models(self, *, long_term: bool = False) -> AsyncIterator[None]:
        """Load models once, for all memories that are opened within it.

        Args:
            long_term: those of long-term memory as well.

        Raises:
            ConfigError: one of them cannot be used.
        """
        closers: list[Callable[[], Any]] = []
        try:
            for kind in (False, True) if long_term else (False,):
                config = self.config if kind else without_long_term(self.config)
                options = options_of(Runtime.in_memory(config=config))
                await self._models[kind].build(options, closers)
            yield
        finally:
            with anyio.CancelScope(shield=True):
                for close in closers:
                    await close()

    @asynccontextmanager
    async def open(
        self, *, user: str | None = None, long_term: bool = False, copied: bool = False
    ) -> AsyncIterator[BaseRuntime]:
        """The memory as it is now. Close it soon, or have it copied.

        Args:
            user: only this one's shard is needed.
            long_term: long-term memory and models are needed.
            copied: read a copy of the journal, where a process has it open: for what takes long.
                The copy has no name, so nothing is left of it when this process ends.

        Raises:
            InvalidInput: there is no memory.
            JournalTooNew, JournalDamaged, DirectoryUnusable: it cannot be read.
        """
        journals = await run_in_thread(find_journals, self.directory, user)
        async with AsyncExitStack() as opened:
            if not (long_term or copied):
                await opened.enter_async_context(self._in_turn())
            readers = []
            for journal in journals:
                take = ReadOnlyJournal.open_copy if copied else ReadOnlyJournal.open
                read = self._read_tables if long_term else self._read_journal
                reader = read(journal.parent, partial(take, journal))
                readers.append(await opened.enter_async_context(reader))
                await _end_moment(readers[-1])  # of what opening asked for
                if long_term:  # in no moment: importing LanceDB may take a minute
                    with suppress(LongTermError, ModelError):  # a search says what is wrong
                        await readers[-1].ready()
                    await _end_moment(readers[-1])
            try:
                yield readers[0] if len(readers) == 1 else ShardedRuntime(readers)
            finally:
                with anyio.CancelScope(shield=True):  # closing the runtimes takes longer
                    for one in readers:
                        await _end_moment(one)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        async with self._turn:
            await anyio.sleep_until(self._pause_until)
            begun = anyio.current_time()
            try:
                yield
            finally:
                now = anyio.current_time()
                self._pause_until = now + min(now - begun, _LONGEST_PAUSE_S)

    def _read_journal(self, _: Path, journal: object) -> Runtime:
        """A reader of a shard's journal alone."""
        runtime = Runtime.in_memory(config=without_long_term(self.config), journal=journal)
        return change_options(runtime, models=self._models[False])

    @asynccontextmanager
    async def _read_tables(self, directory: Path, journal: Any) -> AsyncIterator[Runtime]:
        """A reader of a shard."""
        async with _linked_tables(directory) as mirror, AsyncExitStack() as opened:
            runtime = Runtime(mirror, config=self.config, journal=journal)
            reader = change_options(runtime, models=self._models[True])
            try:
                await opened.enter_async_context(reader)
            except EmbedderChanged as e:  # it names the links
                raise EmbedderChanged(str(e).replace(str(mirror), str(directory))) from e
            yield reader


def _with_patience(config: Config) -> Config:
    replace = msgspec.structs.replace
    recall, synopsis = config.recall, config.synopsis
    return replace(
        config,
        recall=replace(
            recall,
            deadline_s=max(recall.deadline_s, _SEARCH_S),
            rerank_deadline_s=max(recall.rerank_deadline_s, _SEARCH_S),
        ),
        synopsis=replace(synopsis, deadline_s=max(synopsis.deadline_s, _SEARCH_S)),
    )


async def _end_moment(runtime: Runtime) -> None:
    journal = runtime.internals.journal
    assert isinstance(journal, ReadOnlyJournal)
    await journal.end_moment()


@asynccontextmanager
async def _linked_tables(directory: Path) -> AsyncIterator[Path]:
    """A temporary directory with links to the tables of long-term memory."""

    def link(mirror: Path) -> None:
        for one in directory.iterdir():
            if one.is_dir():
                link_tables(one, mirror / one.name)
        if not any(mirror.iterdir()):  # nothing is indexed yet: there is nothing to rebuild
            (mirror / FIRST_DIRECTORY).mkdir()

    mirror = Path(await run_in_thread(partial(tempfile.mkdtemp, prefix="remora-read-")))
    try:
        await run_in_thread(link, mirror)
        yield mirror
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(partial(shutil.rmtree, mirror, ignore_errors=True))
