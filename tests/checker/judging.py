"""Is there one order of events that explains a history, and does each answer keep the guarantees?

*Per session* the calls must be linearizable against a sequential model of a session (G2), crashes
included: what was acknowledged is there after a crash; what was not is either all there or all
absent (G3, G4). *Per answer* some things hold in every order: no tool call is parted from its
result (G8), the budget is kept (G9), nothing is missing that was acknowledged and not cleared (G6),
nothing is another user's (G1).

`tests.checker.rest.check_at_rest` finds what is wrong between the stores when nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from remora import BufferPolicy, Receipt
from remora.testing import Explanation, Operation, explain
from tests.checker.history import (
    History,
    Record,
    Shown,
    Violation,
    is_tool,
    result_text,
    where_of,
)
from tests.checker.session_model import Keeping, Model, SessionModel

__all__ = ["check", "check_arrival", "check_sound"]

_MOST = 300_000  # configurations that are looked at; histories that have an order need some hundred


def check(
    history: History,
    *,
    drops: bool = False,
    policy: BufferPolicy | None = None,
    sound_models: bool = False,
    honest_models: bool = False,
) -> list[Violation]:
    """Everything that is wrong with a history (G1, G2, G3, G4, G6, G8, G9); empty where nothing is.

    Args:
        history: complete: what is still under way in it counts as lost with the process.
        drops: the sessions' policy lets messages go without a summary.
        policy: what all sessions keep, where it is known: then results are judged by it.
        sound_models: a `UnionSummarizer` makes the summaries, and it never failed, nor the journal
            where it was read; none of its summaries was too long.
        honest_models: each summary is a `UnionSummarizer`'s or an extract: it may have failed, but
            never answered anything else.
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
            keeping = Keeping(policy, weights)
            if sound:
                found.extend(_check_extracts(records))
        honest = sound_models or honest_models
        found.extend(_check_answers(history, session, records, drops=drops, honest=honest))
        found.extend(_check_envelopes(session, records))
        found.extend(_check_order(history, session, records, drops=drops, keeping=keeping))
    for user in history.users:
        found.extend(_check_user(history, user))
    return found


def check_sound(history: History, most_s: float) -> list[Violation]:
    """G5, G11.

    With a sound journal no call waits for a model or a store, however slow, and none reports a
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
                    where_of(one),
                    f"{kind} took {one.took_s:.3g} s, with a sound journal",
                    (one.called,),
                )
            )
        if one.error.startswith(("OutcomeUnknown", "CommitFailed")) and one.call.timeout_s is None:
            found.append(
                Violation(
                    "G11",
                    where_of(one),
                    f"{kind} raised {one.error}, with a sound journal",
                    (one.called,),
                )
            )
    return found


def check_arrival(history: History) -> list[Violation]:
    """G2: a mailbox's order is history's.

    What was appended first stands first, even when callers do not wait.

    Args:
        history: of callers in one process whose batches are small; see `Session.append`.
    """
    found = []
    for session in history.sessions:
        before: Record | None = None
        for record in history.of_session(session):  # in the order of their calls
            if record.effective and record.call.kind in {"forget_session", "forget_user"}:
                break  # numbers start again
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
    keeping: Keeping | None,
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
    model = SessionModel(shapes, _numbers(records), drops=drops, keeping=keeping)
    explanation = explain(operations, Model(), model.step, most=_MOST)
    if not explanation.complete:
        yield _unexplained_violation(explanation, "/".join(session), len(operations))


def _numbers(records: Sequence[Record]) -> dict[int, str]:
    """The messages' numbers, as they were told; none where they may have started again."""
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
        + "; ".join(f"{one.called:g}:{one.kind} -> {result_text(one.result)}" for one in stuck)
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
    history: History,
    session: tuple[str, str],
    records: Sequence[Record],
    *,
    drops: bool,
    honest: bool,
) -> Iterator[Violation]:
    """What holds of each answer, whatever the order."""
    where = "/".join(session)
    for record in records:
        if record.outcome != "done" or record.session != session:
            continue
        yield from _check_words(history, record)
        match record.result:
            case Shown() as shown:
                yield from _check_load(history, where, record, shown)
                if shown.budget is None and not drops:
                    yield from _check_whole(history, where, record, shown, records, honest=honest)
            case tuple() as found:
                names = (
                    [name for _, name in found] if record.call.kind == "history" else list(found)
                )
                yield from _check_names(history, record, names)


def _check_extracts(records: Sequence[Record]) -> Iterator[Violation]:
    """Nothing stands in for a summary where the model never failed (G6).

    After a deletion there may be none for a while.
    """
    deletions = [one.called for one in records if one.call.kind == "delete"]
    for record in records:
        if (
            record.outcome == "done"
            and not any(called < record.ended for called in deletions)
            and isinstance(record.result, Shown)
            and record.result.covered is None
            and record.result.budget is None  # what is made for a few tokens may be an extract
        ):
            text = f"the summary is not the model's, though that never failed: {record.result}"
            yield Violation("G6", where_of(record), text, (record.called,))


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
            yield Violation("G3", where_of(record), text, (record.called,))
        elif one.seq is not None and (one.metadata or None) != (said.get("metadata") or None):
            text = f"{one.name} is shown with the metadata {one.metadata!r}, and was said with {said.get('metadata')!r}"  # noqa: E501
            yield Violation("G3", where_of(record), text, (record.called,))


def _check_envelopes(session: tuple[str, str], records: Sequence[Record]) -> Iterator[Violation]:
    """A message's id and time are the same wherever it is told of, in the receipt of a duplicate as
    well (G3, G4).
    """
    if any(one.effective and one.call.kind in {"forget_session", "forget_user"} for one in records):
        return  # numbers may have started again
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


def _check_load(history: History, where: str, record: Record, shown: Shown) -> Iterator[Violation]:
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
    if not 0 <= shown.pending <= len(shown.names) and not shown.cut:
        yield Violation(
            "G6", where, f"{shown.pending} of {len(shown.names)} messages are pending", at
        )
    yield from _check_names(history, record, [*(shown.covered or ()), *shown.names])
    yield from _check_owner(history, record, shown.told)
    yield from _check_forgotten(history, record, shown.told)


def _check_whole(
    history: History,
    where: str,
    record: Record,
    shown: Shown,
    records: Sequence[Record],
    *,
    honest: bool,
) -> Iterator[Violation]:
    """What was acknowledged is in a context without a budget.

    Where a fallback covers it, the context has its name, or says that its number is lost (G6); what
    a model that is not honest wrote instead cannot be told.
    """
    if shown.covered is None and not honest:
        return
    there = {*(shown.told if shown.covered is None else shown.covered), *shown.names}
    first, last, count = shown.degraded or (0, -1, 0)
    lost = 0
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
        absent = {
            seq: name
            for seq, name in zip(one.result.seqs, one.argument, strict=False)
            if name not in there and not is_tool(history.shapes[name])
        }
        missing = [name for seq, name in absent.items() if not first <= seq <= last]
        lost += len(absent) - len(missing)
        if missing:
            text = f"acknowledged before, and neither shown nor in the summary: {' '.join(missing)}; the load showed {shown}"  # noqa: E501
            yield Violation("G3 G6", where, text, (one.called, record.called))
    if lost > count:
        text = f"{lost} messages are neither shown nor in the summary, which calls {count} lost"
        yield Violation("G6", where, text, (record.called,))


def _check_names(history: History, record: Record, names: Sequence[str]) -> Iterator[Violation]:
    """Each once, and this session's own (G1, G2)."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        yield Violation(
            "G2", where_of(record), f"more than once: {' '.join(doubled)}", (record.called,)
        )
    for name in names:
        owner = history.owners.get(name)
        if owner is None or owner[:2] != record.session or owner[2] > record.returned:
            text = f"{name} is not of this session: " + (
                "nobody said it" if owner is None else f"{owner[0]}/{owner[1]} said it"
            )
            yield Violation("G1", where_of(record), text, (record.called,))


def _check_owner(history: History, record: Record, names: Iterable[str]) -> Iterator[Violation]:
    """Nothing of another user in what was recalled (G1)."""
    for name in sorted(names):
        owner = history.owners.get(name)
        if owner is None or owner[0] != record.call.user or owner[2] > record.returned:
            text = f"{name} was found, which {'nobody' if owner is None else owner[0]} said"
            yield Violation("G1", where_of(record), text, (record.called,))


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
                yield Violation("G13", where_of(record), text, (one.called, record.called))


def _says(record: Record, name: str) -> bool:
    return (record.call.kind == "append" and name in record.argument) or (
        record.call.kind == "remember" and record.argument == name
    )
