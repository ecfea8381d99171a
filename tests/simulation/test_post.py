"""Messages that nobody waits for."""

from __future__ import annotations

import pytest

from remora.runtime.limits import RegistryLimits
from remora.storage.memory import MemoryJournal
from tests.harness import append, kernel, said, user
from tests.simulation.rare import KEY, OTHER

pytestmark = pytest.mark.anyio


async def test_posted_messages_keep_their_order() -> None:
    """S2.21, G2: what is posted runs before what is asked afterwards, though nobody waited for it."""  # noqa: E501
    journal = MemoryJournal()
    async with kernel(journal) as k:
        for number in range(5):
            assert k.directory.post(KEY, append(user(f"posted {number}")))
        await k.ask(KEY, append(user("asked")))
        entries = await journal.read(KEY, 1, 9)
        assert said(entries) == [*(f"posted {number}" for number in range(5)), "asked"]


async def test_posting_is_bounded_and_ends_with_intake() -> None:
    """G10, S2.21: a full mailbox refuses what is posted, and so does a closing runtime; a turn that
    fails disturbs nobody.
    """
    async with kernel(MemoryJournal(), limits=RegistryLimits(mailbox_messages=3)) as k:
        taken = [k.directory.post(KEY, append(user(str(number)))) for number in range(5)]
        assert taken == [True, True, True, False, False]
        receipt = await k.ask(OTHER, append(user("still there")))
        assert receipt.seqs == (1,)
        await k.directory.drain()
        assert k.directory.post(KEY, "no message that a session knows")
        await k.directory.drain()
        assert (await k.ask(KEY, append(user("on")))).seqs == (4,)
        k.directory.stop_intake()
        assert not k.directory.post(KEY, append(user("late")))
