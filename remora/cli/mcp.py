"""``remora mcp``."""

from __future__ import annotations

import argparse
import logging
import sys

import anyio
from anyio.abc import TaskGroup
from rich.console import Console

from remora.cli import Commands
from remora.cli.opening import port_number
from remora.cli.workers import TARGET
from remora.errors import InvalidInput, RemoraError

_DESCRIPTION = """\
Serve a user's memory to clients of the Model Context Protocol: desktop
assistants, editors, agents. They search, add, edit, delete and list memories,
and read the user's conversations.

Over standard input and output, as clients start it; or, with --http, at
http://127.0.0.1:PORT/mcp, for any number of clients on this machine. Several of
these commands, and your application, can share one memory: each connects to the
process that owns it, and starts one if there is none.
"""
_EPILOG = """\
examples:
  remora mcp memory --user alice
  remora mcp myapp.memory:runtime --user alice --http 8765

exit codes: 0 ended by its client, Ctrl-C or SIGTERM, 1 the memory cannot be
opened, 2 wrong usage
"""


def add_mcp_parser(commands: Commands) -> None:
    """Describe the command to the parser."""
    command = commands.add_parser(
        "mcp",
        help="serve a user's memory to clients of the Model Context Protocol",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("target", metavar="TARGET", help=TARGET)
    command.add_argument(
        "--user", default="default", metavar="ID", help="whose memory it is (default)"
    )
    command.add_argument(
        "--http", type=port_number, metavar="PORT", help="serve HTTP on this port of this machine"
    )
    command.add_argument(
        "--read-only", action="store_true", help="offer nothing that adds, edits or deletes"
    )
    command.add_argument(
        "--delete-said",
        action="store_true",
        help="offer a tool that deletes messages of conversations",
    )
    command.set_defaults(verbose=False)


def command_mcp(console: Console, arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    del console  # standard output is the protocol's
    try:
        from remora.adapters.mcp import make_server  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise InvalidInput(str(e)) from e
    from remora.cluster.connect import connect  # noqa: PLC0415  # it needs Linux

    sys.path.insert(0, "")  # as python -m has it: the application's modules
    logging.getLogger("remora").setLevel(logging.WARNING)

    async def serve() -> None:
        runtime = connect(arguments.target)
        opened = anyio.Event()
        server = make_server(
            runtime.user(arguments.user),
            read_only=arguments.read_only,
            delete_said=arguments.delete_said,
            ready=opened.wait,
        )
        if arguments.http is not None:
            async with runtime:
                opened.set()
                await server.run_streamable_http_async(port=arguments.http)
            return
        failed: list[RemoraError] = []

        async def answer(tasks: TaskGroup) -> None:
            # clients give up on a server that takes seconds to answer for the first time
            await server.run_stdio_async()
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, tasks)
            try:
                async with runtime:
                    opened.set()
                    await anyio.sleep_forever()
            except RemoraError as e:
                failed.append(e)
                tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]

    anyio.run(serve)
    return 0
