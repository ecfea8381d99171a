"""``remora users``, ``sessions``, ``show`` and ``recall``: who and what is in a memory."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from remora.api.base import BaseRuntime
from remora.cli import Commands
from remora.cli.memory import connect_owner, journals_of, open_to_read
from remora.cli.render import Output, named, print_json, print_memories, print_session
from remora.cluster.operating import job_line
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.messages.text import counted
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_page
from remora.storage.listing import merge_users
from remora.storage.sqlite.peek import peek_jobs, peek_sessions, peek_users

_LIMIT = 50
_CUT = 40  # characters of the column of ids, with room for the others in a terminal of 80
_BESIDE = (
    "A server may have the directory open: the command is read-only. A memory in PostgreSQL "
    "(--config) is asked through the process that owns it."
)


class _UserLine(msgspec.Struct, frozen=True):
    """The line of ``--json`` for a user; `last_at` is ISO 8601, None without messages."""

    user: str
    sessions: int
    last_at: datetime | None
    cursor: str


class _SessionLine(msgspec.Struct, frozen=True):
    """The line of ``--json`` for a session; `last_at` is ISO 8601."""

    user: str
    session: str
    messages: int
    last_at: datetime | None
    cursor: str


def add_listing_parsers(
    commands: Commands,
    common: argparse.ArgumentParser,
    printing: argparse.ArgumentParser,
    positive: Callable[[str], int],
) -> None:
    """Describe the commands to the parser.

    Args:
        commands: the parser of commands.
        common: options of all commands.
        printing: options of those that print results.
        positive: reads a number of results.
    """
    page = argparse.ArgumentParser(add_help=False)
    page.add_argument("--prefix", default="", metavar="TEXT", help="only ids that begin with TEXT")
    page.add_argument(
        "--order",
        choices=("newest", "oldest", "name"),
        default="newest",
        help="by last use, the last one first or last, or by id (newest)",
    )
    page.add_argument(
        "-n",
        "--limit",
        type=positive,
        default=_LIMIT,
        metavar="N",
        help=f"how many at most ({_LIMIT})",
    )
    page.add_argument(
        "--after", metavar="CURSOR", help="what follows the page that ended with this cursor"
    )
    commands.add_parser(
        "users",
        parents=[common, printing, page],
        help="list users, with their number of sessions and last use",
        description=f"Print the users of the memory directory, a page of them. {_BESIDE}",
    )
    command = commands.add_parser(
        "sessions",
        parents=[common, printing, page],
        help="list a user's sessions, with their number of messages and last use",
        description=f"Print the sessions of a user, a page of them. {_BESIDE}",
    )
    command.add_argument("user", metavar="USER")


async def command_users(console: Console, arguments: argparse.Namespace) -> int:
    """List users; returns the exit code."""
    page = check_page(arguments.order, arguments.prefix, arguments.limit, arguments.after)
    if arguments.in_database:
        async with connect_owner(arguments) as memory:
            found = await memory.users(**_options(arguments))
    else:
        journals = await run_in_thread(journals_of, arguments)
        found = merge_users(
            [await run_in_thread(peek_users, journal, page) for journal in journals], page
        )
    lines = [_UserLine(one.user, one.sessions, one.last_at, one.cursor) for one in found]
    cells = [(one.user, counted(one.sessions, "session"), _shown(one.last_at)) for one in lines]
    _print(console, arguments, lines, cells, "there is no user here")
    return 0


async def command_sessions(console: Console, arguments: argparse.Namespace) -> int:
    """List a user's sessions; returns the exit code."""
    page = check_page(arguments.order, arguments.prefix, arguments.limit, arguments.after)
    if arguments.in_database:
        async with connect_owner(arguments) as memory:
            found = await memory.user(arguments.user).sessions(**_options(arguments))
    else:
        (journal,) = await run_in_thread(journals_of, arguments, arguments.user)
        found = await run_in_thread(peek_sessions, journal, arguments.user, page)
    if not found and not arguments.prefix and arguments.after is None:
        raise InvalidInput(f"{arguments.user} has no sessions; remora users lists who has")
    lines = [
        _SessionLine(one.key.user, one.key.session, one.messages, one.last_at, one.cursor)
        for one in found
    ]
    cells = [(one.session, counted(one.messages, "message"), _shown(one.last_at)) for one in lines]
    _print(console, arguments, lines, cells, "there is no such session here")
    return 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("order", "prefix", "limit", "after")}


def _shown(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _print(
    console: Console,
    arguments: argparse.Namespace,
    lines: Sequence[_UserLine | _SessionLine],
    cells: Sequence[tuple[str, str, str]],
    none: str,
) -> None:
    if arguments.json:
        sys.stdout.writelines(msgspec.json.encode(one).decode() + "\n" for one in lines)
        return
    if not cells:
        console.print(none)
        return
    most = _CUT if console.is_terminal else None  # --json and pipes have the whole id
    rows = [(_cut(named(name), most), count, at) for name, count, at in cells]
    widths = [max(len(row[place]) for row in rows) for place in range(2)]
    width = min(widths[0], _CUT)
    for name, count, at in rows:
        line = Text.assemble((f"{name:{width}}", "cyan"), f"  {count:>{widths[1]}}  ", at)
        console.print(line, soft_wrap=True, highlight=False)  # one line each: for grep
    if len(cells) == arguments.limit:
        console.print(
            f"there may be more: --after {_quoted(lines[-1].cursor)}",
            style="dim",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )


def _cut(name: str, most: int | None) -> str:
    """A name with its middle left out, if it is longer: its two ends tell most ids apart."""
    if most is None or len(name) <= most:
        return name
    return f"{name[: most - 10]}…{name[-9:]}"


def _quoted(cursor: str) -> str:
    """As bash and zsh take it; a cursor holds an id, which may hold characters that nobody sees."""
    quoted = "'" + cursor.replace("'", "'\\''") + "'"
    if named(cursor) == cursor:
        return quoted
    escaped = cursor.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + "'"


async def show_session(
    console: Console,
    runtime: BaseRuntime,
    waiting: Sequence[Job],
    key: SessionKey,
    *,
    most: int,
    as_json: bool = False,
) -> None:
    """Print a session's summary, its recent messages, and its waiting jobs.

    Args:
        console: prints.
        runtime: open on the memory.
        waiting: background jobs of the user's shard.
        key: the session.
        most: messages to print.
        as_json: print one JSON object instead.

    Raises:
        InvalidInput: there is no such session.
    """
    handle = runtime.session(key.user, key.session)
    view = await handle.inspect()
    if view.last_seq == 0 and view.keyed is None:
        known = [listing.key.session for listing in await runtime.user(key.user).sessions()]
        near = difflib.get_close_matches(key.session, known, n=3, cutoff=0.3) or known[-3:]
        if near:
            hint = f"; {key.user} has: {', '.join(near)}"
        elif (counts := await runtime.counts(key.user)).memories or counts.state_keys:
            hint = f"; {key.user} has no sessions, only what was remembered: remora recall finds it"
        else:
            hint = f"; there is no user {key.user} either"
        raise InvalidInput(f"{key.user} has no session {key.session}{hint}")
    jobs = [job for job in waiting if job.key == key]
    messages = await handle.history()
    if as_json:
        shown = messages[len(messages) - min(most, len(messages)) :]
        state = {
            name: value
            for name, value in msgspec.structs.asdict(view).items()
            if name not in {"entries", "keyed"}  # values of keyed state are not printed
        }
        state["state_keys"] = len(view.keyed.values) if view.keyed is not None else 0
        jobs_shown = [job_line(job) for job in jobs]
        print_json({**key._asdict(), **state, "messages": shown, "jobs": jobs_shown})
    else:
        print_session(console, f"{key.user} / {key.session}", view, messages, jobs, most=most)


async def command_show(console: Console, arguments: argparse.Namespace) -> int:
    """Print a session; returns the exit code."""
    key = SessionKey(arguments.user, arguments.session)
    async with open_to_read(arguments, user=key.user) as runtime:
        if arguments.in_database:
            waiting: Sequence[Job] = await runtime.dead_letters()
        else:
            (journal,) = await run_in_thread(journals_of, arguments, key.user)
            waiting = await run_in_thread(peek_jobs, journal)
        await show_session(
            console, runtime, waiting, key, most=arguments.limit, as_json=arguments.json
        )
    return 0


async def command_recall(console: Console, arguments: argparse.Namespace) -> int:
    """Print recalled memories; returns the exit code."""
    async with open_to_read(arguments, long_term=True, user=arguments.user) as runtime:
        user = runtime.user(arguments.user)
        known = await runtime.counts(user.id)
        if not known.sessions and not known.memories:
            raise InvalidInput(f"there is no user {arguments.user} in this memory")
        found = await user.recall(arguments.question, limit=arguments.limit)
        # an owner's figures are of all who asked
        if not arguments.in_database and runtime.statistics().reranking.failures:
            Output(stderr=True).print(
                "remora: the reranker failed, so the memories are in the order that recall found "
                "(-v shows why)",
                markup=False,
                highlight=False,
            )
    if arguments.json:
        for memory in found:
            print_json(memory)
    else:
        print_memories(console, found)
    return 0
