"""A process whose model extracts facts until it is killed.

    python -m tests.faults.fact_kills DIRECTORY RUN

It says which message is acknowledged, when the model is asked, and when it has answered.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import anyio

from remora import Runtime
from remora.messages import ChatDict
from tests.facts import FactModel, config

__all__ = ["CONFIG", "SESSIONS"]

CONFIG = config()
SESSIONS = ("one", "two")


class Talking(FactModel):
    """Says when it is asked."""

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        print("asked", flush=True)  # noqa: T201
        answer = await super().complete(messages)
        print("answered", flush=True)  # noqa: T201
        return answer


async def main(directory: Path, run: int) -> None:
    async with Runtime(directory, config=CONFIG, chat_model=Talking()) as runtime:
        for number in range(1_000):
            chat = runtime.session("alice", SESSIONS[number % 2])
            text = f"n{number % 7} is r{run}v{number}"
            await chat.append({"role": "user", "content": text})
            print("said", text, flush=True)  # noqa: T201
            await chat.flush()
            if number % 3 == 0:
                await chat.settle()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
