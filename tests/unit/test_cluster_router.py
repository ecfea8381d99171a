"""A worker's requests over connections that break: what is sent again, and what nobody knows."""

from __future__ import annotations

from typing import Any

import pytest

from remora.actors.session.messages import Append, Clear, Load
from remora.actors.user.messages import Remember
from remora.cluster.link import OwnerEnd, WorkerEnd
from remora.cluster.router import Router, repeat_of
from remora.cluster.wire import (
    WIRE,
    Ask,
    Call,
    Cancel,
    Hello,
    Progress,
    ShardInfo,
    Welcome,
    WireError,
    to_raised,
)
from remora.errors import (
    InvalidInput,
    MailboxFull,
    OutcomeUnknown,
    OwnerFailed,
    OwnershipLost,
    OwnerUnreachable,
)

KEYED = Append((), b"k", 0)
UNKEYED = Append((), None, 0)
READ = Load(100)


class Promise:
    """Holds the outcome."""

    def __init__(self) -> None:
        self.abandoned = False
        self.outcomes: list[Any] = []

    def resolve(self, value: Any) -> None:
        self.outcomes.append(value)

    def reject(self, error: BaseException) -> None:
        self.outcomes.append(error)

    @property
    def outcome(self) -> Any:
        assert len(self.outcomes) == 1
        return self.outcomes[0]


class Pair:
    """A router, and the connection to an owner that it has now."""

    def __init__(self, max_bytes: int = 1 << 20) -> None:
        self.woken = 0
        self.router = Router(max_bytes, self._wake)
        self.received: list[Any] = []

    def _wake(self) -> None:
        self.woken += 1

    def connect(self, epoch: int = 1) -> None:
        welcome = Welcome(WIRE, "0.1", (ShardInfo(epoch, "i"),))
        self.owner = OwnerEnd(lambda _: welcome, bytes([0x91, epoch]))
        self.worker = WorkerEnd(Hello(WIRE), self.router.refuse)
        for one in iter(self.worker.take, None):
            self.owner.feed(bytes(one))
        for one in iter(self.owner.take, None):
            self.worker.feed(bytes(one))
        self.router.attach(self.worker)

    def send(self) -> list[Any]:
        """What the owner receives now."""
        found = []
        for one in self.router.pump(lambda: True):
            found += self.owner.feed(bytes(one))
        return found

    def answer(self, number: int, value: Any) -> None:
        self.owner.reply(number, value)
        for one in iter(self.owner.take, None):
            for replies in self.worker.feed(bytes(one)):
                self.router.take_replies(replies)

    def ask(self, message: Any, deadline: float = 30.0, size: int = 0) -> tuple[int, Promise]:
        number, promise = self.router.next_number(), Promise()
        ask = Ask(number, 0, "ann", "one", message)
        self.router.submit(ask, promise, deadline, repeat=repeat_of(message), size=size)
        return number, promise


@pytest.fixture
def pair() -> Pair:
    made = Pair()
    made.connect()
    return made


def test_an_answer_reaches_who_asked() -> None:
    """Or an error of the owner; what is asked before there is an owner waits."""
    pair = Pair()
    (first, one), (second, two) = pair.ask(READ), pair.ask(UNKEYED)
    pair.connect()
    assert [ask.number for ask in pair.send()] == [first, second]
    assert not one.outcomes
    pair.answer(second, 7)
    pair.answer(first, to_raised(InvalidInput("no")))
    assert two.outcome == 7
    assert isinstance(one.outcome, InvalidInput)
    for error in (OutcomeUnknown("x"), MailboxFull("x", limit="total")):
        number, promise = pair.ask(KEYED)
        pair.send()
        pair.answer(number, to_raised(error))
        assert type(promise.outcome) is type(error)
    assert pair.router.outstanding == 0


def test_after_a_loss_reads_and_keyed_appends_are_sent_again_in_order(pair: Pair) -> None:
    """In front of what was not sent yet; the rest may have been stored."""
    sent = [pair.ask(one) for one in (KEYED, UNKEYED, READ, Clear(), Remember(()))]
    pair.send()
    late = pair.ask(UNKEYED)
    pair.router.detach()
    assert isinstance(sent[1][1].outcome, OutcomeUnknown)
    assert isinstance(sent[3][1].outcome, OutcomeUnknown)
    pair.connect(epoch=2)
    again = [one.number for one in pair.send()]
    assert again == [sent[0][0], sent[2][0], sent[4][0], late[0]]
    pair.answer(sent[0][0], 1)
    assert sent[0][1].outcome == 1


def test_answers_of_an_earlier_owner_are_dropped(pair: Pair) -> None:
    """It was stopped, and goes on after another took over; or a backup was put in place: what was
    asked of the other is not sent to an earlier copy of the memory.
    """
    number, promise = pair.ask(READ)
    pair.send()
    stale_owner, stale_worker = pair.owner, pair.worker
    pair.router.detach()
    pair.connect(epoch=3)
    assert [one.number for one in pair.send()] == [number]
    stale_owner.reply(number, 1)
    frame = stale_owner.take()
    assert frame is not None
    with pytest.raises(WireError, match="earlier owner"):
        for replies in stale_worker.feed(bytes(frame)):
            pair.router.take_replies(replies)
    pair.router.detach()
    with pytest.raises(OwnershipLost, match="connect again"):
        pair.connect(epoch=2)
    assert not promise.outcomes
    pair.connect(epoch=4)
    assert [one.number for one in pair.send()] == [number]
    pair.answer(number, 2)
    assert promise.outcome == 2


def test_what_waits_to_be_sent_is_bounded() -> None:
    """Expired requests take no room, and the next one is looked after as well. The end of a turn is
    sent however much waits: nobody would send it again, and the next turn would wait for ever.
    """
    pair = Pair(max_bytes=5_000)
    for second in range(5):
        _, promise = pair.ask(KEYED, deadline=second + 0.5, size=4_000)
        assert pair.woken == second + 1
        pair.router.expire(second + 1.0)
        assert isinstance(promise.outcome, OwnerUnreachable)
    pair.ask(KEYED, size=4_000)
    with pytest.raises(MailboxFull) as caught:
        pair.ask(KEYED, size=4_000)
    assert caught.value.limit == "total"
    ends = Call(0, 0, "turns.end")
    pair.router.submit(ends, None, float("inf"), repeat="never", size=9_000, always=True)
    assert pair.router.outstanding == 1
    pair.connect()
    assert pair.send()[1:] == [ends]
    pair.ask(KEYED, size=9_000)  # alone it may be larger
    assert len(pair.send()) == 1


def test_a_cancellation_crosses(pair: Pair) -> None:
    """A request that is cancelled before it is sent never is."""
    number, never = pair.ask(UNKEYED)
    pair.router.cancel(number)
    assert pair.send() == []
    number, promise = pair.ask(UNKEYED)
    pair.send()
    pair.router.cancel(number)
    assert pair.send() == [Cancel(number)]
    pair.answer(number, 1)
    assert not promise.outcomes
    assert not never.outcomes


def test_deadlines_while_there_is_no_owner(pair: Pair) -> None:
    """What was sent before may have taken effect; a read and what was never sent did not."""
    keyed, read = pair.ask(KEYED, deadline=5.0), pair.ask(READ, deadline=5.0)
    pair.send()
    pair.router.detach()
    never, later = pair.ask(KEYED, deadline=5.0), pair.ask(KEYED, deadline=9.0)
    assert pair.router.expire(4.9) == 5.0
    assert pair.router.expire(5.0) == 9.0
    assert isinstance(keyed[1].outcome, OutcomeUnknown)
    assert isinstance(read[1].outcome, OwnerUnreachable)
    assert isinstance(never[1].outcome, OwnerUnreachable)
    pair.connect(epoch=2)
    assert [one.number for one in pair.send()] == [later[0]]


def test_an_owner_that_is_there_answers_first(pair: Pair) -> None:
    """It knows whether the request ran; the worker's own deadline is for one that hangs."""
    number, promise = pair.ask(UNKEYED, deadline=5.0)
    pair.send()
    pair.router.expire(6.0)
    assert not promise.outcomes
    pair.router.expire(60.0)
    assert isinstance(promise.outcome, OutcomeUnknown)
    assert pair.send() == [Cancel(number)]


def test_an_owner_that_cannot_be_had(pair: Pair) -> None:
    """All get the error, except those whose request may have taken effect."""
    keyed, read = pair.ask(KEYED), pair.ask(READ)
    pair.send()
    pair.router.detach()
    never = pair.ask(UNKEYED)
    pair.router.fail(OwnerFailed("it ends at once", log="…"))
    assert isinstance(keyed[1].outcome, OutcomeUnknown)
    assert isinstance(read[1].outcome, OwnerFailed)
    assert isinstance(never[1].outcome, OwnerFailed)
    assert pair.router.outstanding == 0


def test_what_cannot_be_sent_fails_alone(pair: Pair) -> None:
    """Progress is told, and ends nothing."""
    told: list[tuple[int, int]] = []

    def call(verb: str) -> tuple[int, Promise]:
        promise, number = Promise(), pair.router.next_number()
        options: Any = {"repeat": "never", "on_progress": lambda *at: told.append(at)}
        pair.router.submit(Call(number, 0, verb), promise, 30.0, **options)
        return number, promise

    _, bad = call("\ud800")
    number, good = call("x")
    assert [one.number for one in pair.send()] == [number]
    assert isinstance(bad.outcome, InvalidInput)
    pair.answer(number, Progress(1, 2))
    assert told == [(1, 2)]
    assert not good.outcomes


def test_an_owner_that_drains_gets_nothing_more(pair: Pair) -> None:
    """What waits goes to the next owner, although it has no key."""
    pair.owner.drain()
    frame = pair.owner.take()
    assert frame is not None
    pair.worker.feed(bytes(frame))
    number, promise = pair.ask(UNKEYED)
    assert pair.send() == []
    assert pair.owner.parted
    pair.router.detach()
    pair.connect(epoch=2)
    assert [one.number for one in pair.send()] == [number]
    assert not promise.outcomes
