"""A session kept for one caller: runs of frameworks, one after the other."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import msgspec
import pytest

from remora import Config, Runtime, blocking
from remora.errors import SessionBusy, TurnClosed

pytestmark = pytest.mark.anyio
PLAIN = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
    }
)


async def test_blocks_run_one_after_the_other() -> None:
    """What eight callers append in their blocks does not mix, in the order of their entering."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")

        async def run(number: int) -> None:
            async with chat.exclusive():
                for part in range(3):
                    await chat.append({"role": "user", "content": f"{number}.{part}"})
                    await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(run, number)
        said = [message.content for message in await chat.history()]
        assert said == [f"{number}.{part}" for number in range(8) for part in range(3)]


async def test_blocks_wait_for_turns_and_turns_for_blocks() -> None:
    """Both are in one line; other sessions go on, and so does what is appended without either."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat, done = runtime.session("alice", "chat"), []

        async def turn() -> None:
            async with chat.turn("question") as turn:
                await turn.reply("answer")
            done.append("turn")

        async with anyio.create_task_group() as tasks:
            async with chat.exclusive():
                tasks.start_soon(turn)
                await anyio.wait_all_tasks_blocked()
                await chat.append({"role": "user", "content": "from outside"})
                async with runtime.session("alice", "other").exclusive():
                    done.append("block")
        assert done == ["block", "turn"]
        said = [message.content for message in await chat.history()]
        assert said == ["from outside", "question", "answer"]


async def test_a_block_ends_however_it_is_left() -> None:
    """An exception and a cancellation let the next one in; nothing waits for who gave up."""
    async with Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        with pytest.raises(ValueError, match="odd"):
            async with chat.exclusive():
                raise ValueError("odd")
        block = chat.exclusive()
        async with block:
            with anyio.move_on_after(0) as scope:
                async with chat.exclusive():
                    pass
            assert scope.cancelled_caught
        with pytest.raises(TurnClosed):
            async with block:
                pass
        async with chat.exclusive():
            pass


async def test_who_waits_too_long_is_refused() -> None:
    """As of turns: `turns.wait_s`; nothing ran."""
    turns = msgspec.structs.replace(PLAIN.turns, wait_s=0.01)
    config = msgspec.structs.replace(PLAIN, turns=turns)
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "chat")
        async with chat.exclusive():
            with pytest.raises(SessionBusy):
                async with chat.exclusive():
                    pass


def test_blocks_of_threads() -> None:
    """`remora.blocking` has it with ``with``."""
    with blocking.Runtime.in_memory(config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        with chat.exclusive():
            chat.append({"role": "user", "content": "hello"})
        with chat.exclusive():
            assert chat.size() == 1
