"""The simulated machine itself: a seed decides all, a power cut ends all, and what is stuck says
why.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora.errors import CommitFailed, ConfigError, OutcomeUnknown
from remora.testing import HashEmbedder, ScriptedChatModel
from remora.testing.simulation import Deadlock, Fault, SeededLoop, Stuck, World

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

SEEDS = 60


async def converse(world: World) -> int:
    """Four callers of one session, folds and flushes behind them."""
    async with world.runtime() as runtime:
        chat = runtime.session("alice", "one")

        async def caller(number: int) -> None:
            for turn in range(3):
                await anyio.sleep(world.latency())
                await chat.append(
                    {"role": "user", "content": f"caller {number} says {turn}"},
                    key=f"{number}.{turn}",
                )
                await chat.load()

        async with anyio.create_task_group() as callers:
            for number in range(4):
                callers.start_soon(caller, number)
        await chat.flush()
        await runtime.settle()
        return len(await chat.history())


def fingerprint(seed: int, **options: Any) -> tuple[int, ...]:
    world = World(seed, **options)
    assert world.run(converse) == 12
    assert world.loop.foreign == 0
    return tuple(world.fingerprints)


@pytest.mark.parametrize("journal", ["memory", "sqlite"])
def test_a_seed_decides_every_step(journal: Any) -> None:
    """S5.05: two runs of one seed have one fingerprint, power cut included; at least 90 % of seeds
    have one of their own.
    """
    seeds = SEEDS if journal == "memory" else SEEDS // 3
    first = [fingerprint(seed, journal=journal, cuts=(120,)) for seed in range(seeds)]
    assert len(set(first)) >= 0.9 * seeds
    assert all(len(lives) == 2 for lives in first), "the power was cut in each"
    assert [
        fingerprint(seed, journal=journal, cuts=(120,)) for seed in range(0, seeds, 4)
    ] == first[::4]


def test_a_seed_decides_every_step_in_every_process() -> None:
    """S5.05: nothing follows the order of a set of strings or of addresses, which differ from
    process to process.
    """
    program = (
        "from tests.simulation.test_seeded_loop import fingerprint\n"
        "print([fingerprint(seed, journal=journal, cuts=(150,)) for seed in range(5) for journal "
        "in ('memory', 'sqlite')])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": chance},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for chance in ("1", "2")
    }
    assert len(told) == 1
    assert told != {""}


def test_the_real_lancedb_on_a_lane() -> None:
    """G7, S5.05: the same program over SQLite and LanceDB themselves, through a power cut, twice
    with one fingerprint.
    """
    options: Any = {"journal": "sqlite", "long_term": "lance", "cuts": (200,)}
    assert fingerprint(3, **options) == fingerprint(3, **options)


def run(main: Any, **options: Any) -> Any:
    loop = SeededLoop(random.Random(1), **options)  # type: ignore[abstract]
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()


def test_time_is_virtual() -> None:
    """S5.05: an hour of sleep takes no time, and timeouts end when theirs has come."""

    async def main() -> float:
        began = anyio.current_time()
        with anyio.move_on_after(3_600) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        return anyio.current_time() - began

    assert 3_600 <= run(main) < 3_600.1


def test_a_deadlock_says_who_waits_for_whom() -> None:
    """S5.05: two tasks that hold what the other wants are named, with the owner of what each waits
    for.
    """

    async def main() -> None:
        first, second = anyio.Lock(), anyio.Lock()

        async def both(mine: anyio.Lock, other: anyio.Lock) -> None:
            async with mine:
                await anyio.sleep(1)
                async with other:
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(both, first, second, name="left")
            tasks.start_soon(both, second, first, name="right")

    with pytest.raises(Deadlock) as told:
        run(main)
    assert "left: " in str(told.value)
    assert "for a lock that right holds" in str(told.value)
    assert "for a lock that left holds" in str(told.value)
    assert "for its tasks left, right" in str(told.value)


def test_what_never_ends_is_stuck() -> None:
    """S5.05: a caller that waits for ever beside periodic work is no deadlock, and is told all the
    same.
    """

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(asyncio.Event().wait, name="waits for ever")
            while True:
                await anyio.sleep(1)

    with pytest.raises(Stuck, match=r"3600 virtual seconds:\n(.*\n)*.*waits for ever"):
        run(main, limit_s=3_600)
    with pytest.raises(Stuck, match="after 500 steps"):
        run(main, max_steps=500)


def test_a_power_cut_ends_all_where_it_stands() -> None:
    """S5.05, G4: nothing of the dead world runs on: no except clause, no finally block that awaits,
    no thread's work.
    """
    log: list[str] = []

    async def main(world: World) -> None:
        log.append(f"life {world.life}")
        try:
            await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(log.append, "thread")
            await anyio.sleep(1_000)
        finally:
            await anyio.lowlevel.checkpoint()
            log.append("finally")

    World(0, cuts=(4,)).run(main)
    assert log == ["life 0", "life 1", "thread", "finally"]


def test_what_ends_a_run() -> None:
    """S5.05: what no seed can decide is refused, with the way out; what nobody catches would be a
    line in a log elsewhere, or told whenever garbage is collected.
    """

    async def network() -> None:
        await asyncio.open_connection("localhost", 1)

    async def callback() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await anyio.sleep(1)

    async def forgotten() -> None:
        async def fails() -> None:
            raise ValueError("nobody asks")

        task = asyncio.ensure_future(fails())
        await anyio.sleep(1)
        assert task.done()

    with pytest.raises(RuntimeError, match="put a port in between"):
        run(network)
    with pytest.raises(ZeroDivisionError):
        run(callback)
    with pytest.raises(ValueError, match="nobody asks"):
        run(forgotten)


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("refused", CommitFailed), ("lost", OutcomeUnknown), ("kept", OutcomeUnknown)],
)
def test_sqlite_fails_as_it_is_told(kind: str, raised: type[Exception]) -> None:
    """G3, G4, S5.05: whichever call to the real SQLite fails, its caller hears what can be done,
    and that is true.
    """
    failed = 0

    async def main(world: World) -> None:
        nonlocal failed
        acknowledged, may_exist = [], []
        async with world.runtime() as runtime:
            chat = runtime.session("alice", "one")
            for number in range(4):
                try:
                    await chat.append({"role": "user", "content": str(number)})
                except raised:
                    failed += 1
                    may_exist += [str(number)] if raised is OutcomeUnknown else []
                else:
                    acknowledged.append(str(number))
            there = [str(message.content) for message in await chat.history()]
        assert set(acknowledged) <= set(there) <= {*acknowledged, *may_exist}
        assert there == sorted(there)

    for nth in range(8):
        World(nth, journal="sqlite", plan=[Fault("commit", nth, kind)]).run(main)
    assert failed >= 4


def test_sqlite_hangs() -> None:
    """G3, S1.06: who waits for a commit that takes two minutes hears that its outcome is unknown;
    the retry finds it done.
    """

    async def main(world: World) -> None:
        async with world.runtime() as runtime:
            chat = runtime.session("alice", "one")
            with pytest.raises(OutcomeUnknown):
                await chat.append({"role": "user", "content": "one"}, key="k")
            await anyio.sleep(200)
            assert (await chat.append({"role": "user", "content": "one"}, key="k")).duplicate

    World(0, journal="sqlite", plan=[Fault("commit", 0, "hang")]).run(main)


def test_a_misspelt_world_is_refused() -> None:
    """S5.05: a fault that never comes, or a journal that is not the one that was meant, would prove
    nothing.
    """
    for options, says in (
        ({"plan": [Fault("disk", 0, "full")]}, "no port disk; there are commit, read, store"),
        (
            {"plan": [Fault("commit", 0, "kpet")]},
            "commit does not fail by 'kpet'; it does by refused, lost, kept, hang",
        ),
        ({"journal": "sqlit"}, "journal is memory or sqlite"),
        ({"long_term": "lancedb"}, "long_term memory or lance"),
    ):
        with pytest.raises(ConfigError, match=says):
            World(0, **options)


def test_one_runtime_at_a_time() -> None:
    """G12: two runtimes over one memory would be two owners; one after the other is a restart."""

    async def main(world: World) -> list[str]:
        async with world.runtime() as runtime:
            await runtime.session("alice", "one").append({"role": "user", "content": "hello"})
            with pytest.raises(ConfigError, match="one runtime at a time"):
                async with world.runtime():
                    pass
            with pytest.raises(ConfigError, match="clock: that is the world's own"):
                async with world.runtime(clock=None):
                    pass
        async with world.runtime() as runtime:
            return [
                str(message.content) for message in await runtime.session("alice", "one").history()
            ]

    for journal in ("memory", "sqlite"):
        assert World(0, journal=journal).run(main) == ["hello"]


def test_a_model_of_the_callers_own() -> None:
    """S5.05: an agent's own embedder, of any dimension, and its own chat model take the place of
    those that fail by plan.
    """

    async def main(world: World) -> list[str]:
        chat = ScriptedChatModel(["She moved to Lisbon."] * 9)
        async with world.runtime(embedder=HashEmbedder(48), chat_model=chat) as runtime:
            await runtime.user("alice").remember("Prefers metric units")
            await runtime.settle()
            return [memory.text for memory in await runtime.user("alice").recall("units")]

    assert World(0).run(main) == ["Prefers metric units"]


def test_worlds_leave_no_descriptor() -> None:
    """S5.05: a thousand power cuts over the real SQLite must not use up the process's descriptors."""  # noqa: E501
    fingerprint(0, journal="sqlite", cuts=(150,))
    gc.collect()
    before = _opened()
    for seed in range(6):
        fingerprint(seed, journal="sqlite", cuts=(120, 150))
    gc.collect()
    assert _opened() - before == Counter()


def _opened() -> Counter[str]:
    """Return the files of worlds that the process has open, with how often.

    Other threads of the tests open and close files of their own at the same time.
    """
    opened: Counter[str] = Counter()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            opened[str(descriptor.readlink())] += 1
    return Counter({one: count for one, count in opened.items() if "/remora-world-" in one})


def test_an_idle_runtime_takes_few_steps() -> None:
    """It wakes the event loop less than once a second, and serves and passivates as before."""

    async def rest(world: World) -> tuple[int, int, int]:
        async with world.runtime() as runtime:
            chat = runtime.session("alice", "one")
            await chat.append({"role": "user", "content": "Hello."})
            await asyncio.sleep(30)
            passivated, before = runtime.statistics().registry.passivations, world.loop.steps
            await asyncio.sleep(3_600)
            steps = world.loop.steps - before
            await chat.append({"role": "user", "content": "Are you there?"})
            return passivated, steps, len((await chat.load()).messages)

    passivated, steps, messages = World(1).run(rest)
    assert passivated >= 1
    assert steps < 3_600
    assert messages == 2
