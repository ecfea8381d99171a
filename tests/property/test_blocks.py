"""Memory blocks under histories, crashes and budgets that hypothesis thinks up."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import event, given

from remora import BufferPolicy
from remora.actors.blocks.fit import BlockView
from remora.actors.blocks.state import BlockSet, block_progress
from remora.actors.policies.units import units
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.compaction import BLOCKS_QUEUE, SUMMARIZE_QUEUE
from remora.actors.session.messages import (
    BlocksReady,
    Clear,
    Remove,
    Replace,
    Rewind,
    SummaryReady,
    Truncate,
)
from remora.blocks import BaseMemoryBlock, BlockServices, ChatMessage
from remora.errors import BlockFailed, InvalidInput
from remora.jobs.feed_blocks import BlocksHandler
from remora.messages import ChatDict, Entry
from remora.results import Job
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import JobAttempt, JobDone
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.storage.records import Appended
from remora.tokens import CallableCounter, HeuristicCounter, count_message
from tests.harness import WINDOWS, append, entry

KEY = SessionKey("alice", "one")


class Recorder(BaseMemoryBlock[str]):
    """Its state is what it was shown; `faults` says which of its puts fail, before or after the
    work.
    """

    seqs: list[int] = []  # noqa: RUF012
    puts: list[int] = []  # noqa: RUF012
    faults: Any = None

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return str(self.seqs)

    async def _aput(self, messages: list[ChatMessage]) -> None:
        if self.faults is not None and self.faults():
            raise ValueError("before")
        await anyio.lowlevel.checkpoint()
        self.seqs.extend(one.seq or 0 for one in messages)
        self.puts.append(len(messages))
        if self.faults is not None and self.faults():
            raise ValueError("after")


class Crash(Exception):
    """The process dies: what was told last is lost."""


class Session:
    """A session actor without a kernel: turns are applied and stored at once; jobs run when the
    test says so, in any order.
    """

    def __init__(self, policy: BufferPolicy, *blocks: BaseMemoryBlock[str]) -> None:
        self.journal = MemoryJournal()
        self.behavior = SessionBehavior(
            lambda _: policy, instance="0", flushes=False, blocks=True, windows=WINDOWS
        )
        self.state: Any = None
        self.jobs: dict[str, Job] = {}
        self.left: set[int] = set()
        """Messages that left the buffer for the blocks."""
        self.gone: set[int] = set()
        """Messages that were deleted, or cleared while they were (again) in the buffer."""
        self.crash_at = 0
        """Which of the handler's next messages is lost, and all after it; 0 for none."""
        self.dead = False
        self.blocks = BlockSet(
            blocks, lambda key: BlockServices(key.user, key.session, HeuristicCounter())
        )
        self.handler = BlocksHandler(self.journal, self.tell, self.blocks, batch_tokens=12)

    async def tell(self, _: SessionKey, message: Any) -> Any:
        if isinstance(message, BlocksReady) and self.crash_at:
            self.crash_at -= 1
            if self.crash_at == 0:
                self.dead = True
        if self.dead:
            raise Crash
        return await self.turn(message)

    async def turn(self, message: Any) -> Any:
        turn = self.behavior.handle(self.state, message)
        while isinstance(turn, NeedsLookup):
            turn.store(await self.journal.fetch(KEY, turn.query))
            turn = self.behavior.handle(self.state, message)
        assert isinstance(turn, Decision)
        before = [one.seq for one in self.state.entries]
        if isinstance(message, (Clear, Replace)):
            self.gone.update(
                seq for seq in before if seq > self.state.watermarks.summarizing_through
            )
        self.jobs.update((job.id, job) for job in turn.jobs)
        for id_ in turn.cancel:
            self.jobs.pop(id_, None)
        for record in turn.records:
            self.gone.update(getattr(record, "removed", ()))
            if isinstance(record, JobDone):
                self.jobs.pop(record.id, None)
            self.behavior.apply(self.state, record)
            self.journal.apply(record)
        for note in turn.volatile:
            self.behavior.apply(self.state, note)
        added = [
            one.seq
            for record in turn.records
            if isinstance(record, Appended)
            for one in record.entries
        ]
        # a rewind may bring back what leaves again at once
        there = {*before, *added, *(one.seq for one in self.state.entries)}
        for job in turn.jobs:
            if job.queue == BLOCKS_QUEUE:
                self.left.update(seq for seq in there if seq <= job.payload.through)
        return turn.reply

    async def run(self, job: Job, *, last: bool = False) -> None:
        if job.queue == SUMMARIZE_QUEUE:
            self.jobs.pop(job.id)
            await self.turn(
                SummaryReady(job.payload, job.id, "", "s", 1, degraded=False, model="m")
            )
            return
        try:
            result = await self.handler(JobAttempt(job, last=last, expedited=False))
            await self.tell(KEY, result.message)
        except Crash:
            pass
        except BlockFailed:
            event("failed")

    @classmethod
    async def opened(cls, policy: BufferPolicy, *blocks: BaseMemoryBlock[str]) -> Session:
        """A process starts."""
        session = cls(policy, *blocks)
        await session.reopened()
        return session

    async def reopened(self) -> None:
        """The process starts anew from what is stored."""
        self.dead, self.crash_at = False, 0
        (image,) = await self.journal.hydrate([KEY])
        self.state = self.behavior.restore(KEY, image)  # type: ignore[arg-type]

    def seen(self, name: str) -> tuple[list[int], str]:
        progress = block_progress(self.state.blocks.values()).get(name)
        if progress is None:
            return [], ""
        block: Any = self.blocks.copy(KEY, self.blocks.prototypes(KEY)[name], progress.state)
        return block.seqs, progress.error


def tool_turn(number: int) -> list[ChatDict]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"ask {number}"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": "result"},
        {"role": "assistant", "content": "done"},
    ]


@pytest.mark.blocking  # hypothesis draws inside the event loop, and looks at files
@pytest.mark.parametrize("fold", ["drop", "summary"])
@given(data=st.data())
def test_each_message_that_leaves_is_seen_once(fold: Any, data: st.DataObject) -> None:
    """S3.12, G7: whatever is cleared, rewound, deleted, retried, reordered or crashes, a block sees
    what left, once and whole.

    What was deleted in time is not seen, nor what was cleared before it left; a second block that
    never fails is not held up by one that does.
    """
    flaky = [True]
    faults = cycle(data.draw(st.lists(st.booleans(), min_size=1, max_size=20)))
    policy = BufferPolicy(above_tokens=24, keep_tokens=8, fold=fold)

    async def scenario() -> None:
        broken = Recorder(name="broken", faults=lambda: flaky[0] and next(faults))
        session = await Session.opened(policy, Recorder(name="steady"), broken)
        for number in range(data.draw(st.integers(4, 30))):
            step = data.draw(
                st.sampled_from(
                    ["append"] * 4
                    + ["tools"]
                    + ["run"] * 4
                    + ["clear", "rewind", "truncate", "remove", "replace", "reopen"]
                )
            )
            last = session.state.next_seq - 1
            match step:
                case "append":
                    await session.turn(
                        append(
                            *(
                                {"role": "user", "content": "x" * 12}
                                for _ in range(data.draw(st.integers(1, 4)))
                            )
                        )
                    )
                case "tools":
                    await session.turn(append(*tool_turn(number)))
                case "run" if session.jobs:
                    job = session.jobs[data.draw(st.sampled_from(sorted(session.jobs)))]
                    session.crash_at = data.draw(st.sampled_from([0, 0, 1, 2, 3]))
                    await session.run(job, last=data.draw(st.booleans()))
                    if session.dead:
                        event("crashed")
                        await session.reopened()
                case "clear":
                    await session.turn(Clear())
                case "rewind":
                    try:
                        await session.turn(Rewind(data.draw(st.integers(max(last - 12, 0), last))))
                    except InvalidInput:
                        event("rewound to a message that was removed")
                case "truncate":
                    await session.turn(Truncate(data.draw(st.integers(0, 4))))
                case "remove" if session.state.entries:
                    await session.turn(
                        Remove(places=(data.draw(st.integers(0, len(session.state.entries) - 1)),))
                    )
                case "replace":
                    await session.turn(
                        Replace((entry({"role": "user", "content": "instead"}),), None, 7)
                    )
                case "reopen":
                    await session.reopened()
        flaky[0] = False
        await session.reopened()
        while session.jobs:
            await session.run(session.jobs[data.draw(st.sampled_from(sorted(session.jobs)))])
        session.gone.update(
            one.seq
            for one in session.state.entries
            if one.seq > session.state.watermarks.summarizing_through
        )
        for name in ("steady", "broken"):
            seqs, _ = session.seen(name)
            assert len(seqs) == len(set(seqs))
            assert set(seqs) <= session.left
            assert set(seqs) >= session.left - session.gone
            if set(seqs) == session.left and session.left:
                event("all seen")

    anyio.run(scenario)


async def left_behind(session: Session, count: int) -> None:
    """Append so many messages and have them leave the buffer."""
    await session.turn(append(*({"role": "user", "content": "x" * 12} for _ in range(count))))
    await session.turn(Truncate(0))


async def shown_now(session: Session) -> list[int]:
    for job in list(session.jobs.values()):
        await session.run(job)
    return session.seen("one")[0]


def test_what_a_rewind_brought_back() -> None:
    """S3.12: messages that a rewind brought back are shown when they leave again, and not while
    they are in the buffer: those whose job it overtook, and those that were cleared. What was shown
    before is not shown again.
    """

    async def scenario() -> None:
        session = await Session.opened(BufferPolicy.keep_all(), Recorder(name="one"))
        await left_behind(session, 3)
        await session.turn(Rewind(2))
        assert await shown_now(session) == []
        await left_behind(session, 1)
        assert await shown_now(session) == [1, 2, 4]

        session = await Session.opened(BufferPolicy.keep_all(), Recorder(name="one"))
        await left_behind(session, 3)
        await session.turn(append(*({"role": "user", "content": "x"} for _ in range(3))))
        await session.turn(Clear())
        await left_behind(session, 2)
        assert await shown_now(session) == [1, 2, 3, 7, 8]
        await session.turn(Rewind(5))
        assert [one.seq for one in session.state.entries] == [4, 5]
        assert await shown_now(session) == [1, 2, 3, 7, 8]
        await left_behind(session, 1)
        assert await shown_now(session) == [1, 2, 3, 7, 8, 4, 5, 9]

    anyio.run(scenario)


@given(st.lists(st.sampled_from(["plain", "tools"]), min_size=1, max_size=12))
def test_batches_are_whole_turns(kinds: list[str]) -> None:
    """S3.10, S3.12, G8: what a block is shown at once is at most the configured size, or one turn,
    and never part of one.
    """

    async def scenario() -> None:
        session = await Session.opened(
            BufferPolicy(above_messages=100, keep_messages=1), Recorder(name="one")
        )
        for number, kind in enumerate(kinds):
            await session.turn(
                append(
                    *(
                        tool_turn(number)
                        if kind == "tools"
                        else [{"role": "user", "content": "x" * 16}]
                    )
                )
            )
        entries: list[Entry] = list(session.state.entries)
        await session.turn(Truncate(0))
        (job,) = session.jobs.values()
        await session.run(job)
        block: Any = session.blocks.copy(
            KEY,
            session.blocks.prototypes(KEY)["one"],
            block_progress(session.state.blocks.values())["one"].state,
        )
        assert block.seqs == [one.seq for one in entries]
        starts = {unit.start for unit in units(entries)} | {len(entries)}
        at = 0
        for size in block.puts:
            batch = entries[at : at + size]
            at += size
            assert at in starts
            assert sum(one.tokens for one in batch) <= 12 or len(units(batch)) == 1

    anyio.run(scenario)


class Text(BaseMemoryBlock[str]):
    text: str = ""
    cut: str | None = None

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return self.text

    async def atruncate(self, content: str, tokens_to_truncate: int) -> str | None:
        return self.cut


TEXTS = st.text(st.sampled_from("ab \n<>/memory&é"), max_size=60)
MESSAGES = st.lists(
    st.one_of(
        st.builds(
            lambda role, text: {"role": role, "content": text},
            st.sampled_from(["system", "user", "assistant"]),
            TEXTS,
        ),
        st.builds(
            lambda text: {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
                ],
            },
            TEXTS,
        ),
    ),
    max_size=4,
)
COUNTERS = (
    HeuristicCounter(),
    CallableCounter(str.split),
    CallableCounter(lambda text: list(text.encode())),
)


@given(
    counter=st.sampled_from(COUNTERS),
    method=st.sampled_from(["system", "user", "tail"]),
    given_=st.lists(st.tuples(st.integers(0, 3), TEXTS, st.none() | TEXTS), max_size=5),
    messages=MESSAGES,
    room=st.integers(-5, 400),
)
def test_never_more_than_there_is_room_for(
    counter: Any,
    method: Any,
    given_: list[tuple[int, str, str | None]],
    messages: list[ChatDict],
    room: int,
) -> None:
    """S3.24, S3.16, S3.23, G9: tags, merged texts and tool calls counted, blocks never add more
    than the room; 0 never goes, and what goes is the beginning of the order of priorities; without
    need nothing does.
    """
    blocks = [
        Text(name=f"b{n}", priority=priority, text=text, cut=cut)
        for n, (priority, text, cut) in enumerate(given_)
    ]
    services = BlockServices("alice", "one", counter)
    view = BlockView(
        BlockSet(blocks, lambda _: services),
        count=lambda chat: count_message(counter, chat),
        method=method,
    )

    def size(some: list[ChatDict]) -> int:
        return sum(count_message(counter, one) for one in some)

    async def scenario() -> None:
        gathered = await view.gather(KEY, (), messages)
        whole = view.insert(messages, await view.fit(gathered, 10**9, messages)).messages
        try:
            fitted = await view.fit(gathered, room, messages)
        except InvalidInput:
            event("too much is always kept")
            kept = await view.fit(
                type(gathered)(tuple(one for one in gathered.contents if one.priority == 0)),
                10**9,
                messages,
            )
            assert view.insert(messages, kept).tokens > room
            return
        inserted = view.insert(messages, fitted)
        fresh, added = inserted.messages, inserted.tokens
        assert added == size(fresh) - size(messages)
        assert added <= max(room, 0)
        if size(whole) - size(messages) <= room:
            assert fresh == whole
        there = {name for name, _ in fitted.contents}
        order = sorted(gathered.contents, key=lambda one: one.priority)
        assert all(one.name in there for one in order if one.priority == 0)
        cut = [one.name not in there for one in order if one.priority]
        assert cut == sorted(cut, reverse=True)

    anyio.run(scenario)
