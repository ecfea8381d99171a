"""What callers saw of a runtime, written down, and judged: is there one order of events that explains it all?

Two kinds of judgement. *Per session* the calls must be linearizable against a sequential model of a session (G2), crashes
included: what was acknowledged is there after a crash, what was not is wholly there or wholly absent (G3, G4). *Per answer*
some things hold whatever the order: no tool call parted from its result (G8), the budget kept (G9), nothing missing that was
acknowledged and not cleared (G6), nothing of another user (G1).

What is wrong between the stores when all is quiet is found by `remora.testing.rest.check_at_rest`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from remora.actors.planner import Context
from remora.messages import ChatDict, Receipt, split_tool_calls
from remora.testing.linearizability import Explanation, Operation, explain
from remora.testing.programs import NAME, Call
from remora.testing.summaries import covered_by
from remora.tokens import TokenCounter

__all__ = ["History", "Outcome", "Record", "Shown", "Violation", "check", "check_arrival", "check_sound", "shown_of", "table"]

Outcome: TypeAlias = Literal["flying", "done", "nothing", "unknown"]
"""What is known of a call: it is under way; it returned; it failed, and provably nothing happened; it may have happened."""

_FOREVER = float("inf")
_MOST = 300_000  # configurations that are looked at; histories that have an order need some hundred


class Shown(msgspec.Struct, frozen=True):
    """What a ``load`` showed.

    Attributes:
        budget: in tokens; None for none.
        summarized: whether there was a summary in it.
        covered: names of the messages that the summary covers; None where it cannot be told: it is an extract, or garbage.
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
        covered = "" if not self.summarized else f"[{'…' if self.covered is None else ' '.join(self.covered)}] "
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
        names=tuple(str(one["content"]).split()[0] for one in context.messages if one["role"] != "system"),
        tokens=context.tokens,
        counted=sum(_weight(counter, one) for one in context.messages),
        pending=context.pending,
        awaiting=context.awaiting,
        split=split_tool_calls(context.messages),
        told=frozenset(name for text in system for name in NAME.findall(text)),
    )


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
        argument: what it was told: for an append its names, for a delete the number and name, for a rewind the number.
        returned: tick of its end; infinity while it is under way, or when it may still happen.
        outcome: what is known of it.
        result: what came back.
        error: what it raised, or why its outcome is not known.
        died: the process died before its outcome was known.
        took_s: seconds from its call to its return.
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

    def __str__(self) -> str:
        return table(self)

    # -- writing down -------------------------------------------------------------------------------------------------

    def _ticked(self) -> int:
        self._tick += 1
        return self._tick

    def call(
        self, caller: int, call: Call, *, attempt: int = 0, messages: Sequence[ChatDict] = (), argument: Any = None
    ) -> Record:
        """A call begins."""
        record = Record(caller, call, attempt, self._ticked(), argument)
        if messages:
            names = tuple(str(message["content"]).split()[0] for message in messages)
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

    def _end(self, record: Record, outcome: Outcome, *, result: Any = None, error: object = "") -> bool:
        if record.died:
            return False  # its caller died with the process: nobody heard of it
        record.ended = self._ticked()
        record.outcome, record.result, record.error = outcome, result, _named(error)
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
            text = f"{record.call.kind} raised {_named(why)}"
            self.violations.append(Violation("G11", _where(record), text, (record.called,)))

    def crashed(self) -> None:
        """The process died: what was not known by now has happened by now, or never. Twice without a call between is once.

        Call it at the moment of which the next life sees the state; what returns to callers after that is not written down.
        """
        if self.crashes and (not self.records or self.records[-1].called < self.crashes[-1]):
            return
        at = self._ticked()
        self.crashes.append(at)
        for record in self.records:
            if record.outcome in {"flying", "unknown"} and not record.died:
                record.died, record.returned, record.outcome = True, at, "unknown"
                record.ended = min(record.ended, at)
                record.error = record.error or "the process died"

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def shapes(self) -> Mapping[str, _Shape]:
        """What is known of each message, by name."""
        return self._shapes

    @property
    def messages(self) -> Mapping[str, ChatDict]:
        """Each message that was to be appended, by name."""
        return self._messages

    @property
    def owners(self) -> Mapping[str, tuple[str, str, int]]:
        """Whose each message and fact is: user, session, and the tick of the call that first said it."""
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
            if record.session == session or (record.call.kind == "forget_user" and record.call.user == session[0])
        ]


def _named(why: object) -> str:
    return f"{type(why).__name__}: {why}" if isinstance(why, BaseException) else str(why)


def _where(record: Record) -> str:
    return "/".join(part for part in record.session if part)


# -- the sequential model -------------------------------------------------------------------------------------------------


class _Model(NamedTuple):
    """A session as a sequential program.

    `said` has the name of each message by its number, the empty text for one that was removed; `cleared` is the last number that
    was cleared away; `keys` has for each idempotency key the numbers that came under it; `marks` has for each clear and rewind
    the newest number then, and `cleared` after it.
    """

    said: tuple[str, ...] = ()
    cleared: int = 0
    keys: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    marks: tuple[tuple[int, int], ...] = ()


class _SessionModel:
    """The sequential model's steps.

    Args:
        shapes: what is known of each message.
        numbers: what somebody was told of it at any time: the message that a number is of. It can be of no other, so an append
            whose outcome is not known is not tried where it cannot have been.
        drops: the policy lets messages go without a summary, so a load may begin anywhere.
    """

    def __init__(self, shapes: Mapping[str, _Shape], numbers: Mapping[int, str], *, drops: bool) -> None:
        self._shapes = shapes
        self._numbers = numbers
        self._known = {name: seq for seq, name in numbers.items()}
        self._drops = drops
        self._presented: dict[tuple[str, ...], tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def step(self, model: _Model, operation: Operation) -> _Model | None:
        """The state after an operation; None if the model would not have answered so."""
        argument, result = operation.argument, operation.result
        match operation.kind:
            case "append":
                after = _append(model, argument, result)
                return after if after is None or self._may_be(after, len(model.said)) else None
            case "clear":
                if result is not None and result > sum(map(bool, model.said[model.cleared :])):
                    return None
                last = len(model.said)
                return model._replace(cleared=last, marks=(*model.marks, (last, last)))
            case "delete":
                return _delete(model, argument, result)
            case "rewind":
                return _rewind(model, argument, result)
            case "forget_session" | "forget_user":
                return _Model()
            case "flush":
                return model if result is None or result <= len(model.said) else None
            case "messages":
                live = _live(model)
                return model if live[len(live) - len(result) :] == result and len(result) <= len(live) else None
            case "history":
                told = tuple((seq, name) for seq, name in enumerate(model.said, 1) if name)
                return model if argument or result == told else None
            case _:
                return model if self._shows(_live(model), _whole(model, self._shapes), result) else None

    def _may_be(self, model: _Model, last: int) -> bool:
        """Whether nobody was told otherwise of the numbers after `last`."""
        for seq, name in enumerate(model.said[last:], last + 1):
            if self._numbers.get(seq, name) != name or self._known.get(name, seq) != seq:
                return False
        return True

    def _shows(self, live: tuple[str, ...], whole: frozenset[int], shown: Shown) -> bool:
        covered = shown.covered
        if covered is None or (self._drops and not covered):  # where the buffer begins cannot be told
            starts: Sequence[int] = range(len(live) + 1)
        elif shown.budget is None:
            if live[: len(covered)] != covered:
                return False
            starts = (len(covered),)
        else:  # summaries that do not fit are left out, and may lie between others
            rest = iter(enumerate(live, 1))
            ends = [next((end for end, name in rest if name == one), 0) for one in covered]
            if 0 in ends:
                return False
            starts = range(ends[-1] if ends else 0, len(live) + 1)
        for start in starts:
            if start in whole:
                continue
            names, awaiting = self._present(live[start:])
            if shown.budget is None:
                if names == shown.names and awaiting == shown.awaiting:
                    return True
            elif len(shown.names) <= len(names) and names[len(names) - len(shown.names) :] == shown.names:
                return True
        return False

    def _present(self, live: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """How a chat API wants these messages (G8), and the calls that wait.

        Results come at once after their calls, and whatever was said meanwhile after them; calls that were never answered, and
        results that nobody asked for, are left out.
        """
        found = self._presented.get(live)
        if found is None:
            found = self._presented[live] = _presented(live, self._shapes)
        return found


def _live(model: _Model) -> tuple[str, ...]:
    """What was said since the clear, and not removed."""
    said = model.said[model.cleared :]
    return tuple(filter(None, said)) if "" in said else said


def _whole(model: _Model, shapes: Mapping[str, _Shape]) -> frozenset[int]:
    """Where, in what is live, no cut may be: between a call and its results that followed at once (G8).

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


def _append(model: _Model, argument: tuple[tuple[str, ...], str | None], result: Receipt | None) -> _Model | None:
    names, key = argument
    if key is not None:
        for known, seqs in model.keys:
            if known == key:
                return model if result is None or (result.duplicate and result.seqs == seqs) else None
    first = len(model.said) + 1
    if result is not None and (result.duplicate or len(result.seqs) != len(names) or result.seqs[0] != first):
        return None
    seqs = tuple(range(first, first + len(names)))
    if result is not None and result.seqs != seqs:
        return None
    return model._replace(said=model.said + names, keys=model.keys if key is None else model.keys | {(key, seqs)})


def _delete(model: _Model, argument: tuple[int, str], result: int | None) -> _Model | None:
    seq, name = argument
    there = model.cleared < seq <= len(model.said) and model.said[seq - 1] == name
    if result == 0 or (result is None and not there):
        return model  # what left the buffer is passed over
    if not there or (result is not None and result != 1):
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
    return model._replace(said=said, cleared=cleared, marks=(*model.marks, (last, cleared)))


def _presented(live: tuple[str, ...], shapes: Mapping[str, _Shape]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    shown: list[str] = []
    awaiting: tuple[str, ...] = ()
    place = 0
    while place < len(live):
        head = shapes[live[place]]
        place += 1
        if not head.calls:
            if head.role != "tool":
                shown.append(live[place - 1])
            continue
        wanted, results, others, begun = list(head.calls), [], [], place - 1
        while wanted and place < len(live) and shapes[live[place]].role != "assistant":
            one = shapes[live[place]]
            if one.role != "tool":
                others.append(live[place])
            elif one.answers in wanted:
                wanted.remove(one.answers)
                results.append(live[place])
            place += 1
        if not wanted:
            shown += [live[begun], *results]
        elif place == len(live):
            awaiting = tuple(wanted)
        shown += others
    return tuple(shown), awaiting


# -- judging --------------------------------------------------------------------------------------------------------------


def check(history: History, *, drops: bool = False) -> list[Violation]:
    """Everything that is wrong with a history (G1, G2, G3, G4, G6, G8, G9); empty where nothing is.

    Args:
        history: complete: what is still under way in it counts as lost with the process.
        drops: the sessions' policy lets messages go without a summary.
    """
    found = list(history.violations)
    for session in history.sessions:
        records = history.of_session(session)
        found.extend(_check_answers(history, session, records, drops=drops))
        found.extend(_check_order(history, session, records, drops=drops))
    for user in history.users:
        found.extend(_check_user(history, user))
    return found


def check_sound(history: History, most_s: float) -> list[Violation]:
    """G5, G11: with a sound journal nobody waits for a model or a store, however slow, and nobody is told of a failed commit.

    Args:
        history: of callers whose journal was sound.
        most_s: what the journal and the schedule may take, in seconds.
    """
    found = []
    for one in history.records:
        kind = one.call.kind
        at_once = kind in {"append", "clear", "messages", "history", "flush"} or (kind == "load" and not one.call.asks)
        if one.outcome == "done" and at_once and one.took_s > most_s:
            found.append(Violation("G5", _where(one), f"{kind} took {one.took_s:.3g} s, with a sound journal", (one.called,)))
        if one.error.startswith(("OutcomeUnknown", "CommitFailed")) and one.call.timeout_s is None:
            found.append(Violation("G11", _where(one), f"{kind} raised {one.error}, with a sound journal", (one.called,)))
    return found


def check_arrival(history: History) -> list[Violation]:
    """G2: a mailbox's order is history's: what was appended first stands first, though nobody waited for anybody.

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
                text = f"{record.argument[0]} was appended after {before.argument[0]}, and stands before it"
                found.append(Violation("G2", "/".join(session), text, (before.called, record.called)))
            else:
                before = record
    return found


def _operations(records: Sequence[Record]) -> Iterator[Operation]:
    """The calls that a sequential model has to explain: not those without an effect, nor reads without an answer."""
    for record in records:
        kind = record.call.kind
        if not record.effective or (record.outcome != "done" and kind in {"load", "messages", "history", "flush"}):
            continue
        argument = record.argument
        if kind == "append":
            argument = (record.argument, record.call.key)
        elif kind == "history":
            argument = _forgotten(record, records)
        yield Operation(record.called, record.returned, kind, argument, record.result, record.outcome != "done")


def _forgotten(history: Record, records: Sequence[Record]) -> bool:
    """Whether the session was forgotten while its history was read: that may be of neither the old session nor the new one."""
    forgetting = {"forget_session", "forget_user"}
    return any(one.effective and one.call.kind in forgetting and one.overlaps(history) for one in records)


def _check_order(history: History, session: tuple[str, str], records: Sequence[Record], *, drops: bool) -> Iterator[Violation]:
    """G2, G3, G4: one order explains what everybody saw of the session."""
    operations = list(_operations(records))
    model = _SessionModel(history.shapes, _numbers(records), drops=drops)
    explanation = explain(operations, _Model(), model.step, most=_MOST)
    if not explanation.complete:
        yield _unexplained(explanation, "/".join(session), len(operations))


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


def _unexplained(explanation: Explanation, where: str, count: int) -> Violation:
    stuck = sorted(explanation.stuck, key=lambda one: one.returned)
    order = " ".join(f"{one.called:g}:{one.kind}" for one in explanation.order) or "none"
    if not explanation.decided:
        return Violation("G2 G3 G4", where, f"no order of these {count} calls was found among {_MOST} configurations")
    text = (
        f"no order explains these {count} calls; the longest explains {len(explanation.order)}: {order}; "
        f"after it none of these may have answered as it did: "
        + "; ".join(f"{one.called:g}:{one.kind} -> {_told(one.result)}" for one in stuck)
    )
    return Violation("G2 G3 G4", where, text, tuple(int(one.called) for one in stuck))


def _check_user(history: History, user: str) -> Iterator[Violation]:
    """G1, G3, G13: what is recorded of a user on purpose; the facts at the end are recorded by `check_at_rest`."""
    records = [one for one in history.records if one.call.user == user and one.call.kind in _OF_USER]
    operations = [
        Operation(one.called, one.returned, one.call.kind, one.argument, one.result, one.outcome != "done")
        for one in records
        if one.effective and (one.outcome == "done" or one.call.kind != "recall")
    ]
    explanation = explain(operations, frozenset[str](), _facts_step, most=_MOST)
    if not explanation.complete:
        yield _unexplained(explanation, user, len(operations))
    for record in history.records:
        if record.call.user == user and record.call.kind in {"recall", "synopsis"} and record.result is not None:
            yield from _check_owner(history, record, record.result)
            yield from _check_forgotten(history, record, record.result)


_OF_USER = frozenset({"remember", "forget_user", "recall"})


def _facts_step(facts: frozenset[str], operation: Operation) -> frozenset[str] | None:
    match operation.kind:
        case "remember":
            return facts | {operation.argument}
        case "forget_user":
            return frozenset()
        case _:  # a recall finds what is in long-term memory by now; the one at the end finds everything
            return facts if operation.argument != "everything" or operation.result == facts else None


def _check_answers(history: History, session: tuple[str, str], records: Sequence[Record], *, drops: bool) -> Iterator[Violation]:
    """What holds of each answer, whatever the order."""
    where = "/".join(session)
    for record in records:
        if record.outcome != "done" or record.session != session:
            continue
        match record.result:
            case Shown() as shown:
                yield from _check_load(history, where, record, shown, records, drops=drops)
            case tuple() as found:
                names = [name for _, name in found] if record.call.kind == "history" else list(found)
                yield from _check_names(history, record, names)


def _check_load(
    history: History, where: str, record: Record, shown: Shown, records: Sequence[Record], *, drops: bool
) -> Iterator[Violation]:
    at = (record.called,)
    if shown.split:
        yield Violation("G8", where, f"{shown.split} tool calls or results without their counterpart in {shown}", at)
    if shown.counted != shown.tokens:
        yield Violation("G9", where, f"it says {shown.tokens} tokens, and weighs {shown.counted}", at)
    if shown.budget is not None and shown.counted > shown.budget:
        yield Violation("G9", where, f"{shown.counted} tokens within a budget of {shown.budget}", at)
    if not 0 <= shown.pending <= len(shown.names):
        yield Violation("G6", where, f"{shown.pending} of {len(shown.names)} messages are pending", at)
    yield from _check_names(history, record, [*(shown.covered or ()), *shown.names])
    yield from _check_owner(history, record, shown.told)
    yield from _check_forgotten(history, record, shown.told)
    if shown.budget is not None or shown.covered is None or drops:
        return
    there = {*shown.covered, *shown.names}
    restating = {"clear", "delete", "rewind", "forget_session", "forget_user"}
    restated = [one for one in records if one.effective and one.call.kind in restating and one.called < record.returned]
    for one in records:
        if one.call.kind != "append" or one.outcome != "done" or one.result.duplicate or one.returned >= record.called:
            continue
        if any(other.returned > one.called for other in restated):
            continue
        missing = [name for name in one.argument if name not in there and not _is_tool(history.shapes[name])]
        if missing:
            text = f"acknowledged before, and neither shown nor in the summary: {' '.join(missing)}; the load showed {shown}"
            yield Violation("G3 G6", where, text, (one.called, record.called))


def _is_tool(shape: _Shape) -> bool:
    return bool(shape.calls) or shape.role == "tool"


def _check_names(history: History, record: Record, names: Sequence[str]) -> Iterator[Violation]:
    """Each once, and this session's own (G1, G2)."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        yield Violation("G2", _where(record), f"more than once: {' '.join(doubled)}", (record.called,))
    for name in names:
        owner = history.owners.get(name)
        if owner is None or owner[:2] != record.session or owner[2] > record.returned:
            text = f"{name} is not of this session: " + ("nobody said it" if owner is None else f"{owner[0]}/{owner[1]} said it")
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
            if said and all(other.returned < one.called and (whole or other.session == one.session) for other in said):
                text = f"{name} was found, which had been forgotten"
                yield Violation("G13", _where(record), text, (one.called, record.called))


def _says(record: Record, name: str) -> bool:
    return (record.call.kind == "append" and name in record.argument) or (
        record.call.kind == "remember" and record.argument == name
    )


# -- printing -------------------------------------------------------------------------------------------------------------


def _told(result: Any) -> str:
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
    lines: list[tuple[float, str]] = [(at, f"{at:>5}  ───── the process dies, and starts again") for at in history.crashes]
    for one in history.records:
        who = f"{'end' if one.caller < 0 else one.caller:>4}"
        head = str(one.call).split(": ", 1)[1]
        again = f" (attempt {one.attempt + 1})" if one.attempt else ""
        lines.append((one.called, f"{one.called:>5} {who} ▶ {head}{again}{_asked(one)}"))
        if one.ended < _FOREVER and not (one.died and one.ended == one.returned):
            ended = _told(one.result) if one.outcome == "done" else f"{one.outcome}: {one.error}"
            lines.append((one.ended, f"{one.ended:>5} {who} ◀ {one.called}: {ended}"))
    return "\n".join(line for _, line in sorted(lines, key=lambda line: line[0]))


def _asked(record: Record) -> str:
    match record.call.kind, record.argument:
        case "append", tuple() as names:
            return f" {' '.join(names)}"
        case "delete" | "rewind" | "remember", argument:
            return f" {argument}"
        case _:
            return ""
