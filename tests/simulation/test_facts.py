"""Facts under seeds: sessions that are written, deleted from, cleared and forgotten while a model
reads them, through failing commits, stores and models, and power cuts.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import anyio
import msgspec
import pytest

from remora import Runtime
from remora.errors import RemoraError
from remora.messages import ChatDict, decode_chat, plain_text
from remora.storage.ports import SessionKey
from remora.storage.records import MemoryItem
from remora.testing import FaultyChatModel, count_probes
from remora.testing.simulation import CONFIG, World
from tests.facts import FactModel
from tests.simulation.fates import worlds

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

SETTINGS = msgspec.structs.replace(
    CONFIG, facts=msgspec.structs.replace(CONFIG.facts, enabled=True)
)
SESSIONS = ("one", "two")
NAMES = ("home", "pet", "car")


class Slow(FactModel):
    """Answers when it likes."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        await anyio.sleep(self._world.latency())
        return await super().complete(messages)


async def act(world: World, runtime: Runtime, rng: random.Random, said: list[int]) -> None:
    """Do one thing to one session; what the world refuses is refused."""
    chat = runtime.session("alice", rng.choice(SESSIONS))
    what = rng.choices(
        ["say", "flush", "delete", "rewind", "clear", "forget", "load"], [8, 6, 3, 1, 1, 1, 2]
    )[0]
    with suppress(RemoraError):
        match what:
            case "say":
                said[0] += 1
                text = f"{rng.choice(NAMES)} is v{said[0]}"
                await chat.append({"role": "user", "content": text})
            case "flush":
                await chat.flush()
            case "delete" if count := len(await chat.get_messages()):
                await chat.delete(positions=rng.randrange(count))
            case "rewind" if last := (await chat.inspect()).last_seq:
                await chat.rewind(rng.randrange(last))
            case "clear":
                await chat.clear()
            case "forget":
                await chat.forget()
            case "load":
                await chat.load(query="home pet car")
    await anyio.sleep(world.latency())


async def check(runtime: Runtime) -> int:
    """Each message that long-term memory has, has its fact, once; nothing else has one."""
    journal = runtime.internals.journal
    facts = await journal.memories("alice")
    expected: dict[tuple[str, int], str] = {}
    for name in SESSIONS:
        key = SessionKey("alice", name)
        pruned = set(await journal.pruned_seqs(key))
        through = await journal.session_indexed_through(key)
        for entry in await journal.read(key, 1, through):
            if entry.seq not in pruned:
                expected[name, entry.seq] = plain_text(decode_chat(entry.chat))
    assert {(item.session, item.sources[0]): item.content for item in facts} == expected
    assert len(facts) == len(expected)
    holding = {_newest(item.content, facts) for item in facts}
    found = await runtime.user("alice").recall("home pet car", types="fact", limit=100)
    assert {(one.session, *one.sources) for one in found} == holding
    rows = {one.id for one in await runtime.user("alice").memories("fact")}
    assert rows == {item.id for item in facts}
    return len(facts)


def _newest(content: str, facts: Sequence[MemoryItem]) -> tuple[str, int]:
    """Of the facts on the same name, the one that was said last."""
    name = content.partition(" ")[0]
    alike = [item for item in facts if item.content.startswith(f"{name} ")]
    last = max(alike, key=lambda item: (item.created_us, item.sources))
    return last.session, last.sources[0]


@pytest.mark.parametrize(("journal", "seeds"), [("memory", 10), ("sqlite", 2)])
def test_every_indexed_message_has_its_fact_once(
    journal: Literal["memory", "sqlite"], seeds: int
) -> None:
    """G3, G4, G7, G13: whatever fails and whenever, once all is settled."""
    recorded = 0
    with count_probes() as counts:
        every = worlds(
            seeds,
            journal,
            faults=6,
            cuts=4,
            within=range(100, 2_500),
            ports=("store", "summarizer"),  # garbage, twice, would leave a message without a fact
            nth=30,
        )
        for seed, world in enumerate(every):
            rng, left, said = random.Random(f"{seed}/acts"), [30], [0]

            async def main(world: World, rng: random.Random, left: list[int], said: Any) -> int:
                model = FaultyChatModel(
                    Slow(world), world.luck("summarizer"), latency_s=world.latency
                )
                async with world.runtime(config=SETTINGS, chat_model=model) as runtime:
                    while left[0] > 0:
                        left[0] -= 1
                        await act(world, runtime, rng, said)
                    world.calm()
                    for name in SESSIONS:  # or they would be indexed when they are idle
                        await runtime.session("alice", name).flush()
                    await runtime.settle()
                    dead = [one.id for one in await runtime.dead_letters()]
                    if dead:
                        await runtime.retry_dead_letters(dead)
                        await runtime.settle()
                    return await check(runtime)

            try:
                recorded += world.run(partial(main, rng=rng, left=left, said=said))
            except BaseException as e:
                e.add_note(f"seed {seed} of {journal}")
                raise
    assert recorded >= seeds
    if journal == "memory":
        assert counts["unsupported_facts_removed"]
