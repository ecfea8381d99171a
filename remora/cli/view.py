"""``remora view``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from remora.cli import Commands
from remora.cli.opening import directory_of, journals_of, memory_directory, port_number
from remora.cli.render import print_json
from remora.errors import InvalidInput
from remora.storage.sqlite.peek import check_current

_DESCRIPTION = """\
Serve a page that shows what the memory does: users and sessions, what was
summarized and indexed, what a model sees, what recall finds and why, jobs and
dead letters. A server may own the directory: the page reads while it runs, and is
never in its way. Open the address that the command prints; it has a token, and
is valid until the command ends.

Without --allow-changes the page changes nothing. With it, dead letters can be
retried and dropped, messages deleted, and users erased. A server that has the
directory open does it.
"""
_EPILOG = """\
examples:
  remora view memory
  ssh -L 8700:127.0.0.1:8700 server remora view memory --port 8700

exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the memory cannot be read or the
address not be served, 2 wrong usage
"""


def add_view_parser(
    commands: Commands, common: argparse.ArgumentParser, printing: argparse.ArgumentParser
) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "view",
        parents=[common, printing],
        help="serve a page that shows what the memory does, while a server runs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument(
        "place",
        nargs="?",
        type=memory_directory,
        metavar="DIR",
        help="the memory directory, as --dir",
    )
    command.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="the address to serve (127.0.0.1); one that other machines reach needs --token-file",
    )
    command.add_argument(
        "--port",
        type=port_number,
        default=0,
        metavar="N",
        help="the port to serve (0: one that is free)",
    )
    command.add_argument(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a host name under which browsers reach the page, behind a proxy for instance",
    )
    command.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help="a file with the token for the address, which others cannot read, instead of a new "
        "one at each start",
    )
    command.add_argument(
        "--allow-changes",
        action="store_true",
        help="let the page retry and drop dead letters, and erase users and sessions",
    )
    command.set_defaults(
        wrong_usage=lambda given: (
            "name the directory once: DIR or --dir" if given.place and given.dir else None
        )
    )


def command_view(console: Console, arguments: argparse.Namespace) -> int:
    """Serve the page until it is told to stop; returns the exit code."""
    try:
        from remora.view.serving import choose_token, serve_view  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise InvalidInput(str(e)) from e

    for journal in journals_of(arguments):
        check_current(journal)

    def show(address: str) -> None:
        if arguments.json:
            print_json({"address": address})
        else:
            what = f"remora view of {directory_of(arguments)}; Ctrl-C ends it\n\n  {address}\n"
            console.print(what, markup=False, highlight=False, soft_wrap=True)
        sys.stdout.flush()

    serve_view(
        directory_of(arguments),
        arguments.configured,
        host=arguments.host,
        port=arguments.port,
        token=choose_token(arguments.host, arguments.token_file),
        names=frozenset(name.lower() for name in arguments.host_name),
        allow_changes=arguments.allow_changes,
        started=show,
    )
    return 0
