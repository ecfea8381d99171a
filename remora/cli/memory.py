"""How commands open a memory.

A directory they open as its owner, or read while a server owns it. A memory in PostgreSQL they ask
through the process that owns it.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from remora.api.base import BaseRuntime
from remora.api.runtime import Runtime
from remora.cluster.connect import connect
from remora.cluster.operating import open_owned
from remora.cluster.reading import MemoryReader, find_journals
from remora.cluster.sharded import runtimes_of
from remora.cluster.sharding import find_shards, shard_of
from remora.errors import ConfigError, InvalidInput
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_directory

__all__ = [
    "check_in_directory",
    "connect_owner",
    "directory_of",
    "is_in_database",
    "journals_of",
    "memory_directory",
    "open_runtime",
    "open_to_read",
    "port_number",
    "require_memory",
    "runtime_of",
    "runtimes_of",
]


def directory_of(arguments: argparse.Namespace) -> Path:
    """The memory directory of a command: ``--dir``, or the configuration's."""
    if arguments.dir:
        return Path(arguments.dir)
    return check_directory(arguments.configured.directory, "directory")


def memory_directory(text: str) -> Path:
    """Return what a person names as a memory directory, for the parser.

    Raises:
        ArgumentTypeError: it is an address, a file, or no path.
    """
    try:
        path = check_directory(text, "it")
    except InvalidInput as e:
        raise argparse.ArgumentTypeError(str(e)) from e
    if path.is_file():
        raise argparse.ArgumentTypeError(
            f"{path} is a file, not a directory; commands that take a configuration file take it "
            "with --config"
        )
    return path


def port_number(text: str) -> int:
    """Return what a person names as a port to serve, for the parser; 0 is one that is free.

    Raises:
        ArgumentTypeError: there is no such port.
    """
    if not text.isdecimal() or not text.isascii():
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535, not {text!r:.60}")
    if len(text) > 5 or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"there is no port {text:.60}: the highest is 65535")
    return int(text)


def is_in_database(arguments: argparse.Namespace) -> bool:
    """Return whether the memory of a command is in PostgreSQL. Blocks on the file system.

    Raises:
        DirectoryUnusable: ``shards.json`` cannot be used.
    """
    if not arguments.configured.journal.dsn.reveal():
        return False
    shards = find_shards(directory_of(arguments))
    return not any((shard / "journal.db").exists() for shard in shards)


def check_in_directory(arguments: argparse.Namespace) -> None:
    """Check that the journal is in a directory, for commands that read its files.

    Raises:
        ConfigError: it is in a database.
        DirectoryUnusable: ``shards.json`` cannot be used.
    """
    if is_in_database(arguments):
        schema = arguments.configured.journal.schema
        raise ConfigError(
            "journal.dsn: the journal is in PostgreSQL, and this command reads files of a "
            "directory. Of such a memory, remora users, sessions, show, recall, stats, jobs and "
            "forget ask the process that owns it, as remora.connect, `remora http` and `remora "
            "mcp` do; `remora owners` shows who has it open, and `remora top` and `remora health` "
            "ask such a process, given its directory. The administrator of PostgreSQL copies the "
            f"memory with pg_basebackup or pg_dump --schema {schema} --schema '{schema}_[0-9]*' "
            "(its shards), and checks it with pg_amcheck and data checksums",
            key="journal.dsn",
        )


@asynccontextmanager
async def connect_owner(arguments: argparse.Namespace) -> AsyncIterator[BaseRuntime]:
    """A memory in PostgreSQL, through the processes that own it.

    Raises:
        InvalidInput: a directory is named as well.
        ConfigError: what workers need is not configured.
        OwnerUnreachable: no process serves it.
    """
    if arguments.config and arguments.dir:
        raise InvalidInput(
            f"leave out --dir: the memory is in PostgreSQL, and {arguments.config} says where"
        )
    memory = await run_in_thread(connect, arguments.config or directory_of(arguments))
    console = Console(stderr=True)
    async with AsyncExitStack() as opened:
        with console.status("asking the owner") if console.is_terminal else nullcontext():
            await opened.enter_async_context(memory)
        yield memory


def require_memory(arguments: argparse.Namespace) -> None:
    """Check that there is a memory in a directory.

    Raises:
        ConfigError: it is in a database.
        InvalidInput: there is none.
        DirectoryUnusable: ``shards.json`` cannot be used.
    """
    check_in_directory(arguments)
    find_journals(directory_of(arguments))


def journals_of(arguments: argparse.Namespace, user: str | None = None) -> list[Path]:
    """The journals of a memory's shards, by number; only that of a user's shard, if one is named.

    Blocks on the file system.
    """
    return find_journals(directory_of(arguments), user)


def runtime_of(memory: BaseRuntime, user: str) -> Runtime:
    """The runtime that has a user."""
    runtimes = runtimes_of(memory)
    return runtimes[shard_of(user, len(runtimes))]


@asynccontextmanager
async def open_runtime(arguments: argparse.Namespace, **options: Any) -> AsyncIterator[BaseRuntime]:
    """The memory for a command.

    It does not wait for a server that owns the directory, but says at once that there is one.
    """
    directory, config = directory_of(arguments), arguments.configured
    async with open_owned(directory, config, **options) as memory:
        yield memory


@asynccontextmanager
async def open_to_read(
    arguments: argparse.Namespace,
    *,
    long_term: bool = False,
    user: str | None = None,
    copied: bool = False,
) -> AsyncIterator[BaseRuntime]:
    """A memory that reads a directory as it is now, and writes nothing there.

    A server may own the directory. A memory in PostgreSQL is asked through its owner. A journal of
    an earlier remora is refused: bringing it up to date would shut that remora out.

    Args:
        arguments: of the command.
        long_term: long-term memory and models are needed.
        user: only this one's shard is needed.
        copied: reading takes long; see `MemoryReader.open`.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: the journal cannot be read.
        OwnerUnreachable: it is in PostgreSQL, and no process serves it.
    """
    if arguments.in_database:
        async with connect_owner(arguments) as memory:
            yield memory
        return
    reader = MemoryReader(directory_of(arguments), arguments.configured)
    async with reader.open(user=user, long_term=long_term, copied=copied) as memory:
        yield memory
