"""A caller of the voice loop: it speaks, listens, and interrupts; see voice_loop.py.

``python -m examples.gallery.voice_caller 8765 "I live in Lisbon." "Where do I live?" "Tell me about
Lisbon. | 4"``: a number behind a bar interrupts the reply after so many words.
"""

from __future__ import annotations

import json
import sys
import uuid
from typing import Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

PACE_S = 0.02  # between two words; people take ten times as long


class Caller:
    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream, self._lines = stream, BufferedByteReceiveStream(stream)

    async def send(self, **event: Any) -> None:
        await self._stream.send(json.dumps(event).encode() + b"\n")

    async def receive(self) -> Any:
        return json.loads(await self._lines.receive_until(b"\n", 1_000_000))

    async def say(self, sentence: str, patience: int | None = None) -> Any:
        """Speak a sentence word by word, listen to the reply, and return how it ended.

        Args:
            sentence: it is heard as it grows.
            patience: words of the reply after which the caller speaks again; None for all.
        """
        heard = ""
        for word in sentence.split():
            heard = f"{heard} {word}".strip()
            await self.send(heard=heard)
            await anyio.sleep(PACE_S)
        while (await self.receive()).get("prepared") != heard:
            pass  # people pause at the end of a sentence; a context takes less
        await self.send(said=sentence, id=str(uuid.uuid4()))
        spoken = 0
        while "done" not in (event := await self.receive()):
            if "word" in event and spoken != patience:
                await anyio.sleep(PACE_S)
                spoken += 1
                await self.send(spoken=spoken)
                if spoken == patience:
                    await self.send(heard="wait")
        return event


async def main(port: int, user: str, *sentences: str) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        caller = Caller(stream)
        await caller.send(user=user, call=str(uuid.uuid4()))
        for sentence in sentences:
            text, _, patience = sentence.partition("|")
            done = await caller.say(text.strip(), int(patience) if patience else None)
            ms = f"context {done['context_ms']:.1f} ms, first word {done['first_word_ms']:.1f} ms"
            print(f"user: {text.strip()}\nagent: {done['done']}\n  ({ms})")


if __name__ == "__main__":
    anyio.run(main, int(sys.argv[1]), "alice", *sys.argv[2:])
