"""What probes hear of a memory: live, ready, degraded, and why."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import remora.blocking
from remora import Config, Runtime
from remora.api.health import merge_health
from remora.cluster.sharded import ShardedRuntime
from remora.errors import CommitFailed, OutcomeUnknown
from remora.results import Health, HealthProblem
from remora.storage.queueing import CommitMeter
from remora.testing import CommitFault, FaultyJournal, VirtualClock
from tests.configs import LEAN_TREE, PLAIN, PLAIN_TREE
from tests.harness import user
from tests.remote import Owner, remote

pytestmark = pytest.mark.anyio

in_thread = anyio.to_thread.run_sync
WELL = Health(live=True, ready=True, degraded=False)


def codes(health: Health) -> list[str]:
    return [one.code for one in health.problems]


def found(health: Health, code: str) -> HealthProblem:
    return next(one for one in health.problems if one.code == code)


def test_from_opening_to_closing(tmp_path: Path) -> None:
    """A runtime that is not open is not ready, and needs no other start of the process."""
    runtime = remora.blocking.Runtime(tmp_path / "memory", config=PLAIN)
    before = runtime.health()
    assert (before.live, before.ready, codes(before)) == (True, False, ["not_opened"])
    with runtime:
        assert runtime.health() == WELL
    after = runtime.health()
    assert (after.live, after.ready, codes(after)) == (True, False, ["closed"])
    with runtime:
        assert runtime.health().ready


async def test_commits_that_fail_take_it_out_of_service() -> None:
    """They are tried with every write; the first that succeeds brings it back. Without requests
    nothing is written, and nothing would show that the disk is back: so it is for a while.
    """
    faults: list[CommitFault] = []
    journal = FaultyJournal(lambda: faults.pop() if faults else None)
    async with Runtime.in_memory(config=PLAIN, journal=journal) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append(user("stored"))
        faults.append("refused")
        with pytest.raises(CommitFailed):
            await chat.append(user("refused"))
        health = runtime.health()
        assert (health.live, health.ready, codes(health)) == (True, False, ["commits_fail"])
        assert "CommitFailed" in found(health, "commits_fail").text
        await chat.append(user("stored"))
        assert runtime.health().ready
        assert runtime.statistics().log.failed_commits == 1

    now_s = 100.0
    meter = CommitMeter(lambda: now_s)
    meter.fail(OSError("no space"))
    assert meter.figures(0).refusing
    now_s += 11
    assert (meter.figures(0).failing, meter.figures(0).refusing) == ("OSError", False)
    meter.count()
    assert meter.figures(0).failing == ""
    meter.fail(None)  # one write that cannot be stored is no fault of the disk
    assert (meter.figures(0).failing, meter.figures(0).failed_commits) == ("", 2)


async def test_jobs_that_are_late_and_a_model_that_fails() -> None:
    """Summaries that no model makes: requests are served, and an operator hears of it."""
    clock = VirtualClock()

    async def fail(messages: Any) -> str:
        raise ConnectionError("away")

    buffer = {"token_limit": 400, "summary_tokens": 50}
    supervisor = {"backoff_s": 2_000.0, "max_backoff_s": 2_000.0, "breaker_failures": 1}
    config = Config.from_dict({**PLAIN_TREE, "buffer": buffer, "supervisor": supervisor})
    async with Runtime.in_memory(config=config, chat_model=fail, clock=clock) as runtime:
        await runtime.session("ann", "one").append([user("word " * 60) for _ in range(8)])
        await clock.advance(1.0)
        assert codes(runtime.health()) == ["model_fails"]
        await clock.advance(700.0)
        health = runtime.health()
        assert (health.ready, sorted(codes(health))) == (True, ["jobs_late", "model_fails"])
        assert "summarize" in found(health, "jobs_late").text


async def test_a_reranker_that_is_always_late() -> None:
    """Recall answers without it, and an operator hears of it."""

    async def rank(query: str, texts: list[str]) -> list[float]:
        await anyio.sleep_forever()
        raise AssertionError

    supervisor = {"breaker_failures": 2}
    tree = {**LEAN_TREE, "recall": {"rerank_deadline_s": 0.01}, "supervisor": supervisor}
    async with Runtime.in_memory(config=Config.from_dict(tree), reranker=rank) as runtime:
        await runtime.ready()
        ann = runtime.user("ann")
        await ann.session("one").append([user("I ride a bike."), user("My bike is red.")])
        for _ in range(2):
            assert codes(runtime.health()) == []
            assert len(await ann.recall("Which bike do I ride?")) == 2
        text = found(runtime.health(), "reranker_fails").text
        assert "2 of 2 calls were late" in text


class LateClock(VirtualClock):
    """Time passes though the event loop does not run."""

    late_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_s


@pytest.mark.blocking
async def test_a_stuck_event_loop_is_seen_from_other_threads() -> None:
    """A probe in another thread does not wait for the loop; on the loop itself, it runs."""
    clock, heard = LateClock(), list[Health]()
    runtime = Runtime.in_memory(config=PLAIN, clock=clock)

    def probe_twice() -> None:
        heard.append(remora.blocking.view(runtime).health())
        clock.late_s = 31.0
        heard.append(runtime.health())

    async with runtime:
        thread = threading.Thread(target=probe_twice)
        thread.start()
        thread.join()  # and the loop does not run
        assert runtime.health().live
        ready, stuck = heard
        assert ready.ready
        assert (stuck.live, stuck.ready, codes(stuck)) == (False, False, ["stuck"])
        await anyio.lowlevel.checkpoint()
        assert (await in_thread(runtime.health)).live


async def test_what_was_lost_needs_another_start(tmp_path: Path) -> None:
    """Another process has the journal: this one serves nothing any more, and a probe ends it."""
    runtime = Runtime(tmp_path / "memory", config=PLAIN)
    async with runtime:
        await runtime.session("ann", "one").append(user("hello"))
        await in_thread((tmp_path / "memory" / "journal.db").unlink)
        with pytest.raises(OutcomeUnknown):
            await runtime.session("ann", "one").append(user("lost"))
    health = runtime.health()
    assert (health.live, health.ready, codes(health)) == (False, False, ["lost"])


async def test_shards_are_one_memory(tmp_path: Path) -> None:
    """A problem of one shard says of which; one of all is said once."""
    make = partial(ShardedRuntime.of, Runtime(tmp_path / "memory", config=PLAIN), shards=3)
    memory = await in_thread(make)
    assert codes(memory.health()) == ["not_opened"]
    assert "shard" not in found(memory.health(), "not_opened").text
    async with memory:
        assert memory.health() == WELL
    late = HealthProblem("jobs_late", "degraded", "the oldest came 700 s ago")
    ill = Health(live=True, ready=True, degraded=True, problems=(late,))
    (merged,) = merge_health(dict(enumerate([WELL, ill, WELL, ill, ill, ill]))).problems
    assert merged.text == (
        f"shard 1: {late.text}; shard 3: {late.text}; shard 4: {late.text}; and 1 more shards"
    )


async def test_workers_hear_it_of_the_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that it does not answer, which restarting the worker would not mend."""
    async with remote(partial(Runtime.in_memory, config=PLAIN)) as shard:
        assert shard.health() == WELL
        now_s = time.monotonic()
        with monkeypatch.context() as late:
            late.setattr(time, "monotonic", lambda: now_s + 6)
            silent = shard.health()
        assert (silent.live, silent.ready, codes(silent)) == (True, False, ["owner_silent"])
    assert codes(shard.health()) == ["closed"]


async def test_a_worker_that_connects_is_asked() -> None:
    """It is not ready until it has heard of the owner how that does, and fails for nobody."""
    owner = Owner(lambda: [Runtime.in_memory(config=PLAIN)])
    await owner.start()
    memory = owner.worker()
    (shard,) = memory.shards
    heard: list[Health] = []
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(memory.open)
            while not heard or not heard[-1].ready:
                heard.append(shard.health())
                await anyio.lowlevel.checkpoint()
        assert shard.statistics().registry.live == 0
    finally:
        await memory.aclose()
        await owner.stop()
    assert {one for health in heard[:-1] for one in codes(health)} == {"not_opened"}
