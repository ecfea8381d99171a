"""A session as a state machine: turns, failed commits, crashes, late results, in any order that
hypothesis draws.

Beside it stands a model of what was said, and after each step both must agree.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from remora import BufferPolicy, Receipt
from remora.actors.policies.units import units
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.messages import (
    Append,
    BlocksReady,
    Clear,
    Flush,
    Inspect,
    Load,
    Remove,
    Replace,
    Rewind,
    Snapshot,
    SummaryReady,
    Truncate,
)
from remora.actors.session.state import SessionState
from remora.config import Config
from remora.errors import (
    BudgetTooSmall,
    IdConflict,
    IndexOutOfRange,
    InvalidInput,
    InvalidMessage,
    KeyConflict,
)
from remora.ids import key_digest, message_id
from remora.messages import split_tool_calls
from remora.recall.gather import Tiers
from remora.recall.planner import Planner
from remora.results import SessionView
from remora.storage.ports import SessionKey
from remora.storage.records import (
    BlocksSpec,
    BufferMoved,
    EntryFlushSpec,
    Flushed,
    FlushSpec,
    Pruned,
    SummarizeSpec,
)
from tests.example_runs import LONG, play_machine
from tests.harness import COUNTER, WINDOWS, append, user
from tests.property.machines import ActorMachine, Write

KEY = SessionKey("alice", "chat")
POLICIES = (
    BufferPolicy(above_tokens=40, keep_tokens=20, overdraft_tokens=80),
    BufferPolicy.window(4),
    BufferPolicy.window(3, fold="summary"),
    BufferPolicy(above_messages=3, batch=2, fold="entry", entries=1),
    BufferPolicy.keep_all(),
)
EVERYTHING = 10**9
PLANNER = Planner(Tiers(), COUNTER, Config())


def call(*ids: str) -> dict[str, Any]:
    calls = [
        {"id": id_, "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for id_ in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


messages = st.one_of(
    st.integers(0, 12).map(lambda n: {"role": "user", "content": "word " * n}),
    st.builds(
        lambda n, id_: {
            "role": "assistant",
            "content": "reply " * n,
            "id": id_,
            "metadata": {"n": n},
        },
        st.integers(0, 8),
        st.sampled_from("xyz"),
    ),
    st.sampled_from([call("a"), call("b"), call("a", "b")]),
    st.sampled_from("ab").map(
        lambda id_: {"role": "tool", "tool_call_id": id_, "content": "result"}
    ),
)
batches = st.lists(messages, min_size=1, max_size=4)
some = st.integers(0, 7)
"""Which of several, the first ones oftener."""


class Said(msgspec.Struct):
    """The model: what a session that only one caller uses, and that never fails, would have.

    Attributes:
        last: the newest message's number.
        cleared: messages up to here were cleared.
        gone: numbers of those that a truncation, or a policy that drops, took out of the buffer.
        removed: numbers of those that were deleted or rewound.
        erased: numbers of those that were deleted.
        untold: numbers of those of which the summary does not tell, since its model said nothing.
        ids: given ids, by number.
        keys: the receipts of appends, by key.
        changes: keys of those that only changed messages.
        came: the key that a message came with, by its number.
        said: what the messages with ids say, by number.
        past: what the first of these were when message n was the newest, for the last time.
    """

    last: int = 0
    cleared: int = 0
    gone: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()
    erased: frozenset[int] = frozenset()
    untold: frozenset[int] = frozenset()
    ids: dict[int, str] = {}
    keys: dict[bytes, Receipt] = {}
    changes: frozenset[bytes] = frozenset()
    came: dict[int, bytes] = {}
    said: dict[int, tuple[str, bytes, bytes | None]] = {}
    past: dict[int, tuple[int, frozenset[int], frozenset[int]]] = {}

    @property
    def visible(self) -> list[int]:
        return [
            seq
            for seq in range(self.cleared + 1, self.last + 1)
            if seq not in self.gone and seq not in self.removed
        ]

    def changed(self, **changes: Any) -> Said:
        after = msgspec.structs.replace(self, **changes)
        after.past = {**after.past, after.last: (after.cleared, after.gone, after.untold)}
        return after

    def known(self, id_: str) -> int | None:
        numbers = (
            seq
            for seq, one in self.ids.items()
            if one == id_ and seq > self.cleared and seq not in self.removed
        )
        return max(numbers, default=None)

    def rewound(self, to: int) -> Said:
        then = max((seq for seq in self.past if seq <= to), default=0)
        cleared, gone, untold = self.past.get(then, (0, frozenset(), frozenset()))
        removed = self.removed | set(range(to + 1, self.last + 1))
        return self.changed(cleared=cleared, gone=gone, untold=untold, removed=removed)


class Result(msgspec.Struct, frozen=True):
    """What a summarize job came to: it tells of the messages `told`, and would have of `whole` if
    it had said anything.
    """

    message: SummaryReady
    whole: frozenset[int]


def told_of(*texts: str) -> list[int]:
    return [int(word) for text in texts for word in text.split()]


class SessionMachine(ActorMachine):
    """The rules of a session."""

    key = KEY
    actor: SessionBehavior
    state: SessionState
    model: Said

    @initialize(
        policy=st.sampled_from(POLICIES),
        flushes=st.booleans(),
        blocks=st.booleans(),
        hot_keys=st.integers(1, 2),
    )
    def begin(self, policy: BufferPolicy, *, flushes: bool, blocks: bool, hot_keys: int) -> None:
        self.policy, self.flushes, self.blocks = policy, flushes, blocks
        self.handed: set[int] = set()
        self.withheld: set[int] = set()
        self.again: set[int] = set()
        """Messages that long-term memory may have under an earlier number: jobs pass them over."""
        self.batches: dict[str, list[dict[str, Any]]] = {}
        actor = SessionBehavior(
            lambda _: policy, instance="0", flushes=flushes, blocks=blocks, windows=WINDOWS
        )
        self.start(actor, Said(), hot_keys=hot_keys)

    def ask(self, message: Any) -> Any:
        """One turn, its records on their way to the log; the reply."""
        turn = self.decide(message)
        self.hand_over(turn, *([message.job] if isinstance(message, SummaryReady) else []))
        return turn.reply

    def store(self) -> Write:
        write = super().store()
        for record in write.records:
            if isinstance(record, Pruned):
                self.withheld.update(record.seqs)
        for job in write.turn.jobs if write.turn is not None else ():
            if isinstance(job.payload, FlushSpec):
                numbers = range(job.payload.first, job.payload.through + 1)
                assert self.handed.isdisjoint(numbers), "a message is handed over once"
                self.handed.update(numbers)
        return write

    def note(self, **changes: Any) -> None:
        """The model goes along with the turn that is next, or was just handed over."""
        self.model = self.model.changed(**changes)

    def told(self, **changes: Any) -> None:
        """The same, for a turn that has run."""
        self.note(**changes)
        if self.queue and self.queue[-1].turn is not None:
            self.queue[-1].model = self.model

    def facts(self, state: SessionState) -> tuple[Any, ...]:
        return (
            state.sid,
            state.opened,
            state.watermarks,
            state.next_seq,
            state.entries,
            state.summary,
            state.pending,
            state.pending_tokens,
            state.live_weight,
            state.tools,
            state.size,
            state.ids,
            state.summaries,
            state.condensing,
            state.blocks,
            {name: one.summary for name, one in state.readers.items() if one.summary},
        )

    # -- callers -----------------------------------------------------------------------------------

    @rule(batch=batches, key=st.none() | st.sampled_from("kl"), replace=st.booleans())
    def append(
        self, batch: list[dict[str, Any]], key: str | None, *, replace: bool = False
    ) -> None:
        """A key always comes with the same messages: as it is when a caller tries again."""
        if key is not None:
            batch = self.batches.setdefault(key, batch)
        message = msgspec.structs.replace(append(*batch, key=key), replace=replace)
        before, records = self.model, len(self.queue)
        repeated = message.key is not None and message.key in before.keys
        error = self.refused(message)
        if repeated and error is not InvalidMessage:
            changed = message.key not in before.changes and self.changed_since(message)
            error = KeyConflict if changed else None
        if error is not None:
            with pytest.raises(error):
                self.decide(message)
            return
        receipt: Receipt = self.ask(message)
        if repeated:
            assert message.key is not None
            original = before.keys[message.key]
            assert receipt.duplicate
            assert len(self.queue) <= records, "a key has one effect"
            if not any(entry.id for entry in message.entries):
                assert (receipt.seqs, receipt.ids) == (original.seqs, original.ids)
            return
        seqs: list[int] = []
        ids, said = dict(before.ids), dict(before.said)
        last = before.last
        for entry in message.entries:
            seq = before.known(entry.id) if entry.id else None
            if seq is None:
                last += 1
                seq = last
            if entry.id:
                ids[seq] = entry.id
                if replace or seq not in said:
                    said[seq] = (entry.role, entry.chat, entry.meta)
            seqs.append(seq)
        assert receipt.seqs == tuple(seqs)
        assert receipt.duplicate == (last == before.last and said == before.said)
        given = [
            entry.id or message_id("0", self.state.sid, seq)
            for entry, seq in zip(message.entries, seqs, strict=True)
        ]
        assert list(receipt.ids) == given
        if last > before.last:
            keys, came = before.keys, before.came
            if message.key is not None:
                keys = {**keys, message.key: receipt}
                came = came | dict.fromkeys(range(before.last + 1, last + 1), message.key)
            self.told(last=last, ids=ids, keys=keys, came=came, said=said)
            self.drop()
        elif said != before.said:
            keys, changes = before.keys, before.changes
            if message.key is not None:
                keys, changes = {**keys, message.key: receipt}, changes | {message.key}
            self.told(said=said, keys=keys, changes=changes)
            self.drop()

    def changed_since(self, message: Append) -> bool:
        """Whether a message of this key says something else by now: nobody can tell it from one
        that came under the key of another.
        """
        assert message.key is not None
        model = self.model
        return any(
            model.said[seq][1] != entry.chat
            for entry, seq in zip(message.entries, model.keys[message.key].seqs, strict=True)
            # of one that was there before, or is deleted, nobody knows what it said
            if entry.id and model.came.get(seq) == message.key and seq not in model.erased
        )

    def refused(self, message: Append) -> type[Exception] | None:
        """Why nothing of these messages may be written; None if all may."""
        given = [entry.id for entry in message.entries if entry.id]
        if len(set(given)) < len(given):
            return InvalidMessage
        for entry in message.entries:
            seq = self.model.known(entry.id) if entry.id else None
            if seq is None:
                continue
            role, chat, _ = self.model.said[seq]
            if chat != entry.chat and (not message.replace or role != entry.role):
                return IdConflict
        return None

    @rule(count=st.integers(2, 6), id_=st.sampled_from([None, "x"]))
    def talk(self, count: int, id_: str | None = None) -> None:
        for _ in range(count):
            self.append([{"role": "user", "content": "and so on and so on", "id": id_}], None)
            id_ = None

    def drop(self) -> None:
        """A policy that drops what it folds drops the oldest."""
        dropped = [
            record
            for record in self.queue[-1].records
            if isinstance(record, BufferMoved) and record.reason == "dropped"
        ]
        for record in dropped:
            assert self.policy.fold == "drop"
            gone = {seq for seq in self.model.visible if seq <= record.watermarks.archived_through}
            self.told(gone=self.model.gone | gone)

    @rule(budget=st.one_of(st.integers(-1, 120), st.just(EVERYTHING)))
    def load(self, budget: int) -> None:
        snapshot: Snapshot = self.ask(Load(budget))
        assert snapshot.tokens <= max(budget, 0)
        summaries = [*snapshot.summaries, *([snapshot.summary] if snapshot.summary else [])]
        sizes = snapshot.shares or [entry.tokens for entry in snapshot.entries]
        assert snapshot.tokens == sum(sizes) + sum(one.tokens for one in summaries)
        seqs = [entry.seq for entry in snapshot.entries if entry.seq]
        assert set(seqs) <= {entry.seq for entry in self.state.entries}
        assert len(seqs) == len(set(seqs))
        assert snapshot.pending == sum(
            seq <= self.state.watermarks.summarizing_through for seq in seqs
        ) * bool(self.state.pending)
        assert len(seqs) + snapshot.omitted + snapshot.orphans == len(self.state.entries)

        async def show(room: int, **_: bool) -> Snapshot:
            return snapshot

        if snapshot.least_tokens:
            assert snapshot.least_tokens > max(budget, 0)
            with pytest.raises(BudgetTooSmall):
                self.runner.run(PLANNER.assemble(KEY, show, None, max(budget, 0)))
        else:
            context = self.runner.run(PLANNER.assemble(KEY, show, None, max(budget, 0)))
            assert context.tokens <= max(budget, 0)
            assert split_tool_calls(context.messages) == 0
            there = snapshot.omitted > snapshot.withheld
            assert context.messages or not there, "what does not fit is shown in part"
        if budget == EVERYTHING:
            assert snapshot.summary == self.state.summary
            if (
                snapshot.omitted > snapshot.withheld
            ):  # of a buffer whose front was dropped, up to a user's message
                watermarks = self.state.watermarks
                assert watermarks.archived_through > watermarks.cleared_through
                assert snapshot.summary is None
                assert snapshot.summaries == ()
                assert snapshot.entries[0].role == "user"
        again: Snapshot = self.ask(Load(budget))
        assert msgspec.structs.replace(again, prefix_changed=snapshot.prefix_changed) == snapshot
        assert not again.prefix_changed
        everything: Snapshot = self.ask(Load(EVERYTHING))
        rest = iter([entry.seq for entry in everything.entries])
        assert all(seq in rest for seq in seqs), "in the same order"

    @rule(key=st.sampled_from("kl"))
    def append_others_under_a_known_key(self, key: str) -> None:
        """G4: that is refused, and nothing is written."""
        if (digest := key_digest(key)) not in self.model.keys:
            return
        message, original = append(user("something else"), key=key), self.model.keys[digest].seqs
        if (
            digest not in self.model.changes
            and len(original) == 1
            and original[0] in self.model.erased
        ):
            assert self.ask(message).seqs == original, "nobody knows any more what it said"
            return
        with pytest.raises(KeyConflict):
            self.ask(message)

    @rule(count=st.integers(0, 2), place=st.integers(0, 3))
    def replace(self, count: int, place: int) -> None:
        """One of the messages may be there already: it keeps its id, and has another number."""
        batch = [user("instead") for _ in range(count)]
        ids = dict(self.model.ids)
        last = self.model.last
        if batch and place < len(self.state.entries):
            one = self.state.entries[place]
            batch[0]["id"] = ids[last + 1] = one.id or message_id("0", self.state.sid, one.seq)
            self.again.add(last + 1)
        message = append(*batch)
        receipt: Receipt = self.ask(Replace(message.entries, None, message.size))
        assert receipt.seqs == tuple(range(last + 1, last + 1 + count))
        self.note(cleared=last)
        said = dict(self.model.said)
        for seq, entry in zip(receipt.seqs, message.entries, strict=True):
            if entry.id:
                said[seq] = (entry.role, entry.chat, entry.meta)
        self.told(last=last + count, ids=ids, said=said)

    @rule()
    def clear(self) -> None:
        held = len(self.state.entries)
        assert self.ask(Clear()) == held
        self.told(cleared=self.model.last)
        assert (self.state.size, self.state.tokens, self.state.pending, self.state.ids) == (
            0,
            0,
            0,
            {},
        )
        assert self.state.summary is None
        assert not self.state.summaries

    @rule(keep=st.integers(0, 6))
    def truncate(self, keep: int) -> None:
        before = [entry.seq for entry in self.state.entries]
        wanted = next(
            (
                len(before) - one.start
                for one in units(self.state.entries)
                if len(before) - one.start <= keep
            ),
            0,
        )
        count = self.ask(Truncate(keep))
        assert count == len(before) - wanted
        if count:
            self.told(gone=self.model.gone | set(before[:count]))
            self.drop()

    @rule(places=st.sets(st.integers(0, 5), max_size=2), by_id=st.booleans())
    def remove(self, places: set[int], *, by_id: bool) -> None:
        entries = self.state.entries
        inside = sorted(place for place in places if place < len(entries))
        ids = tuple(
            entries[place].id or message_id("0", self.state.sid, entries[place].seq)
            for place in inside
        )
        gone = {  # also those that a replaced buffer has once more
            seq
            for seq in range(1, self.model.last + 1)
            if seq not in self.model.erased
            and (self.model.ids.get(seq) or message_id("0", self.state.sid, seq)) in ids
        }
        if not by_id:
            gone = {entries[place].seq for place in inside}
        try:
            removed = self.ask(Remove(ids=(*ids, "nobody's")) if by_id else Remove(tuple(places)))
        except IndexOutOfRange:
            assert len(inside) < len(places)
            return
        assert by_id or len(inside) == len(places)
        assert len(removed.seqs) == len(gone)
        if gone:
            erased, removed = self.model.erased | gone, self.model.removed | gone
            self.told(removed=removed, erased=erased)
            self.drop()

    @rule(back=some)
    def rewind(self, back: int) -> None:
        to = self.model.last - back
        there = to == 0 or (to > 0 and to not in self.model.removed)
        try:
            count = self.ask(Rewind(to))
        except InvalidInput:
            assert not there
            return
        assert there or not back
        assert count == back
        if back:
            self.note()  # a look-up may have stored what was under way
            self.model = self.model.rewound(to)
            self.queue[-1].model = self.model
            self.drop()

    @rule()
    def flush(self) -> None:
        before = self.state.watermarks.indexing_through
        assert self.ask(Flush()) == self.state.watermarks.indexing_through - before
        waiting = [unit for unit in units(self.state.entries) if unit.awaiting]
        if self.flushes and not (waiting and waiting[-1].end == len(self.state.entries)):
            assert self.state.watermarks.indexing_through == self.model.last

    # -- jobs --------------------------------------------------------------------------------------

    @precondition(lambda self: self.of(SummarizeSpec))
    @rule(which=some)
    def summarize(self, which: int) -> None:
        """A model begins to write, and is not done yet."""
        self.written(which)

    @precondition(lambda self: self.of(SummarizeSpec))
    @rule(kind=st.sampled_from(["whole", "whole", "degraded"]))
    def summaries_come_in(self, kind: str) -> None:
        """Models are quick."""
        for _ in range(3):
            if self.written(0):
                self.take(self.results.pop(), kind)

    @precondition(lambda self: self.of(SummarizeSpec))
    @rule(
        how=st.sampled_from(["clear", "truncate", "remove", "rewind", "power cut"]),
        again=st.booleans(),
    )
    def a_summary_comes_late(self, how: str, *, again: bool) -> None:
        """The past is another by then; and perhaps there is another fold already."""
        if not self.written(0):
            return
        result = self.results[-1]
        match how:
            case "clear":
                self.clear()
            case "truncate":
                self.truncate(1)
            case "remove":
                self.remove({0}, by_id=True)
            case "rewind":
                self.rewind(1)
            case _:
                self.power_cut(0)
        if again:
            self.talk(4)
        self.take(result, "whole")

    @rule(rounds=st.integers(2, 6))
    def talk_on(self, rounds: int) -> None:
        """A long conversation in which nothing goes wrong."""
        for _ in range(rounds):
            self.talk(3)
            self.summaries_come_in("whole")

    def written(self, which: int) -> bool:
        """What it is given is stored by then."""
        self.commit(len(self.queue))
        jobs = self.of(SummarizeSpec)
        if not jobs:
            return False
        job = jobs[which % len(jobs)]
        spec: SummarizeSpec = job.payload
        view: SessionView = self.ask(Inspect())
        running = told_of(view.summary.text) if view.summary else []
        if spec.kind == "repair":  # of what is extracted from messages
            told = [*([view.summary] if view.summary else []), *view.summaries]
            prior = next((one for one in told if one.through == spec.through), None)
            given = told_of(prior.text) if prior is not None else []
        elif spec.kind == "condense":
            given = [
                *running,
                *told_of(*(one.text for one in view.summaries if one.through <= spec.through)),
            ]
        else:
            read = self.journal.read(KEY, spec.first, spec.through)
            given = [entry.seq for entry in self.runner.run(read)]
            if spec.kind == "summary":
                given = [*running, *told_of(*(one.text for one in view.summaries)), *given]
        text = " ".join(map(str, given))
        message = SummaryReady(spec, job.id, "S: ", text, 3 + len(given), False, "model")
        self.results.append(Result(message, frozenset(given)))
        return True

    @precondition(lambda self: self.passing)
    @rule(which=some)
    def a_summary_for_a_budget_comes_in(self, which: int) -> None:
        """It is taken if its messages are still there, and moves nothing."""
        self.commit(len(self.queue))
        job = self.passing.pop([*self.passing][which % len(self.passing)])
        spec: SummarizeSpec = job.payload
        watermarks, entries = self.state.watermarks, list(self.state.entries)
        running = [*([self.state.summary] if self.state.summary else []), *self.state.summaries]
        given = [seq for one in running for seq in told_of(one.text)]
        first = max(spec.first, watermarks.archived_through + 1)  # as the job reads them
        read = self.journal.read(KEY, first, spec.through)
        given += [entry.seq for entry in self.runner.run(read)]
        text = " ".join(map(str, given))
        there = watermarks.archived_through <= spec.through < self.state.next_seq
        current = spec.generation == watermarks.generation and there and bool(given)
        message = SummaryReady(spec, job.id, "S: ", text, 3 + len(given), False, "model")
        assert self.ask(message) == current
        assert self.state.entries == entries
        view: SessionView = self.ask(Inspect())
        told = {one.summary.text for one in view.readers if one.summary}
        assert not current or text in told

    @precondition(lambda self: self.results)
    @rule(
        which=some,
        kind=st.sampled_from(["whole", "whole", "degraded", "empty"]),
        again=st.booleans(),
    )
    def deliver(self, which: int, kind: str, *, again: bool) -> None:
        """A result comes in, in any order; perhaps once more, perhaps after it has become stale."""
        place = which % len(self.results)
        self.take(self.results[place] if again else self.results.pop(place), kind)

    def take(self, result: Result, kind: str) -> None:
        message = result.message
        if kind != "whole":
            text = "" if kind == "empty" else message.text
            message = msgspec.structs.replace(
                message, text=text, tokens=3 + len(text.split()), degraded=True, model="extract"
            )
        jobs = {self.state.compaction_job, self.state.condense_job}
        if message.text:
            jobs.add(self.state.repair)
        elif message.spec.kind == "repair":
            jobs = set()
        wanted = message.job in jobs
        taken = self.ask(message)
        assert taken == wanted, "it is taken if it is waited for, and dropped otherwise"
        if not taken:
            return
        untold = self.model.untold | result.whole if kind == "empty" else self.model.untold
        self.told(untold=untold)
        self.drop()
        held = [*self.state.summaries, *([self.state.summary] if self.state.summary else [])]
        assert any((one.text, one.degraded) == (message.text, message.degraded) for one in held)

    @precondition(lambda self: self.of(FlushSpec, EntryFlushSpec))
    @rule(which=some)
    def flushed(self, which: int) -> None:
        """Messages are in long-term memory."""
        jobs = self.of(FlushSpec, EntryFlushSpec)
        job = jobs[which % len(jobs)]
        done = isinstance(job.payload, FlushSpec)
        self.end_job(job, *([Flushed(self.state.sid, job.payload.through)] if done else []))

    @precondition(lambda self: self.of(BlocksSpec))
    @rule(which=some)
    def blocks_have_seen(self, which: int) -> None:
        jobs = self.of(BlocksSpec)
        self.ask(BlocksReady((), jobs[which % len(jobs)].id))

    # -- a rest ------------------------------------------------------------------------------------

    def compare_with(self, former: SessionState) -> None:
        """Of the keys, no more are in memory than may be."""
        state, gone = self.state, len(former.keys) - len(self.state.keys)
        assert set(state.keys) <= set(former.keys)
        assert gone == 0 or not state.keys_complete
        assert former.has_ids or not state.has_ids
        assert self.actor.size(state) == self.actor.size(former) - 120 * gone

    def shown(self) -> list[Any]:
        contexts = [self.decide(Load(budget)) for budget in (EVERYTHING, 60, 20)]
        return [msgspec.structs.replace(turn.reply, prefix_changed=True) for turn in contexts]

    # -- what holds --------------------------------------------------------------------------------

    @invariant()
    def replay_equals_live(self) -> None:
        """G12, S1.02: what the log would give back is what the turns left."""
        if self.state.opened:
            image = self.saved(self.shadow)
            assert self.facts(self.actor.restore(KEY, image)) == self.facts(self.state)

    @invariant()
    def marks_add_up(self) -> None:
        watermarks, state = self.state.watermarks, self.state
        assert state.next_seq == self.model.last + 1, "numbers only grow"
        assert (
            0
            <= watermarks.cleared_through
            <= watermarks.archived_through
            <= watermarks.summarizing_through
            <= self.model.last
        )
        assert watermarks.indexing_through <= self.model.last
        assert not self.flushes or watermarks.indexing_through >= watermarks.summarizing_through
        assert state.tokens == sum(entry.tokens for entry in state.entries)
        if (sums := state.running_tokens) is not None:
            tokens = [after - before for before, after in pairwise(sums)]
            assert tokens == [entry.tokens for entry in state.entries]
        assert state.pending == sum(
            entry.seq <= watermarks.summarizing_through for entry in state.entries
        )
        assert bool(state.compaction_job) == (
            watermarks.summarizing_through > watermarks.archived_through
        )

    @invariant()
    def everything_said_is_shown_once(self) -> None:
        """G5, G6: since the clear, each message is in the buffer or told of by a summary: never in
        neither, never in both.
        """
        buffer: SessionView = self.ask(Inspect())
        shown = [entry.seq for entry in buffer.entries]
        told = told_of(
            *([buffer.summary.text] if buffer.summary else []),
            *(one.text for one in buffer.summaries),
        )
        visible = self.model.visible
        assert shown == [seq for seq in visible if seq > self.state.watermarks.archived_through]
        assert sorted(told) == [
            seq
            for seq in visible
            if seq <= self.state.watermarks.archived_through and seq not in self.model.untold
        ]

    @invariant()
    def summaries_for_budgets_tell_of_what_is_there(self) -> None:
        """G5: not of what was cleared, rewound or deleted."""
        view: SessionView = self.ask(Inspect())
        for one in view.readers:
            assert one.summary is not None
            assert set(told_of(one.summary.text)) <= set(self.model.visible)

    @invariant()
    def each_message_is_handed_over_once(self) -> None:
        """G7: up to the mark, long-term memory gets a message by one job, or is never to have it."""  # noqa: E501
        if self.flushes:
            image = self.saved(self.journal)
            through = image.watermarks.indexing_through
            assert self.handed | self.withheld >= set(range(1, through + 1))
        assert not (self.handed & self.withheld) - self.again or not self.flushes

    @invariant()
    def sizes_add_up(self) -> None:
        """G10: no count runs away from what it counts."""
        state = self.state
        assert state.size == sum(entry.size + 160 for entry in state.entries)
        assert state.tools == sum(1 for entry in state.entries if entry.calls or entry.answers)
        assert self.actor.size(state) >= 512
        assert state.live_weight >= 0


@pytest.mark.limit(1_000_000 if LONG else 900)  # to make a failure small takes minutes
def test_no_sequence_breaks_a_session() -> None:
    """G2, G4 to G10, G12, S0.25, S1.02: no sequence of calls, results, failed commits, crashes and
    rests breaks an invariant, and SQLite restores what the journal in memory does.
    """
    play_machine(SessionMachine)
