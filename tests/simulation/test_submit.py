"""Requests for whose reply no task waits: with a promise of the caller's, and posted ones."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from remora import Receipt
from remora.actors.session.messages import Load, Remove
from remora.errors import IndexOutOfRange, MailboxFull, OutcomeUnknown, RuntimeClosed
from remora.runtime.passivation import RegistryLimits
from remora.storage.memory import MemoryJournal
from remora.testing import VirtualClock
from tests.harness import append, kernel, said, user
from tests.simulation.rare import KEY, OTHER, Gated, breathe, shown

pytestmark = pytest.mark.anyio


class Heard:
    """What a promise was told, in order."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.errors: list[BaseException] = []
        self.abandoned = False

    def resolve(self, value: Any) -> None:
        self.values.append(value)

    def reject(self, error: BaseException) -> None:
        self.errors.append(error)

    @property
    def outcome(self) -> type:
        """Of what class the only thing is that it was told."""
        told: list[Any] = [*self.values, *self.errors]
        assert len(told) == 1
        return type(told[0])


async def test_replies_come_in_order_and_when_they_are_durable() -> None:
    """G2, G3: the first waits for the actor, the others are handled at once; none is replied to
    before its commit.
    """
    journal = Gated()
    async with kernel(journal, clock=VirtualClock()) as core:
        promises = [Heard() for _ in range(4)]
        for number, promise in enumerate(promises):
            core.directory.submit(KEY, append(user(f"text {number}")), promise)
            await breathe()
        assert [one.values for one in promises] == [[]] * 4
        journal.open.set()
        await core.ask(KEY, Load(100))
        assert [one.values[0].seqs for one in promises] == [(1,), (2,), (3,), (4,)]
        read = Heard()
        core.directory.submit(KEY, Load(100), read)
        (snapshot,) = read.values  # before submit returned
        assert said(snapshot.entries) == [f"text {number}" for number in range(4)]


async def test_errors_reach_the_promise() -> None:
    """Those of the message, of the mailbox, of the commit, and of the end."""
    journal, clock = Gated(), VirtualClock()
    limits = RegistryLimits(held_replies=1, mailbox_messages=1)
    async with kernel(journal, clock=clock, limits=limits) as core:
        await core.ask(KEY, Load(100))
        wrong, defect, late, queued, refused, closed = (Heard() for _ in range(6))
        core.directory.submit(KEY, Remove((5,)), wrong)
        assert wrong.outcome is IndexOutOfRange
        core.directory.submit(KEY, "no message that a session knows", defect)
        assert defect.outcome is TypeError
        core.directory.submit(KEY, append(user("ran")), late, size=10, timeout_s=5)
        core.directory.submit(KEY, append(user("queued")), queued, size=10, timeout_s=5)
        core.directory.submit(KEY, append(user("refused")), refused, size=10)
        assert refused.outcome is MailboxFull
        await clock.advance(6)
        assert (late.outcome, queued.outcome) == (OutcomeUnknown, MailboxFull)
        journal.open.set()
        assert await shown(core) == ["ran"]
        core.directory.stop_intake()
        core.directory.submit(KEY, Load(100), closed)
        assert closed.outcome is RuntimeClosed


async def test_an_abandoned_promise_keeps_a_waiting_message_from_running() -> None:
    """G11: a worker that cancelled, or is gone."""
    journal = Gated()
    limits = RegistryLimits(held_replies=1)
    async with kernel(journal, clock=VirtualClock(), limits=limits) as core:
        await core.ask(KEY, Load(100))
        held, queued = Heard(), Heard()
        core.directory.submit(KEY, append(user("held")), held, size=10)
        core.directory.submit(KEY, append(user("queued")), queued, size=10)
        await breathe()
        queued.abandoned = True
        journal.open.set()
        assert await shown(core) == ["held"]
        assert held.outcome is Receipt
        assert queued.values == []


async def test_submitted_and_asked_requests_keep_their_order() -> None:
    """G2: of one session, by whatever way they came."""
    async with kernel(MemoryJournal(), clock=VirtualClock()) as core:
        promise = Heard()
        async with anyio.create_task_group() as tasks:
            core.directory.submit(KEY, append(user("first")), promise)
            tasks.start_soon(core.ask, KEY, append(user("second")))
            await breathe()
            core.directory.submit(KEY, append(user("third")), promise)
        assert await shown(core) == ["first", "second", "third"]
        statistics = core.directory.statistics()
        assert statistics.inline_messages + statistics.queued_messages == 4


# -- posted ----------------------------------------------------------------------------------------


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
