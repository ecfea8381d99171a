"""``remora http``, ``mcp`` and ``view``: commands that serve until they are told to stop."""

from __future__ import annotations

import argparse
import errno
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import TaskGroup
from rich.console import Console

from remora.cli import Commands
from remora.cli.memory import directory_of, journals_of, memory_directory, port_number
from remora.cli.render import print_json
from remora.cli.workers import TARGET
from remora.errors import InvalidInput, RemoraError
from remora.rest.keys import KeyFile, add_key, read_keys, remove_key
from remora.rest.limits import RateLimit
from remora.runtime.clock import SystemClock
from remora.storage.sqlite.peek import check_current
from remora.system.sockets import is_loopback, listen_tcp

_DAY_S = 86_400.0

_HTTP_DESCRIPTION = """\
Serve a memory over HTTP, for programs in any language: sessions, contexts,
turns, memories, erasure. GET /openapi.json describes it. Each request has an
API key (remora keys), and a key sees only the users of its tenant.

It connects to the process that owns the memory, and starts one if there is
none: your application, remora http and remora mcp can share one memory.
"""
_HTTP_EPILOG = """\
examples:
  remora keys keys.txt --add shop           make a key for the tenant "shop"
  remora http memory --keys keys.txt        serve it on http://127.0.0.1:8765

exit codes: 0 ended by Ctrl-C or SIGTERM, 1 the memory cannot be opened or the
address not be bound, 2 wrong usage
"""
_KEYS = """\
List the API keys of remora http, or add or remove one. The file holds only
their digests: a key is printed once, when it is made. A server that runs
notices changes within a second.
"""


def add_http_parsers(commands: Commands) -> None:
    """Describe the commands to the parser."""
    command = commands.add_parser(
        "http",
        help="serve a memory over HTTP, to programs in any language",
        description=_HTTP_DESCRIPTION,
        epilog=_HTTP_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("target", metavar="TARGET", help=TARGET)
    command.add_argument(
        "--keys", type=Path, required=True, metavar="FILE", help="who may ask: see remora keys"
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="address to serve (%(default)s); put TLS in front of it"
    )
    command.add_argument(
        "--port", type=port_number, default=8765, help="0 takes a free one (%(default)s)"
    )
    command.add_argument(
        "--rate",
        type=float,
        default=0.0,
        metavar="N",
        help="requests a second that each tenant may send; 0 for no limit (%(default)g)",
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds that a client has to send a request's head, then its body, and to take what "
        "it is sent (%(default)g)",
    )
    command.set_defaults(verbose=False)
    command = commands.add_parser(
        "keys",
        help="list the API keys of remora http, or add or remove one",
        description=_KEYS,
        epilog="exit codes: 0 done, 1 the file cannot be used, or there is no such key, 2 wrong "
        "usage",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", type=Path, metavar="FILE", help="where the keys' digests are")
    change = command.add_mutually_exclusive_group()
    change.add_argument("--add", metavar="TENANT", help="make a key, and print it")
    change.add_argument("--remove", metavar="NAME", help="the first digits of a key's digest")
    command.set_defaults(verbose=False)


def command_keys(console: Console, arguments: argparse.Namespace) -> int:
    """List, add or remove keys."""
    if arguments.add is not None:
        print(add_key(arguments.file, arguments.add))  # alone, for scripts
        return 0
    if arguments.remove is not None:
        removed = remove_key(arguments.file, arguments.remove)
        console.print(f"removed the key {removed.name} of {removed.tenant}", markup=False)
        return 0
    for key in read_keys(arguments.file):
        console.print(f"{key.name}  {key.tenant}", markup=False, highlight=False)
    return 0


def command_http(console: Console, arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    try:
        from remora.rest.server import make_server  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise InvalidInput("remora http needs uvicorn: pip install 'remora[serve]'") from e
    from remora.cluster.connect import connect  # noqa: PLC0415  # it needs Linux
    from remora.rest.app import RestOptions, build_app  # noqa: PLC0415  # likewise slow

    if not arguments.rate >= 0:
        raise InvalidInput(f"--rate must be 0 or more, not {arguments.rate}")
    if not 0 < arguments.timeout <= _DAY_S:
        raise InvalidInput(f"--timeout must be over 0, and a day at most, not {arguments.timeout}")
    sys.path.insert(0, "")  # as python -m has it: the application's modules
    keys = KeyFile(arguments.keys)
    runtime = connect(arguments.target)
    options = RestOptions(timeout_s=arguments.timeout)
    app = build_app(runtime, keys, RateLimit(arguments.rate, SystemClock()), options)
    host, port = arguments.host, arguments.port
    with _listen(host, port) as listener:
        logging.getLogger("remora").setLevel(logging.WARNING)
        logging.getLogger("remora.rest").setLevel(logging.INFO)  # the end of an outage, too
        server = make_server(app)

        async def serve() -> None:
            async with runtime:
                shown = f"[{host}]" if ":" in host else host
                console.print(
                    f"serving {runtime.path} on http://{shown}:{listener.getsockname()[1]}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
                if not is_loopback(host):
                    console.print("keys travel in clear text: put TLS in front of it")
                await server.serve(sockets=[listener])

        with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
            anyio.run(serve)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen_tcp(host, port)
    except OSError as e:
        hint = "; --port 0 takes a free port" if e.errno == errno.EADDRINUSE else ""
        raise InvalidInput(f"{host}:{port} cannot be served: {e.strerror or e}{hint}") from e


# -- `remora mcp` ----------------------------------------------------------------------------------

_MCP_DESCRIPTION = """\
Serve a user's memory to clients of the Model Context Protocol: desktop
assistants, editors, agents. They search, add, edit, delete and list memories,
and read the user's conversations.

Over standard input and output, as clients start it; or, with --http, at
http://127.0.0.1:PORT/mcp, for any number of clients on this machine. Several of
these commands, and your application, can share one memory: each connects to the
process that owns it, and starts one if there is none.
"""
_MCP_EPILOG = """\
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
        description=_MCP_DESCRIPTION,
        epilog=_MCP_EPILOG,
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


# -- `remora view` ---------------------------------------------------------------------------------

_VIEW_DESCRIPTION = """\
Serve a page that shows what the memory does: users and sessions, what was
summarized and indexed, what a model sees, what recall finds and why, jobs and
dead letters. A server may own the directory: the page reads while it runs, and is
never in its way. Open the address that the command prints; it has a token, and
is valid until the command ends.

Without --allow-changes the page changes nothing. With it, dead letters can be
retried and dropped, messages deleted, and users erased. A server that has the
directory open does it.
"""
_VIEW_EPILOG = """\
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
        description=_VIEW_DESCRIPTION,
        epilog=_VIEW_EPILOG,
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
        from remora.view.app import choose_token, serve_view  # noqa: PLC0415  # an extra
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
