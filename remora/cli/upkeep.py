"""``remora verify``, ``backup``, ``repair`` and ``reshard``."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from rich.console import Console

from remora.cli import Commands
from remora.cli.memory import check_in_directory, directory_of, memory_directory, open_runtime
from remora.cli.render import Output, print_json, printable
from remora.cli.transfer import progress_bar
from remora.cluster.moving import move_to_database, move_to_directory
from remora.cluster.reshard import NothingToDivide, reshard
from remora.cluster.upkeep import backup_memory, repair_memory, verify_memory
from remora.errors import EmbedderChanged, InvalidInput, RemoraError
from remora.maintenance.repair import RepairReport
from remora.maintenance.verify import Verification
from remora.messages.text import counted
from remora.runtime.threads import run_in_thread
from remora.storage.ports import Finding

EXIT_FINDINGS = 1
EXIT_UNREADABLE = 2


def add_upkeep_parsers(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the commands to the parser.

    Args:
        commands: the parser of commands.
        common: options of all commands.
        printing: options of commands that print results.
    """
    command = commands.add_parser(
        "verify",
        parents=[common, printing],
        help="check a directory or a backup, and change nothing",
        description="Check the journal and long-term memory, and compare them: damaged files and "
        "messages; rows that are missing, orphaned, doubled, or another user's. No byte of DIR "
        "changes; the journal is copied to the system's temporary directory (TMPDIR). While a "
        "server owns DIR, only what two looks find is reported, since unfinished work looks like "
        "damage for a moment.",
        epilog="exit codes: 0 consistent, 1 findings, 2 DIR cannot be read",
    )
    command.add_argument(
        "--deep", action="store_true", help="read every byte of long-term memory, too"
    )

    command = commands.add_parser(
        "backup",
        parents=[common, printing],
        help="copy a directory while a server uses it",
        description="Copy DIR to DEST, which must not exist, or be empty. A server may own DIR. "
        "All messages that were acknowledged before are in the copy. DEST appears when it is "
        "complete and synced. To restore it, open it, or replace DIR with it "
        "(docs/how-to/backup.md).",
    )
    command.add_argument("dest", type=Path, metavar="DEST", help="the new directory")

    _add_repair_parser(commands, common, printing)


def _add_repair_parser(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    command = commands.add_parser(
        "repair",
        parents=[common, printing],
        help="restore long-term memory from the journal",
        description="Make long-term memory agree with the journal: rows that should not be there "
        "are removed, and missing rows are written again from the messages. Damage that cannot be "
        "repaired is named; data is dropped only if an option says so. Make a copy of DIR first. "
        "It may be interrupted, and run again.",
        epilog="exit codes: 0 consistent, 1 findings are left, or it failed",
    )
    command.add_argument(
        "--accept-loss",
        action="store_true",
        help="accept the loss of acknowledged messages whose part of the write-ahead log is gone",
    )
    command.add_argument(
        "--drop-damaged",
        action="store_true",
        help="remove damaged messages, so that their sessions load again without them",
    )
    command.add_argument(
        "--no-fill",
        action="store_true",
        help="let the next start write missing rows; for applications with their own embedder or "
        "redaction hook",
    )


async def command_verify(console: Console, arguments: argparse.Namespace) -> int:
    """Verify; returns the exit code."""
    directory = directory_of(arguments)
    try:
        await run_in_thread(check_in_directory, arguments)
        with progress_bar("comparing") as (_, advance):
            found = await verify_memory(
                directory, arguments.configured, deep=arguments.deep, progress=advance
            )
    except RemoraError as e:
        if arguments.json:
            print_json({"directory": str(directory), "error": str(e)})
        else:
            Output(stderr=True).print(f"remora: {e}", style="red", markup=False, highlight=False)
        return EXIT_UNREADABLE
    if arguments.json:
        of_directory = {"directory": str(directory), "clean": found.clean}
        print_json({**of_directory, **msgspec.to_builtins(found)})
    else:
        _print_verification(console, directory, found)
    return 0 if found.clean else EXIT_FINDINGS


async def command_backup(console: Console, arguments: argparse.Namespace) -> int:
    """Back up; returns the exit code."""
    await run_in_thread(check_in_directory, arguments)
    with progress_bar("comparing") as (_, advance):
        report = await backup_memory(
            directory_of(arguments), arguments.dest, arguments.configured, progress=advance
        )
    if arguments.json:
        print_json(report)
        return EXIT_FINDINGS if report.findings else 0
    counts = report.counts
    _print_line(
        console,
        f"{counted(counts.sessions, 'session')} with {counted(counts.messages, 'message')}, "
        f"{counts.memories:,} {'memory' if counts.memories == 1 else 'memories'} and "
        f"{counted(report.rows, 'row')} of long-term memory in {arguments.dest}: "
        f"{report.bytes:,} bytes",
    )
    if not report.long_term:
        _print_line(
            console,
            "long-term memory is not in it; it is rebuilt from the journal when the copy is opened",
        )
    elif report.refilled:
        _print_line(
            console,
            f"{report.refilled:,} long-term rows are written when the copy is first opened",
        )
    _print_findings(console, report.findings)
    return EXIT_FINDINGS if report.findings else 0


async def command_repair(console: Console, arguments: argparse.Namespace) -> int:
    """Repair; returns the exit code."""
    await run_in_thread(check_in_directory, arguments)
    with progress_bar("comparing") as (_, advance):
        done = await repair_memory(
            directory_of(arguments),
            arguments.configured,
            accept_loss=arguments.accept_loss,
            drop_damaged=arguments.drop_damaged,
            progress=advance,
        )
    if not arguments.json:
        _print_repair(console, done)
    filled = "missing rows are written at the next start" if done.waiting else ""
    if done.waiting and not arguments.no_fill:
        try:
            await _run_background_work(arguments)
        except EmbedderChanged:
            filled = (
                "missing rows are written at the application's next start: its embedder is not "
                "the one configured here"
            )
        else:
            filled = "missing rows are written"
    if arguments.json:
        print_json({**msgspec.to_builtins(done), "missing_rows": filled})
    elif filled:
        _print_line(console, filled)
    return EXIT_FINDINGS if done.left else 0


async def _run_background_work(arguments: argparse.Namespace) -> None:
    """Run the waiting jobs, as the next start would."""
    async with open_runtime(arguments) as runtime:
        with progress_bar("writing") as (_, advance):
            await runtime.reembedded(advance)
            await runtime.settle()


def _print_verification(console: Console, directory: Path, found: Verification) -> None:
    _print_findings(console, found.findings)
    for note in found.notes:
        _print_line(console, note, style="dim")
    counts = found.counts
    held = (
        ""
        if counts is None
        else f"{counted(counts.sessions, 'session')}, {counted(counts.messages, 'message')}, "
        f"{counted(found.rows, 'row')} of long-term memory: "
    )
    verdict = "consistent" if found.clean else counted(len(found.findings), "finding")
    if not found.clean and any(one.repairable for one in found.findings):
        verdict += "; run remora repair to repair what can be repaired"
    _print_line(console, f"{directory}: {held}{verdict}")


def _print_repair(console: Console, done: RepairReport) -> None:
    for line in done.done:
        _print_line(console, line)
    if not done.done:
        _print_line(console, "there was nothing to repair")
    if done.left:
        _print_line(console, "remaining findings:")
        _print_findings(console, done.left)


def _print_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    for one in findings:
        lost = "" if one.repairable else " (cannot be repaired: restore a backup)"
        _print_line(console, f"{one.kind}: {one.where}: {one.detail}{lost}", style="red")


def _print_line(console: Console, text: str, style: str = "") -> None:
    console.print(
        printable(text), style=style or None, markup=False, highlight=False, soft_wrap=True
    )


# -- `remora reshard` ------------------------------------------------------------------------------

_RESHARD = """\
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
        description=_RESHARD,
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
