"""``remora jobs``: waiting background jobs, dead letters, and erasures."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from remora.api.base import BaseRuntime
from remora.api.dead_letters import check_droppable, no_dead_letter
from remora.cli import Commands
from remora.cli.memory import connect_owner, directory_of
from remora.cli.render import confirm, named, printable
from remora.cluster.acting import Actions
from remora.cluster.operating import job_line, list_erasures, list_jobs, owner_of
from remora.errors import InvalidInput
from remora.runtime.jobs import Job
from remora.storage.erasure_notes import WaitingErasure

_ERROR_CHARS = 300

_DESCRIPTION = """\
Print the background jobs of the memory directory, one per line: summaries to
be written, messages to be indexed, and dead letters, which failed too often.
A server may have the directory open: the command is read-only. Of a memory in
PostgreSQL (--config), the process that owns it says which dead letters and
erasures there are, and retries and drops them at once.

A dead letter loses no message: its messages load as before, and the history
has them. But its work was not done; the last column says why. Fix the cause,
then retry it; or drop it, and the journal notes that nothing waits for it.

Erasures (forget) that wait for files to be rewritten are listed with a
digest of the user, which --user computes. They are retried until they succeed.
"""
_EPILOG = """\
examples:
  remora jobs --dir memory                  waiting jobs, dead letters, and the reasons
  remora jobs --dir memory --dead --json    only dead letters, for scripts
  remora jobs retry --all --dir memory      after the cause was fixed
  remora jobs drop flush-7-120 --yes --dir memory

exit codes: 0 done, 1 failed and nothing was changed, or an erasure still
waits, 2 wrong usage
"""
_RETRY = (
    "Run dead letters again, as if they had never failed: at once, by the process that has the "
    "directory open, or when a server opens it next. Rows that an earlier attempt wrote to "
    "long-term memory are not doubled. Erasures (an ID that begins with erasure-, or --all) are "
    "tried at once, all together; a server that has the directory open tries them by itself, and "
    "at once where it calls await runtime.retry_erasures()."
)
_DROP = (
    "Drop dead letters permanently. No message is lost: those of a dropped indexing job are never "
    "found by recall, and stay in histories and contexts. A summary and a deletion can only be "
    "retried: messages wait for the one, and without the other, recall would find deleted "
    "messages. A server that has the directory open drops them."
)


def add_jobs_parser(
    commands: Commands, common: argparse.ArgumentParser, inherited: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser.

    Args:
        commands: the parser of commands.
        common: options of all commands.
        inherited: the same without defaults, so that they may stand before or after ``retry`` and
            ``drop``.
    """
    jobs = commands.add_parser(
        "jobs",
        parents=[common],
        help="list background jobs, dead letters and erasures; retry or drop them",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs.add_argument("--dead", action="store_true", help="only dead letters")
    jobs.add_argument("--user", metavar="USER", help="only this user's")
    jobs.add_argument(
        "--json", action="store_true", help="one JSON object per line, with complete error texts"
    )
    actions = jobs.add_subparsers(dest="action", metavar="[retry | drop]")

    retry = actions.add_parser(
        "retry", parents=[inherited], help="run dead letters again", description=_RETRY
    )
    retry.add_argument("ids", nargs="*", metavar="ID", help="as remora jobs prints them")
    retry.add_argument("--all", action="store_true", help="all dead letters")
    retry.set_defaults(
        wrong_usage=lambda given: (
            None if bool(given.ids) != given.all else "name the jobs, or use --all"
        )
    )

    drop = actions.add_parser(
        "drop", parents=[inherited], help="drop dead letters", description=_DROP
    )
    drop.add_argument("ids", nargs="+", metavar="ID", help="as remora jobs prints them")
    drop.add_argument("--yes", action="store_true", help="do not ask")


async def command_jobs(console: Console, arguments: argparse.Namespace) -> int:
    """List, retry or drop; returns the exit code."""
    if arguments.in_database:
        async with connect_owner(arguments) as memory:
            return await _ask_owner(console, memory, arguments)
    directory = directory_of(arguments)
    match arguments.action:
        case "retry":
            return await _retry(console, directory, arguments)
        case "drop":
            await _confirm_drop(console, await list_jobs(directory), arguments)
            actions = Actions(directory, arguments.configured)
            _print_dropped(console, (await actions.drop(arguments.ids)).changed)
        case _:
            erasures = await list_erasures(directory, arguments.user)
            _list(console, arguments, await list_jobs(directory), erasures)
    return 0


async def _ask_owner(console: Console, memory: BaseRuntime, arguments: argparse.Namespace) -> int:
    """As `command_jobs`, of a memory in PostgreSQL. Only its owner knows the jobs that wait."""
    match arguments.action:
        case "retry":
            chosen, erasures = _choose(arguments, memory.erasures())
            count = 0 if chosen == [] else await memory.retry_dead_letters(chosen)
            _print_retried(console, count, erasures, "will run again")
            left = await memory.retry_erasures() if erasures else []
            print_erasures(console, left)
            return 1 if left else 0
        case "drop":
            await _confirm_drop(console, await memory.dead_letters(), arguments)
            _print_dropped(console, await memory.drop_dead_letters(arguments.ids))
        case _:
            erasures = memory.erasures(arguments.user)
            _list(console, arguments, await memory.dead_letters(), erasures)
    return 0


async def _retry(console: Console, directory: Path, arguments: argparse.Namespace) -> int:
    chosen, erasures = _choose(arguments, await list_erasures(directory))
    if chosen is None:
        chosen = [job.id for job in await list_jobs(directory) if job.dead]
    count, when = 0, ""
    if chosen:
        done = await Actions(directory, arguments.configured).retry(chosen)
        count = done.changed
        when = "now" if done.open else f"when a server opens {directory}"
    _print_retried(console, count, erasures, f"will run again {when}")
    return await retry_erasures(console, arguments) if erasures else 0


def _choose(
    arguments: argparse.Namespace, waiting: Sequence[WaitingErasure]
) -> tuple[list[str] | None, list[WaitingErasure]]:
    """The dead letters that are meant, None for all, and the erasures."""
    if arguments.all:
        return None, list(waiting)
    erasures = [one for one in waiting if one.id in arguments.ids]
    ids = {one.id for one in erasures}
    return [id_ for id_ in arguments.ids if id_ not in ids], erasures


def _list(
    console: Console,
    arguments: argparse.Namespace,
    jobs: Sequence[Job],
    erasures: Sequence[WaitingErasure],
) -> None:
    if arguments.user is not None:
        jobs = [job for job in jobs if getattr(job.key, "user", None) == arguments.user]
    if not erasures or arguments.dead or jobs:
        shown = [job for job in jobs if job.dead or not arguments.dead]
        _print(console, shown, as_json=arguments.json)
    if not arguments.dead:
        print_erasures(console, erasures, as_json=arguments.json)


def _print_retried(
    console: Console, count: int, erasures: Sequence[WaitingErasure], what: str
) -> None:
    if count or not erasures:
        done = f"{_count_of_letters(count)} {what}" if count else "there are no dead letters"
        console.print(done, markup=False, highlight=False)


def _print_dropped(console: Console, count: int) -> None:
    done = f"{_count_of_letters(count)} dropped; their messages load as before"
    console.print(done, markup=False, highlight=False)


async def _confirm_drop(
    console: Console, jobs: Sequence[Job], arguments: argparse.Namespace
) -> None:
    dead = {job.id: job for job in jobs if job.dead}
    if missing := sorted(set(arguments.ids) - dead.keys()):
        raise no_dead_letter(missing)
    meant = [dead[id_] for id_ in dict.fromkeys(arguments.ids)]
    for job in meant:
        check_droppable(job)
    if arguments.yes:
        return
    without_terminal = "a dropped job cannot be restored: confirm with --yes; nothing was changed"
    show = partial(_print, console, meant, as_json=False)
    if not await confirm(
        console,
        f"drop {_count_of_letters(len(meant))} permanently?",
        without_terminal=without_terminal,
        show=show,
    ):
        raise InvalidInput("nothing was changed")


def _count_of_letters(count: int) -> str:
    return f"{count} dead letter{'s' if count != 1 else ''}"


def _print(console: Console, jobs: Sequence[Job], *, as_json: bool) -> None:
    if as_json:
        sys.stdout.writelines(msgspec.json.encode(job_line(job)).decode() + "\n" for job in jobs)
        return
    if not jobs:
        console.print("no background jobs wait, and there are no dead letters")
        return
    now = time.time()
    cells = [
        (job.id, _state(job, now), named(" / ".join(filter(None, owner_of(job))))) for job in jobs
    ]
    widths = [max(len(row[place]) for row in cells) for place in range(2)]
    for job, (id_, state, owner) in zip(jobs, cells, strict=True):
        failures = (
            f"  {job.attempts} failure{'s' if job.attempts != 1 else ''}, the last: "
            if job.attempts
            else ""
        )
        error = printable(" ".join(job.error.split()))[:_ERROR_CHARS]
        line = Text.assemble(
            f"{id_:{widths[0]}}  ",
            (f"{state:{widths[1]}}", "red" if job.dead else ""),
            "  ",
            (owner, "cyan"),
            failures,
            error if job.attempts or not error else f"  retried; its last failure: {error}",
        )
        # one line each, on any terminal: for grep
        console.print(line, soft_wrap=True, highlight=False)
    dead = sum(job.dead for job in jobs)
    if dead:
        hint = (
            f"{_count_of_letters(dead)}: fix the cause, then remora jobs retry ID… (or --all), "
            "or remora jobs drop ID…; in a server: runtime.dead_letters(), "
            "retry_dead_letters([…]), drop_dead_letters([…])"
        )
        console.print(hint, style="dim", soft_wrap=True, markup=False, highlight=False)


def _state(job: Job, now: float) -> str:
    if job.dead:
        return f"dead, tried {_duration(now - job.not_before)} ago" if job.not_before else "dead"
    return f"again in {_duration(job.not_before - now)}" if job.not_before > now else "waiting"


def _duration(seconds: float) -> str:
    """Seconds in the largest unit that fits."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# -- the waiting erasures that ``remora jobs`` shows and retries -----------------------------------


class _ErasureLine(msgspec.Struct, frozen=True):
    """The line of ``--json`` for an erasure.

    Attributes:
        state: ``erasing``.
        user_key: digest of the user's id.
        session_key: digest of the session; empty for the whole user.
        since: when it was first tried, if it has failed; ISO 8601.
    """

    id: str
    state: str
    user_key: str
    session_key: str
    attempts: int
    since: str | None
    error: str


def print_erasures(
    console: Console, erasures: Sequence[WaitingErasure], *, as_json: bool = False
) -> None:
    """Print them, one per line."""
    if as_json:
        lines = [
            _ErasureLine(
                one.id, "erasing", one.user_key, one.session_key, one.attempts,
                _time(one.since_us), one.error,
            )
            for one in erasures
        ]  # fmt: skip
        sys.stdout.writelines(msgspec.json.encode(line).decode() + "\n" for line in lines)
        return
    for one in erasures:
        whose = f"user {one.user_key}" + (f" session {one.session_key}" * bool(one.session_key))
        failures = ""
        if one.attempts:
            plural = "s" if one.attempts != 1 else ""
            failures = f"  {one.attempts} failure{plural} since {_time(one.since_us)}, the last: "
        console.print(
            Text.assemble(
                one.id, ("  erasing", "red" if one.attempts else ""), "  ", (whose, "cyan"),
                failures, printable(one.error),
            ),
            soft_wrap=True,
            highlight=False,
        )  # fmt: skip
    if any(one.attempts for one in erasures):
        hint = "erasures are retried by themselves; fix the cause, then remora jobs retry --all"
        console.print(hint, style="dim", soft_wrap=True, markup=False, highlight=False)


def _time(since_us: int) -> str | None:
    if not since_us:
        return None
    return datetime.fromtimestamp(since_us / 1_000_000, UTC).isoformat(timespec="seconds")


async def retry_erasures(console: Console, arguments: argparse.Namespace) -> int:
    """Try all waiting erasures once more; returns the exit code."""
    async with Actions(directory_of(arguments), arguments.configured).open() as memory:
        before = memory.statistics().erasures.finished
        left = await memory.retry_erasures()
        finished = memory.statistics().erasures.finished - before
    plural = "s" if finished != 1 else ""
    console.print(f"{finished} erasure{plural} finished", markup=False, highlight=False)
    print_erasures(console, left)
    return 1 if left else 0
