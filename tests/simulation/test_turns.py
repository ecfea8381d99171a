"""Turns under seeds: clients that repeat their requests, through faults and power cuts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import Any, Literal

import anyio
import msgspec
import pytest

from remora import Runtime, Turn
from remora.testing.simulation import World
from tests.simulation.fates import REFUSED, SMALL, worlds

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

SESSIONS, REQUESTS = ("one", "two"), 5
CALL: dict[str, Any] = {
    "id": "call", "type": "function", "function": {"name": "look", "arguments": "{}"},
}  # fmt: skip


class Told(msgspec.Struct):
    """What clients of a session were told; it outlives power cuts.

    Attributes:
        answers: by request, the replies that a client has heard the end of.
        refused: how often a client was told to try again.
        replayed: how often a stored reply came again.
        resumed: the requests whose turn was cut, and went on.
    """

    answers: dict[int, list[Any]] = {}
    refused: int = 0
    replayed: int = 0
    resumed: set[int] = set()


async def words(text: str, world: World) -> AsyncIterator[str]:
    for word in text.split(" "):
        await anyio.sleep(world.latency())
        yield f"{word} "


async def reply(turn: Turn, number: int, world: World) -> None:
    """Answer as the request's number says: at once, in a stream, or after a tool."""
    answer = f"answer {number} of life {world.life}"
    if number % 3 == 2:
        if not turn.replies:
            said: dict[str, Any] = {"role": "assistant", "content": f"call {number}"}
            await turn.reply({**said, "tool_calls": [CALL]})
        if len(turn.replies) == 1:
            result: dict[str, Any] = {"role": "tool", "tool_call_id": "call"}
            await turn.reply({**result, "content": f"result {number}"})
    if number % 3 == 1:
        async for _ in turn.stream(words(answer, world)):
            pass
    else:
        await turn.reply(answer)


async def ask(world: World, runtime: Runtime, session: str, number: int, told: Told) -> None:
    """Send a request until there is an answer, and then once more."""
    chat = runtime.session("alice", session)
    for _ in range(60):
        await anyio.sleep(world.latency())
        try:
            async with chat.turn(f"question {number}", key=str(number), query=False) as turn:
                told.resumed |= {number} if turn.resumed else set()
                if not turn.replayed:
                    await reply(turn, number, world)
                answer = [one.content for one in turn.replies]
        except REFUSED:
            told.refused += 1
            continue
        assert told.answers.setdefault(number, answer) == answer
        if turn.replayed:
            told.replayed += 1
            return


async def live(world: World, told: Mapping[str, Told]) -> None:
    """One life of the server."""
    async with world.runtime(config=SMALL) as runtime:
        async with anyio.create_task_group() as tasks:
            for session in SESSIONS:
                for number in range(REQUESTS):
                    tasks.start_soon(ask, world, runtime, session, number, told[session])
        world.calm()
        for session in SESSIONS:
            for number in range(REQUESTS):  # those that gave up, and nobody else anything new
                await ask(world, runtime, session, number, told[session])
            await judge(runtime, session, told[session])


async def judge(runtime: Runtime, session: str, told: Told) -> None:
    """Each request is there once, with its answer behind it: turns do not mix. One that was cut may
    be answered after others.
    """
    turns: dict[int, list[Any]] = {}
    asked = -1
    for one in await runtime.session("alice", session).history():
        assert not (one.metadata or {}).get("incomplete")
        number = int(str(one.content).split()[1])
        if one.role == "user":
            assert number not in turns
            turns[number], asked = [], number
        else:
            assert number == asked or number in told.resumed
            turns[number].append(one.content)
    assert turns == told.answers
    assert sorted(turns) == list(range(REQUESTS))


@pytest.mark.parametrize(("journal", "seeds"), [("memory", 20), ("sqlite", 5)])
def test_each_request_is_answered_once(journal: Literal["memory", "sqlite"], seeds: int) -> None:
    """G2, G3, G4: an answer that a client heard is the answer for ever; a turn that a power cut
    interrupted is resumed or begun again; turns of a session stay in line.
    """
    cuts = resumed = 0
    for world in worlds(seeds, journal, faults=4, cuts=3, within=range(100, 1_500)):
        told = {session: Told() for session in SESSIONS}
        world.run(partial(live, told=told))
        cuts += world.life
        resumed += sum(len(one.resumed) for one in told.values())
        assert all(one.replayed >= REQUESTS for one in told.values())
    assert cuts
    assert resumed
