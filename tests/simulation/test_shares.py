"""Many users on one disk: what each may have under way, in bytes and in commits. No clock but the
commits themselves.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from operator import attrgetter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora.actors.session.messages import Load
from remora.errors import CommitFailed, MailboxFull, OutcomeUnknown
from remora.runtime.cell import OVERHEAD_BYTES
from remora.runtime.passivation import RegistryLimits
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import Appended
from remora.testing import FaultyJournal, VirtualClock
from tests.harness import Kernel, append, kernel, said, user
from tests.simulation.rare import breathe

pytestmark = pytest.mark.anyio
KB = 1_024


def shared(journal: Any, limits: RegistryLimits, clock: Any = None) -> Any:
    """A kernel whose users have shares, and whose sessions are not folded."""
    clock = clock or VirtualClock()
    return kernel(journal, clock=clock, limits=limits, fold_above=10**9, owner=attrgetter("user"))


class Counting(MemoryJournal):
    """Knows of each commit how many appends of each session were in it; commits only while it is
    open.
    """

    def __init__(self, *, is_open: bool = True) -> None:
        super().__init__()
        self.appends: list[dict[int, int]] = []
        self.open = anyio.Event()
        if is_open:
            self.open.set()

    @property
    def backlog_bytes(self) -> int:
        """Of messages that were handed over and are not stored."""
        records = [record for write in self._queue for record in write.records]
        return sum(
            entry.size
            for record in records
            if isinstance(record, Appended)
            for entry in record.entries
        )

    async def commit(self) -> None:
        await self.open.wait()
        counts: dict[int, int] = {}
        for write in self._queue:
            for record in write.records:
                if isinstance(record, Appended):
                    counts[record.sid] = counts.get(record.sid, 0) + 1
        self.appends.append(counts)
        await super().commit()


@pytest.mark.parametrize("sessions", [1, 100])
async def test_quiet_users_wait_for_two_commits_of_bounded_size(sessions: int) -> None:
    """G10: beside thousands of queued appends of one user, in one session or in many, each of many
    others is acknowledged with the commit under way or the next one, and neither holds more of the
    busy user's appends than their share.
    """
    journal, limits = Counting(), RegistryLimits(wait_when_full=True, share_writes=16)
    async with shared(journal, limits) as core:
        noisy = [SessionKey("noisy", f"{number}") for number in range(sessions)]
        quiet = [SessionKey(f"quiet-{number}", "chat") for number in range(200)]
        for key in (*noisy, *quiet):
            await core.ask(key, Load(1))
        done = 0

        async def flood(number: int) -> None:
            nonlocal done
            await core.ask(noisy[number % sessions], append(user("x")))
            done += 1

        async with anyio.create_task_group() as tasks:
            for number in range(4_000):
                tasks.start_soon(flood, number)
            for number, key in enumerate(quiet[:100]):
                before = len(journal.appends)
                await core.ask(key, append(user("hello")))
                commits = journal.appends[before:]
                # the first may find a commit under way that was begun when there was nobody else
                if number:
                    assert len(commits) <= 2
                    assert all(sum(counts.values()) <= 16 + 1 for counts in commits)
            assert done < 3_600, "most of the flood still waited while the quiet were served"
            before = len(journal.appends)
            async with anyio.create_task_group() as all_at_once:
                for key in quiet[100:]:
                    all_at_once.start_soon(core.ask, key, append(user("hello")))
            assert (
                sum(sum(counts.values()) for counts in journal.appends[before : before + 4]) >= 100
            )
        assert done == 4_000
        assert core.directory.statistics().waiting_bytes == 0


async def test_nobody_is_slowed_who_is_alone() -> None:
    """G10: a user alone fills commits; the share is for when others are there."""
    journal, limits = Counting(is_open=False), RegistryLimits(share_writes=4)
    async with shared(journal, limits) as core:
        await core.ask(SessionKey("alice", "1"), Load(1))
        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(core.ask, SessionKey("alice", "1"), append(user("x")))
            await breathe(40)
            journal.open.set()
        assert max(sum(counts.values()) for counts in journal.appends) >= 400


async def test_all_sessions_of_a_user_that_wait_for_their_share_come_to_their_turn() -> None:
    """G10: reads, appends, callers that leave, failing commits: what sessions that wait are asked
    for is never forgotten.
    """
    rng = random.Random(5)
    journal = FaultyJournal(lambda: "refused" if rng.random() < 0.1 else None)
    clock, limits = (
        VirtualClock(),
        RegistryLimits(share_writes=2, held_replies=8, wait_when_full=True, mailbox_messages=5),
    )
    async with shared(journal, limits, clock) as core:
        answered = 0

        async def one(number: int) -> None:
            nonlocal answered
            key = SessionKey("noisy" if number % 10 else "quiet", f"{rng.randrange(20)}")
            with anyio.CancelScope() as scope:
                if not rng.randrange(5):
                    leaving.append(scope)
                with contextlib.suppress(CommitFailed):
                    await core.ask(
                        key,
                        append(user(f"{number}")) if rng.random() < 0.6 else Load(10),
                        timeout_s=1e9,
                    )
            answered += 1

        leaving: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as tasks:
            for number in range(2_000):
                tasks.start_soon(one, number)
            await anyio.lowlevel.checkpoint()
            for scope in leaving:
                scope.cancel()
        await clock.advance(5)
        assert answered == 2_000
        assert core.directory.statistics().waiting_bytes == 0
        assert core.directory.statistics().queued == 0


# -- bytes -----------------------------------------------------------------------------------------


class Wave:
    """Everybody sends at once, as fast as they can: `sent` in order, and what became of it, None
    for acknowledged.
    """

    def __init__(self, core: Kernel, name: str, *, users: int, sessions: int, each: int) -> None:
        self.sent: list[tuple[SessionKey, str]] = []
        self.outcomes: dict[str, Exception | None] = {}
        self._core, self._name = core, name
        self._keys = [
            SessionKey(f"u{who}", f"{session}")
            for _ in range(each)
            for who in range(users)
            for session in range(sessions)
        ]

    async def _send(self, key: SessionKey, number: int) -> None:
        text = f"{self._name}-{number:06} {'x' * 4 * KB}"
        message = append(user(text))
        self.sent.append((key, text))
        try:
            await self._core.ask(key, message, size=message.size)
            self.outcomes[text] = None
        except (MailboxFull, OutcomeUnknown) as e:
            self.outcomes[text] = e

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for number, key in enumerate(self._keys):
                tasks.start_soon(self._send, key, number)


@pytest.mark.parametrize(
    ("users", "sessions", "each"), [(1, 1, 2_000), (1, 200, 10), (20, 10, 10), (500, 4, 1)]
)
async def test_what_waits_is_bounded_over_all_sessions(
    users: int, sessions: int, each: int
) -> None:
    """G10: while the disk takes nothing, the bytes that wait stay under one bound, for one session
    as for thousands; what is refused is told so and did not run, and what was accepted is there,
    once and in order, when the disk goes on.
    """
    bound = 2 << 20
    journal, clock = Counting(is_open=False), VirtualClock()
    limits = RegistryLimits(total_bytes=bound, mailbox_bytes=8 << 20, timeout_s=1_000)
    async with shared(journal, limits, clock) as core:
        for who in range(users):
            for session in range(sessions):
                await core.ask(SessionKey(f"u{who}", f"{session}"), Load(1))
        wave = Wave(core, "a", users=users, sessions=sessions, each=each)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wave.run)
            await breathe(400)
            refused = dict(wave.outcomes)
            assert all(
                isinstance(error, MailboxFull) and error.limit == "total"
                for error in refused.values()
            )
            waiting = users * sessions * each - len(refused)
            assert waiting * 5 * KB <= bound, "by what was sent"
            assert waiting * 5 * KB > bound / 4, "and the room is used"
            assert journal.backlog_bytes <= core.directory.statistics().waiting_bytes <= bound, (
                "by what is held"
            )
            journal.open.set()
        accepted = [(key, text) for key, text in wave.sent if wave.outcomes[text] is None]
        for key in {key for key, _ in wave.sent}:
            assert said((await core.ask(key, Load(10**9))).entries) == [
                text for one, text in accepted if one == key
            ]
        assert core.directory.statistics().waiting_bytes == 0


async def test_what_waits_stays_bounded_when_its_senders_have_gone() -> None:
    """G10, G3: a disk that takes nothing for minutes costs no more room than one that does for
    seconds, although every sender's deadline passes and others come; those told `MailboxFull` did
    not run, and none of the rest is doubled.
    """
    journal, clock = Counting(is_open=False), VirtualClock()
    limits = RegistryLimits(held_replies=8, mailbox_messages=4, timeout_s=10)
    async with shared(journal, limits, clock) as core:
        keys = [SessionKey("u0", f"{session}") for session in range(3)]
        for key in keys:
            await core.ask(key, Load(1))
        every: dict[str, Any] = {}
        held = []
        for number in range(6):
            wave = Wave(core, f"wave{number}", users=1, sessions=3, each=10)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wave.run)
                await breathe(40)
                held.append(core.directory.statistics().waiting_bytes)
                await clock.advance(11)
            every |= wave.outcomes
        assert max(held) <= held[0]
        uncertain = {text for text, error in every.items() if isinstance(error, OutcomeUnknown)}
        assert 0 < len(uncertain) <= 3 * 8
        assert all(isinstance(error, (OutcomeUnknown, MailboxFull)) for error in every.values())
        journal.open.set()
        await breathe(40)
        kept = [text for key in keys for text in said((await core.ask(key, Load(10**9))).entries)]
        assert sorted(kept) == sorted(uncertain)


async def test_no_user_takes_all_the_room() -> None:
    """G10: however many sessions a busy user sends through, others get theirs; a read of what is
    durable is never refused.
    """
    bound = 1 << 20
    journal, clock = Counting(is_open=False), VirtualClock()
    limits = RegistryLimits(total_bytes=bound, timeout_s=1_000)
    async with shared(journal, limits, clock) as core:
        names = [SessionKey(f"u{who}", f"{session}") for who in range(60) for session in range(50)]
        for key in (*names, SessionKey("u0", "not talking")):
            await core.ask(key, Load(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Wave(core, "noisy", users=1, sessions=50, each=40).run)
            await breathe(400)
            statistics = core.directory.statistics()
            assert bound / 2 - 6 * KB <= statistics.waiting_bytes <= bound / 2
            quiet = Wave(core, "quiet", users=60, sessions=1, each=1)
            tasks.start_soon(quiet.run)
            await breathe(400)
            assert (await core.ask(SessionKey("u1", "7"), Load(1))).entries == ()
            assert (await core.ask(SessionKey("u0", "not talking"), Load(1))).entries == ()
            journal.open.set()
        assert [
            key.user
            for key, text in quiet.sent
            if quiet.outcomes[text] is not None and key.user != "u0"
        ] == []


async def test_waiting_for_room_among_all() -> None:
    """G10: with `wait_when_full`, senders beyond the bound wait, and all get in, each session in
    order, as the disk goes on.
    """
    journal, clock = Counting(is_open=False), VirtualClock()
    limits = RegistryLimits(total_bytes=100 * OVERHEAD_BYTES, wait_when_full=True, timeout_s=1_000)
    async with shared(journal, limits, clock) as core:
        keys = [SessionKey(f"u{number % 7}", f"{number}") for number in range(30)]
        for key in keys:
            await core.ask(key, Load(1))
        done = anyio.Event()

        async def all_of_them() -> None:
            async with anyio.create_task_group() as senders:
                for number in range(40):
                    for key in keys:
                        message = append(user(f"{number}"))
                        senders.start_soon(partial(core.ask, key, message, size=message.size))
                        await anyio.lowlevel.checkpoint()
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(all_of_them)
            await breathe(100)
            assert core.directory.statistics().waiting_bytes <= 100 * OVERHEAD_BYTES
            journal.open.set()
            while not done.is_set():
                await clock.advance(0.1)
        for key in keys:
            assert said((await core.ask(key, Load(10**9))).entries) == [
                f"{number}" for number in range(40)
            ]
