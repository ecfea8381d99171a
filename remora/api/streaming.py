"""A reply that a model gives piece by piece: passed on as it comes, and stored at its end."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import anyio

from remora.errors import InvalidInput, RuntimeClosed
from remora.logging import get_logger
from remora.messages import ChatDict, is_message_object
from remora.messages.chat import call_keys
from remora.messages.objects import dump_quietly
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import HomeLoop

INCOMPLETE = "incomplete"
"""Key in the metadata of a reply that was interrupted."""

OnInterrupt: TypeAlias = Literal["keep", "discard"]
"""What becomes of a reply that was interrupted."""

ReadChunk: TypeAlias = Callable[[Any], str | Mapping[str, Any] | None]
"""What a chunk adds to the reply: text, a ``delta`` in OpenAI's format, or nothing."""

Chunk = TypeVar("Chunk")

_LIMIT_S = 5.0  # for storing what was interrupted, and for closing the model's stream
_logger = get_logger(__name__)


class StreamedReply:
    """The streamed part of a reply.

    Args:
        store: stores an assistant message.
        begin_call: see `remora.services.parts.Turns`.
        read: see `remora.Turn.stream`.
        on_interrupt: what becomes of it if its stream does not end.
    """

    def __init__(
        self,
        store: Callable[[ChatDict], Awaitable[object]],
        begin_call: Callable[[Callable[[], Awaitable[object]]], SharedCall[object]],
        read: ReadChunk | None,
        on_interrupt: OnInterrupt,
    ) -> None:
        self._store = store
        self._begin_call = begin_call
        self._home = HomeLoop()
        self._storing: SharedCall[object] | None = None
        self._read = read
        self._keep = on_interrupt == "keep"
        self._content: list[str | dict[str, Any]] = []
        """Texts and, of some providers, content parts."""
        self._others: dict[str, Any] = {}
        """Keys of the reply that are neither text nor tool calls."""
        self._calls: dict[object, dict[str, Any]] = {}
        self._finished = False
        self._over = False
        self.begun = False
        """Somebody began to read it."""
        self.running = False
        """Chunks are passed on: begun, and neither ended nor interrupted."""

    async def pass_on(self, chunks: AsyncIterable[Chunk]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks, and store at the end what they said, however that comes."""
        self.begun, self.running = True, not self._over
        try:
            async for chunk in chunks:
                self._check_running()
                self._add(chunk)
                yield chunk
            self._check_running()
            self._end()
            if (message := self._whole()) is not None:
                storing = self._begin_storing(message)
                with anyio.CancelScope(shield=True):
                    await storing.result()
        except BaseException:
            try:
                await self.interrupt()
            finally:
                await _close(chunks)
            raise

    def _check_running(self) -> None:
        if self._over:
            raise RuntimeClosed(
                "the runtime or the turn ended while the reply was streamed; what there was of it "
                "is stored, unless it was to be discarded"
            )

    def _end(self) -> None:
        self._over, self.running = True, False

    async def interrupt(self) -> None:
        """Store what there is, if it is to be kept; returns when what is being stored is stored.

        A cancellation is raised then, and not before. At the end of the stream it only waits.
        """
        if self._home.is_closed:
            self._end()  # what the event loop ran is being collected: no task can begin
            return
        if not self._over:
            self._end()
            probe("stream_interrupted")
            message = self._whole() if self._finished else self._text(**{INCOMPLETE: True})
            if message is not None and (self._keep or self._finished):
                with suppress(RuntimeClosed):  # it is logged; the caller has another exception
                    self._begin_storing(message)
        if self._storing is not None:
            await self._storing.wait_until_ended(_LIMIT_S)

    def _begin_storing(self, message: ChatDict) -> SharedCall[object]:
        """Store it in a task of the runtime: asyncio's own cancellations pass shields.

        Raises:
            RuntimeClosed: the runtime has closed.
        """
        try:
            self._storing = self._begin_call(partial(self._store_logged, message))
        except RuntimeClosed as e:
            _log_loss(e)
            raise
        return self._storing

    async def _store_logged(self, message: ChatDict) -> None:
        try:
            await self._store(message)
        except BaseException as e:
            _log_loss(e)
            raise

    # -- what was said -----------------------------------------------------------------------------

    def _add(self, chunk: object) -> None:
        """Add what a chunk says.

        Raises:
            InvalidInput: it has another shape, and there is no function that reads it.
        """
        said = chunk if self._read is None else self._read(chunk)
        if said is None:
            return
        if isinstance(said, str):
            self._content.append(said)
            return
        choices = _get(said, "choices")
        if choices is not None:
            first = next((one for one in choices if not _get(one, "index")), None)
            self._finished = self._finished or _get(first, "finish_reason") is not None
            said = _get(first, "delta")
        elif self._read is None:
            raise InvalidInput(
                f"a chunk is text or a chat.completion.chunk of OpenAI, not {type(chunk).__name__}:"
                " pass read=, a function that gives the text of a chunk"
            )
        delta = _plain(said)
        if isinstance(content := delta.pop("content", None), str):
            self._content.append(content)
        elif isinstance(content, (list, tuple)):
            self._content += map(_plain, content)
        for call in delta.pop("tool_calls", None) or ():
            self._add_call(_plain(call))
        delta.pop("role", None)
        _merge(self._others, delta)

    def _add_call(self, delta: dict[str, Any]) -> None:
        for key in _NAMED & delta.keys():
            delta[key] = _plain(delta[key])
        place = delta.pop("index", None)
        if place is None:  # some servers leave it out, and give whole calls
            place = delta.get("id") or next(reversed(self._calls), 0)
        call = self._calls.setdefault(place, {})
        for key in _NAMED & delta.keys() & call.keys():  # some servers repeat the name
            if call[key].get("name"):
                delta[key].pop("name", None)
        if call.get("id"):
            delta.pop("id", None)
        _merge(call, delta)

    def _whole(self) -> ChatDict | None:
        """The reply as a message; None if nothing was said."""
        if not self._calls:
            return self._text()
        calls = [_called(one) for one in self._calls.values()]
        content = _join(self._content) or None
        return {"role": "assistant", "content": content, "tool_calls": calls, **self._others}

    def _text(self, **metadata: bool) -> ChatDict | None:
        """The reply without its tool calls, of which the last may be cut off."""
        content = _join(self._content)
        if not content and not any(self._others.get(key) for key in _SAYING):
            return None
        chat: ChatDict = {"role": "assistant", "content": content or None, **self._others}
        return {**chat, "metadata": metadata}


_SAYING = ("refusal", "audio", "function_call")
"""Keys of a reply that has no text, and yet says something."""
_DELTA = ("content", "refusal", "tool_calls", "index", "id", "type", "function", "custom")
_NAMED = frozenset({"function", "custom"})
_IN_PIECES = frozenset({"text", "refusal", "thinking", "reasoning"})
"""Types of parts that come piece by piece, and the keys of their texts. Others come whole."""
_KINDS = frozenset({"id", "type", "index", "format"})
"""Keys whose texts are given whole, and not piece by piece."""


def _called(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call of which all pieces are there; what a server left out is empty."""
    key, text = call_keys(call.setdefault("type", "function"))
    named = {"name": "", text: "", **call.get(key, {})}
    return {**call, "id": call.get("id") or "", key: named}


def _join(pieces: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of which these are pieces: a text, or parts if one of them is a part."""
    texts = [one for one in pieces if isinstance(one, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    parts: list[dict[str, Any]] = []
    for piece in (one for one in pieces if one):
        part: dict[str, Any] = {"type": "text", "text": piece} if isinstance(piece, str) else piece
        kind, last = part.get("type"), parts[-1] if parts else {}
        if kind in _IN_PIECES and last.get("type") == kind and "signature" not in last:
            _merge_part(parts[-1], part)
        else:
            parts.append(copy.deepcopy(part))
    for one in parts:
        one.update({key: _join(value) for key, value in one.items() if _is_texts(value)})
    return parts


def _merge_part(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        before = whole.get(key)
        if key in _IN_PIECES and isinstance(before, str) and isinstance(value, str):
            whole[key] = before + value
        elif isinstance(before, list) and isinstance(value, list):
            whole[key] = [*before, *copy.deepcopy(value)]
        else:  # a signature, an id
            whole[key] = copy.deepcopy(value)


def _is_texts(value: object) -> bool:
    return (
        bool(value)
        and isinstance(value, list)
        and all(_get(one, "type") == "text" for one in value)
    )


def _merge(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a piece, as the accumulator of OpenAI's client does.

    Texts are joined, numbers replaced, dicts merged, and list items merged by their ``index``.
    """
    for key, value in delta.items():
        before = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif isinstance(before, str) and isinstance(value, str) and key not in _KINDS:
            whole[key] = before + value
        elif isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_lists(before, value)
        else:
            whole[key] = copy.deepcopy(value)


def _merge_lists(whole: list[Any], delta: list[Any]) -> None:
    places = {
        one["index"]: one for one in whole if isinstance(one, dict) and one.get("index") is not None
    }
    for one in delta:
        index = one.get("index") if isinstance(one, Mapping) else None
        if index is not None and index in places:
            _merge(places[index], one)
        else:
            whole.append(copy.deepcopy(one))


def _plain(thing: object) -> dict[str, Any]:
    """A fresh dict of a delta, whatever it came as."""
    if thing is None:
        return {}
    if isinstance(thing, Mapping):
        return dict(thing)
    if is_message_object(thing):
        dumped: dict[str, Any] = dump_quietly(thing, mode="json", exclude_unset=True)
        return dumped
    found = {name: value for name in _DELTA if (value := getattr(thing, name, None)) is not None}
    return {**getattr(thing, "__dict__", {}), **found}


def _get(thing: object, name: str) -> Any:
    """An item of a dict, or an attribute of an object; None if it is not there."""
    if isinstance(thing, Mapping):
        return thing.get(name)
    return getattr(thing, name, None)


def _log_loss(error: BaseException) -> None:
    """Say that a reply was not stored: who streamed it may have been cancelled since."""
    _logger.warning("streamed_reply_lost", error=type(error).__name__)


async def _close(chunks: object) -> None:
    """Close a model's stream, so that it does not go on for nobody."""
    close = getattr(chunks, "aclose", None) or getattr(chunks, "close", None)
    if close is None:
        return
    try:
        with anyio.fail_after(_LIMIT_S, shield=True):
            if inspect.isawaitable(closing := close()):
                await closing
    except Exception as e:
        _logger.warning("model_stream_not_closed", error=type(e).__name__)
