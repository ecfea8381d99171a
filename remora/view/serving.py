"""Serves the page until it is told to stop."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from remora.cluster.reading import MemoryReader
from remora.config import Config
from remora.errors import InvalidInput
from remora.system.files import HAS_MODES
from remora.system.processes import lower_priority
from remora.system.sockets import is_loopback, listen_tcp
from remora.view.app import ViewOptions, build_app

try:
    import uvicorn
except ImportError as e:  # pragma: no cover  # tests have it
    raise ImportError("remora view needs starlette and uvicorn: pip install 'remora[serve]'") from e

_LEAST_TOKEN = 32
_URL_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_CONNECTIONS = 256
_LEAVE_S = 2
_NICE = 10


def choose_token(host: str, file: Path | None) -> str:
    """The token of the page's address: a new one, or what a file holds.

    Raises:
        InvalidInput: the file cannot be used, or is missing though others can reach `host`.
    """
    if file is None:
        if not is_loopback(host):
            raise InvalidInput(
                f"--host {host} can be reached from other machines: name a file with a token of "
                f"{_LEAST_TOKEN} or more characters with --token-file, and put TLS in front of it"
            )
        return secrets.token_urlsafe(32)
    try:
        token = file.read_text(encoding="utf-8").strip()
        mode = file.stat().st_mode
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidInput(f"--token-file {file} cannot be read: {e}") from e
    if HAS_MODES and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput(f"--token-file {file} can be read by other accounts: chmod 600 {file}")
    if len(token) < _LEAST_TOKEN or not _URL_SAFE.issuperset(token):
        raise InvalidInput(
            f"--token-file {file} must hold {_LEAST_TOKEN} or more letters, digits, - . _ ~"
        )
    return token


def serve_view(
    directory: Path,
    config: Config,
    *,
    host: str,
    port: int,
    token: str,
    names: frozenset[str],
    allow_changes: bool,
    started: Callable[[str], None],
) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        directory: of the memory.
        config: what answers depend on.
        host: an address or name of this machine.
        port: 0 for any that is free.
        token: what the page's address has.
        names: other host names under which the page is reached.
        allow_changes: whether the page may retry, drop, delete and forget.
        started: called with the page's address.

    Raises:
        InvalidInput: the address cannot be bound.
    """
    try:
        listener = listen_tcp(host, port)
    except OSError as e:
        raise InvalidInput(
            f"{host}:{port} cannot be served: {e.strerror or e}; --port 0 takes a free port"
        ) from e
    with listener:
        bound = listener.getsockname()[1]
        options = ViewOptions(
            token,
            bound,
            names | {host.lower()},
            any_address=not is_loopback(host),
            allow_changes=allow_changes,
        )
        app = build_app(MemoryReader(directory, config), options)
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_LEAVE_S,
            lifespan="on",
        )
        server = uvicorn.Server(settings)
        shown = f"[{host}]" if ":" in host else host
        _give_way()
        started(f"http://{shown}:{bound}/?token={token}")
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again when it has stopped
            return


def _give_way() -> None:
    """Let the server that owns the memory go first, where both want the processor."""
    with suppress(OSError):
        lower_priority(_NICE)
