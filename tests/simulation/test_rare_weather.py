"""Rare branches of a whole runtime: what a user notices while models rest, disks hang and memories
go, and afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from remora import Config, Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown, RuntimeClosed
from remora.testing import HashEmbedder, count_probes
from remora.testing.simulation import Fault, World

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

TIGHT = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "models": {"timeout_s": 5.0},
        "buffer": {"token_limit": 200, "summary_tokens": 2_000},
        "supervisor": {
            "backoff_s": 0.05,
            "max_backoff_s": 1.0,
            "max_attempts": 3,
            "breaker_failures": 4,
            "breaker_rest_s": 20.0,
        },
        "long_term": {"enabled": False},
    }
)


async def say(chat: Session, first: int, count: int) -> None:
    for number in range(first, first + count):
        await chat.append({"role": "user", "content": f"m{number} {'x' * 60}"})


async def words(chat: Session) -> list[str]:
    """First words of all that a context tells of."""
    context = await chat.load(max_tokens=100_000)
    return [str(message["content"]).split()[0] for message in context.messages]


def test_a_model_that_is_well_again_writes_again() -> None:
    """G6: after its rest one call decides; from then on summaries are the model's, and what was
    said meanwhile is all there.
    """

    async def main(world: World) -> None:
        async with world.runtime(config=TIGHT) as runtime:
            chat = runtime.session("alice", "chat")
            number = 0
            status: list[str] = []
            while status[-1:] != ["ok"] or "degraded" not in status:
                await say(chat, number, 4)
                number += 4
                assert number < 400, status
                await chat.settle()
                summary = (await chat.inspect()).summary
                if summary is not None:
                    status.append("degraded" if summary.degraded else "ok")
                    # once the model has answered its trial call, it is asked like any other day
                    assert status == sorted(status), status
                await anyio.sleep(4)
                history = await chat.history()
                assert [str(message.content).split()[0] for message in history] == [
                    f"m{n}" for n in range(number)
                ]

    with count_probes() as counts:
        World(1, plan=[Fault("summarizer", 0, "hang", times=8)]).run(main)
    assert counts["breaker_opened"]
    assert counts["breaker_closed"]


class Slow(HashEmbedder):
    """Takes its time with what is recorded twice."""

    def __init__(self) -> None:
        super().__init__(16)
        self.may = anyio.Event()
        self.may.set()
        self.asked = 0

    async def embed(self, texts: Sequence[str]) -> Any:
        self.asked += 1
        await self.may.wait()
        return await super().embed(texts)


def test_a_memory_that_goes_while_it_is_embedded_does_not_come_back() -> None:
    """G13, S4.41: recorded again, embedded slowly, and pruned meanwhile: it is gone from the
    journal and from the index.
    """

    async def main(world: World) -> None:
        embedder = Slow()
        async with world.runtime(embedder=embedder) as runtime:
            alice = runtime.user("alice")
            await alice.remember("Keeps bees on the roof.")
            await runtime.settle()
            asked = embedder.asked
            embedder.may = anyio.Event()
            await alice.remember(["Keeps bees on the roof.", "Has a boat."])
            while embedder.asked == asked:
                await anyio.sleep(0.01)
            await alice.prune(keep=0)
            embedder.may.set()
            await runtime.settle()
            assert [memory.text for memory in await alice.memories()] == ["Has a boat."]
            assert [hit.text for hit in await alice.recall("bees on the roof, a boat")] == [
                "Has a boat."
            ]

    with count_probes() as counts:
        World(2).run(main)
    assert counts["memory_gone_while_embedded"]


@pytest.mark.parametrize("journal", ["memory", "sqlite"])
def test_an_end_that_waits_too_long_for_the_disk(journal: Any) -> None:
    """G3, G4, G12: whoever waits is told; what the next start finds is all of it or nothing, and a
    retry has one effect.
    """
    outcomes: list[Any] = []

    async def main(world: World) -> None:
        options: dict[str, Any] = {"config": TIGHT}
        async with world.runtime(**options) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append({"role": "user", "content": "before"})
            left = anyio.current_time()

            async def append(text: str) -> None:
                try:
                    outcomes.append(await chat.append({"role": "user", "content": text}, key=text))
                except (OutcomeUnknown, RuntimeClosed) as e:
                    outcomes.append(e)

            async with anyio.create_task_group() as tasks:
                for text in ("one", "two"):
                    tasks.start_soon(append, text)
                await anyio.sleep(1)
                await runtime.aclose()
            assert anyio.current_time() - left < 60
        world.calm()
        async with world.runtime(**options) as runtime:
            chat = runtime.session("alice", "chat")
            there = [str(message.content) for message in await chat.history()]
            assert there in (
                ["before", *some] for some in ([], ["one"], ["two"], ["one", "two"], ["two", "one"])
            )
            for text in ("one", "two"):
                assert (
                    await chat.append({"role": "user", "content": text}, key=text)
                ).duplicate == (text in there)
            assert sorted(str(message.content) for message in await chat.history()) == [
                "before",
                "one",
                "two",
            ]

    with count_probes() as counts:
        World(3, journal=journal, plan=[Fault("commit", 1, "hang")]).run(
            main
        )  # of what comes after "before"
    assert counts["drain_timed_out"]
    assert any(isinstance(outcome, Exception) for outcome in outcomes)


def test_it_is_found_out_whether_the_journal_has_forgotten() -> None:
    """G4, G13: whichever call of the erasing transaction fails, and however: it is erased, or said
    to be untouched.
    """
    uncertain = untouched = 0
    for kind in ("refused", "lost", "kept"):
        for nth in range(14):

            async def main(world: World) -> str:
                async with world.runtime() as runtime:
                    alice, bob = runtime.user("alice"), runtime.user("bob")
                    world.calm()
                    for who in (alice, bob):
                        await who.session("chat").append(
                            {"role": "user", "content": "I keep bees."}, key="k"
                        )
                    await runtime.settle()
                    world.luck("commit").armed = True  # type: ignore[attr-defined]
                    try:
                        await alice.forget()
                    except CommitFailed:
                        told = "untouched"
                    else:
                        told = "erased"
                    world.calm()
                    await checked(runtime, told)
                async with world.runtime() as runtime:
                    await checked(runtime, told, anew=True)
                return told

            with count_probes() as counts:
                told = World(nth, journal="sqlite", plan=[Fault("commit", nth, kind)]).run(main)
            untouched += told == "untouched"
            uncertain += counts["erasure_uncertain"] > 0
            assert told == "erased" or not counts["erasure_uncertain"]
    assert uncertain
    assert untouched


async def checked(runtime: Runtime, told: str, *, anew: bool = False) -> None:
    chats = {name: runtime.session(name, "chat") for name in ("alice", "bob")}
    assert len(await chats["bob"].history()) == 1
    if told == "untouched":
        assert (
            await chats["alice"].append({"role": "user", "content": "I keep bees."}, key="k")
        ).duplicate
        return
    assert len(await chats["alice"].history()) == anew
    receipt = await chats["alice"].append({"role": "user", "content": "new"}, key="k")
    assert (receipt.seqs, receipt.duplicate) == ((1,), anew)
    await chats["alice"].flush()
    await runtime.settle()
    assert [hit.text for hit in await runtime.user("alice").recall("new")] == ["new"]
