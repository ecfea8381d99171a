"""``remora reshard``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from remora.cli.opening import directory_of
from remora.cli.render import counted, print_json
from remora.cli.transfer import progress_bar
from remora.cluster.reshard import NothingToDivide, reshard

__all__ = ["add_reshard_parser", "command_reshard"]

_DESCRIPTION = """\
Divide the memory in DIR into N shards, each with a journal and long-term
memory of its own, which one process owns together; or bring it into one piece
again, with --shards 1. No process may use DIR. Nothing
is lost: ids, idempotency keys, memories, jobs, dead letters. Every row is
compared with its copy, and the old data is removed only when the new is
complete and on disk: DIR needs room for both. If it is interrupted, the same
command continues; a server that opens DIR instead finds the memory as it was.
"""


def add_reshard_parser(
    commands: Any, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "reshard",
        parents=[common, printing],
        help="divide a memory into shards, or bring it into one piece",
        description=_DESCRIPTION,
        epilog="examples:\n  remora reshard memory --shards 8\n"
        "  remora reshard memory --shards 1\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "memory", type=Path, metavar="DIR", nargs="?", help="the memory directory, as --dir"
    )
    command.add_argument(
        "--shards", type=int, required=True, metavar="N", help="how many, from 1 to 256"
    )


async def command_reshard(console: Console, arguments: argparse.Namespace) -> int:
    """Divide a memory; returns the exit code."""
    directory = arguments.memory or directory_of(arguments)
    try:
        with progress_bar("copying") as (_, advance):
            report = await reshard(
                directory, arguments.shards, arguments.configured, progress=advance
            )
    except NothingToDivide as e:
        if arguments.json:
            print_json({"before": arguments.shards, "shards": arguments.shards})
        else:
            text = f"{e}: there is nothing to do"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        return 0
    if arguments.json:
        print_json(report)
        return 0
    counts = report.counts
    console.print(
        f"{directory} has {counted(report.shards, 'shard')} now, and had "
        f"{report.before}: {counted(counts.users, 'user')}, "
        f"{counted(counts.messages, 'message')}, {counted(report.rows, 'row')} of long-term memory",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 0
