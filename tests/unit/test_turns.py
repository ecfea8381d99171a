"""Turns of one session run one after the other, in order, for a bounded time."""

from __future__ import annotations

import random

import anyio
import pytest

from remora.config import Config
from remora.errors import RuntimeClosed, SessionBusy
from remora.ids import key_digest, turn_key, turn_numbers, turn_root
from remora.services.turns import LocalTurns
from remora.storage.ports import SessionKey
from remora.testing import count_probes

ONE, TWO = SessionKey("alice", "one"), SessionKey("alice", "two")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def turns(wait_s: float = 600.0, max_waiting: int = 16) -> LocalTurns:
    tree = {"turns": {"wait_s": wait_s, "max_waiting": max_waiting}}
    return LocalTurns(Config.from_dict(tree).turns)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
async def test_one_at_a_time_in_order(seed: int) -> None:
    """Whoever asks first is first; a caller that gives up leaves no trace; no line is left over."""
    rng, lines = random.Random(seed), turns(max_waiting=1_000)
    running = {ONE: 0, TWO: 0}
    asked: dict[SessionKey, list[int]] = {ONE: [], TWO: []}
    begun: dict[SessionKey, list[int]] = {ONE: [], TWO: []}

    async def breathe() -> None:
        for _ in range(rng.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def take(key: SessionKey, number: int, patience: float) -> None:
        await breathe()
        asked[key].append(number)
        with anyio.move_on_after(patience):
            turn = await lines.begin(key)
            begun[key].append(number)
            running[key] += 1
            assert running[key] == 1
            with anyio.CancelScope(shield=True):
                await breathe()
            running[key] -= 1
            lines.end(key, turn)

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            patience = rng.choice([600.0, 600.0, 0.0])
            tasks.start_soon(take, rng.choice([ONE, TWO]), number, patience)
    for key in (ONE, TWO):
        assert begun[key] == [one for one in asked[key] if one in begun[key]]
        assert len(begun[key]) > 5
    assert len(lines) == 0


@pytest.mark.anyio
async def test_given_up_when_it_was_just_begun() -> None:
    """The turn goes to the next in line."""
    lines, begun = turns(), []

    async def take(name: str) -> None:
        turn = await lines.begin(ONE)
        begun.append(name)
        lines.end(ONE, turn)

    running = await lines.begin(ONE)
    with count_probes() as probes:
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as first:
                first.start_soon(take, "first")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(take, "second")
                await anyio.wait_all_tasks_blocked()
                first.cancel_scope.cancel()
                lines.end(ONE, running)
    assert begun == ["second"]
    assert len(lines) == 0
    assert probes["turn_begun_for_nobody"] == 1


@pytest.mark.anyio
async def test_bounds() -> None:
    """In number and in time; a session that is free is not affected, nor are others."""
    lines = turns(wait_s=0.01, max_waiting=1)
    one = await lines.begin(ONE)
    with count_probes() as probes:
        async with anyio.create_task_group() as tasks:

            async def wait_in_vain() -> None:
                with pytest.raises(SessionBusy, match=r"turns\.wait_s") as refused:
                    await lines.begin(ONE)
                assert refused.value.waiting == 1
                assert refused.value.retryable

            tasks.start_soon(wait_in_vain)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            with pytest.raises(SessionBusy, match=r"turns\.max_waiting"):
                await lines.begin(ONE)
            assert await lines.begin(ONE, wait=False) == 0
            two = await lines.begin(TWO)
    assert probes["turn_waited_in_vain"] == probes["too_many_turns_waited"] == 1
    assert len(lines) == 2
    lines.end(ONE, one)
    lines.end(TWO, two)
    again = await lines.begin(ONE, wait=False)
    lines.end(ONE, one)  # another turn has begun since
    assert len(lines) == 1
    lines.end(ONE, again)
    lines.end(ONE, again)
    assert len(lines) == 0


@pytest.mark.anyio
async def test_closing_refuses_those_that_wait() -> None:
    lines = turns()
    one = await lines.begin(ONE)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            with pytest.raises(RuntimeClosed):
                await lines.begin(ONE)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        lines.close(RuntimeClosed("closing"))
    with pytest.raises(RuntimeClosed):
        await lines.begin(TWO, wait=False)
    lines.end(ONE, one)
    assert len(lines) == 0


def test_keys_of_a_turn() -> None:
    """They begin with the same bytes, differ from each other, and say which part they are of."""
    root = turn_root("r1")
    assert turn_root("r2") != root
    keys = [turn_key(root, attempt, part) for attempt in (0, 1, 700) for part in (0, 1, 65_535)]
    assert len({*keys, key_digest("r1")}) == len(keys) + 1
    assert all(key.startswith(root) and len(key) == 16 for key in keys)
    assert turn_numbers(keys[-1]) == (700, 65_535)
    assert not key_digest("r1").startswith(root)
