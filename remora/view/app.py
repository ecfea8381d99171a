"""The page and what it asks for, as an ASGI application; and the server of it."""

from __future__ import annotations

import hmac
import secrets
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager, suppress
from importlib import metadata, resources
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import msgspec

from remora.cluster.acting import Actions
from remora.cluster.reading import MemoryReader
from remora.config import Config
from remora.errors import (
    DirectoryLocked,
    InvalidInput,
    OwnerUnreachable,
    RemoraError,
    StorageError,
)
from remora.ids import SessionKey, validate_id
from remora.logging import get_logger
from remora.metrics import CONTENT_TYPE, exposition
from remora.system.files import HAS_MODES
from remora.system.processes import lower_priority
from remora.system.sockets import is_loopback, listen_tcp
from remora.view.answers import Answers, explain_context, explain_recall
from remora.view.disk import DiskMeter
from remora.view.health import HealthSamples, ask_about
from remora.view.watch import TooManyPages, Watch

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route
except ImportError as e:  # pragma: no cover  # tests have it
    raise ImportError("remora view needs starlette and uvicorn: pip install 'remora[serve]'") from e

_logger = get_logger(__name__)
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_AT_ONCE = 8  # requests that read, of all pages together
_WAIT_S = 120.0  # a first recall imports LanceDB, at low priority: 56 s with three busy processes
_MOST_BODY = 1 << 20
Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class ViewOptions(NamedTuple):
    """How the page is served.

    Attributes:
        token: what the page's address has.
        port: of the server; it is in the cookie's name.
        names: other host names of the server.
        any_address: see `Guard`.
        allow_changes: whether the page may retry, drop, delete and forget.
    """

    token: str
    port: int = 0
    names: frozenset[str] = frozenset()
    any_address: bool = False
    allow_changes: bool = False


class _Retry(msgspec.Struct, forbid_unknown_fields=True):
    ids: list[str]


class _Forget(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    session: str | None = None


class _Delete(msgspec.Struct, forbid_unknown_fields=True):
    user: str
    session: str
    ids: list[str]


def build_app(reader: MemoryReader, options: ViewOptions) -> Guard:
    """The application; its lifespan loads models, and looks for changes.

    Raises:
        ImportError: starlette is not installed.
    """
    page = _Page(reader, options)
    routes = [
        Route("/", page.asset),
        Route("/assets/{name}", page.asset),
        Route("/api/events", page.events),
        Route("/metrics", page.metrics),
        *(
            Route(f"/api/{name}", page.answering(answer))
            for name, answer in {
                "about": page.about,
                "counts": page.counts,
                "users": page.users,
                "sessions": page.sessions,
                "session": page.session,
                "messages": page.messages,
                "context": page.context,
                "recall": page.recall,
                "jobs": page.jobs,
                "health": page.health,
                "disk": page.disk,
            }.items()
        ),
        *(
            Route(f"/api/{name}", page.changing(change), methods=["POST"])
            for name, change in {
                "jobs/retry": page.retry,
                "jobs/drop": page.drop,
                "forget": page.forget,
                "delete": page.delete,
            }.items()
        ),
    ]
    application = Starlette(routes=routes, lifespan=page.live)
    return Guard(
        application,
        token=options.token,
        port=options.port,
        names=options.names,
        any_address=options.any_address,
    )


class _Page:
    """The handlers of all routes."""

    def __init__(self, reader: MemoryReader, options: ViewOptions) -> None:
        self._reader = reader
        self._answers = Answers(reader)
        self._actions = Actions(reader.directory, reader.config)
        self._watch = Watch(reader.directory)
        self._health = HealthSamples(reader.directory, self._watch)
        self._disk = DiskMeter(reader)
        self._options = options
        self._limiter = anyio.Semaphore(_AT_ONCE)
        self._acting = anyio.Lock()
        self._assets = {
            file.name: file.read_bytes()
            for file in resources.files("remora.view").joinpath("assets").iterdir()
            if file.is_file()
        }

    @asynccontextmanager
    async def live(self, _: Starlette) -> AsyncIterator[None]:
        """Keep models and look for changes, while the server runs."""
        async with (
            self._reader.keep_models(long_term=self._reader.config.long_term.enabled),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._watch.run, name="remora.view.watch")
            tasks.start_soon(self._health.run, name="remora.view.health")
            self._disk.start(tasks)
            yield
            self._watch.close()
            tasks.cancel_scope.cancel()

    # -- the page itself ---------------------------------------------------------------------------

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        name = request.path_params.get("name", "index.html")
        content = self._assets.get(name)
        if content is None:
            return Response("there is no such page", 404, media_type="text/plain")
        return Response(content, media_type=_KINDS.get(name.rpartition(".")[2], "text/plain"))

    async def events(self, _: Request) -> Response:
        """Server-sent events: ``change`` when the memory has changed."""
        events = self._watch.events()
        try:
            first = await anext(events)
        except TooManyPages:
            text = f"{self._watch.pages} pages are open: this one is not told of changes"
            return _error(503, text, "TooManyPages")

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield first
                async for event in events:
                    yield event
            finally:
                with anyio.CancelScope(shield=True):
                    await events.aclose()  # type: ignore[attr-defined]  # it is a generator

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def metrics(self, _: Request) -> Response:
        """The figures of the process that has the memory open, for Prometheus."""
        status = await ask_about(self._reader.directory, figures=True)
        if status is None:
            return Response("no process that answers has the memory open", 503)
        text = exposition(status.statistics, status.health)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    # -- answers -----------------------------------------------------------------------------------

    def answering(self, answer: Callable[[Mapping[str, str]], Awaitable[Any]]) -> Handler:
        """A handler that answers a question about the memory, or says what is wrong."""

        async def handle(request: Request) -> Response:
            try:
                with anyio.fail_after(_WAIT_S):
                    async with self._limiter:
                        found = await answer(request.query_params)
                return Response(msgspec.json.encode(found), media_type="application/json")
            except Exception as e:
                return _explain(e)

        return handle

    async def about(self, _: Mapping[str, str]) -> dict[str, Any]:
        """Return what the page is of."""
        config = self._reader.config
        return {
            "directory": str(self._reader.directory.absolute()),
            "version": metadata.version("remora"),
            "allow_changes": self._options.allow_changes,
            "token_limit": config.buffer.token_limit,
            "long_term": config.long_term.enabled,
        }

    async def counts(self, _: Mapping[str, str]) -> Any:
        """How much the memory has."""
        return await self._answers.counts()

    async def users(self, query: Mapping[str, str]) -> Any:
        """A page of users."""
        return await self._answers.users(
            query.get("prefix", ""), query.get("after"), query.get("order", "newest")
        )

    async def sessions(self, query: Mapping[str, str]) -> Any:
        """A page of a user's sessions."""
        return await self._answers.sessions(
            _user(query),
            query.get("prefix", ""),
            query.get("after"),
            query.get("order", "newest"),
        )

    async def session(self, query: Mapping[str, str]) -> Any:
        """A session without its messages."""
        return await self._answers.session(_key(query))

    async def messages(self, query: Mapping[str, str]) -> Any:
        """Messages of a range."""
        return await self._answers.messages(
            _key(query), _number(query, "first"), _number(query, "last")
        )

    async def context(self, query: Mapping[str, str]) -> Any:
        """Return what the model sees."""
        default = self._reader.config.buffer.token_limit
        return await explain_context(
            self._reader,
            _key(query),
            budget=_number(query, "max_tokens", default),
            at=_number(query, "at") if query.get("at") else None,
            query=query.get("query"),
            messages=_number(query, "messages") if query.get("messages") else None,
        )

    async def recall(self, query: Mapping[str, str]) -> Any:
        """Return what recall finds, and why."""
        question = query.get("question", "")
        return await explain_recall(
            self._reader, _user(query), question, _number(query, "limit", 10)
        )

    async def jobs(self, _: Mapping[str, str]) -> Any:
        """Background work."""
        return await self._answers.jobs()

    async def health(self, _: Mapping[str, str]) -> Any:
        """How the process does that has the memory open."""
        return await self._health.answer()

    async def disk(self, query: Mapping[str, str]) -> Any:
        """How much of the disk the memory takes; ``measure=1`` begins a measurement."""
        if query.get("measure") == "1":
            self._disk.begin()
        return self._disk.answer()

    # -- changes -----------------------------------------------------------------------------------

    def changing(self, change: Callable[[bytes], Awaitable[Any]]) -> Handler:
        """A handler that changes something, one at a time, where that is allowed."""

        async def handle(request: Request) -> Response:
            if not self._options.allow_changes:
                text = "this page only reads: start remora view with --allow-changes"
                return _error(403, text, "NotAllowed")
            try:
                body = bytearray()
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > _MOST_BODY:
                        return _error(413, "the request is too long", "TooLong")
                async with self._acting:
                    done = await change(bytes(body))
                await self._watch.look()
                return Response(msgspec.json.encode(done), media_type="application/json")
            except Exception as e:
                return _explain(e)

        return handle

    async def retry(self, body: bytes) -> Any:
        """Run dead letters again."""
        ids = msgspec.json.decode(body, type=_Retry).ids
        return await self._actions.retry(ids)

    async def drop(self, body: bytes) -> Any:
        """Drop dead letters."""
        ids = msgspec.json.decode(body, type=_Retry).ids
        return await self._actions.drop(ids)

    async def forget(self, body: bytes) -> Any:
        """Erase a user or a session."""
        asked = msgspec.json.decode(body, type=_Forget)
        return await self._actions.forget(asked.user, asked.session)

    async def delete(self, body: bytes) -> Any:
        """Delete messages of a session."""
        asked = msgspec.json.decode(body, type=_Delete)
        count = await self._actions.delete(asked.user, asked.session, asked.ids)
        return {"changed": count}


def _user(query: Mapping[str, str]) -> str:
    return validate_id(query.get("user", ""), "a user id")


def _key(query: Mapping[str, str]) -> SessionKey:
    return SessionKey(_user(query), validate_id(query.get("session", ""), "a session id"))


def _number(query: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = query.get(name)
    if text is None and default is not None:
        return default
    try:
        if text is None or len(text) > 18:
            raise ValueError
        return int(text)
    except ValueError:
        raise InvalidInput(f"{name} must be a whole number") from None


def _explain(error: Exception) -> Response:
    """The answer for what went wrong; what is not remora's own has no text that could quote."""
    kind = type(error).__name__
    match error:
        case DirectoryLocked():
            return _error(409, str(error), kind)
        case InvalidInput() | msgspec.ValidationError() | msgspec.DecodeError():
            return _error(400, str(error), kind)
        case TimeoutError():
            return _error(503, "it took too long; try again", kind)
        case StorageError() | OwnerUnreachable():
            return _error(503, str(error), kind)
        case RemoraError():
            return _error(500, str(error), kind)
        case _:
            _logger.error("view_failed", exc_info=error)
            return _error(500, "this failed; the log of remora view says why", kind)


def _error(status: int, text: str, kind: str) -> Response:
    body = msgspec.json.encode({"error": text, "kind": kind})
    return Response(body, status, media_type="application/json")


# -- Who may ask: a token, the right host name, and headers that let a browser run nothing else
#
# A page of another origin can have the browser send requests to this server. Without the token,
# which it cannot read, each of them ends with 401. A host name that is made to point here (DNS
# rebinding) would make the other page the same origin: so only the server's own names are answered.

Scope: TypeAlias = MutableMapping[str, Any]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Callable[[], Awaitable[Any]], Send], Awaitable[None]]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    (
        b"content-security-policy",
        _POLICY.encode(),
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_DENIED = (
    "401: this address is not valid, or no longer. Each start of remora view prints a new one: "
    "copy it from the terminal."
)


class Guard:
    """Lets a request through to the application, or answers it.

    Args:
        application: what is guarded, by ASGI.
        token: what the address of the page has.
        port: of the server; 0 where the application is called without one.
        names: host names that are the server's, besides the addresses of this machine.
        any_address: answer to any address (no name) of a machine, not to loopback alone.
    """

    def __init__(
        self,
        application: Application,
        *,
        token: str,
        port: int,
        names: frozenset[str] = frozenset(),
        any_address: bool = False,
    ) -> None:
        self._application = application
        self._token = token.encode()
        self._cookie = f"remora-view-{port}"
        self._names = {"localhost"} | {name.lower() for name in names}
        self._any_address = any_address

    async def __call__(
        self, scope: Scope, receive: Callable[[], Awaitable[Any]], send: Send
    ) -> None:
        """Answer by ASGI."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._application(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value for name, value in scope["headers"]}
        host = headers.get("host", b"").decode("latin-1")
        if not self._is_own(host):
            await _answer(send, 421, "421: this server does not answer to that host name.")
            return
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        if given:
            await self._enter(scope, given, send)
        elif not self._knows(headers):
            await _answer(send, 401, _DENIED)
        elif scope["method"] not in {"GET", "HEAD"} and not _is_same_origin(headers, host):
            await _answer(send, 403, "403: a page of another origin may not change anything.")
        else:
            await self._application(scope, receive, _with_headers(send))

    def _is_own(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            address = ip_address(name)
        except ValueError:
            return name.lower() in self._names
        return address.is_loopback or self._any_address or name in self._names

    async def _enter(self, scope: Scope, given: list[str], send: Send) -> None:
        """Keep the token in a cookie, and take it out of the address."""
        if len(given) != 1 or not self._is_token(given[0]):
            await _answer(send, 401, _DENIED)
            return
        cookie = f"{self._cookie}={given[0]}; HttpOnly; SameSite=Strict; Path=/"
        path = "/" + quote(scope["path"].lstrip("/"))  # "//name" would be another host
        more = ((b"set-cookie", cookie.encode()), (b"location", path.encode()))
        await _answer(send, 303, "", more)

    def _knows(self, headers: dict[str, bytes]) -> bool:
        scheme, _, credentials = headers.get("authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(credentials.strip())
        # browsers send the cookies of all ports together, and others' may be anything
        pairs = headers.get("cookie", b"").decode("latin-1").split(";")
        cookies = (pair.strip().partition("=") for pair in pairs)
        return any(name == self._cookie and self._is_token(value) for name, _, value in cookies)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token)


def _is_same_origin(headers: dict[str, bytes], host: str) -> bool:
    """Return whether a change comes from the page, or from a program that has the token itself."""
    if b"json" not in headers.get("content-type", b""):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin.decode("latin-1")).netloc == host


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *_HEADERS]
        await send(message)

    return sending


async def _answer(
    send: Send, status: int, text: str, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    body = text.encode()
    kind = (b"content-type", b"text/plain; charset=utf-8")
    length = (b"content-length", str(len(body)).encode())
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [kind, length, *_HEADERS, *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


# -- serving the page until told to stop -----------------------------------------------------------

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
