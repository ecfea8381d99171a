"""``remora http`` and ``remora keys``: a memory over HTTP, and the keys of those who may ask."""

from __future__ import annotations

import argparse
import errno
import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from rich.console import Console

from remora.cli import Commands
from remora.cli.opening import port_number
from remora.cli.workers import TARGET
from remora.errors import InvalidInput
from remora.rest.keys import KeyFile, add_key, read_keys, remove_key
from remora.rest.limits import RateLimit
from remora.runtime.clock import SystemClock
from remora.system.sockets import is_loopback, listen_tcp

_DAY_S = 86_400.0

_DESCRIPTION = """\
Serve a memory over HTTP, for programs in any language: sessions, contexts,
turns, memories, erasure. GET /openapi.json describes it. Each request has an
API key (remora keys), and a key sees only the users of its tenant.

It connects to the process that owns the memory, and starts one if there is
none: your application, remora http and remora mcp can share one memory.
"""
_EPILOG = """\
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
        description=_DESCRIPTION,
        epilog=_EPILOG,
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
