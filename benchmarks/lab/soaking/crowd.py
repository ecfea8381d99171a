"""The callers of the soak: what they do all day, and what they find wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from benchmarks.lab.soaking.witness import SessionWitness, Violations, unit
from remora import Runtime
from remora.errors import (
    CommitFailed,
    ErasureInProgress,
    LongTermError,
    MailboxFull,
    ModelError,
    OutcomeUnknown,
    RecordingFailed,
    SessionQuarantined,
)
from remora.ids import row_id

__all__ = ["VOICES", "Crowd", "Household"]

T = TypeVar("T")

VOICES = 3
"""Callers of one session that append at the same time."""

_BUDGET = 900
_REFUSED = (
    CommitFailed,
    OutcomeUnknown,
    MailboxFull,
    ErasureInProgress,
    RecordingFailed,
    SessionQuarantined,
)


class Household:
    """A user with some sessions, and what is known about them.

    Args:
        name: of the user.
        sessions: how many.
        violations: where to tell.
        mortal: they are forgotten now and then while they talk.
    """

    def __init__(
        self, name: str, sessions: int, violations: Violations, *, mortal: bool = False
    ) -> None:
        self.name = name
        self.owner = f"owner-{name}"
        self.mortal = mortal
        self.facts = 0
        self._violations = violations
        self._sessions = sessions
        self.witnesses: list[SessionWitness] = []
        self.begin()

    def begin(self) -> None:
        """Nothing was said yet."""
        self.facts = 0
        self.witnesses = [
            SessionWitness(f"{self.name}/{number}", self.owner, VOICES, self._violations)
            for number in range(self._sessions)
        ]


class Crowd:
    """Households that talk to a runtime.

    Args:
        runtime: where to.
        rng: of what they do.
        violations: what they find wrong.
        tally: what they did, and how often they were refused.
    """

    def __init__(
        self, runtime: Runtime, rng: random.Random, violations: Violations, tally: Counter[str]
    ) -> None:
        self._runtime = runtime
        self._rng = rng
        self._violations = violations
        self._tally = tally
        self._over = anyio.Event()

    # -- the load ----------------------------------------------------------------------------------

    async def talk(self, households: list[Household], seconds: float) -> None:
        """Everybody talks for so long; returns when all that was begun is acknowledged."""
        self._over = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for household in households:
                tasks.start_soon(self._mortal_life if household.mortal else self._life, household)
            await anyio.sleep(seconds)
            self._over.set()

    async def _life(self, household: Household) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(len(household.witnesses)):
                tasks.start_soon(self._converse, household, number)
            tasks.start_soon(self._learn, household)

    async def _mortal_life(self, household: Household) -> None:
        """Talk for a while, be forgotten, and begin anew."""
        while not self._over.is_set():
            async with anyio.create_task_group() as tasks:
                life_over = anyio.Event()
                for number in range(len(household.witnesses)):
                    tasks.start_soon(self._converse, household, number, life_over)
                await self._nap(self._rng.uniform(1.0, 4.0))
                life_over.set()
            await self.forget(household)
            household.begin()

    async def forget(self, household: Household) -> None:
        """Forget the user during another caller's requests; nothing of theirs may be left."""
        self._tally["forgotten"] += 1
        user = self._runtime.user(household.name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._persist, user.session("0").load)
            await self._persist(user.forget)
        for number in range(len(household.witnesses)):
            if await self._persist(user.session(f"{number}").history):
                self._violations.add("not forgotten", f"{household.name}/{number} has a history")
        if await self._persist(user.memories):
            self._violations.add("not forgotten", f"{household.name} has memories")

    async def _nap(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self._over.wait()

    async def _converse(
        self, household: Household, number: int, over: anyio.Event | None = None
    ) -> None:
        rng, witness = self._rng, household.witnesses[number]
        chat = self._runtime.session(household.name, f"{number}")
        while not self._over.is_set() and not (over is not None and over.is_set()):
            chance = rng.random()
            self._tally["operations"] += 1
            if chance < 0.66:
                async with anyio.create_task_group() as tasks:
                    for voice in rng.sample(range(VOICES), rng.randint(1, VOICES)):
                        tasks.start_soon(self._append, household, number, voice, rng.randint(1, 4))
            elif chance < 0.80:
                context = await self._persist(lambda: chat.load(max_tokens=_BUDGET))
                self._look(witness, context)
            elif chance < 0.88:
                context = await self._persist(
                    lambda: chat.load("where is the garden by the river?", max_tokens=_BUDGET)
                )
                self._look(witness, context)
            elif chance < 0.91:
                witness.history(await self._persist(chat.history))
            elif chance < 0.95:
                await self._persist(chat.flush)
            elif chance < 0.97:
                view = await self._persist(chat.inspect)
                await self._persist(chat.clear)
                witness.cleared.append(
                    range(view.watermarks.indexing_through + 1, view.last_seq + 1)
                )
            elif chance < 0.985:
                await self._delete(household, number)
            else:
                await self._nap(rng.uniform(1.0, 2.5))  # long enough to leave memory
            await self._nap(rng.random() * 0.15)

    def _look(self, witness: SessionWitness, context: object) -> None:
        messages = context.messages  # type: ignore[attr-defined]
        tokens = sum(self._runtime.message_tokens(message) for message in messages)
        witness.context(messages, max(tokens, context.tokens), _BUDGET)  # type: ignore[attr-defined]

    async def _append(self, household: Household, session: int, voice: int, count: int) -> None:
        rng, witness = self._rng, household.witnesses[session]
        chat = self._runtime.session(household.name, f"{session}")
        for _ in range(count):
            number = witness.next(voice)
            messages, key = unit(household.owner, voice, number), f"{voice}.{number}"
            while True:
                receipt = None
                patience_s = rng.random() * 0.02 if rng.random() < 0.1 else 60.0
                try:
                    with anyio.move_on_after(patience_s):
                        receipt = await chat.append(
                            messages, key=key, timeout_s=rng.choice((0.3, 30.0))
                        )
                except _REFUSED as e:
                    await self._count_refusal(e)
                    continue
                if receipt is not None:
                    break
                self._tally["cancelled"] += 1
            witness.heard(voice, number, receipt)
            self._tally["appends"] += 1
            if rng.random() < 0.05:
                witness.heard(
                    voice,
                    number,
                    await self._persist(
                        lambda m=messages, k=key: chat.append(m, key=k),  # type: ignore[misc]
                    ),
                )

    async def _delete(self, household: Household, number: int) -> None:
        """Delete the newest message. It may have left the buffer: the history says so."""
        chat, witness = (
            self._runtime.session(household.name, f"{number}"),
            household.witnesses[number],
        )
        (last,) = await self._persist(lambda: chat.get_messages(limit=1)) or (None,)
        if last is None or last.seq is None or last.id is None:
            return
        wanted = last.id
        gone = await self._persist(lambda: chat.delete([wanted]))
        there = {message.seq for message in await self._persist(chat.history)}
        if last.seq not in there:
            witness.deleted.add(last.seq)
        elif gone:
            self._violations.add(
                "not deleted", f"{witness.name}: message {last.seq} is still there"
            )

    async def _learn(self, household: Household) -> None:
        """What the user's own actor is for."""
        user, rng = self._runtime.user(household.name), self._rng
        while not self._over.is_set():
            fact = f"{household.owner} knows fact {household.facts} of the walnut table"
            await self._persist(lambda f=fact: user.remember(f, importance=rng.random()))  # type: ignore[misc]
            household.facts += 1
            try:
                found = await user.recall("the walnut table", limit=5)
            except (LongTermError, ModelError, *_REFUSED) as e:
                await self._count_refusal(e)
            else:
                household.witnesses[0].words(memory.text for memory in found)
            await self._nap(rng.uniform(0.5, 2.0))

    async def _persist(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Do it until it is done."""
        while True:
            try:
                return await operation()
            except (*_REFUSED, LongTermError, ModelError) as e:
                await self._count_refusal(e)

    async def _count_refusal(self, error: Exception) -> None:
        self._tally[type(error).__name__] += 1
        await anyio.sleep(0.01 + self._rng.random() * 0.03)

    # -- the judgement -----------------------------------------------------------------------------

    async def judge(self, households: list[Household]) -> int:
        """All is calm and nobody talks: compare what is there with what was acknowledged; returns
        how many messages were.
        """
        runtime, acknowledged = self._runtime, 0
        await runtime.retry_dead_letters()
        wanted: list[str] = []
        unwanted: list[str] = []
        for household in households:
            for number, witness in enumerate(household.witnesses):
                chat = runtime.session(household.name, f"{number}")
                history = await chat.history()
                witness.history(history)
                self._look(witness, await chat.load(max_tokens=_BUDGET))
                acknowledged += witness.acknowledged
                await chat.flush()
                through = (await chat.inspect()).watermarks.indexing_through
                handed_over = {
                    message.seq or 0 for message in history if (message.seq or 0) <= through
                }.difference(*witness.cleared)
                wanted += [row_id(chat.key, seq) for seq in handed_over]
                unwanted += [row_id(chat.key, seq) for seq in witness.deleted]
        await runtime.settle()
        rows = Counter(await (await runtime.internals.long_term()).row_ids())
        if missing := set(wanted) - rows.keys():
            self._violations.add(
                "missing rows", f"{len(missing)} of {len(wanted)} are not in long-term memory"
            )
        if doubled := sum(count - 1 for count in rows.values()):
            self._violations.add("doubled rows", f"{doubled} of {len(rows)}")
        if left := rows.keys() & set(unwanted):
            self._violations.add("undeleted rows", f"{len(left)} of {len(unwanted)}")
        for household in households:
            facts = [memory.text for memory in await runtime.user(household.name).memories("fact")]
            if sorted(facts) != sorted(
                f"{household.owner} knows fact {number} of the walnut table"
                for number in range(household.facts)
            ):
                self._violations.add(
                    "facts", f"{household.name} knows {len(facts)} facts of {household.facts}"
                )
        if dead := await runtime.dead_letters():
            self._violations.add("dead letters", f"{len(dead)}, the first: {dead[0].error}")
        return acknowledged
