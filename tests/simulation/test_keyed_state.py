"""Keyed state under seeds: callers that count together, through failing commits and power cuts."""

from __future__ import annotations

from functools import partial
from typing import Literal

import anyio
import msgspec
import pytest

from remora import KeyedState, Runtime
from remora.errors import StateConflict
from remora.testing.simulation import World
from tests.simulation.fates import REFUSED, SMALL, worlds

pytestmark = pytest.mark.blocking  # SQLite's calls are steps of the loop here

PLACES = ("session", "user")


class Heard(msgspec.Struct):
    """What callers were told of one counter; it outlives power cuts.

    Attributes:
        numbers: by version, what was set.
        followed: by version, the version that was set in its place.
        deletes: whether anybody has tried to delete it.
        conflicts: how often a caller was refused.
    """

    numbers: dict[int, int] = {}
    followed: dict[int, int] = {}
    deletes: bool = False
    conflicts: int = 0

    def saw(self, version: int, number: int | None, durable: int) -> None:
        """A caller was shown this, when a version was known to be durable before."""
        assert version >= durable or (not version and self.deletes)
        assert self.numbers.get(version, number) == number


def place_of(runtime: Runtime, place: str) -> KeyedState:
    alice = runtime.user("alice")
    return alice.state if place == "user" else alice.session("one").state


async def count(world: World, runtime: Runtime, place: str, heard: Heard, left: list[int]) -> None:
    """Add one, again and again; from three, delete the counter and begin again."""
    while left[0] > 0:
        left[0] -= 1
        await anyio.sleep(world.latency())
        state, durable = place_of(runtime, place), max(heard.numbers, default=0)
        try:
            present = await state.get("counter")
            version, number = (present.version, present.value) if present else (0, 0)
            heard.saw(version, number or None, durable)
            if number == 3:
                heard.deletes = True
                await state.delete("counter", version=version)
                continue
            stored = await state.set("counter", number + 1, version=version)
        except StateConflict as e:
            heard.conflicts += 1
            heard.saw(e.actual, e.value, durable)
        except REFUSED:
            pass
        else:
            assert (stored.value, stored.version > version) == (number + 1, True)
            assert stored.version not in heard.numbers
            assert not version or version not in heard.followed
            heard.numbers[stored.version] = stored.value
            heard.followed[version] = stored.version


@pytest.mark.parametrize(("journal", "seeds"), [("memory", 25), ("sqlite", 6)])
def test_no_increment_is_lost(journal: Literal["memory", "sqlite"], seeds: int) -> None:
    """G2, G3, G4: a set that was acknowledged is there after any power cut; of those that give one
    version one succeeds; a version is used once; a conflict shows what is stored.
    """
    cuts = conflicts = 0
    for world in worlds(seeds, journal, faults=5, cuts=3, within=range(50, 900)):
        heard = {place: Heard() for place in PLACES}
        world.run(partial(live, heard=heard, left={place: [24] for place in PLACES}))
        cuts += world.life
        conflicts += sum(one.conflicts for one in heard.values())
    assert cuts
    assert conflicts


async def live(world: World, heard: dict[str, Heard], left: dict[str, list[int]]) -> None:
    """One life of the process."""
    async with world.runtime(config=SMALL) as runtime:
        async with anyio.create_task_group() as tasks:
            for place in PLACES:
                for _ in range(3):
                    tasks.start_soon(count, world, runtime, place, heard[place], left[place])
        world.calm()
        for place in PLACES:
            present = await place_of(runtime, place).get("counter")
            version, number = (present.version, present.value) if present else (0, None)
            heard[place].saw(version, number, max(heard[place].numbers, default=0))
