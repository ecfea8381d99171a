"""Rerankers in a simulated world: they fail by a seed, and hang for hours that take no time."""

from __future__ import annotations

import random
from typing import Any

import anyio
import msgspec
import pytest

from remora import Context, Runtime
from remora.errors import ErasureInProgress
from remora.models.breaker import CircuitBreaker
from remora.recall.reranking import Reranking
from remora.results import RerankStatistics
from remora.testing import FaultyReranker, HashEmbedder
from remora.testing.simulation import CONFIG, World, WorldClock
from tests.unit.test_reranking import TWO

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here
SEEDS = 24
COUNT = 8


class Lengths:
    """Likes long texts."""

    async def rank(self, _: str, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


def unlucky(seed: int, world: World) -> FaultyReranker:
    """Every second call goes wrong, in one of four ways."""
    rng = random.Random(seed)
    kinds: Any = ("fail", "hang", "late", "garbage")
    return FaultyReranker(
        Lengths(),
        lambda: rng.choice(kinds) if rng.random() < 0.5 else None,
        latency_s=world.latency,
        rng=rng,
    )


def check(context: Context) -> None:
    """The conversation is there; memories are left out by the deadline only, and it says why."""
    source = context.sources.long_term
    assert source.status in {"ok", "degraded", "omitted", "late"}
    assert (source.status == "degraded") == source.detail.startswith("not reranked: ")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    """Contexts and recalls go on whatever a reranker does, and have nothing that was forgotten."""

    async def ask(runtime: Runtime, user: str, world: World) -> None:
        for number in range(4):
            await anyio.sleep(world.latency())
            try:
                context = await runtime.session(user, "now").load(query=f"tea number {number}")
                found = await runtime.user(user).recall(f"which tea {number}?", limit=100)
            except ErasureInProgress:
                continue
            check(context)
            forgotten = [one.text for one in found if "secret" in one.text]
            assert not forgotten or not gone.is_set()
            if user == "ann":
                assert len({one.text for one in found}) == COUNT

    async def main(world: World) -> None:
        reranker = unlucky(seed, world)
        async with world.runtime(reranker=reranker, embedder=HashEmbedder(16)) as runtime:
            for user, word in (("ann", "green"), ("bea", "secret")):
                await runtime.session(user, "then").append(
                    [{"role": "user", "content": f"{word} tea number {n}"} for n in range(COUNT)]
                )
            await runtime.ready()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, runtime, "ann", world)
                tasks.start_soon(ask, runtime, "bea", world)
                await anyio.sleep(world.latency())
                await runtime.user("bea").forget()
                gone.set()
            assert await runtime.user("bea").recall("tea") == []
            figures = runtime.statistics().reranking
            assert figures.calls >= figures.failures >= figures.late

    gone = anyio.Event()
    World(seed).run(main)


def test_deadlines() -> None:
    """Its own; within its caller's, four fifths of what is left, which it is not blamed for."""

    async def main(world: World) -> None:
        clock = WorldClock(world.loop)
        hanging = FaultyReranker(Lengths(), lambda: "hang")
        breaker = CircuitBreaker(clock, failures=1, rest_s=30.0)
        mine = Reranking(hanging, clock, breaker, deadline_s=5.0)
        async with anyio.create_task_group() as tasks:
            mine.start(tasks)
            for calls in (1, 2):
                began = anyio.current_time()
                with anyio.fail_after(1.0):
                    problem = (await mine.judge("ann", "q", TWO)).problem
                assert problem == "not reranked: the reranker Lengths did not answer within 0.8 s"
                assert anyio.current_time() - began == pytest.approx(0.8, abs=0.01)
                assert mine.statistics().calls == calls
            assert "within 5 s" in (await mine.judge("ann", "q", TWO)).problem
            assert "is not asked for now" in (await mine.judge("ann", "q", TWO)).problem
            assert mine.statistics() == RerankStatistics(calls=3, failures=3, late=3, skipped=1)

    World(0).run(main)


@pytest.mark.parametrize("seed", range(5))
def test_a_context_has_its_memories_before_its_deadline(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the reranker would have more time than the context: `recall.deadline_s` counts."""

    async def main(world: World) -> None:
        recall = msgspec.structs.replace(CONFIG.recall, deadline_s=1.0, rerank_deadline_s=5.0)
        config = msgspec.structs.replace(CONFIG, recall=recall)
        hanging = FaultyReranker(Lengths(), lambda: "hang")
        world.calm()
        monkeypatch.setattr(world, "latency", lambda: 0.001)  # of the store, which may be slow
        async with world.runtime(
            config=config, reranker=hanging, embedder=HashEmbedder(16)
        ) as runtime:
            await runtime.ready()
            await runtime.session("ann", "then").append(
                [{"role": "user", "content": f"green tea number {n}"} for n in range(COUNT)]
            )
            began = anyio.current_time()
            context = await runtime.session("ann", "now").load(query="which tea?")
            assert anyio.current_time() - began < 1.0
            assert len(context.memories) == COUNT
            assert context.sources.long_term.status == "degraded"

    World(seed).run(main)
