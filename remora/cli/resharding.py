"""``remora reshard``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from remora.cli import Commands
from remora.cli.opening import check_in_directory, directory_of, memory_directory
from remora.cli.render import counted, print_json
from remora.cli.transfer import progress_bar
from remora.cluster.moving import move_to_database, move_to_directory
from remora.cluster.reshard import NothingToDivide, reshard
from remora.errors import InvalidInput
from remora.runtime.threads import run_in_thread

_DESCRIPTION = """\
Divide the memory in DIR into N shards, each with a journal and long-term
memory of its own, which one process owns together; or bring it into one piece
again, with --shards 1. No process may use DIR. Nothing
is lost: ids, idempotency keys, memories, jobs, dead letters. Every row is
compared with its copy, and the old data is removed only when the new is
complete and on disk: DIR needs room for both. If it is interrupted, the same
command continues; a server that opens DIR instead finds the memory as it was.

--to postgresql moves the journal into the database of journal.dsn, and long-
term memory from DIR to the object store of long_term.uri, if there is one.
With --shards, or else cluster.shards, DIR is divided first, and each shard
moves into a schema of its own, for `remora serve` on several machines.
--to directory moves the journal of a memory in one piece back, into as many
shards as --shards says.
"""


def add_reshard_parser(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "reshard",
        parents=[common, printing],
        help="divide a memory into shards, or bring it into one piece",
        description=_DESCRIPTION,
        epilog="examples:\n  remora reshard memory --shards 8\n"
        "  remora reshard memory --shards 1\n"
        "  remora reshard memory --to postgresql --config remora.yaml\n"
        "  remora reshard memory --to postgresql --shards 8 --config machines.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "memory",
        type=memory_directory,
        metavar="DIR",
        nargs="?",
        help="the memory directory, as --dir",
    )
    command.add_argument("--shards", type=int, metavar="N", help="how many, from 1 to 256")
    command.add_argument(
        "--to",
        choices=["postgresql", "directory"],
        help="move the journal into the database of journal.dsn, or from there into DIR",
    )


async def command_reshard(console: Console, arguments: argparse.Namespace) -> int:
    """Divide a memory; returns the exit code."""
    arguments.dir = arguments.memory or arguments.dir
    directory = directory_of(arguments)
    if arguments.to is not None:
        return await _move(console, directory, arguments)
    if arguments.shards is None:
        raise InvalidInput(
            "name the number of shards (--shards), or where to move the journal (--to)"
        )
    await run_in_thread(check_in_directory, arguments)
    try:
        with progress_bar("copying") as (_, advance):
            report = await reshard(
                directory, arguments.shards, arguments.configured, progress=advance
            )
    except NothingToDivide as e:
        if arguments.json:
            print_json({"before": arguments.shards, "shards": arguments.shards})
        else:
            _print_line(console, f"{e}: there is nothing to do")
        return 0
    if arguments.json:
        print_json(report)
        return 0
    counts = report.counts
    _print_line(
        console,
        f"{directory} has {counted(report.shards, 'shard')} now, and had "
        f"{report.before}: {counted(counts.users, 'user')}, "
        f"{counted(counts.messages, 'message')}, {counted(report.rows, 'row')} of long-term memory",
    )
    return 0


async def _move(console: Console, directory: Path, arguments: argparse.Namespace) -> int:
    config, shards = arguments.configured, arguments.shards
    try:
        with progress_bar("moving") as (_, advance):
            if arguments.to == "postgresql":
                report = await move_to_database(directory, config, shards=shards, progress=advance)
            else:
                report = await move_to_directory(
                    directory, config, shards=shards or 1, progress=advance
                )
    except NothingToDivide as e:
        if arguments.json:
            print_json({"to": arguments.to})
        else:
            _print_line(console, f"{e}: there is nothing to do")
        return 0
    if arguments.json:
        print_json(report)
        return 0
    counts = report.counts
    place = "PostgreSQL" if report.to == "postgresql" else str(directory)
    _print_line(
        console,
        f"the journal is in {place} now: {counted(counts.users, 'user')}, "
        f"{counted(counts.messages, 'message')}; {counted(report.rows, 'row')} of long-term memory "
        "moved",
    )
    return 0


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
