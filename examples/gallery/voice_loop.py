"""A voice agent without the audio: it recalls while the user speaks, and can be interrupted.

``pip install ./remora``, then, in the clone, ``python -m examples.gallery.voice_loop memory 8765``;
``python -m examples.gallery.voice_caller 8765 "I live in Lisbon." "Where do I live?"`` calls it.

A call is a connection with a line of JSON for each event, as speech recognition and a player of
speech give and take them. The first line from the caller is {"user": …, "call": …}; then

- {"heard": text}: the user is speaking, and this was recognized so far. The context for it is
  loaded now. If the agent is speaking, it stops, and what was spoken of its reply is stored.
- {"said": text, "id": …}: the user has finished. With the same id, it is answered once.
- {"spoken": number}: the player has spoken so many words of the reply.

The caller is trusted to name the user: a telephone bridge on this machine, which identified them.
The agent sends {"prepared": text}, {"word": text}, {"stop": true}, and {"done": reply, …} with its
latencies in milliseconds, which it also prints.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

import remora
from examples.gallery.model import text_of, think

LONGEST_LINE = 65_536  # bytes
BUDGET = 4_000  # tokens: a short prompt is answered sooner


class Call:
    """One call.

    Args:
        chat: its session.
        stream: the connection.
    """

    def __init__(self, chat: remora.Session, stream: SocketStream) -> None:
        self._chat, self._stream = chat, stream
        self._heard, self._has_heard = "", anyio.Event()
        self._prepared: list[Any] | None = None
        self._number = 0  # of what the user says: a context of an earlier one is out of date
        self._speaking, self._stored = anyio.CancelScope(), anyio.Event()
        self._stored.set()
        self._spoken, self._has_spoken = 0, anyio.Event()

    async def run(self, events: AsyncIterator[dict[str, Any]]) -> None:
        """Answer until the caller hangs up."""
        async with anyio.create_task_group() as tasks:
            preparing = anyio.CancelScope()
            tasks.start_soon(self._prepare, preparing)
            async for event in events:
                if "spoken" in event:
                    self._spoken = int(event["spoken"])
                    self._has_spoken.set()
                    continue
                await self._interrupt()
                if "heard" in event:
                    self._heard = str(event["heard"])
                    self._has_heard.set()
                else:
                    self._speaking, self._stored = anyio.CancelScope(), anyio.Event()
                    self._spoken = 0
                    tasks.start_soon(self._answer, str(event["said"]), str(event["id"]))
            await self._interrupt()
            preparing.cancel()

    async def _prepare(self, scope: anyio.CancelScope) -> None:
        """Load contexts while the user speaks, always for the newest words."""
        with scope:
            while True:
                await self._has_heard.wait()
                self._has_heard = anyio.Event()
                heard, number = self._heard, self._number
                context = await self._chat.load(heard, max_tokens=BUDGET)
                if number == self._number:
                    self._prepared = context.messages
                    await self._send(prepared=heard)

    async def _interrupt(self) -> None:
        """Stop speaking; returns when what was spoken is stored, so that it is in contexts."""
        if not self._stored.is_set():
            self._speaking.cancel()
            await self._stored.wait()

    async def _answer(self, said: str, request: str) -> None:
        ended = time.perf_counter()
        prepared, self._prepared = self._prepared, None
        self._number += 1
        words: list[str] = []
        try:
            async with self._chat.turn(said, key=request, query=False, max_tokens=BUDGET) as turn:
                if turn.replayed:
                    await self._send(done=turn.replies[-1].content, repeated=True)
                    return
                # without recalled memories, if the user spoke too shortly to prepare
                messages: list[Any] = turn.context.messages
                if prepared is not None:
                    messages = [*prepared, {"role": "user", "content": said}]
                context_ms = 1_000 * (time.perf_counter() - ended)
                first_word_ms = 0.0
                with self._speaking:
                    async with aclosing(think(messages)) as chunks:
                        async for chunk in chunks:
                            words.append(text_of(chunk))
                            first_word_ms = first_word_ms or 1_000 * (time.perf_counter() - ended)
                            await self._send(word=words[-1])
                    while self._spoken < len(words):
                        await self._has_spoken.wait()
                        self._has_spoken = anyio.Event()
                reply: dict[str, Any] = {"role": "assistant", "content": "".join(words)}
                if self._speaking.cancelled_caught:  # the model reads where it was interrupted
                    spoken = "".join(words[: self._spoken]).rstrip()
                    reply |= {"content": f"{spoken} —", "metadata": {"interrupted": True}}
                    await self._send(stop=True)
                if words and self._spoken:
                    await turn.reply(reply)
                latency = f"context {context_ms:.1f} ms, first word {first_word_ms:.1f} ms"
                print(f"{said!r}: {latency} after the user ended", flush=True)
                ms = {"context_ms": context_ms, "first_word_ms": first_word_ms}
                await self._send(done=reply["content"], prepared=prepared is not None, **ms)
        finally:
            self._stored.set()

    async def _send(self, **event: Any) -> None:
        try:
            await self._stream.send(json.dumps(event).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._speaking.cancel()  # the caller has hung up


async def read_events(stream: SocketStream) -> AsyncIterator[dict[str, Any]]:
    lines = BufferedByteReceiveStream(stream)
    try:
        while True:
            event = json.loads(await lines.receive_until(b"\n", LONGEST_LINE))
            if not isinstance(event, dict):
                return
            yield event
    except (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError, ValueError):
        return  # it has hung up, or speaks another protocol


async def answer_call(runtime: remora.Runtime, stream: SocketStream) -> None:
    async with stream:
        events = read_events(stream)
        first: dict[str, Any] = await anext(events, {})
        try:
            chat = runtime.session(first["user"], first["call"])
            await Call(chat, stream).run(events)
        except* Exception as problems:  # of this call: others go on
            print("a call failed:", *(type(one).__name__ for one in problems.exceptions))


async def main(directory: str, port: int) -> None:
    async with remora.Runtime(directory) as runtime:
        await runtime.ready()  # so that the first call is answered as fast as others
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
        print(f"ready for calls on 127.0.0.1:{port}", flush=True)
        await listener.serve(partial(answer_call, runtime))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]))
