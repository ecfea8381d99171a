"""A crash at every step between a fold and its watermark, in memory, and at every step of the
recovery from it.
"""

from __future__ import annotations

import random

import pytest

from tests.handover import POLICIES, brought_to_its_end, converse, in_memory
from tests.simulation.rare import on_asyncio

pytestmark = [pytest.mark.anyio, on_asyncio]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_a_crash_at_every_step(policy: str) -> None:
    """G3, G4, G6, G7: wherever it is killed, each flushed message is in long-term memory once, and
    no job is lost.
    """
    rng = random.Random(5)
    async with in_memory(POLICIES[policy], watch=True) as (runtime, witness):
        await converse(runtime, witness)
    steps = {image.step for image in witness.images}
    for one in (
        "before the summarizer",
        "half of the rows are added",
        "all rows are added",
        "Flushed, JobDone committed",
    ):
        assert one in steps or (policy == "dropped" and "summarizer" in one)
    assert len(witness.images) > 60
    again = []
    for image in witness.images:
        async with in_memory(POLICIES[policy], image, watch=True) as (runtime, second):
            await brought_to_its_end(runtime, image)
        again += rng.sample(second.images, min(len(second.images), 2))
    for image in rng.sample(again, min(len(again), 80)):  # and killed again while it recovered
        async with in_memory(POLICIES[policy], image, watch=False) as (runtime, _):
            await brought_to_its_end(runtime, image)
