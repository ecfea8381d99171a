"""A reply that a model gives piece by piece: passed on as it comes, and stored at its end."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

import anyio

from remora.errors import InvalidInput, RuntimeClosed
from remora.logging import get_logger
from remora.messages import ChatDict
from remora.runtime.loops import HomeLoop
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall

__all__ = ["INCOMPLETE", "OnInterrupt", "ReadChunk", "StreamedReply"]

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
    """What has been streamed of a reply.

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
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._calls: dict[object, _Call] = {}
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
            self._texts.append(said)
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
        if isinstance(content := _get(said, "content"), str):
            self._texts.append(content)
        if isinstance(refusal := _get(said, "refusal"), str):
            self._refusals.append(refusal)
        self._add_calls(_get(said, "tool_calls") or ())

    def _add_calls(self, deltas: Iterable[object]) -> None:
        for delta in deltas:
            place, id_ = _get(delta, "index"), _get(delta, "id")
            if place is None:  # some servers leave it out, and give whole calls
                place = id_ or next(reversed(self._calls), 0)
            call = self._calls.setdefault(place, _Call())
            function = _get(delta, "function")
            call.id = call.id or id_ or ""
            call.name = call.name or _get(function, "name") or ""
            call.arguments.append(_get(function, "arguments") or "")

    def _whole(self) -> ChatDict | None:
        """The reply as a message; None if nothing was said."""
        if not self._calls:
            return self._text()
        calls = [one.to_chat() for one in self._calls.values()]
        return {"role": "assistant", "content": "".join(self._texts) or None, "tool_calls": calls}

    def _text(self, **metadata: bool) -> ChatDict | None:
        """The reply without its tool calls, of which the last may be cut off."""
        content: Any = "".join(self._texts)
        if not content and self._refusals:
            content = [{"type": "refusal", "refusal": "".join(self._refusals)}]
        if not content:
            return None
        return {"role": "assistant", "content": content, "metadata": metadata}


class _Call:
    """A tool call that is being streamed."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []

    def to_chat(self) -> ChatDict:
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.id, "type": "function", "function": function}


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
