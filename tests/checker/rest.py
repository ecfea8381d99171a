"""What must hold of both stores when nothing runs.

Nothing is pending, nothing is doubled, and nothing is there that was never said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anyio

from remora import Runtime
from remora.errors import LongTermError, ModelTimeout, ModelUnavailable
from remora.ids import memory_id, row_id
from remora.messages import ChatDict, plain_text, speaker_of
from remora.results import Job
from remora.storage.pending import pending_flushes
from remora.storage.ports import Journal, LongTermStore, MemoryRow, SessionKey, UserKey
from remora.storage.records import UnflushSpec
from tests.checker.history import History, Record, Violation
from tests.checker.players import record_of
from tests.checker.programs import NAME, Call

__all__ = ["check_at_rest", "check_watermark"]

_COMES_BACK = (ModelUnavailable.__name__, ModelTimeout.__name__, LongTermError.__name__)
_TRIES = 1_000
_PATIENCE = 5
_ALL = 1_000  # more memories than any program makes
_AGAIN_S = 0.1
_ROOMY_BYTES = 1_000_000  # more than any program's sessions take
_RESTATING = frozenset({"clear", "delete", "rewind", "forget_session", "forget_user"})


async def check_watermark(journal: Journal, store: LongTermStore) -> list[Violation]:
    """G7, at any moment at which nothing runs, before a restart for instance.

    The mark claims no more than there is.

    Up to the mark, what is not pending in a job, nor pruned, nor removed is in long-term memory.
    """
    jobs = [*await journal.jobs(), *await journal.jobs(dead=True)]
    if any(isinstance(job.payload, UnflushSpec) for job in jobs):
        return []  # it writes its neighbours' rows again
    there = set(await store.row_ids())
    owing = pending_flushes(jobs)
    found = []
    for key, flushed in await journal.indexed_through():
        if isinstance(key, UserKey):
            continue
        claimed = {entry.seq for entry in await journal.read(key, 1, flushed)} - set(
            await journal.pruned_seqs(key)
        )
        claimed = claimed.difference(*owing.get(key, ()))
        missing = [seq for seq in sorted(claimed) if row_id(key, seq) not in there]
        if missing:
            found.append(
                Violation(
                    "G7",
                    "/".join(key),
                    f"the mark is at {flushed}, and messages {missing} are not there",
                )
            )
    return found


async def _finish_jobs(runtime: Runtime) -> Sequence[Job]:
    """Wait for all jobs; returns those that are left.

    An actor that was lost, and could not be read, is read again by and by, and its jobs are found.
    """
    await runtime.settle()
    for _ in range(_PATIENCE):
        if not (jobs := await runtime.internals.journal.jobs()):
            break
        await anyio.sleep(1.0)
        await runtime.settle()
    return jobs


async def check_at_rest(
    runtime: Runtime, history: History, *, patience_s: float = 0.0
) -> list[Violation]:
    """Bring everything to its end, and compare the stores with each other and with what callers
    were told.

    G7: no job is left, none is dead; every message that is to be in long-term memory is there
        exactly once, and nothing else
    is. G4: what was appended under a key is known by it. What is read on the way is written into
    the history, so judge that afterwards (`remora.testing.check`): then what was acknowledged must
    be in it, and what was not wholly or not at all.

    Args:
        runtime: open, with no callers, and no more faults.
        history: what callers saw.
        patience_s: wait so long before anything is flushed explicitly, and see that all of it was
            handed over by itself: longer than sessions stay in memory idle, and than a runtime
            waits with what its earlier runs left. Only where the journal never failed: what was not
            flushed when it did is found at the next start.
    """
    found: list[Violation] = []
    await _finish_jobs(runtime)
    found.extend(await _check_dead(runtime))
    if patience_s and runtime.internals.recall is not None:
        await anyio.sleep(patience_s)
        await runtime.settle()
        for session in history.sessions:
            found.extend(await _check_tail(runtime, history, session))
    for session in (
        history.sessions
    ):  # after the folds: with a call that was folded, nobody waits for its result any more
        found.extend(await _check_flush(runtime, history, session))
    found.extend(
        Violation("G7", str(job.key), f"the job {job.id} is left when all is settled: {job.error}")
        for job in await _finish_jobs(runtime)
    )
    wanted: Counter[str] = Counter()
    said: dict[tuple[str, str], dict[int, str]] = {}
    for session in history.sessions:
        key = SessionKey(*session)
        told = await _repeat_until_answered(history, runtime, _call("history", session))
        loaded = await _repeat_until_answered(history, runtime, _call("load", session))
        if told is None or loaded is None:
            found.append(Violation("G11", "/".join(session), "it cannot be read when all is quiet"))
            continue
        if loaded.pending:
            found.append(
                Violation(
                    "G6",
                    "/".join(session),
                    f"{loaded.pending} messages are pending when all is settled",
                )
            )
        said[session] = dict(told)
        pruned = set(await runtime.internals.journal.pruned_seqs(key))
        found.extend(_withheld(history, session, told, pruned))
        flushing = (await runtime.session(*session).inspect()).watermarks.indexing_through
        wanted.update(row_id(key, seq) for seq, _ in told if seq not in pruned and seq <= flushing)
        left = [name for seq, name in told if seq > flushing]
        if (
            runtime.internals.recall is not None and left and not loaded.awaiting
        ):  # behind a call that waits, everything waits
            found.append(
                Violation(
                    "G7",
                    "/".join(session),
                    f"the flush at the end did not hand over {' '.join(left)}",
                )
            )
    if runtime.internals.recall is not None:
        found.extend(await _check_long_term(runtime, history, wanted, said))
    await _retry_appends(history, runtime)
    return found


async def _check_tail(
    runtime: Runtime, history: History, session: tuple[str, str]
) -> list[Violation]:
    """G7: what was not flushed is indexed when its session is idle, or at the next start."""
    told = await _repeat_until_answered(history, runtime, _call("history", session))
    loaded = await _repeat_until_answered(history, runtime, _call("load", session))
    if told is None or loaded is None or loaded.awaiting:  # that it cannot be read is said later
        return []
    flushing = (await runtime.session(*session).inspect()).watermarks.indexing_through
    left = [name for seq, name in told if seq > flushing]
    text = f"an idle session did not hand over {' '.join(left)} by itself"
    return [Violation("G7", "/".join(session), text)] if left else []


async def _check_flush(
    runtime: Runtime, history: History, session: tuple[str, str]
) -> list[Violation]:
    """Flush, and see that it says how many it handed over."""
    if await _repeat_until_answered(history, runtime, _call("history", session)) is None:
        return []
    began_s = anyio.current_time()
    before = (await runtime.session(*session).inspect()).watermarks.indexing_through
    count = await _repeat_until_answered(history, runtime, _call("flush", session))
    after = (await runtime.session(*session).inspect()).watermarks.indexing_through
    activation = runtime.config.activation
    roomy = (
        activation.max_live > 2 * (len(history.sessions) + len(history.users))
        and activation.max_bytes > _ROOMY_BYTES
    )
    if not roomy or anyio.current_time() - began_s > activation.idle_s / 2:
        return []  # it may have flushed on its way out of memory
    text = f"a flush handed over {after - before} messages, and says {count}"
    return [Violation("G7", "/".join(session), text)] if count not in {None, after - before} else []


async def _check_dead(runtime: Runtime) -> list[Violation]:
    """G6, G7, G11: only what is broken is set aside, never what was merely away.

    And once it is mended, it can be done.
    """
    dead = await runtime.dead_letters()
    found = [
        Violation(
            "G7",
            str(job.key),
            f"the job {job.id} was set aside, after {job.attempts} attempts, for what comes back: "
            f"{job.error}",
        )
        for job in dead
        if job.error.startswith(_COMES_BACK)
    ]
    await runtime.retry_dead_letters()
    await runtime.settle()
    found.extend(
        Violation(
            "G7",
            str(job.key),
            f"the job {job.id} is dead though nothing is wrong any more: {job.error}",
        )
        for job in await runtime.dead_letters()
    )
    return found


async def _check_long_term(
    runtime: Runtime,
    history: History,
    wanted: Counter[str],
    told: Mapping[tuple[str, str], Mapping[int, str]],
) -> list[Violation]:
    """G7: rows of messages, and of what was recorded on purpose, each once; G13: nothing else."""
    store = await runtime.internals.long_term()
    there = Counter(await store.row_ids())
    found = [
        Violation(
            "G7", "long-term memory", f"the row {_named(history, id_)} is there {count} times"
        )
        for id_, count in there.items()
        if count > 1
    ]
    facts = {
        memory_id(owner[0], "", f"{name} is worth knowing"): name
        for name, owner in history.owners.items()
        if name[0] == "f"
    }
    for user in history.users:
        rows, _ = await store.embedded_rows(user)  # with the windows that recalls search
        for row in rows:
            if row.memory_type == "message":
                found.extend(_misheard(history, user, row, told.get((user, row.session), {})))
            names = {*NAME.findall(row.window), *NAME.findall(row.content)}
            unsaid = (
                names.difference(told.get((user, row.session), {}).values())
                if row.memory_type == "message"
                else set()
            )
            if unsaid:
                text = f"the row of message {row.seq} has words of {' '.join(sorted(unsaid))}, which is there no more"  # noqa: E501
                found.append(Violation("G7 G13", f"{user}/{row.session}", text))
        recorded = frozenset(facts[row.id] for row in rows if row.id in facts)
        record = history.call(-1, Call(0, "recall", user), argument="everything")
        history.returned(record, recorded)
        await _repeat_until_answered(
            history, runtime, Call(0, "recall", user)
        )  # as callers did: what was held for them may be served again
        hits = await runtime.user(user).recall("what is worth knowing", limit=_ALL)
        lost = recorded.difference(*(NAME.findall(hit.text) for hit in hits))
        if lost:
            found.append(
                Violation("G7", user, f"recorded, and not found again: {' '.join(sorted(lost))}")
            )
        wanted.update(row.id for row in rows if row.memory_type == "summary" or row.id in facts)
    missing, left = set(wanted) - set(there), set(there) - set(wanted)
    found.extend(
        Violation(
            "G7", "long-term memory", f"{_named(history, id_)} is not there when all is settled"
        )
        for id_ in sorted(missing)
    )
    found.extend(
        Violation(
            "G7 G13", "long-term memory", f"{_named(history, id_)} is there, and should not be"
        )
        for id_ in sorted(left)
    )
    return found


def _misheard(
    history: History, user: str, row: MemoryRow, told: Mapping[int, str]
) -> Iterator[Violation]:
    """A row of long-term memory has the words of its message, and the name of who said them."""
    said = history.messages.get(told.get(row.seq, ""))
    if said is None:
        return  # a row of a message that is there no more is found by its id
    text = plain_text(said)
    wanted = (said["role"], text, True, row_id(SessionKey(user, row.session), row.seq))
    turn = f"{speaker_of(said)}: {text}"
    there = (row.role, row.content, row.turn.endswith(turn) and turn in row.window, row.id)
    if there != wanted or row.user != user:
        seen = (
            f"{row.role!r} {row.content!r:.200}, turn {row.turn!r:.200}, window {row.window!r:.300}"
        )
        where = f"{user}/{row.session}"
        yield Violation(
            "G7",
            where,
            f"the row of message {row.seq} has {seen}; it was said by {said['role']!r}: "
            f"{text!r:.200}",
        )


def _named(history: History, id_: str) -> str:
    """Which message a row is of."""
    for session in history.sessions:
        for seq in range(1, 1_000):
            if row_id(SessionKey(*session), seq) == id_:
                return f"message {seq} of {'/'.join(session)}"
    return f"the row {id_}"


def _withheld(
    history: History, session: tuple[str, str], told: Sequence[tuple[int, str]], pruned: set[int]
) -> Iterator[Violation]:
    """G7: only what was cleared before it was handed over is kept out of long-term memory."""
    records = history.of_session(session)
    restated = [one for one in records if one.effective and one.call.kind in _RESTATING]
    flushed = [one for one in records if one.call.kind == "flush" and one.outcome == "done"]
    said = {
        name: one
        for one in records
        if one.call.kind == "append" and one.outcome == "done" and not one.result.duplicate
        for name in one.argument
    }
    appends = [one for one in records if one.effective and one.call.kind == "append"]
    tools = any(history.shapes[name].calls for one in appends for name in one.argument)
    for seq, name in told:
        if seq not in pruned:
            continue
        append = said.get(name)
        if append is None:
            continue  # its time is not known
        later = [one for one in restated if one.returned >= append.called]
        if not later:
            yield Violation(
                "G7",
                "/".join(session),
                f"{name} is kept out of long-term memory, and was never cleared",
            )
        for flush in (
            flushed if not tools else ()
        ):  # with a call open, what follows it is not handed over yet
            if flush.called > append.returned and all(one.called > flush.returned for one in later):
                text = f"{name} was handed over before it was cleared, and is kept out of long-term memory"  # noqa: E501
                yield Violation("G7", "/".join(session), text, (append.called, flush.called))


async def _retry_appends(history: History, runtime: Runtime) -> None:
    """G4: each caller sends its append again under its key, acknowledged or not."""
    keys: dict[tuple[tuple[str, str], str], Record] = {}
    for record in history.records:
        if record.call.kind == "append" and record.call.key is not None:
            keys.setdefault((record.session, record.call.key), record)
    for record in keys.values():
        await _repeat_until_answered(
            history,
            runtime,
            _call("append", record.session, record.call.key),
            [history.messages[name] for name in record.argument],
        )
    for session in history.sessions:
        await _repeat_until_answered(history, runtime, _call("history", session))


def _call(kind: Any, session: tuple[str, str], key: str | None = None) -> Call:
    return Call(0, kind, *session, key=key)


async def _repeat_until_answered(
    history: History, runtime: Runtime, call: Call, messages: Sequence[ChatDict] = ()
) -> Any:
    """A call that is repeated until it answers.

    What is being erased is not to be had for a while.
    """
    wrong = len(history.violations)
    for attempt in range(_TRIES):
        record = history.call(-1, call, attempt=attempt, messages=messages)
        known = await record_of(history, record, runtime, messages=messages)
        if known:
            return record.result
        if known is None or len(history.violations) > wrong:
            break
        await anyio.sleep(_AGAIN_S)
    return None
