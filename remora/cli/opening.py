"""How commands open a memory directory: as its owner, or to read while a server owns it."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from remora.api.runtime import Runtime
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import find_shards, shard_of
from remora.config import Config
from remora.errors import EmbedderChanged, InvalidInput
from remora.services.index_directory import FIRST_DIRECTORY
from remora.storage.lance.copy import link_tables
from remora.storage.sqlite.peek import peek_format
from remora.storage.sqlite.read_only import ReadOnlyJournal
from remora.storage.sqlite.schema import FORMAT

__all__ = [
    "Memory",
    "directory_of",
    "journals_of",
    "open_runtime",
    "open_to_read",
    "require_memory",
    "runtime_of",
    "runtimes_of",
]

Memory: TypeAlias = Runtime | ShardedRuntime
"""A memory in one piece, or in shards."""

_JOURNAL = "journal.db"
_RERANK_S = 30.0


def directory_of(arguments: argparse.Namespace) -> Path:
    """The memory directory of a command: ``--dir``, or the configuration's."""
    return Path(arguments.dir or arguments.configured.directory)


def require_memory(arguments: argparse.Namespace) -> None:
    """Check that there is a memory.

    Raises:
        InvalidInput: there is none.
        DirectoryUnusable: ``shards.json`` cannot be used.
    """
    directory = directory_of(arguments)
    if any((shard / _JOURNAL).is_file() for shard in find_shards(directory)):
        return
    if (directory / "journal.mark").exists():
        raise InvalidInput(
            f"journal.db of {directory} is missing: restore the whole directory from a backup; "
            f"remora verify --dir {directory} says more"
        )
    raise InvalidInput(
        f"there is no memory in {directory}: name another directory with --dir, or fill "
        "one with remora replay"
    )


def journals_of(arguments: argparse.Namespace, user: str | None = None) -> list[Path]:
    """The journals of a memory's shards, by number; only that of a user's shard, if one is named.

    Blocks on the file system.
    """
    shards = find_shards(directory_of(arguments))
    if user is not None:
        shards = [shards[shard_of(user, len(shards))]]
    return [shard / _JOURNAL for shard in shards]


def runtimes_of(memory: Memory) -> list[Runtime]:
    """The runtimes of a memory that is open in this process, by shard."""
    if isinstance(memory, Runtime):
        return [memory]
    return [shard for shard in memory.shards if isinstance(shard, Runtime)]


def runtime_of(memory: Memory, user: str) -> Runtime:
    """The runtime that has a user."""
    runtimes = runtimes_of(memory)
    return runtimes[shard_of(user, len(runtimes))]


@asynccontextmanager
async def open_runtime(
    arguments: argparse.Namespace, *, journal_only: bool = False, **options: Any
) -> AsyncIterator[Memory]:
    """The memory for a command; with `journal_only`, without long-term memory and models.

    It does not wait for a server that owns the directory, but says at once that there is one.
    """
    config = msgspec.structs.replace(arguments.configured, lock_wait_s=0.0)
    if journal_only:
        config = _without_long_term(config)
    directory = directory_of(arguments)
    runtime = Runtime(directory, config=config, **options)

    def choose() -> Memory:
        return runtime if find_shards(directory) == [directory] else ShardedRuntime.of(runtime)

    async with await anyio.to_thread.run_sync(choose) as memory:
        yield memory


@asynccontextmanager
async def open_to_read(
    arguments: argparse.Namespace, *, long_term: bool = False, user: str | None = None
) -> AsyncIterator[Memory]:
    """A memory that reads a directory as it is now, and writes nothing there.

    A server may own the directory. A journal of an earlier remora is brought up to date first,
    which its owner alone can do.

    Args:
        arguments: of the command.
        long_term: long-term memory and models are needed.
        user: only this one's shard is needed.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: the journal cannot be read.
    """
    journals = await anyio.to_thread.run_sync(journals_of, arguments, user)
    formats = [await anyio.to_thread.run_sync(peek_format, journal) for journal in journals]
    async with AsyncExitStack() as opened:
        if min(formats) < FORMAT:
            owner = open_runtime(arguments, journal_only=not long_term)
            yield await opened.enter_async_context(owner)
            return
        config = arguments.configured
        read = partial(_read_tables, config) if long_term else partial(_read_journal, config)
        readers = [await opened.enter_async_context(read(journal)) for journal in journals]
        yield readers[0] if len(readers) == 1 else ShardedRuntime(readers)


def _read_journal(config: Config, journal: Path) -> Runtime:
    """A reader of a shard's journal alone."""
    reading = partial(ReadOnlyJournal.open, journal)
    return Runtime.in_memory(config=_without_long_term(config), journal=reading)


@asynccontextmanager
async def _read_tables(config: Config, journal: Path) -> AsyncIterator[Runtime]:
    """A reader of a shard."""
    directory = journal.parent
    # a person waits for a reranker that is just being loaded
    recall = msgspec.structs.replace(config.recall, rerank_deadline_s=_RERANK_S)
    config = msgspec.structs.replace(config, recall=recall)
    async with _linked_tables(directory) as mirror, AsyncExitStack() as opened:
        reader = Runtime(mirror, config=config, journal=partial(ReadOnlyJournal.open, journal))
        try:
            await opened.enter_async_context(reader)
        except EmbedderChanged as e:  # it names the links
            raise EmbedderChanged(str(e).replace(str(mirror), str(directory))) from e
        yield reader


def _without_long_term(config: Config) -> Config:
    return msgspec.structs.replace(
        config,
        long_term=msgspec.structs.replace(config.long_term, enabled=False),
        models=msgspec.structs.replace(config.models, embedder="none"),
    )


@asynccontextmanager
async def _linked_tables(directory: Path) -> AsyncIterator[Path]:
    """A temporary directory with links to the tables of long-term memory."""

    def link(mirror: Path) -> None:
        for one in directory.iterdir():
            if one.is_dir():
                link_tables(one, mirror / one.name)
        if not any(mirror.iterdir()):  # nothing is indexed yet: there is nothing to rebuild
            (mirror / FIRST_DIRECTORY).mkdir()

    mirror = Path(await anyio.to_thread.run_sync(partial(tempfile.mkdtemp, prefix="remora-read-")))
    try:
        await anyio.to_thread.run_sync(link, mirror)
        yield mirror
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(partial(shutil.rmtree, mirror, ignore_errors=True))
