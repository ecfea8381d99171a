"""What callers saw of a runtime, written down, and judged.

Is there one order of events that explains it all?

Two kinds of judgement. *Per session* the calls must be linearizable against a sequential model of a
session (G2), crashes included: what was acknowledged is there after a crash, what was not is wholly
there or wholly absent (G3, G4). *Per answer* some things hold whatever the order: no tool call
parted from its result (G8), the budget kept (G9), nothing missing that was acknowledged and not
cleared (G6), nothing of another user (G1).

What is wrong between the stores when all is quiet is found by `remora.testing.rest.check_at_rest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from remora.actors.policies.buffer import BufferPolicy
from remora.messages import ChatDict, Message, Receipt, split_tool_calls
from remora.recall.context import Context
from remora.testing.linearizability import Explanation, Operation, explain
from remora.testing.programs import NAME, Call
from remora.testing.summaries import covered_by
from remora.tokens import TokenCounter

__all__ = [
    "History",
    "Outcome",
    "Record",
    "Seen",
    "Shown",
    "Violation",
    "check",
    "check_arrival",
    "check_sound",
    "name_of",
    "seen_of",
    "shown_of",
    "table",
]

Outcome: TypeAlias = Literal["flying", "done", "nothing", "unknown"]
"""What is known of a call: it is under way; it returned; it failed, and provably nothing happened.

It may have happened.
"""

_FOREVER = float("inf")
_MOST = 300_000  # configurations that are looked at; histories that have an order need some hundred


class Shown(msgspec.Struct, frozen=True):
    """What a ``load`` showed.

    Attributes:
        budget: in tokens; None for none.
        summarized: whether there was a summary in it.
        covered: names of the messages that the summary covers; None where it cannot be told: it is
            an extract, or garbage.
        names: the messages, oldest first.
        tokens: what it says that it weighs.
        counted: what it weighs, counted anew.
        pending: messages that it says wait for their summary.
        awaiting: tool calls that it says wait for a result.
        split: tool calls parted from their results.
        told: names in anything else: in what was recalled, and in the synopsis.
    """

    budget: int | None
    summarized: bool
    covered: tuple[str, ...] | None
    names: tuple[str, ...]
    tokens: int
    counted: int
    pending: int
    awaiting: tuple[str, ...]
    split: int
    told: frozenset[str] = frozenset()

    def __str__(self) -> str:
        covered = (
            ""
            if not self.summarized
            else f"[{'…' if self.covered is None else ' '.join(self.covered)}] "
        )
        pending = f" pending={self.pending}" if self.pending else ""
        awaiting = f" awaiting={len(self.awaiting)}" if self.awaiting else ""
        return f"{covered}{' '.join(self.names) or '-'}  ({self.tokens} tokens{pending}{awaiting})"


def shown_of(context: Context, budget: int | None, counter: TokenCounter) -> Shown:
    """What a context shows."""
    system = [str(one["content"]) for one in context.messages if one["role"] == "system"]
    summarized = context.summary is not None
    return Shown(
        budget=budget,
        summarized=summarized,
        covered=covered_by(context.summary or "") if summarized else (),
        names=tuple(name_of(one) for one in context.messages if one["role"] != "system"),
        tokens=context.tokens,
        counted=sum(_weight(counter, one) for one in context.messages),
        pending=context.pending,
        awaiting=context.awaiting,
        split=split_tool_calls(context.messages),
        told=frozenset(name for text in system for name in NAME.findall(text)),
    )


class Seen(NamedTuple):
    """One message as a call showed it, whole.

    Attributes:
        name: its first word.
        chat: what a chat API takes of it.
        seq: its number; None where the call shows none, and then none of the rest either.
        id: its id.
        created_at: when it was said.
        metadata: its sender's.
    """

    name: str
    chat: ChatDict
    seq: int | None = None
    id: str | None = None
    created_at: datetime | None = None
    metadata: dict[str, Any] | None = None


def name_of(chat: Mapping[str, Any]) -> str:
    """The name of a message: its first word."""
    return str(chat["content"]).split()[0]


def seen_of(messages: Iterable[Message | ChatDict]) -> tuple[Seen, ...]:
    """Messages as `Session.history` and `get_messages` give them, or those of a context.

    Not what is in front of them there.
    """
    found = []
    for one in messages:
        if isinstance(one, Message):
            chat = one.to_chat()
            found.append(Seen(name_of(chat), chat, one.seq, one.id, one.created_at, one.metadata))
        elif one["role"] != "system":
            found.append(Seen(name_of(one), one))
    return tuple(found)


def _weight(counter: TokenCounter, message: ChatDict) -> int:
    """What a message of text and tool calls weighs, counted without remora's help (G9)."""
    texts = [message["content"], message.get("tool_call_id")]
    for call in message.get("tool_calls") or ():
        texts += [call["id"], call["function"]["name"], call["function"]["arguments"]]
    return counter.message_overhead + sum(counter.count(text) for text in texts if text)


class Record(msgspec.Struct):
    """One call, as it went.

    Attributes:
        caller: who called; -1 for the checks at the end.
        call: what.
        attempt: from 0.
        called: tick of the call.
        argument: what it was told: for an append its names, for a delete the number and name, for a
            rewind the number.
        returned: tick of its end; infinity while it is under way, or when it may still happen.
        outcome: what is known of it.
        result: what came back.
        error: what it raised, or why its outcome is not known.
        died: the process died before its outcome was known.
        took_s: seconds from its call to its return.
        seen: the messages that it showed, whole.
    """

    caller: int
    call: Call
    attempt: int
    called: int
    argument: Any = None
    returned: float = _FOREVER
    ended: float = _FOREVER
    outcome: Outcome = "flying"
    result: Any = None
    error: str = ""
    died: bool = False
    took_s: float = 0.0
    seen: tuple[Seen, ...] = ()

    @property
    def session(self) -> tuple[str, str]:
        """The session that it was about; an empty name for calls to the user."""
        return self.call.user, self.call.session

    @property
    def effective(self) -> bool:
        """It happened, or may have happened."""
        return self.outcome != "nothing"

    def overlaps(self, other: Record) -> bool:
        """Whether the two were under way at one moment."""
        return self.called < other.returned and other.called < self.returned


class Violation(msgspec.Struct, frozen=True):
    """A guarantee that did not hold.

    Attributes:
        guarantee: which, for instance ``G2``.
        where: session, user or store.
        text: what was seen, and what should have been.
        ticks: of the calls that show it.
    """

    guarantee: str
    where: str
    text: str
    ticks: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = f" (calls at {', '.join(map(str, self.ticks))})" if self.ticks else ""
        return f"{self.guarantee} {self.where}: {self.text}{at}"


class _Shape(NamedTuple):
    """What decides how a message may be shown."""

    role: str
    calls: tuple[str, ...]
    answers: str | None


class History:
    """Every call and return, by ticks that only grow."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.crashes: list[int] = []
        self.violations: list[Violation] = []
        self._tick = 0
        self._messages: dict[str, ChatDict] = {}
        self._shapes: dict[str, _Shape] = {}
        self._owners: dict[str, tuple[str, str, int]] = {}
        self.counter: TokenCounter | None = None
        self.summary_prefix = ""
        """What weighs messages, and what summaries begin with; `Player` knows them."""

    def __str__(self) -> str:
        return table(self)

    # -- writing down ------------------------------------------------------------------------------

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick

    def call(
        self,
        caller: int,
        call: Call,
        *,
        attempt: int = 0,
        messages: Sequence[ChatDict] = (),
        argument: Any = None,
    ) -> Record:
        """A call begins."""
        record = Record(caller, call, attempt, self._next_tick(), argument)
        if messages:
            names = tuple(map(name_of, messages))
            for name, message in zip(names, messages, strict=True):
                self._messages[name] = message
                calls = tuple(one["id"] for one in message.get("tool_calls") or ())
                self._shapes[name] = _Shape(message["role"], calls, message.get("tool_call_id"))
                self._owners.setdefault(name, (call.user, call.session, record.called))
            record.argument = names
        elif call.kind == "remember":
            self._owners.setdefault(str(argument), (call.user, "", record.called))
        self.records.append(record)
        return record

    def _end(
        self, record: Record, outcome: Outcome, *, result: Any = None, error: object = ""
    ) -> bool:
        if record.died:
            return False  # its caller died with the process: nobody heard of it
        record.ended = self._next_tick()
        record.outcome, record.result, record.error = outcome, result, _error_text(error)
        if outcome != "unknown":
            record.returned = record.ended
        return True

    def returned(self, record: Record, result: Any) -> None:
        """It came back with this."""
        self._end(record, "done", result=result)

    def nothing(self, record: Record, why: object) -> None:
        """It failed, and provably nothing happened."""
        self._end(record, "nothing", error=why)

    def unknown(self, record: Record, why: object) -> None:
        """Whoever called does not know; it may still happen."""
        self._end(record, "unknown", error=why)

    def wrong(self, record: Record, why: object) -> None:
        """It raised what nothing raises."""
        if self._end(record, "unknown", error=why):
            text = f"{record.call.kind} raised {_error_text(why)}"
            self.violations.append(Violation("G11", _where(record), text, (record.called,)))

    def crashed(self) -> None:
        """The process died: what was not known by now has happened by now, or never.

        Twice without a call between is once.

        Call it at the moment of which the next life sees the state; what returns to callers after
        that is not written down.
        """
        if self.crashes and (not self.records or self.records[-1].called < self.crashes[-1]):
            return
        at = self._next_tick()
        self.crashes.append(at)
        for record in self.records:
            if record.outcome in {"flying", "unknown"} and not record.died:
                record.died, record.returned, record.outcome = True, at, "unknown"
                record.ended = min(record.ended, at)
                record.error = record.error or "the process died"

    # -- reading -----------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, _Shape]:
        """What is known of each message, by name."""
        return self._shapes

    @property
    def messages(self) -> Mapping[str, ChatDict]:
        """Each message that was to be appended, by name."""
        return self._messages

    @property
    def weights(self) -> Mapping[str, int]:
        """Tokens of each message, by name; none without a counter."""
        counter = self.counter
        return (
            {}
            if counter is None
            else {name: _weight(counter, one) for name, one in self._messages.items()}
        )

    def weigh_summary(self, names: Sequence[str]) -> int:
        """Tokens of a `UnionSummarizer`'s summary of these messages."""
        assert self.counter is not None
        return _weight(
            self.counter,
            {"role": "system", "content": f"{self.summary_prefix}{' '.join(names)} ={len(names)}"},
        )

    @property
    def owners(self) -> Mapping[str, tuple[str, str, int]]:
        """Whose each message and fact is: user, session, and the tick of the call that first said
        it.
        """
        return self._owners

    @property
    def sessions(self) -> list[tuple[str, str]]:
        """The sessions that were called, in order."""
        return sorted({record.session for record in self.records if record.call.session})

    @property
    def users(self) -> list[str]:
        """The users that were called, in order."""
        return sorted({record.call.user for record in self.records})

    def of_session(self, session: tuple[str, str]) -> list[Record]:
        """The calls that bear on a session; forgetting its user is one."""
        return [
            record
            for record in self.records
            if record.session == session
            or (record.call.kind == "forget_user" and record.call.user == session[0])
        ]


def _error_text(why: object) -> str:
    return f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)


def _where(record: Record) -> str:
    return "/".join(part for part in record.session if part)


# -- the sequential model --------------------------------------------------------------------------


class _Model(NamedTuple):
    """A session as a sequential program.

    `said` has the name of each message by its number, the empty text for one that was removed;
    `cleared` is the last number that was cleared away; `keys` has for each idempotency key the
    numbers that came under it; `marks` has for each clear and rewind the newest number then, and
    `cleared` after it. `front` is a number up to which messages have left the buffer at least, and
    `flushed` one up to which they were handed over; `folds` says that some may have left it by a
    fold since it was empty.
    """

    said: tuple[str, ...] = ()
    cleared: int = 0
    keys: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    marks: tuple[tuple[int, int], ...] = ()
    front: int = 0
    flushed: int = 0
    folds: bool = False


class _SessionModel:
    """The sequential model's steps.

    Args:
        shapes: what is known of each message.
        numbers: what somebody was told of it at any time: the message that a number is of. It can
            be of no other, so an append whose outcome is not known is not tried where it cannot
            have been.
        drops: the policy lets messages go without a summary, so a load may begin anywhere.
        keeping: what the session keeps; None where it is not known.
    """

    def __init__(
        self,
        shapes: Mapping[str, _Shape],
        numbers: Mapping[int, str],
        *,
        drops: bool,
        keeping: _Keeping | None,
    ) -> None:
        self._shapes = shapes
        self._numbers = numbers
        self._known = {name: seq for seq, name in numbers.items()}
        self._drops = drops
        self._keeping = keeping
        self._tools = any(map(_is_tool, shapes.values()))
        self._presented: dict[
            tuple[str, ...], tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]
        ] = {}

    def step(self, model: _Model, operation: Operation) -> _Model | None:
        """The state after an operation; None if the model would not have answered so."""
        argument, result = operation.argument, operation.result
        match operation.kind:
            case "append":
                after = _append(model, argument, result)
                if after is None or not self._may_be(after, len(model.said)):
                    return None
                return after if after.folds else after._replace(folds=self._may_fold(_live(after)))
            case "clear":
                return _clear(model, result)
            case "delete":
                return _delete(model, argument, result)
            case "rewind":
                return _rewind(model, argument, result)
            case "forget_session" | "forget_user":
                return _Model()
            case "flush":
                last = len(model.said)
                if result is not None and result > last - model.flushed:
                    return None
                return model if result is None or self._tools else model._replace(flushed=last)
            case "messages":
                live = _live(model)
                start = len(live) - len(result)
                return (
                    _begins(model, start, start) if start >= 0 and live[start:] == result else None
                )
            case "history":
                told = tuple((seq, name) for seq, name in enumerate(model.said, 1) if name)
                return model if argument or result == told else None
            case _:
                return self._load(model, result, asks=argument)

    def _may_fold(self, live: tuple[str, ...]) -> bool:
        """Whether a fold may take something of a buffer of these, or of one that had these in
        it.
        """
        return self._keeping is None or self._keeping.due(live)

    def _may_be(self, model: _Model, last: int) -> bool:
        """Whether nobody was told otherwise of the numbers after `last`."""
        for seq, name in enumerate(model.said[last:], last + 1):
            if self._numbers.get(seq, name) != name or self._known.get(name, seq) != seq:
                return False
        return True

    def _load(self, model: _Model, shown: Shown, *, asks: bool) -> _Model | None:
        live, whole = _live(model), _whole(model, self._shapes)
        fitting = [
            start
            for start in self._starts(live, shown)
            if start not in whole
            and _begins(model, start, start) is not None
            and self._shows(live[start:], shown, asks=asks)
            and (asks or self._sums_up(live, start, shown))
        ]
        if not fitting or (shown.summarized and not model.folds):
            return None
        return _begins(model, fitting[0], fitting[-1])

    def _sums_up(self, live: tuple[str, ...], start: int, shown: Shown) -> bool:
        """Whether the summary is left out where it does not fit, and there where it does (G9).

        One that would take more than half of a tight budget gives way to the conversation.
        """
        keeping = self._keeping
        weight = None if keeping is None or not start else keeping.summary(live[:start])
        if keeping is None or weight is None or shown.budget is None:
            return True
        room = shown.budget - min(keeping.weight(live[start:]), shown.budget // 2)
        return shown.summarized == (weight <= room)

    def _starts(self, live: tuple[str, ...], shown: Shown) -> Sequence[int]:
        """Where in what is live the buffer may begin, by the summary."""
        covered = shown.covered
        if covered is None or (
            self._drops and not covered
        ):  # where the buffer begins cannot be told
            return range(len(live) + 1)
        if shown.budget is None:
            return (len(covered),) if live[: len(covered)] == covered else ()
        # summaries that do not fit are left out, and may lie between others
        rest = iter(enumerate(live, 1))
        ends = [next((end for end, name in rest if name == one), 0) for one in covered]
        return () if 0 in ends else range(ends[-1] if ends else 0, len(live) + 1)

    def _shows(self, buffer: tuple[str, ...], shown: Shown, *, asks: bool) -> bool:
        """Whether a load of this buffer shows this."""
        units, awaiting = self._present(buffer)
        names = tuple(name for unit in units for name in unit)
        keeping, budget = self._keeping, shown.budget
        if names[max(len(names) - len(shown.names), 0) :] != shown.names:
            return False
        if budget is None:
            if names != shown.names or awaiting != shown.awaiting:
                return False
        elif asks or keeping is None:  # what was recalled has its share of the budget
            return True
        else:  # the newest units, as long as they fit
            left = budget - shown.tokens
            place = len(names) - len(shown.names)
            if awaiting != shown.awaiting or (
                place and keeping.weight(_unit_before(units, place)) <= left
            ):
                return False
        return keeping is None or self._waits(buffer, shown, keeping)

    def _waits(self, buffer: tuple[str, ...], shown: Shown, keeping: _Keeping) -> bool:
        """Whether so many of what is shown may wait for their summary.

        A fold froze a prefix as soon as it was due (G6).
        """
        if any(
            _is_tool(self._shapes[name]) for name in buffer
        ):  # where a turn may be cut is another question
            return shown.pending == 0 or keeping.due(buffer)
        return shown.pending in {
            len(set(buffer[:count]).intersection(shown.names)) for count in keeping.frozen(buffer)
        }

    def _present(
        self, buffer: tuple[str, ...]
    ) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
        """How a chat API wants these messages (G8), in what is shown whole or not at all, and the
        calls that wait.

        Results come at once after their calls, and whatever was said meanwhile after them; calls
        that were never answered, and results that nobody asked for, are left out.
        """
        found = self._presented.get(buffer)
        if found is None:
            found = self._presented[buffer] = _presented(buffer, self._shapes)
        return found


class _Keeping:
    """What a policy keeps, worked out without remora's help.

    Args:
        policy: the session's.
        weights: tokens of each message.
        weigh_summary: tokens of a summary of these messages; None where there may be extracts among
            them.
    """

    def __init__(
        self,
        policy: BufferPolicy,
        weights: Mapping[str, int],
        weigh_summary: Callable[[Sequence[str]], int] | None,
    ) -> None:
        self.policy = policy
        self.weights = weights
        self._weigh_summary = weigh_summary
        self._frozen: dict[tuple[str, ...], frozenset[int]] = {}

    def weight(self, names: Iterable[str]) -> int:
        """Tokens of all these."""
        return sum(self.weights[name] for name in names)

    def summary(self, names: Sequence[str]) -> int | None:
        """Tokens of the one summary of all these; None where it cannot be told."""
        return (
            self._weigh_summary(names)
            if self._weigh_summary is not None and self.policy.fold == "summary"
            else None
        )

    def frozen(self, buffer: tuple[str, ...]) -> frozenset[int]:
        """How many messages of a buffer without tool calls, from the front, may wait for their
        summary.

        A fold that is due begins in the turn in which it is, so it froze what was to go then.
        """
        if self.policy.fold == "drop":
            return frozenset({0})
        found = self._frozen.get(buffer)
        if found is None:
            counts = {
                self._amount(buffer[:end])
                for end in range(2, len(buffer) + 1)
                if self.due(buffer[:end])
            }
            found = self._frozen[buffer] = frozenset(counts or {0})
        return found

    def _amount(self, buffer: tuple[str, ...]) -> int:
        """How many messages a fold of this buffer takes; the newest stays in any case."""
        policy = self.policy
        if policy.batch is not None:
            return min(policy.batch, len(buffer) - 1)
        if policy.keep_messages is not None:
            return min(max(len(buffer) - policy.keep_messages, 0), len(buffer) - 1)
        assert policy.keep_tokens is not None
        excess = self.weight(buffer) - policy.keep_tokens
        for count in range(len(buffer)):
            if self.weight(buffer[:count]) >= excess:
                return count
        return len(buffer) - 1

    def due(self, buffer: Sequence[str]) -> bool:
        """Whether a buffer is to be folded, as far as it can be cut."""
        most_tokens, most = self.policy.above_tokens, self.policy.above_messages
        over = (most_tokens is not None and self.weight(buffer) > most_tokens) or (
            most is not None and len(buffer) > most
        )
        return over and len(buffer) > 1


def _unit_before(units: Sequence[Sequence[str]], place: int) -> Sequence[str]:
    """The unit that ends before the name at `place`, in all of them.

    Nothing where that is within one.
    """
    end = 0
    for unit in units:
        end += len(unit)
        if end >= place:
            return unit if end == place else ()
    return ()


def _begins(model: _Model, first: int, last: int) -> _Model | None:
    """The state where the buffer begins between the live messages at places `first` and `last`.

    None where it cannot.

    What left the buffer does not come back, whatever is said never leaves it before something else
    is said, and only a fold takes anything out of it.
    """
    seqs = [seq for seq, name in enumerate(model.said[model.cleared :], model.cleared + 1) if name]
    if last < len(seqs) and seqs[last] <= model.front:
        return None
    if first == 0:
        return model
    if not model.folds or (first == len(seqs) and seqs[-1] == len(model.said)):
        return None
    return model if seqs[first - 1] <= model.front else model._replace(front=seqs[first - 1])


def _live(model: _Model) -> tuple[str, ...]:
    """What was said since the clear, and not removed."""
    said = model.said[model.cleared :]
    return tuple(filter(None, said)) if "" in said else said


def _whole(model: _Model, shapes: Mapping[str, _Shape]) -> frozenset[int]:
    """Where, in what is live, no cut may be.

    Between a call and its results that followed at once (G8).

    With anything else in between, the agent that made the call may have been taken for dead.
    """
    found: list[int] = []
    place, awaited = 0, list[str]()
    within: list[int] = []
    for name in model.said[model.cleared :]:
        shape = shapes[name] if name else None
        if shape is not None and shape.answers in awaited:
            awaited.remove(shape.answers)
            within.append(place)
            if not awaited:
                found += within
        else:
            awaited, within = list(shape.calls) if shape is not None else [], []
        place += bool(name)
    return frozenset(found)


def _append(
    model: _Model, argument: tuple[tuple[str, ...], str | None], result: Receipt | None
) -> _Model | None:
    names, key = argument
    if key is not None:
        for known, seqs in model.keys:
            if known == key:
                return (
                    model if result is None or (result.duplicate and result.seqs == seqs) else None
                )
    first = len(model.said) + 1
    if result is not None and (
        result.duplicate or len(result.seqs) != len(names) or result.seqs[0] != first
    ):
        return None
    seqs = tuple(range(first, first + len(names)))
    if result is not None and result.seqs != seqs:
        return None
    return model._replace(
        said=model.said + names, keys=model.keys if key is None else model.keys | {(key, seqs)}
    )


def _clear(model: _Model, result: int | None) -> _Model | None:
    last = len(model.said)
    if result is not None:
        start = len(_live(model)) - result
        if start < 0 or _begins(model, start, start) is None:
            return None
    return model._replace(
        cleared=last, marks=(*model.marks, (last, last)), front=last, flushed=last, folds=False
    )


def _delete(model: _Model, argument: tuple[int, str], result: int | None) -> _Model | None:
    seq, name = argument
    there = model.cleared < seq <= len(model.said) and model.said[seq - 1] == name
    if result == 0 and there:  # a fold took it before
        if not model.folds or seq == len(model.said):
            return None
        return model if seq <= model.front else model._replace(front=seq)
    if result == 0 or (result is None and (not there or seq <= model.front)):
        return model  # what left the buffer is passed over
    if not there or seq <= model.front or (result is not None and result != 1):
        return None
    return model._replace(said=(*model.said[: seq - 1], "", *model.said[seq:]))


def _rewind(model: _Model, to: int, result: int | Literal["refused"] | None) -> _Model | None:
    last = len(model.said)
    if to > last or (to < last and to > 0 and not model.said[to - 1]):
        return model if result in {None, "refused"} else None
    if result is not None and result != last - to:
        return None
    if to == last:
        return model
    cleared = next((then for at, then in reversed(model.marks) if at <= to), 0)
    said = model.said[:to] + ("",) * (last - to)
    return model._replace(
        said=said, cleared=cleared, marks=(*model.marks, (last, cleared)), front=cleared, folds=True
    )


def _presented(
    live: tuple[str, ...], shapes: Mapping[str, _Shape]
) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    shown: list[tuple[str, ...]] = []
    awaiting: tuple[str, ...] = ()
    place = 0
    while place < len(live):
        head = shapes[live[place]]
        place += 1
        if not head.calls:
            if head.role != "tool":
                shown.append((live[place - 1],))
            continue
        wanted, results, others, begun = list(head.calls), list[str](), list[str](), place - 1
        while wanted and place < len(live) and shapes[live[place]].role != "assistant":
            one = shapes[live[place]]
            if one.role != "tool":
                others.append(live[place])
            elif one.answers in wanted:
                wanted.remove(one.answers)
                results.append(live[place])
            place += 1
        if not wanted:
            shown.append((live[begun], *results))
        elif place == len(live):
            awaiting = tuple(wanted)
        shown += [(name,) for name in others]
    return tuple(shown), awaiting


# -- judging ---------------------------------------------------------------------------------------


def check(
    history: History,
    *,
    drops: bool = False,
    policy: BufferPolicy | None = None,
    sound_models: bool = False,
) -> list[Violation]:
    """Everything that is wrong with a history (G1, G2, G3, G4, G6, G8, G9); empty where nothing is.

    Args:
        history: complete: what is still under way in it counts as lost with the process.
        drops: the sessions' policy lets messages go without a summary.
        policy: what all sessions keep, where it is known: then results are judged by it.
        sound_models: a `UnionSummarizer` makes the summaries, and it never failed, nor the journal
            where it was read.
    """
    drops = drops or (policy is not None and policy.fold == "drop")
    weights = history.weights
    found = list(history.violations)
    for session in history.sessions:
        records = history.of_session(session)
        keeping = None
        if policy is not None and history.counter is not None:
            said = sum(
                weights[name]
                for one in records
                if one.effective and one.call.kind == "append"
                for name in one.argument
            )
            sound = (
                sound_models and said <= policy.overdraft_tokens
            )  # beyond that, extracts stand in
            keeping = _Keeping(policy, weights, history.weigh_summary if sound else None)
            if sound:
                found.extend(_check_extracts(records))
        found.extend(_check_answers(history, session, records, drops=drops))
        found.extend(_check_envelopes(session, records))
        found.extend(_check_order(history, session, records, drops=drops, keeping=keeping))
    for user in history.users:
        found.extend(_check_user(history, user))
    return found


def check_sound(history: History, most_s: float) -> list[Violation]:
    """G5, G11.

    With a sound journal nobody waits for a model or a store, however slow, and nobody is told of a
    failed commit.

    Args:
        history: of callers whose journal was sound.
        most_s: what the journal and the schedule may take, in seconds.
    """
    found = []
    for one in history.records:
        kind = one.call.kind
        at_once = kind in {"append", "clear", "messages", "history", "flush"} or (
            kind == "load" and not one.call.asks
        )
        if one.outcome == "done" and at_once and one.took_s > most_s:
            found.append(
                Violation(
                    "G5",
                    _where(one),
                    f"{kind} took {one.took_s:.3g} s, with a sound journal",
                    (one.called,),
                )
            )
        if one.error.startswith(("OutcomeUnknown", "CommitFailed")) and one.call.timeout_s is None:
            found.append(
                Violation(
                    "G11",
                    _where(one),
                    f"{kind} raised {one.error}, with a sound journal",
                    (one.called,),
                )
            )
    return found


def check_arrival(history: History) -> list[Violation]:
    """G2: a mailbox's order is history's.

    What was appended first stands first, though nobody waited for anybody.

    Args:
        history: of callers in one process whose batches are small; see `Session.append`.
    """
    found = []
    for session in history.sessions:
        before: Record | None = None
        for record in history.of_session(session):  # in the order of their calls
            if record.effective and record.call.kind in {"forget_session", "forget_user"}:
                break  # numbers begin anew
            if record.call.kind != "append" or record.outcome != "done" or record.result.duplicate:
                continue
            if before is not None and record.result.seqs[0] < before.result.seqs[0]:
                text = f"{record.argument[0]} was appended after {before.argument[0]}, and stands before it"  # noqa: E501
                found.append(
                    Violation("G2", "/".join(session), text, (before.called, record.called))
                )
            else:
                before = record
    return found


def _operations(records: Sequence[Record]) -> Iterator[Operation]:
    """The calls that a sequential model has to explain.

    Not those without an effect, nor reads without an answer.
    """
    for record in records:
        kind = record.call.kind
        if not record.effective or (
            record.outcome != "done" and kind in {"load", "messages", "history", "flush"}
        ):
            continue
        argument = record.argument
        if kind == "append":
            argument = (record.argument, record.call.key)
        elif kind == "load":
            argument = record.call.asks
        elif kind == "history":
            argument = _forgotten(record, records)
        yield Operation(
            record.called, record.returned, kind, argument, record.result, record.outcome != "done"
        )


def _forgotten(history: Record, records: Sequence[Record]) -> bool:
    """Whether the session was forgotten while its history was read.

    That may be of neither the old session nor the new one.
    """
    forgetting = {"forget_session", "forget_user"}
    return any(
        one.effective and one.call.kind in forgetting and one.overlaps(history) for one in records
    )


def _check_order(
    history: History,
    session: tuple[str, str],
    records: Sequence[Record],
    *,
    drops: bool,
    keeping: _Keeping | None,
) -> Iterator[Violation]:
    """G2, G3, G4: one order explains what everybody saw of the session."""
    operations = list(_operations(records))
    said = {
        name
        for one in records
        if one.effective and one.call.kind == "append"
        for name in one.argument
    }
    shapes = {name: shape for name, shape in history.shapes.items() if name in said}
    model = _SessionModel(shapes, _numbers(records), drops=drops, keeping=keeping)
    explanation = explain(operations, _Model(), model.step, most=_MOST)
    if not explanation.complete:
        yield _unexplained_violation(explanation, "/".join(session), len(operations))


def _numbers(records: Sequence[Record]) -> dict[int, str]:
    """The messages' numbers, as they were told; none where they may have begun anew."""
    numbers: dict[int, str] = {}
    for record in records:
        kind = record.call.kind
        if record.effective and kind in {"forget_session", "forget_user"}:
            return {}
        if record.outcome == "done" and kind == "history":
            numbers.update(record.result)
        elif record.outcome == "done" and kind == "append" and not record.result.duplicate:
            numbers.update(zip(record.result.seqs, record.argument, strict=False))
    return numbers


def _unexplained_violation(explanation: Explanation, where: str, count: int) -> Violation:
    stuck = sorted(explanation.stuck, key=lambda one: one.returned)
    order = " ".join(f"{one.called:g}:{one.kind}" for one in explanation.order) or "none"
    if not explanation.decided:
        return Violation(
            "G2 G3 G4",
            where,
            f"no order of these {count} calls was found among {_MOST} configurations",
        )
    text = (
        f"no order explains these {count} calls; the longest explains {len(explanation.order)}: "
        f"{order}; "
        f"after it none of these may have answered as it did: "
        + "; ".join(f"{one.called:g}:{one.kind} -> {_result_text(one.result)}" for one in stuck)
    )
    return Violation("G2 G3 G4", where, text, tuple(int(one.called) for one in stuck))


def _check_user(history: History, user: str) -> Iterator[Violation]:
    """G1, G3, G13: what is recorded of a user on purpose.

    The facts at the end are recorded by `check_at_rest`.
    """
    records = [
        one for one in history.records if one.call.user == user and one.call.kind in _OF_USER
    ]
    operations = [
        Operation(
            one.called, one.returned, one.call.kind, one.argument, one.result, one.outcome != "done"
        )
        for one in records
        if one.effective and (one.outcome == "done" or one.call.kind != "recall")
    ]
    explanation = explain(operations, frozenset[str](), _facts_step, most=_MOST)
    if not explanation.complete:
        yield _unexplained_violation(explanation, user, len(operations))
    for record in history.records:
        if (
            record.call.user == user
            and record.call.kind in {"recall", "synopsis"}
            and record.result is not None
        ):
            yield from _check_owner(history, record, record.result)
            yield from _check_forgotten(history, record, record.result)


_OF_USER = frozenset({"remember", "forget_user", "recall"})


def _facts_step(facts: frozenset[str], operation: Operation) -> frozenset[str] | None:
    match operation.kind:
        case "remember":
            return facts | {operation.argument}
        case "forget_user":
            return frozenset()
        case (
            _
        ):  # a recall finds what is in long-term memory by now; the one at the end finds everything
            return (
                facts if operation.argument != "everything" or operation.result == facts else None
            )


def _check_answers(
    history: History, session: tuple[str, str], records: Sequence[Record], *, drops: bool
) -> Iterator[Violation]:
    """What holds of each answer, whatever the order."""
    where = "/".join(session)
    for record in records:
        if record.outcome != "done" or record.session != session:
            continue
        yield from _check_words(history, record)
        match record.result:
            case Shown() as shown:
                yield from _check_load(history, where, record, shown, records, drops=drops)
            case tuple() as found:
                names = (
                    [name for _, name in found] if record.call.kind == "history" else list(found)
                )
                yield from _check_names(history, record, names)


def _check_extracts(records: Sequence[Record]) -> Iterator[Violation]:
    """Nothing stands in for a summary where the model never failed (G6)."""
    for record in records:
        if (
            record.outcome == "done"
            and isinstance(record.result, Shown)
            and record.result.covered is None
        ):
            text = f"the summary is not the model's, though that never failed: {record.result}"
            yield Violation("G6", _where(record), text, (record.called,))


_ENVELOPE = frozenset({"id", "created_at", "metadata"})


def _check_words(history: History, record: Record) -> Iterator[Violation]:
    """Whatever is shown is what was said: every word, the role, the tool calls, the metadata
    (G3).
    """
    for one in record.seen:
        said = history.messages.get(one.name)
        if said is None:
            continue  # who said it is another check's
        chat = {key: value for key, value in said.items() if key not in _ENVELOPE}
        if one.chat != chat:
            text = f"{one.name} is shown as {one.chat!r:.300}, and was said as {chat!r:.300}"
            yield Violation("G3", _where(record), text, (record.called,))
        elif one.seq is not None and (one.metadata or None) != (said.get("metadata") or None):
            text = f"{one.name} is shown with the metadata {one.metadata!r}, and was said with {said.get('metadata')!r}"  # noqa: E501
            yield Violation("G3", _where(record), text, (record.called,))


def _check_envelopes(session: tuple[str, str], records: Sequence[Record]) -> Iterator[Violation]:
    """A message's id and time are the same wherever it is told of, in the receipt of a duplicate as
    well (G3, G4).
    """
    if any(one.effective and one.call.kind in {"forget_session", "forget_user"} for one in records):
        return  # numbers may have begun anew
    ids: dict[int, str] = {}
    times: dict[int, datetime] = {}
    for record in records:
        if record.outcome != "done" or record.session != session:
            continue
        told = [
            (one.seq, one.id) for one in record.seen if one.seq is not None and one.id is not None
        ]
        if isinstance(record.result, Receipt):
            if len(record.result.ids) != len(record.result.seqs):
                text = f"{len(record.result.seqs)} messages have {len(record.result.ids)} ids"
                yield Violation("G4", "/".join(session), text, (record.called,))
            told.extend(zip(record.result.seqs, record.result.ids, strict=False))
        for seq, id_ in told:
            if ids.setdefault(seq, id_) != id_:
                text = f"message {seq} has the id {id_}, and had {ids[seq]}"
                yield Violation("G4", "/".join(session), text, (record.called,))
        for one in record.seen:
            if (
                one.seq is not None
                and one.created_at is not None
                and times.setdefault(one.seq, one.created_at) != one.created_at
            ):
                text = f"message {one.seq} was said at {one.created_at}, and at {times[one.seq]}"
                yield Violation("G3", "/".join(session), text, (record.called,))
    if len(set(ids.values())) != len(ids):
        yield Violation("G2", "/".join(session), f"messages share an id: {ids}")


def _check_load(
    history: History,
    where: str,
    record: Record,
    shown: Shown,
    records: Sequence[Record],
    *,
    drops: bool,
) -> Iterator[Violation]:
    at = (record.called,)
    if shown.split:
        yield Violation(
            "G8",
            where,
            f"{shown.split} tool calls or results without their counterpart in {shown}",
            at,
        )
    if shown.counted != shown.tokens:
        yield Violation(
            "G9", where, f"it says {shown.tokens} tokens, and weighs {shown.counted}", at
        )
    if shown.budget is not None and shown.counted > shown.budget:
        yield Violation(
            "G9", where, f"{shown.counted} tokens within a budget of {shown.budget}", at
        )
    if not 0 <= shown.pending <= len(shown.names):
        yield Violation(
            "G6", where, f"{shown.pending} of {len(shown.names)} messages are pending", at
        )
    yield from _check_names(history, record, [*(shown.covered or ()), *shown.names])
    yield from _check_owner(history, record, shown.told)
    yield from _check_forgotten(history, record, shown.told)
    if shown.budget is not None or shown.covered is None or drops:
        return
    there = {*shown.covered, *shown.names}
    restating = {"clear", "delete", "rewind", "forget_session", "forget_user"}
    restated = [
        one
        for one in records
        if one.effective and one.call.kind in restating and one.called < record.returned
    ]
    for one in records:
        if (
            one.call.kind != "append"
            or one.outcome != "done"
            or one.result.duplicate
            or one.returned >= record.called
        ):
            continue
        if any(other.returned > one.called for other in restated):
            continue
        missing = [
            name
            for name in one.argument
            if name not in there and not _is_tool(history.shapes[name])
        ]
        if missing:
            text = f"acknowledged before, and neither shown nor in the summary: {' '.join(missing)}; the load showed {shown}"  # noqa: E501
            yield Violation("G3 G6", where, text, (one.called, record.called))


def _is_tool(shape: _Shape) -> bool:
    return bool(shape.calls) or shape.role == "tool"


def _check_names(history: History, record: Record, names: Sequence[str]) -> Iterator[Violation]:
    """Each once, and this session's own (G1, G2)."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        yield Violation(
            "G2", _where(record), f"more than once: {' '.join(doubled)}", (record.called,)
        )
    for name in names:
        owner = history.owners.get(name)
        if owner is None or owner[:2] != record.session or owner[2] > record.returned:
            text = f"{name} is not of this session: " + (
                "nobody said it" if owner is None else f"{owner[0]}/{owner[1]} said it"
            )
            yield Violation("G1", _where(record), text, (record.called,))


def _check_owner(history: History, record: Record, names: Iterable[str]) -> Iterator[Violation]:
    """Nothing of another user in what was recalled (G1)."""
    for name in sorted(names):
        owner = history.owners.get(name)
        if owner is None or owner[0] != record.call.user or owner[2] > record.returned:
            text = f"{name} was found, which {'nobody' if owner is None else owner[0]} said"
            yield Violation("G1", _where(record), text, (record.called,))


def _check_forgotten(history: History, record: Record, names: Iterable[str]) -> Iterator[Violation]:
    """G13: what was forgotten is not found again."""
    forgotten = [
        one
        for one in history.records
        if one.call.kind in {"forget_session", "forget_user"}
        and one.call.user == record.call.user
        and one.outcome == "done"
        and one.returned < record.called
    ]
    for name in sorted(names) if forgotten else ():
        said = [one for one in history.records if one.effective and _says(one, name)]
        for one in forgotten:
            whole = one.call.kind == "forget_user"
            if said and all(
                other.returned < one.called and (whole or other.session == one.session)
                for other in said
            ):
                text = f"{name} was found, which had been forgotten"
                yield Violation("G13", _where(record), text, (one.called, record.called))


def _says(record: Record, name: str) -> bool:
    return (record.call.kind == "append" and name in record.argument) or (
        record.call.kind == "remember" and record.argument == name
    )


# -- printing --------------------------------------------------------------------------------------


def _result_text(result: Any) -> str:
    match result:
        case None:
            return "?"
        case Receipt():
            return f"{' '.join(map(str, result.seqs))}{' duplicate' if result.duplicate else ''}"
        case tuple() | frozenset():
            pairs = [f"{one[0]}={one[1]}" if isinstance(one, tuple) else str(one) for one in result]
            return " ".join(pairs if isinstance(result, tuple) else sorted(pairs)) or "-"
        case _:
            return str(result)


def table(history: History) -> str:
    """The history, one line for each call and each return, in the order of their ticks."""
    lines: list[tuple[float, str]] = [
        (at, f"{at:>5}  ───── the process dies, and starts again") for at in history.crashes
    ]
    for one in history.records:
        who = f"{'end' if one.caller < 0 else one.caller:>4}"
        head = str(one.call).split(": ", 1)[1]
        again = f" (attempt {one.attempt + 1})" if one.attempt else ""
        lines.append((one.called, f"{one.called:>5} {who} ▶ {head}{again}{_argument_text(one)}"))
        if one.ended < _FOREVER and not (one.died and one.ended == one.returned):
            ended = (
                _result_text(one.result) if one.outcome == "done" else f"{one.outcome}: {one.error}"
            )
            lines.append((one.ended, f"{one.ended:>5} {who} ◀ {one.called}: {ended}"))
    return "\n".join(line for _, line in sorted(lines, key=lambda line: line[0]))


def _argument_text(record: Record) -> str:
    match record.call.kind, record.argument:
        case "append", tuple() as names:
            return f" {' '.join(names)}"
        case "delete" | "rewind" | "remember", argument:
            return f" {argument}"
        case _:
            return ""
