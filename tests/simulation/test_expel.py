"""Actors that must leave memory: what is barred, what was on its way, and the jobs that are
withdrawn.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import anyio
import pytest

from remora.actors.session.messages import Inspect
from remora.errors import ErasureInProgress
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from tests.harness import append, kernel, said, user

ALICE, BOB = SessionKey("alice", "one"), SessionKey("bob", "one")


pytestmark = pytest.mark.anyio


def hers(key: Hashable) -> bool:
    return isinstance(key, SessionKey) and key.user == "alice"


def refusal() -> Exception:
    return ErasureInProgress("wait")


async def test_what_was_written_lands_first() -> None:
    """G13, G3: what an expelled actor wrote is in the journal before it is gone, acknowledged or
    not; new ones are refused.
    """
    journal = MemoryJournal()
    outcomes: list[Any] = []
    async with kernel(journal) as k:

        async def send(number: int) -> None:
            try:
                outcomes.append(await k.ask(ALICE, append(user(f"m{number}"))))
            except ErasureInProgress as e:
                outcomes.append(e)

        await k.ask(BOB, append(user("his")))
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(send, number)
            await anyio.lowlevel.checkpoint()
            with k.directory.eviction.bar(hers, refusal):
                await k.directory.eviction.evict(hers)
                assert not any(map(hers, k.directory.live_keys()))
                taken = said(await journal.read(ALICE, 1, 9))
                with pytest.raises(ErasureInProgress):
                    await k.ask(ALICE, append(user("late")))
                with pytest.raises(ErasureInProgress):
                    await k.directory.ask_control(ALICE, Inspect())
                assert not k.directory.post(ALICE, append(user("posted")))
                assert (await k.ask(BOB, append(user("still")))).seqs == (2,)
        acknowledged = [one for one in outcomes if not isinstance(one, Exception)]
        assert len(outcomes) == 5
        assert len(acknowledged) == len(taken)
        assert said(await journal.read(ALICE, 1, 9)) == taken
        assert (await k.ask(ALICE, append(user("back")))).seqs == (len(taken) + 1,)


async def test_withdrawn_jobs_end() -> None:
    """G13: background work of the expelled is given up wherever it stands, and nobody waits for it
    for ever; others' goes on.
    """
    journal = MemoryJournal()
    hanging = anyio.Event()

    class Hanging:
        name = "hanging"

        async def summarize(self, previous: str | None, lines: Any, *, max_tokens: int) -> str:
            if any("hers" in line.text for line in lines):
                hanging.set()
                await anyio.sleep_forever()
            return "summary"

    async with kernel(journal, summarizer=Hanging()) as k:
        for number in range(12):
            await k.ask(ALICE, append(user(f"hers {number} and words enough to fold it")))
        await hanging.wait()
        with k.directory.eviction.bar(hers, refusal):
            await k.directory.eviction.evict(hers)
            assert await k.supervisor.cancel_matching(hers) == 1
            await k.supervisor.drain(ALICE)
            assert await k.supervisor.cancel_matching(hers) == 0
        for number in range(12):
            await k.ask(BOB, append(user(f"his {number} and words enough to fold it")))
        await k.supervisor.drain(BOB)
        assert (await k.ask(BOB, Inspect())).summary.text == "summary"
        assert len(await journal.jobs()) == 1, "the row is the business of whoever withdrew it"
