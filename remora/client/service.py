"""Requests to a memory over HTTP: sent, sent again where that is safe, and answered or refused."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import quote, urlsplit

import anyio
import msgspec

from remora import errors
from remora.errors import (
    InvalidId,
    InvalidInput,
    OutcomeUnknown,
    OwnerFailed,
    OwnerUnreachable,
    RateLimited,
)
from remora.ids import validate_id
from remora.messages import without_surrogates
from remora.messages.entry import clean_message
from remora.rest.operation import Asked, Operation
from remora.rest.operations import OPERATIONS
from remora.rest.problems import Problem
from remora.rest.streams import EventStream
from remora.runtime.threads import run_in_thread
from remora.services.arguments import check_seconds
from remora.services.parts import OfOneProcess

if TYPE_CHECKING:
    import httpx2

Answer = TypeVar("Answer")

_LARGE = 1 << 16  # bytes of an answer that is decoded in a thread
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_LEAST_S = 0.02  # for one more request
_QUOTED = 200
_SILENT_S = 45.0  # of a stream: three signs of life were missed
_OPERATIONS = {one.name: one for one in OPERATIONS}
_PASSING = frozenset({"OutcomeUnknown", "RuntimeClosed", "OwnershipLost"})
"""Refusals of a server whose memory is just being opened by another process, or closed."""


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return uuid.uuid4().hex


class _Lost(Exception):
    """There was no answer: the request may have run."""


class Service(OfOneProcess):
    """The connections of a `Client`.

    Args:
        url: of the server.
        api_key: sent with each request.
        timeout_s: seconds that a request takes at most, with all that are sent again.
        http: sends the requests; None for a client of its own.
    """

    def __init__(
        self, url: str, api_key: str, timeout_s: float, http: httpx2.AsyncClient | None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.netloc:
            raise InvalidInput(f"the address of a service begins with http:// or https://: {url!r}")
        if not api_key.isascii() or not api_key.isprintable():
            raise InvalidInput("an API key is printable ASCII, as remora keys made it")
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._given = http
        self._http: httpx2.AsyncClient | None = None

    async def open(self) -> None:
        """Make the client; nothing is sent yet."""
        if self._http is None:
            self._http = self._given or await run_in_thread(_make_http)  # it reads certificates

    async def aclose(self) -> None:
        """Close the connections, unless they are those of a client that was given."""
        http, self._http = self._http, None
        if http is not None and http is not self._given:
            await http.aclose()

    async def call(
        self,
        run: Callable[[Asked], Awaitable[Answer]],
        names: Mapping[str, str],
        given: msgspec.Struct | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Answer:
        """Ask the server to do what `run`, a function of `remora.rest`, does there; see `ask`."""
        operation = _OPERATIONS[run.__name__]
        answer = await self._request(operation, operation.answers, names, given, key, timeout_s)
        return cast("Answer", answer)

    async def ask(
        self,
        operation: Operation | str,
        names: Mapping[str, str],
        given: msgspec.Struct | None = None,
        *,
        key: str | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Ask the server to call a verb, and return what it returned there.

        Args:
            operation: of a verb, or its name.
            names: what its path names.
            given: its body, or its query's parameters.
            key: idempotency key.
            timeout_s: seconds; None for the client's own.

        Raises:
            OwnerUnreachable: there was no answer in time, and nothing ran, or it only reads.
            OutcomeUnknown: there was no answer; it may have run.
            RemoraError: what the server answered.
        """
        row = _OPERATIONS[operation] if isinstance(operation, str) else operation
        kind = row.answer.kind
        return row.answer.unpack(await self._request(row, kind, names, given, key, timeout_s))

    async def _request(
        self,
        operation: Operation,
        kind: object,
        names: Mapping[str, str],
        given: msgspec.Struct | None,
        key: str | None,
        timeout_s: float | None,
    ) -> Any:
        """An answer of this kind.

        A request that is safe to repeat is sent again until there is an answer, or until the time
        is over; any other one only if it cannot have run.
        """
        limit_s = self._timeout_s if check_seconds(timeout_s, "timeout_s") is None else timeout_s
        assert limit_s is not None
        deadline = anyio.current_time() + limit_s
        repeatable = operation.repeatable or key is not None
        pause_s = _FIRST_PAUSE_S
        request = self._encode(operation, names, given, key)
        lost = False
        while True:
            try:
                content = await self._send(request, deadline - anyio.current_time())
                return await _decode(content, kind)
            except _Lost as e:
                lost = True
                failure = self._unknown(operation, e)
                again = repeatable
            except RateLimited as e:
                failure, again, pause_s = e, True, max(pause_s, e.retry_after_s)
            except (OwnerUnreachable, OwnerFailed) as e:
                failure, again = self._unknown(operation, e) if lost else e, True
            left_s = deadline - anyio.current_time()
            too_long = isinstance(failure, RateLimited) and failure.retry_after_s > left_s
            if not again or too_long or left_s < _LEAST_S:
                raise failure
            await anyio.sleep(min(pause_s * random.uniform(0.5, 1), left_s / 2))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def events(
        self, stream: EventStream, names: Mapping[str, str], given: msgspec.Struct
    ) -> AsyncGenerator[tuple[str, bytes]]:
        """Events of a stream, and their data, over as many connections as it takes.

        A connection that is lost is made again, and goes on behind the last event.

        Raises:
            OwnerUnreachable: there was no answer for as long as a request may take.
            RemoraError: what the server answered.
        """
        request = self._encode(stream, names, given, None)
        headers = request["headers"]
        silent_since = anyio.current_time()
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                async for id_, kind, data in self._read_events(request):
                    silent_since, pause_s = anyio.current_time(), _FIRST_PAUSE_S
                    if id_:
                        request.pop("params", None)
                        headers["Last-Event-ID"] = id_
                    if kind == "problem":
                        raise self._named(msgspec.json.decode(data, type=Problem))
                    if kind:
                        yield kind, data
                failure: errors.RemoraError = OwnerUnreachable(f"{self.url} ended the stream")
            except _Lost as e:
                failure = OwnerUnreachable(f"{self.url} gave no answer ({e})")
            except (OwnerUnreachable, OwnerFailed, RateLimited) as e:
                failure = e
            except msgspec.MsgspecError as e:
                raise InvalidInput(f"the service answers what remora does not know: {e}") from e
            if anyio.current_time() - silent_since > self._timeout_s:
                raise failure
            if isinstance(failure, RateLimited):
                pause_s = max(pause_s, failure.retry_after_s)
            await anyio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    async def _read_events(self, request: dict[str, Any]) -> AsyncGenerator[tuple[str, str, bytes]]:
        """The id, kind and data of each event of one connection; all empty for a sign of life.

        Raises:
            OwnerUnreachable: the server cannot be reached.
            _Lost: the connection was lost.
            RemoraError: what the server refused.
        """
        import httpx2  # noqa: PLC0415  # an extra

        limits = httpx2.Timeout(self._timeout_s, read=_SILENT_S)
        try:
            async with self._opened().stream(**request, timeout=limits) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise self._refusal(answer)
                left = b""
                async for data in answer.aiter_bytes():
                    *events, left = (left + data).split(b"\n\n")
                    for event in events:
                        yield _fields(event)
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            raise self._failure(e) from e

    def _opened(self) -> httpx2.AsyncClient:
        if self._http is None:
            raise errors.RuntimeClosed("the client is not open: async with remora.Client(…)")
        return self._http

    def _failure(self, error: httpx2.HTTPError | httpx2.InvalidURL) -> Exception:
        """Return what it means that there was no answer."""
        import httpx2  # noqa: PLC0415  # an extra

        match error:
            case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.PoolTimeout():
                return OwnerUnreachable(
                    f"{self.url} cannot be reached: {_words(error)}; is `remora http` running "
                    "there?"
                )
            case httpx2.UnsupportedProtocol():
                return InvalidInput(f"{self.url} is no address of a service: {error}")
            case httpx2.InvalidURL():
                return InvalidInput(f"an argument is too long for an address: {error}")
            case _:
                return _Lost(_words(error))

    def _unknown(self, operation: Operation, cause: Exception) -> errors.RemoraError:
        """Return what to raise where there was no answer."""
        reads = operation.method == "GET"
        kind: type[errors.RemoraError] = OwnerUnreachable if reads else OutcomeUnknown
        error = kind(
            f"{self.url} gave no answer ({cause})"
            + ("" if reads else ": it may have run; ask again, with the same key where it has one")
        )
        error.__cause__ = cause
        return error

    def _encode(
        self,
        operation: Operation | EventStream,
        names: Mapping[str, str],
        given: msgspec.Struct | None,
        key: str | None,
    ) -> dict[str, Any]:
        """A request as the HTTP client takes it.

        Raises:
            InvalidInput: what is given cannot be written as JSON.
        """
        path = operation.path.format(**{name: _segment(one) for name, one in names.items()})
        headers: dict[str, str | bytes] = {"Authorization": f"Bearer {self._api_key}"}
        request: dict[str, Any] = {
            "method": operation.method,
            "url": self.url + path,
            "headers": headers,
        }
        if key is not None:
            headers["Idempotency-Key"] = _check_key(key).encode()
        if operation.query is not None and given is not None:
            shown = msgspec.to_builtins(given)
            request["params"] = {
                name: _parameter(value) for name, value in shown.items() if value is not None
            }
        elif given is not None:
            headers["Content-Type"] = "application/json"
            request["content"] = _encode_json(given)
        return request

    async def _send(self, request: dict[str, Any], limit_s: float) -> bytes:
        """The body of an answer with status 200.

        Raises:
            OwnerUnreachable: nothing ran.
            _Lost: it may have run.
            RemoraError: what the server refused.
        """
        import httpx2  # noqa: PLC0415  # an extra

        try:
            answer = await self._opened().request(**request, timeout=max(limit_s, 0.001))
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            raise self._failure(e) from e
        if answer.status_code == 200:
            return answer.content
        raise self._refusal(answer)

    def _refusal(self, answer: httpx2.Response) -> Exception:
        """The exception that the server would have raised in this process."""
        problem: Problem | None = None
        if answer.headers.get("content-type", "") == "application/problem+json":
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                problem = msgspec.json.decode(answer.content, type=Problem)
        status = answer.status_code
        if problem is None:
            if status in {408, 425, 502, 503, 504}:  # of a proxy in front of the server
                return _Lost(f"status {status}")
            if status == 429:
                return RateLimited(f"{self.url} takes no more requests now", retry_after_s=1.0)
            text = answer.text[:_QUOTED]
            return InvalidInput(f"{self.url} is no memory over HTTP: status {status}: {text!r}")
        return self._named(problem)

    def _named(self, problem: Problem) -> Exception:
        """The exception that a problem document tells of."""
        if problem.title in _PASSING:
            return _Lost(problem.detail)
        kind = getattr(errors, problem.title, None) if problem.title in errors.__all__ else None
        if kind is None:
            return _unnamed(problem)
        detail = problem.detail
        if kind is errors.KeyRefused:
            detail = f"{self.url} does not know the api_key, or REMORA_API_KEY: use another"
        error: errors.RemoraError = kind.__new__(kind, detail)
        error.args = (detail,)
        vars(error).update(_restored(problem.attributes))
        return error


def _make_http() -> httpx2.AsyncClient:
    try:
        import httpx2  # noqa: PLC0415  # an extra
    except ImportError as e:
        raise ImportError('remora.Client needs httpx2: pip install "remora[client]"') from e
    return httpx2.AsyncClient(follow_redirects=False)


def _fields(event: bytes) -> tuple[str, str, bytes]:
    """The id, kind and data of an event; the server writes each of them in one line."""
    lines = (line.partition(b": ") for line in event.split(b"\n"))
    found = {name: value for name, _, value in lines}
    data = found.get(b"data", b"")
    return found.get(b"id", b"").decode(), found.get(b"event", b"").decode(), data


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _parameter(value: object) -> str:
    """A value as a part of a query string."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return without_surrogates(str(value))


def _segment(name: str) -> str:
    """An id as a part of a path; HTTP clients would resolve one or two dots."""
    quoted = quote(name.encode("utf-8", "surrogatepass"), safe="")
    return quoted.replace(".", "%2E") if name in {".", ".."} else quoted


def _check_key(key: object) -> str:
    """An idempotency key.

    Raises:
        InvalidId: it is not valid, or a header would lose blanks of it.
    """
    valid = validate_id(key, "an idempotency key")
    if valid != valid.strip():
        raise InvalidId("an idempotency key that is sent has no blanks at its ends")
    return valid


def _encode_json(given: msgspec.Struct) -> bytes:
    try:
        try:
            return msgspec.json.encode(given, enc_hook=str.__str__)  # texts of a class of their own
        except UnicodeEncodeError:
            fields = {name: _clean(name, getattr(given, name)) for name in given.__struct_fields__}
            return msgspec.json.encode(type(given)(**fields))
    except errors.RemoraError:
        raise
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as e:
        raise InvalidInput(f"what is sent must be JSON: {e}; nothing was sent") from e


_MESSAGES = frozenset({"messages", "message", "reply", "override"})
_TEXTS = frozenset({"content", "prefix", "query", "summary_prefix", "texts"})


def _clean(name: str, value: object) -> Any:
    """A text, or a list of texts or messages, without halves of surrogate pairs; an id as it is.

    Raises:
        InvalidMessage: the id of a message has one.
    """
    if name in _MESSAGES and isinstance(value, list):
        return [clean_message(msgspec.to_builtins(one), n) for n, one in enumerate(value)]
    match name in _TEXTS, value:
        case True, str(text):
            return without_surrogates(text)
        case True, list(texts):
            return [without_surrogates(one) if isinstance(one, str) else one for one in texts]
        case _:
            return value


async def _decode(content: bytes, kind: object) -> Any:
    """An answer.

    Raises:
        InvalidInput: it is none: the server is another one, or newer.
    """

    def decode() -> Any:
        return msgspec.json.decode(content, type=kind)

    try:
        return await run_in_thread(decode) if len(content) > _LARGE else decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise InvalidInput(
            f"the service answers what this release of remora does not know: {e}"
        ) from e


def _unnamed(problem: Problem) -> Exception:
    """For a refusal that is no class of `remora.errors`."""
    if problem.title == "Disconnected" or problem.status == 408:
        return _Lost(problem.detail)
    if problem.status < 500:
        return InvalidInput(problem.detail)
    return errors.RemoraError(problem.detail)


def _restored(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of an exception: JSON has no tuples."""
    return {
        name: tuple(value) if isinstance(value, list) and name != "value" else value
        for name, value in attributes.items()
    }
