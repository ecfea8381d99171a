"""``remora forget``."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from rich.console import Console

from remora.cli import Commands
from remora.cli.memory import connect_owner, directory_of
from remora.cli.render import confirm, named, print_json
from remora.cluster.acting import Actions
from remora.messages.text import counted

_DESCRIPTION = """\
Erase everything of a user, or of one of their sessions: messages, summaries,
memories, long-term rows with their older versions, and the id. The files are
rewritten, so nothing can be restored. If it is interrupted, the next process
that opens the directory finishes it. Earlier exports and backups are not
changed. A server that has the directory open erases, and the command waits for
it; in PostgreSQL (--config), the process that owns the memory does.
"""
_NOUNS = {
    "actors": ("actor",),
    "messages": ("message",),
    "summaries": ("summary", "summaries"),
    "state_items": ("state item",),
    "memories": ("memory", "memories"),
    "jobs": ("job",),
    "long-term": ("long-term row",),
}


def add_forget_parser(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "forget",
        parents=[common, printing],
        help="erase a user, or one session, down to the bytes",
        description=_DESCRIPTION,
        epilog="examples:\n  remora forget alice --dir memory\n"
        "  remora forget alice chat-42 --dir memory --yes\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("user", metavar="USER")
    command.add_argument("session", metavar="SESSION", nargs="?", help="only this session")
    command.add_argument("--yes", action="store_true", help="do not ask")


def describe_rows(rows: Mapping[str, int]) -> str:
    """How many rows of each table were erased, in words.

    The process that owns the memory may be of another release, with a table of another name.
    """
    found = (
        counted(count, *_NOUNS.get(name, (f"row of {name}", f"rows of {name}")))
        for name, count in rows.items()
        if count
    )
    return ", ".join(found) or "there was nothing"


async def command_forget(console: Console, arguments: argparse.Namespace) -> int:
    """Forget; returns the exit code."""
    user, session = arguments.user, arguments.session
    what = f"everything of {user}" if session is None else f"the session {session} of {user}"
    if not arguments.yes:
        without_terminal = f"this erases {what} permanently; without a terminal, confirm with --yes"
        if not await confirm(
            console,
            f"This erases {named(what)} permanently. Continue?",
            without_terminal=without_terminal,
        ):
            console.print("nothing was erased")
            return 1
    if arguments.in_database:
        async with connect_owner(arguments) as memory:
            who = memory.user(user)
            with console.status("erasing"):
                receipt = await (who if session is None else who.session(session)).forget()
    else:
        with console.status("erasing"):
            actions = Actions(directory_of(arguments), arguments.configured)
            receipt = await actions.forget(user, session)
    if arguments.json:
        print_json(receipt)
        return 0
    rows = {**receipt.journal, "long-term": receipt.long_term}
    console.print(f"{what} is erased: {describe_rows(rows)}", markup=False, highlight=False)
    if receipt.erased_by is not None:
        console.print(
            f"the files are rewritten by {receipt.erased_by:%Y-%m-%d %H:%M:%S} UTC, with those of "
            "other erasures",
            highlight=False,
        )
    return 0
