"""Sessions that talk through faults, and a judgement of all that they saw."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from remora.errors import (
    CommitFailed,
    OutcomeUnknown,
    OwnerUnreachable,
    RecordingFailed,
    RemoraError,
)
from remora.testing import Operation, explain

__all__ = ["Notes", "Talk", "Verdict", "add_verdicts"]

_MESSAGES = 40  # of one session; then its writer begins another one
_AGAIN_S = 0.02
_PAUSE_S = 0.01  # at the most, after an append: at full rate the machine does nothing else
_MOST = 200_000


class Verdict(NamedTuple):
    """What was wrong.

    Attributes:
        acknowledged: how many messages were.
        lost: acknowledged, and not there.
        doubled: there more than once.
        stale_rows: there, though the append said that nothing was kept.
        stale_loads: answers without a message that was acknowledged before they were asked for.
        unexplained: sessions whose calls have no order that explains all answers.
    """

    acknowledged: int
    lost: int
    doubled: int
    stale_rows: int
    stale_loads: int
    unexplained: int

    @property
    def faults(self) -> int:
        return sum(self[1:])


def add_verdicts(verdicts: Iterable[Verdict]) -> Verdict:
    """All in one."""
    return Verdict(*map(sum, zip(*verdicts, strict=True)))


class _Session:
    """The calls of one session: one writer, one reader."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.operations: list[Operation] = []
        self.acknowledged: dict[str, float] = {}
        self.refused: set[str] = set()


class Talk:
    """Writers append with a key, until it is acknowledged, or without one, once; readers load.

    Args:
        memory: a runtime, or what workers have.
        seed: of what the writers choose.
        talkers: how many talk at the same time.
    """

    def __init__(self, memory: Any, seed: int, talkers: int = 4) -> None:
        self.memory = memory
        self.ended = asyncio.Event()
        self.times: list[float] = []
        """When appends were acknowledged."""
        self._rng = random.Random(seed)
        self._sessions: list[_Session] = []
        self._names = itertools.count()
        self._talkers = talkers

    async def run(self) -> None:
        """Talk until `ended` is set."""
        await asyncio.gather(*(self._talk() for _ in range(self._talkers)))

    async def first_after(self, moment: float) -> float:
        """Seconds from a moment to the end of the longest pause after it."""
        count = len(self.times)
        while len(self.times) < count + 8 * self._talkers:  # others' work
            await asyncio.sleep(_AGAIN_S)
        times = [moment, *(one for one in self.times if one > moment)]
        pauses = [after - before for before, after in itertools.pairwise(times)]
        return times[pauses.index(max(pauses)) + 1] - moment

    async def judge(self, memory: Any) -> Verdict:
        """Compare what the sessions saw with what is there."""
        return add_verdicts([await self._judge(one, memory) for one in self._sessions])

    # -- what sessions do ------------------------------------------------------------------------

    async def _talk(self) -> None:
        while not self.ended.is_set():
            session = _Session(f"s{next(self._names)}")
            self._sessions.append(session)
            chat = self.memory.session("alice", session.name)
            reading = asyncio.ensure_future(self._read(session, chat))
            for number in range(_MESSAGES):
                if self.ended.is_set():
                    break
                text = f"{session.name} {number}"
                await self._append(session, chat, text, keyed=self._rng.random() < 0.7)
                await asyncio.sleep(self._rng.random() * _PAUSE_S)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _append(self, session: _Session, chat: Any, text: str, *, keyed: bool) -> None:
        called, returned = time.monotonic(), math.inf
        options = {"key": text} if keyed else {}
        while not (self.ended.is_set() and keyed):
            try:
                await chat.append({"role": "user", "content": text}, **options)
            except (CommitFailed, OwnerUnreachable, OutcomeUnknown) as e:
                if keyed:
                    await asyncio.sleep(_AGAIN_S)
                    continue
                if not isinstance(e, OutcomeUnknown):  # nothing was kept
                    session.refused.add(text)
                    return
            else:
                returned = time.monotonic()
                session.acknowledged[text] = returned
                self.times.append(returned)
            break
        session.operations.append(Operation(called, returned, "append", text, None))

    async def _read(self, session: _Session, chat: Any) -> None:
        while True:
            called = time.monotonic()
            try:
                found = [str(one["content"]) for one in (await chat.load()).messages]
            except RemoraError:
                await asyncio.sleep(_AGAIN_S)
                continue
            session.operations.append(
                Operation(called, time.monotonic(), "load", None, tuple(found))
            )
            await asyncio.sleep(self._rng.random() * 2 * _AGAIN_S)

    # -- what they saw ---------------------------------------------------------------------------

    async def _judge(self, session: _Session, memory: Any) -> Verdict:
        chat = memory.session("alice", session.name)
        while True:
            called = time.monotonic()
            try:
                found = tuple(str(one.content) for one in await chat.history())
            except OwnerUnreachable:  # a lease that a busy machine renews late
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        last = Operation(called, time.monotonic(), "load", None, found)
        operations = [*session.operations, last]
        empty: tuple[str, ...] = ()
        explained = explain(operations, empty, _step, most=_MOST)
        acknowledged = session.acknowledged
        return Verdict(
            len(acknowledged),
            len(acknowledged.keys() - set(found)),
            sum(count - 1 for count in Counter(found).values()),
            len(session.refused & set(found)),
            sum(_is_stale(one, acknowledged) for one in session.operations),
            explained.decided and not explained.complete,
        )


class Notes:
    """Memories of a user, which are recorded one after the other, each once.

    Args:
        memory: a runtime, or what workers have.
    """

    def __init__(self, memory: Any) -> None:
        self.ended = asyncio.Event()
        self._memory = memory
        self._user = memory.user("alice")
        self._acknowledged: set[str] = set()

    async def run(self) -> None:
        """Record until `ended` is set."""
        for number in itertools.count():
            if self.ended.is_set():
                break
            text = f"note {number}"
            try:
                await self._user.remember(text)
            except (RecordingFailed, OwnerUnreachable, OutcomeUnknown):
                pass
            else:
                self._acknowledged.add(text)
            await asyncio.sleep(_AGAIN_S)

    async def judge(self) -> Verdict:
        """Compare what was acknowledged with what is in long-term memory when all work is done."""
        while True:
            try:
                await self._memory.settle()
                rows = await self._user.memories("fact")
            except OwnerUnreachable:
                await asyncio.sleep(_AGAIN_S)
            else:
                break
        found = Counter(row.text for row in rows)
        return Verdict(
            acknowledged=len(self._acknowledged),
            lost=len(self._acknowledged - found.keys()),
            doubled=found.total() - len(found),
            stale_rows=0,
            stale_loads=0,
            unexplained=0,
        )


def _step(state: tuple[str, ...], operation: Operation) -> tuple[str, ...] | None:
    """A session as a list of texts."""
    if operation.kind == "append":
        return (*state, operation.argument)
    return state if operation.result == state else None


def _is_stale(operation: Operation, acknowledged: dict[str, float]) -> bool:
    """Whether an answer lacks what was acknowledged before it was asked for."""
    if operation.kind != "load":
        return False
    shown: Sequence[str] = operation.result
    return any(when < operation.called and text not in shown for text, when in acknowledged.items())
