"""``remora users`` and ``remora sessions``: who and what is in a memory directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from remora.cli import Commands
from remora.cli.opening import connect_owner, journals_of
from remora.cli.render import counted, named
from remora.errors import InvalidInput
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_page
from remora.storage.listing import merge_users
from remora.storage.sqlite.peek import peek_sessions, peek_users

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
