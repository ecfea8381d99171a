"""Many beside each other, or one alone."""

from __future__ import annotations

import random

import anyio
import pytest

from remora.runtime.locks import SharedLocks


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seed", range(8))
async def test_alone_is_alone(seed: int) -> None:
    """S4.41: whoever is alone with a key has nobody beside; others share it, and no lock is left
    over.
    """
    rng = random.Random(seed)
    locks, inside = SharedLocks(), {"a": [0, 0], "b": [0, 0]}
    most_sharing = 0

    async def breathe() -> None:
        for _ in range(rng.randrange(4)):
            await anyio.lowlevel.checkpoint()

    async def share(key: str) -> None:
        nonlocal most_sharing
        await breathe()
        async with locks.shared(key):
            inside[key][0] += 1
            most_sharing = max(most_sharing, inside[key][0])
            assert inside[key][1] == 0
            await breathe()
            inside[key][0] -= 1

    async def alone(key: str) -> None:
        await breathe()
        async with locks.exclusive(key):
            inside[key][1] += 1
            assert inside[key] == [0, 1]
            await breathe()
            inside[key][1] -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(share if rng.random() < 0.7 else alone, rng.choice("ab"))
    assert most_sharing > 1
    assert len(locks) == 0


async def test_giving_up_blocks_nobody() -> None:
    """S4.41, G11: whoever waits and is cancelled leaves no trace, and whoever fails inside lets the
    next one in.
    """
    locks = SharedLocks()
    async with anyio.create_task_group() as tasks, locks.shared("a"):
        for _ in range(3):
            tasks.start_soon(_enter, locks.exclusive("a"))
        await anyio.wait_all_tasks_blocked()
        with anyio.move_on_after(0):
            async with locks.shared("a"):
                pytest.fail("somebody waits to be alone")
        tasks.cancel_scope.cancel()
    with pytest.raises(ZeroDivisionError):
        async with locks.exclusive("a"):
            raise ZeroDivisionError
    async with locks.shared("a"), locks.shared("a"):
        pass
    async with locks.exclusive("a"), locks.exclusive("b"):
        pass
    assert len(locks) == 0


async def _enter(lock: object) -> None:
    async with lock:  # type: ignore[attr-defined]
        pytest.fail("not alone")
