"""The service as an ASGI application: who asks, what for, and what they are answered."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_to_bytes

import anyio
import msgspec

from remora.api.base import BaseRuntime
from remora.errors import KeyRefused, RateLimited
from remora.models.answers import mend_escapes
from remora.rest import shapes
from remora.rest.keys import KeyFile
from remora.rest.limits import AddressLimit, RateLimit
from remora.rest.openapi import describe_service
from remora.rest.operation import Asked, Operation
from remora.rest.operations import OPERATIONS
from remora.rest.problems import FailureLog, Problem, Refusal, describe
from remora.rest.streams import EVENTS, send_events
from remora.runtime.clock import SystemClock
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_OPEN = ("/healthz", "/readyz", "/openapi.json")
_ONCE = frozenset({b"authorization", b"content-type", b"idempotency-key", b"last-event-id"})
_KEYS_S = 1.0
_LARGE = 1 << 16
_MANY = 20  # values of keyed state
_DETAIL = 1_000  # characters
_TOKEN = 4  # characters, about
_PAIR = 12  # bytes of two escapes; where fewer follow, msgspec reports that the body ends too early
_ID = re.compile(rb'"(?:id|tool_call_id|key)"\s*:\s*"(?:[^"\\]|\\.)*"')
_TEXTS = frozenset({"messages", "message", "reply", "override", "content", "query", "text"})
"""Fields of requests in whose texts half of a character is replaced; ids are refused."""
_HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


class RestOptions(NamedTuple):
    """Bounds of the service.

    Attributes:
        body: bytes of a request's body, at most: a picture of 12 MB as base64.
        bodies: bytes of all bodies that are being read, at most; more are refused for a while.
        at_once: requests that one tenant has answered at the same time; more are refused.
        streams: event streams that one tenant may have open.
        answering: requests of all that are answered at the same time; more are refused, except for
            probes of its health.
        waiting: connections that may be open without a request; more lose the oldest of the address
            that has most of them.
        timeout_s: seconds that a client has for the head of a request, then for its body, and to
            take what it is sent.
        keyless_rate: requests a second without a valid key that one address may send; twice as many
            at once after a pause.
    """

    body: int = 16 << 20
    bodies: int = 256 << 20
    at_once: int = 64
    streams: int = 256
    answering: int = 2048
    waiting: int = 1024
    timeout_s: float = 30.0
    keyless_rate: float = 50.0


def build_app(
    runtime: Any, keys: KeyFile, rate: RateLimit, options: RestOptions | None = None
) -> RestApp:
    """An ASGI application over a runtime that its caller opens, and closes after the last request.

    Args:
        runtime: a `Runtime`, or what `remora.connect` gives.
        keys: the API keys; each tenant sees only its own users.
        rate: how many requests a tenant may send.
        options: other bounds.
    """
    return RestApp(runtime, keys, rate, options or RestOptions())


class _Route(NamedTuple):
    parts: tuple[str, ...]
    operations: dict[str, Operation]

    def match(self, given: list[str]) -> dict[str, str] | None:
        if len(given) != len(self.parts):
            return None
        names = {}
        for part, text in zip(self.parts, given, strict=True):
            if part.startswith("{"):
                names[part[1:-1]] = text
            elif part != text:
                return None
        return names


class RestApp:
    """The application; see `build_app`."""

    def __init__(
        self, runtime: BaseRuntime, keys: KeyFile, rate: RateLimit, options: RestOptions
    ) -> None:
        self._runtime, self._keys, self._rate, self.options = runtime, keys, rate, options
        self._keyless = AddressLimit(options.keyless_rate, SystemClock())
        self._failures = FailureLog(time.monotonic)
        self._looked_at = time.monotonic()
        self._answering = 0
        self._working: Counter[str] = Counter()
        self._reading = 0
        self._streaming: Counter[str] = Counter()
        self._ended = anyio.Event()
        routes: dict[str, _Route] = {}
        for one in OPERATIONS:
            route = routes.setdefault(one.path, _Route(tuple(one.path.split("/")[1:]), {}))
            route.operations[one.method] = one
        self._routes = list(routes.values())
        self._events = _Route(tuple(EVENTS.path.split("/")[1:]), {})
        self._description = msgspec.json.encode(describe_service(OPERATIONS, [EVENTS]))

    def end_streams(self) -> None:
        """End all event streams: the server is stopping, and their clients come back."""
        self._ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; see ASGI."""
        if scope["type"] != "http":
            return
        self._answering += 1
        try:
            if scope["method"] == "GET" and _raw_path(scope).endswith(b"/events"):
                names = self._events.match(_parts(_raw_path(scope)))
                if names is not None:
                    await self._stream(names, scope, receive, send)
                    return
            status, body = await self._answer(scope, receive)
            await _send(send, status, body, "application/json")
        except Exception as e:
            self._failures.fail(e)
            refusal = describe(e)
            headers = dict(refusal.headers)
            if refusal.wait_s is not None:
                headers["retry-after"] = str(refusal.wait_s)
            body = msgspec.json.encode(_problem(refusal))
            await _send(send, refusal.status, body, "application/problem+json", headers)
        finally:
            self._answering -= 1

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        path = _path(scope)
        if path in _OPEN:
            return self._answer_open(path, scope)
        self._check_load()
        headers = _read_headers(scope["headers"])
        tenant = await self._find_tenant(headers, scope)
        self._rate.take(tenant)
        working = self._working[tenant]
        if working >= self.options.at_once:
            detail = f"this key has {working} requests that are not answered yet: nothing ran"
            raise RateLimited(detail, retry_after_s=1.0)
        self._working[tenant] += 1
        try:
            asked, operation = await self._read(scope, receive, headers, tenant)
            answer = await operation.run(asked)
        finally:
            self._working[tenant] -= 1
        self._failures.succeed()
        return 200, await _encode(answer)

    async def _stream(
        self, names: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer with events until the client leaves, its key is removed, or the server stops."""
        self._check_load()
        headers = _read_headers(scope["headers"])
        tenant = await self._find_tenant(headers, scope)
        self._rate.take(tenant)
        if self._streaming[tenant] >= self.options.streams:
            detail = f"this key has {self.options.streams} event streams open: close one"
            raise RateLimited(detail, retry_after_s=1.0)
        given = _parameters(scope["query_string"], EVENTS.query)
        last = headers.get(b"last-event-id")
        if last is not None:
            given = msgspec.structs.replace(given, cursor=last.decode("latin-1"))
        begun = False

        async def send_part(data: bytes) -> None:
            nonlocal begun
            if not begun:
                begun = True
                await _send_head(send, 200, "text/event-stream", [(b"x-accel-buffering", b"no")])
            await send({"type": "http.response.body", "body": data, "more_body": True})

        async def check() -> None:
            if await self._find_tenant(headers, scope) != tenant:
                raise KeyRefused("the key is another tenant's now")

        self._streaming[tenant] += 1
        try:
            asked = Asked(self._runtime, tenant, names, given, None, self._failures)
            async with _until(partial(_wait_until_gone, receive), self._ended.wait):
                await send_events(asked, send_part, check)
        except Exception as e:
            if not begun:
                raise
            self._failures.fail(e)
            problem = msgspec.json.encode(_problem(describe(e)))
            await send_part(b"event: problem\ndata: %s\n\n" % problem)
        finally:
            self._streaming[tenant] -= 1
        if begun:
            await send({"type": "http.response.body", "body": b""})

    def _check_load(self) -> None:
        if self._answering > self.options.answering:
            text = f"{self.options.answering} requests are not answered yet: nothing ran"
            raise Refusal(503, "Overloaded", text, wait_s=1)

    def _answer_open(self, path: str, scope: Scope) -> tuple[int, bytes]:
        if scope["method"] not in {"GET", "HEAD"}:
            raise _wrong_method(["GET", "HEAD"])
        if path == "/openapi.json":
            self._take_keyless(scope)
            return 200, self._description
        health = self._runtime.health()
        good = health.live if path == "/healthz" else health.ready
        return 200 if good else 503, msgspec.json.encode(health)

    def _take_keyless(self, scope: Scope) -> None:
        address, _ = scope.get("client") or ("", 0)
        try:
            self._keyless.take(address)
        except RateLimited as e:
            refusal = describe(e)
            refusal.headers["connection"] = "close"  # the next one costs its sender a connection
            raise refusal from None

    async def _find_tenant(self, headers: dict[bytes, bytes], scope: Scope) -> str:
        now = time.monotonic()
        if now - self._looked_at > _KEYS_S:
            self._looked_at = now
            await run_in_thread(self._keys.refresh)
        scheme, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        tenant = self._keys.find_tenant(key.strip()) if scheme.lower() == "bearer" else None
        if tenant is None:
            self._take_keyless(scope)
            raise KeyRefused("send a valid API key: Authorization: Bearer KEY")
        return tenant

    async def _read(
        self,
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        tenant: str,
    ) -> tuple[Asked, Operation]:
        operation, names = self._find(_raw_path(scope), scope["method"])
        key = _key(headers, operation)
        given: Any = None
        if operation.body is not None:
            body = await self._body(receive, headers)
            kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
            if (body or kind) and kind != b"application/json":
                raise Refusal(415, "UnsupportedMediaType", "send Content-Type: application/json")
            given = _decode(body or b"{}", operation.body)
        elif operation.query is not None:
            given = _parameters(scope["query_string"], operation.query)
        return Asked(self._runtime, tenant, names, given, key, self._failures), operation

    def _find(self, raw: bytes, method: str) -> tuple[Operation, dict[str, str]]:
        parts = _parts(raw)
        allowed: list[str] = []
        for route in self._routes:  # a key of keyed state may be called as a path of another method
            names = route.match(parts)
            if names is None:
                continue
            if method in route.operations:
                return route.operations[method], names
            allowed += route.operations
        if allowed:
            raise _wrong_method(allowed)
        raise Refusal(404, "NotFound", "there is no such path: see /openapi.json")

    async def _body(self, receive: Receive, headers: dict[bytes, bytes]) -> bytes:
        most = self.options.body
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > most:
            raise _too_long(most)
        body = bytearray()
        counted = 0
        try:
            with anyio.fail_after(self.options.timeout_s):
                while True:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise Refusal(400, "Disconnected", "the client left before the end")
                    body += event.get("body", b"")
                    if len(body) > most:
                        raise _too_long(most)
                    self._reading += len(body) - counted
                    counted = len(body)
                    if self._reading > self.options.bodies:
                        text = "too many large bodies are being read: nothing ran, send it again"
                        raise Refusal(503, "Overloaded", text, wait_s=1)
                    if not event.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            detail = f"the body took over {self.options.timeout_s:g} s: nothing ran"
            raise Refusal(408, "RequestTimeout", detail) from None
        finally:
            self._reading -= counted


@asynccontextmanager
async def _until(*events: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Leave the block when one of these returns; an exception of the block passes as it is."""
    failure: Exception | None = None

    async def leave_after(event: Callable[[], Awaitable[object]]) -> None:
        await event()
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for event in events:
            tasks.start_soon(leave_after, event)
        try:
            yield
        except Exception as e:  # a task group would wrap it
            failure = e
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _problem(refusal: Refusal) -> Problem:
    detail = refusal.detail  # may quote what the client sent
    return Problem(
        f"urn:remora:{refusal.title}",
        refusal.title,
        refusal.status,
        detail if len(detail) <= _DETAIL else f"{detail[:_DETAIL]}…",
        refusal.wait_s is not None,
        refusal.attributes,
    )


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _parts(raw: bytes) -> list[str]:
    try:
        return [unquote_to_bytes(one).decode() for one in raw.split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Refusal(400, "InvalidRequest", "the path is not UTF-8") from None


def _read_headers(given: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name; a proxy may have looked at another one of two than this does."""
    headers: dict[bytes, bytes] = {}
    for spelt, value in given:
        name = spelt.lower()
        if name in headers and name in _ONCE:
            raise Refusal(400, "InvalidRequest", f"{name.decode()} is given twice")
        headers[name] = value
    if b"transfer-encoding" in headers and b"content-length" in headers:
        detail = "a body has one length: send Content-Length or Transfer-Encoding, not both"
        # what follows on the connection may be what a proxy took for the body
        raise Refusal(400, "InvalidRequest", detail, headers={"connection": "close"})
    return headers


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as e:
        if "unknown field" not in str(e):
            raise
        fields: Any = kind
        takes = ", ".join(fields.__struct_fields__)
        raise Refusal(400, "InvalidRequest", f"{e}; the request takes {takes}") from None
    except msgspec.DecodeError as e:
        if "surrogate" not in str(e) and not _HALF_PAIR.search(body[-_PAIR:]):
            raise
        mended = mend_escapes(body)
        has_texts = not _TEXTS.isdisjoint(kind.__struct_fields__)
        if mended != body and has_texts and _ID.findall(body) == _ID.findall(mended):
            return _decode(mended, kind)
        where = str(e).partition("(")[2].rstrip(")") or f"byte {len(body) - _PAIR}"
        detail = (
            f"half of a surrogate pair (near {where} of the body) is no text: nothing was written"
        )
        raise Refusal(400, "InvalidRequest", detail) from None
    except (UnicodeDecodeError, RecursionError):
        detail = "the body is not JSON in UTF-8, or is nested too deep: nothing was written"
        raise Refusal(400, "InvalidRequest", detail) from None


def _raw_path(scope: Scope) -> bytes:
    """The path as it was sent: an id may hold a slash, sent as ``%2F``."""
    raw = scope.get("raw_path") or scope["path"].encode()
    root = scope.get("root_path", "").encode()
    return bytes(raw).partition(b"?")[0].removeprefix(root)


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _key(headers: dict[bytes, bytes], operation: Operation) -> str | None:
    given = headers.get(b"idempotency-key")
    if given is None:
        if operation.keyed == "required":
            detail = "a turn needs an Idempotency-Key header: the same one for its replies"
            raise Refusal(400, "InvalidRequest", detail)
        return None
    if not operation.keyed:
        raise Refusal(400, "InvalidRequest", "this request takes no Idempotency-Key")
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise Refusal(400, "InvalidRequest", "the Idempotency-Key is not UTF-8") from None


def _parameters(query: bytes, kind: type) -> Any:
    try:
        pairs = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=20, errors="strict"
        )
    except ValueError:
        raise Refusal(400, "InvalidRequest", "the query's parameters cannot be read") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise Refusal(400, "InvalidRequest", "a parameter is given twice")
    return msgspec.convert(given, kind, strict=False)


async def _encode(answer: Any) -> bytes:
    """A long answer is encoded in a thread, and the loop goes on."""
    return await run_in_thread_if(_is_long(answer), msgspec.json.encode, answer)


def _has_bytes(answer: shapes.ContextShown | shapes.TurnShown) -> bool:
    """Return whether a context may have attachments."""
    context = answer.context if isinstance(answer, shapes.TurnShown) else answer
    return context is not None and any(
        isinstance(one.get("content"), list) for one in context.messages
    )


def _is_long(answer: Any) -> bool:
    """Return whether it may have more than `_LARGE` bytes.

    Only lists of messages and memories may.
    """
    match answer:
        case (
            shapes.MessagePage(messages=found)
            | shapes.Buffered(messages=found)
            | shapes.Contents(messages=found)
        ):
            sizes = (
                len(one.content or "") if isinstance(one.content, str) else _LARGE for one in found
            )
        case shapes.Recalled(memories=memories):
            sizes = (len(one.text) for one in memories)
        case shapes.StateShown(values=values):
            return len(values) > _MANY
        case (
            shapes.ContextShown(tokens=tokens)
            | shapes.TurnShown(context=shapes.ContextShown(tokens=tokens))
        ):
            return tokens * _TOKEN > _LARGE or _has_bytes(answer)
        case _:
            return False
    return sum(sizes) > _LARGE


def _too_long(most: int) -> Refusal:
    text = (
        f"a body has at most {most} bytes: nothing was written; send several messages in several "
        "requests, and a smaller picture"
    )
    return Refusal(413, "TooLong", text)


def _wrong_method(allowed: list[str]) -> Refusal:
    names = ", ".join(allowed)
    return Refusal(405, "MethodNotAllowed", f"this path takes {names}", headers={"allow": names})


async def _send(
    send: Send, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
) -> None:
    more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await _send_head(send, status, kind, [(b"content-length", str(len(body)).encode()), *more])
    await send({"type": "http.response.body", "body": body})


async def _send_head(send: Send, status: int, kind: str, more: list[tuple[bytes, bytes]]) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", kind.encode()),
                (b"cache-control", b"no-store"),
                (b"x-content-type-options", b"nosniff"),
                *more,
            ],
        }
    )
