"""A process that asks and answers, turn by turn, until it is killed.

    python -m tests.faults.turn_kills DIRECTORY TURNS [DSN]

With the address of a PostgreSQL, the journal is there. It says which turns it has heard the end of.
What it does in a turn depends on the turn's number alone: some call a tool, and the first stream of
some is interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio

from remora import Config, Runtime, Session
from remora.storage.ports import Journal
from remora.storage.postgres import PostgresJournal

__all__ = ["ask", "expected", "open_runtime"]

CONFIG = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "buffer": {"token_limit": 400, "summary_tokens": 60},
    }
)


def open_runtime(directory: Path, dsn: str = "") -> Runtime:
    async def open_journal() -> Journal:
        return await PostgresJournal.open(dsn, durability="process", lease_s=0)

    return Runtime(directory, config=CONFIG, journal=open_journal if dsn else None)


def expected(number: int) -> list[Any]:
    """What a conversation holds of a turn that was answered."""
    tool = [None, f"result {number}"] if number % 3 == 0 else []
    return [f"question {number}", *tool, f"answer {number}, word by word"]


async def words(number: int) -> AsyncIterator[str]:
    for word in (f"answer {number}", ", word", " by", " word"):
        yield word


async def ask(chat: Session, number: int) -> None:
    """Ask until there is an answer."""
    while True:
        async with chat.turn(f"question {number}", key=f"request-{number}") as turn:
            if turn.replayed:
                assert [one.content for one in turn.replies] == expected(number)[1:]
                return
            calls = number % 3 == 0
            if calls and not turn.replies:
                function = {"name": "look", "arguments": "{}"}
                call = {"id": f"call-{number}", "type": "function", "function": function}
                said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
                await turn.reply(said)
            if calls and len(turn.replies) == 1:
                result: dict[str, Any] = {"role": "tool", "tool_call_id": f"call-{number}"}
                await turn.reply({**result, "content": f"result {number}"})
            passing = turn.stream(words(number))
            if number % 4 == 0 and not turn.resumed:
                await anext(passing)
                continue  # the block ends: what was streamed is kept, incomplete
            async for _ in passing:
                pass


async def main(directory: Path, turns: int, *dsn: str) -> None:
    async with open_runtime(directory, *dsn) as runtime:
        chat = runtime.session("alice", "one")
        for number in range(turns):
            await ask(chat, number)
            print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
