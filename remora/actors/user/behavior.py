"""The user's own actor: a state machine over plain data, for what outlives the user's sessions.

It owns working memory, the synopsis, what is counted about long-term memory, and the grants of a
shared scope. Reading writes nothing in general: figures of access are gathered and journalled by
the hundred, and a synopsis that lives longer for being read is journalled when a tenth of its term
has gone by. What is gathered is written before the actor leaves memory; a crash may take it.

A synopsis is written by one job at a time, however many ask for it: the job's id is part of the
state, so a second question finds it there and waits for the same one. An extract that stands in for
a model's synopsis, and an empty one, hold for the shorter of the two terms and never longer, so
that the model is asked again before long.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from remora.actors.user.messages import (
    AdoptUser,
    CleanUp,
    ExpireSynopsis,
    Grant,
    InspectUser,
    Learn,
    PruneNow,
    ReadGrants,
    ReadSynopsis,
    Remember,
    RememberReceipt,
    ScoredItem,
    SearchWorking,
    Synopsis,
    SynopsisReady,
    SynopsisState,
    Touch,
    UserView,
)
from remora.actors.user.state import (
    MemoryFitted,
    SynopsisPart,
    SynopsisShown,
    Touched,
    UserState,
    apply,
    state_item,
)
from remora.actors.user.working import WorkingItem, WorkingMemory
from remora.errors import InvalidInput, NotGranted
from remora.ids import UserKey
from remora.runtime.actor import Decision
from remora.runtime.log import Job, JobDone
from remora.runtime.probes import probe
from remora.storage.records import (
    JobsStarted,
    Opened,
    PruneSpec,
    RecordSpec,
    Remembered,
    SavedUser,
    StateChanged,
    StateItem,
    SynopsisSpec,
)

__all__ = ["PRUNE_QUEUE", "RECORD_QUEUE", "SYNOPSIS_QUEUE", "UserBehavior"]

RECORD_QUEUE = "record"
PRUNE_QUEUE = "prune"
SYNOPSIS_QUEUE = "synopsis"

_MOST_PENDING = 256  # rows whose figures of access wait to be journalled
_MOST_ACCESSES = (
    10_000  # rows whose figures are kept; of others the least recently retrieved are forgotten
)
_OVERFULL = 2  # working memory this many times over its limit does not wait for the next cleanup
_UNJOURNALLED = 0.1  # of a term, by which a part of the synopsis may outlive what the journal says


class UserBehavior:
    """Implements `remora.runtime.actor.Behavior` for users' own actors.

    Args:
        dimension: length of the vectors in working memory; None where nothing is embedded.
        embedder: names what makes them; items of another's are left aside, and go when something is
            learned.
        max_bytes: limit of one user's working memory.
        identity_ttl: seconds for which the synopsis' identity holds.
        context_ttl: seconds for which its context holds.
        refresh_on_access: whether a synopsis that is read holds for a whole term from then on.
    """

    def __init__(
        self,
        dimension: int | None,
        *,
        embedder: str = "",
        max_bytes: int,
        identity_ttl: float = 604_800.0,
        context_ttl: float = 3_600.0,
        refresh_on_access: bool = True,
    ) -> None:
        self._dimension = dimension
        self._embedder = embedder
        self._max_bytes = max_bytes
        self._terms = {"identity": identity_ttl, "context": context_ttl}
        self._refresh = refresh_on_access

    def restore(self, key: Hashable, image: SavedUser) -> UserState:
        """The state that the journal's rows add up to."""
        assert isinstance(key, UserKey)
        return UserState(key, image, self._dimension, self._embedder)

    def jobs(self, image: SavedUser) -> Sequence[Job]:
        """The user's own jobs that stand in the journal."""
        return image.jobs

    def size(self, state: UserState) -> int:
        """Bytes of working memory, the synopsis, the figures and the grants."""
        return state.size

    def on_idle(self, state: UserState) -> CleanUp | None:
        """An idle actor writes what it has gathered before it leaves memory, and leaves no more
        behind than it may hold.
        """
        overfull = state.working is not None and state.working.content_bytes > self._max_bytes
        return CleanUp(self._max_bytes) if overfull or state.pending or state.extended else None

    def on_close(self, state: UserState) -> CleanUp | None:
        """Figures of access and terms that were extended are written before the runtime closes."""
        return self.on_idle(state)

    def apply(self, state: UserState, record: Any) -> None:
        """Fold one record into the state."""
        apply(state, record)

    def store_answer(self, state: UserState, query: Any, answer: Any) -> None:
        """Never called: no turn of a user's asks the journal."""
        raise TypeError(
            f"{state.key!r} asked the journal for nothing, and was told {answer!r} to {query!r}"
        )

    # -- deciding ----------------------------------------------------------------------------------

    def handle(self, state: UserState, message: Any) -> Decision:
        """One turn."""
        match message:
            case Learn():
                return self._learn(state, message.items)
            case SearchWorking():
                found = self._working(state).search(message.vector, message.k, message.scope)
                return Decision(tuple(ScoredItem(item, score) for item, score in found))
            case ReadSynopsis():
                return self._read_synopsis(state, message)
            case SynopsisReady():
                return self._synopsis_ready(state, message)
            case ExpireSynopsis():
                return self._outdate(state)
            case Touch():
                return self._touch(state, tuple(dict.fromkeys(message.rows)), message.at_us)
            case CleanUp():
                return self._clean_up(state, message.max_bytes)
            case Remember():
                return self._remember(state, message)
            case PruneNow():
                return self._prune(state, message)
            case AdoptUser():
                return self._adopt(state, message)
            case Grant():
                return self._grant(state, message)
            case ReadGrants():
                return Decision(dict(state.grants))
            case InspectUser():
                return Decision(_user_view(state))
            case _:
                raise TypeError(f"a user's actor has no answer to {type(message).__name__}")

    # -- working memory ----------------------------------------------------------------------------

    def _working(self, state: UserState) -> WorkingMemory:
        if state.working is None:
            raise InvalidInput("working memory needs an embedder: models.embedder is none")
        return state.working

    def _learn(self, state: UserState, items: Sequence[WorkingItem]) -> Decision:
        working = self._working(state)
        fresh: dict[str, WorkingItem] = {}
        for item in items:
            working.validate_item(item)
            if (cost := working.cost(item)) > self._max_bytes:
                raise InvalidInput(
                    f"item {item.id!r} takes {cost} bytes; working memory may hold "
                    f"{self._max_bytes}"
                )
            if item.id not in working:
                fresh.setdefault(item.id, item)
        if not fresh:
            return Decision(0)
        added = list(fresh.values())
        gone: list[str] = []
        if working.content_bytes + sum(map(working.cost, added)) > _OVERFULL * self._max_bytes:
            probe("working_memory_overfull")
            gone = working.excess(self._max_bytes, added)
        leaving = set(gone)
        put = [state_item("working", item.id, item) for item in added if item.id not in leaving]
        if state.learned_with != state.embedder:
            put.insert(0, state_item("embedder", "", state.embedder))
        dropped = tuple(("working", id_) for id_ in gone if id_ not in fresh)
        records = self._opening(state, added[0].at_us)
        if state.stale:
            records.append(
                StateChanged(state.sid, dropped=tuple(("working", id_) for id_ in state.stale))
            )
        records.append(StateChanged(state.sid, tuple(put), dropped))
        return Decision(len(added), records, size=_size(put))

    def _clean_up(self, state: UserState, max_bytes: int) -> Decision:
        working = state.working
        gone: list[str] = []
        volatile: tuple[Any, ...] = ()
        if working is not None and working.size_bytes > max_bytes:
            probe("working_memory_evicted")
            gone = working.excess(max_bytes)
            volatile = () if gone else (MemoryFitted(),)
        put, dropped = self._access_changes(state, {})
        put.extend(state_item("synopsis", name, part) for name, part in state.extended.items())
        dropped.extend(("working", id_) for id_ in gone)
        if not put and not dropped:
            return Decision(0, volatile=volatile)
        at_us = max((state.accesses[row][1] for row in state.pending), default=0)
        records = [
            *self._opening(state, at_us),
            StateChanged(state.sid, tuple(put), tuple(dropped)),
        ]
        return Decision(len(gone), records, volatile=volatile, size=_size(put))

    # -- long-term memory --------------------------------------------------------------------------

    def _touch(self, state: UserState, rows: tuple[str, ...], at_us: int) -> Decision:
        note = Touched(rows, at_us)
        if len(state.pending.keys() | rows) <= _MOST_PENDING:
            return Decision(None, volatile=(note,))
        put, dropped = self._access_changes(state, state.touched(rows, at_us))
        records = [
            *self._opening(state, at_us),
            StateChanged(state.sid, tuple(put), tuple(dropped)),
        ]
        return Decision(None, records, volatile=(note,), size=_size(put))

    def _access_changes(
        self, state: UserState, touched: Mapping[str, tuple[int, int]]
    ) -> tuple[list[StateItem], list[tuple[str, str]]]:  # fmt: skip
        """Figures that the journal lacks, `touched` included, and those that it need keep no
        longer.
        """
        if not state.pending and not touched:
            return [], []
        figures = {**state.accesses, **touched}
        surplus = len(figures) - _MOST_ACCESSES
        oldest = (
            heapq.nsmallest(surplus, figures, key=lambda row: (figures[row][1], row))
            if surplus > 0
            else []
        )
        changed = {**dict.fromkeys(state.pending), **dict.fromkeys(touched)}
        for row in oldest:
            changed.pop(row, None)
        return [state_item("access", row, figures[row]) for row in changed], [
            ("access", row) for row in oldest
        ]

    def _remember(self, state: UserState, message: Remember) -> Decision:
        items = message.items
        ids = tuple(item.id for item in items)
        if not items:
            return Decision(RememberReceipt((), ""))
        for item in (
            items if state.grants else ()
        ):  # in a shared scope, who writes is checked where it is written
            if state.grants.get(item.agent) not in {"write", "own"}:
                raise NotGranted(
                    f"{item.agent!r} may not write in {state.key.user!r}",
                    scope=state.key.user,
                    who=item.agent,
                )
        job, counter = self._job(
            state, RECORD_QUEUE, RecordSpec(state.sid, tuple(dict.fromkeys(ids)))
        )
        records = [
            *self._opening(state, items[0].created_us),
            StateChanged(state.sid, (counter,)),
            Remembered(state.sid, items, (job,)),
        ]
        return Decision(
            RememberReceipt(ids, job.id),
            records,
            jobs=(job,),
            size=sum(len(item.content) for item in items),
        )

    def _prune(self, state: UserState, message: PruneNow) -> Decision:
        spec = PruneSpec(
            state.sid, message.keep, message.strategy, message.max_age_s, message.types
        )
        job, counter = self._job(state, PRUNE_QUEUE, spec)
        records = [
            *self._opening(state),
            StateChanged(state.sid, (counter,)),
            JobsStarted(state.sid, (job,)),
        ]
        return Decision(job.id, records, jobs=(job,))

    def _adopt(self, state: UserState, message: AdoptUser) -> Decision:
        kept: dict[str, Mapping[str, Any]] = {
            "access": state.accesses,
            "synopsis": state.parts,
            "grant": state.grants,
        }
        put = [
            one
            for one in message.state_items
            if one.kind in kept and one.name not in kept[one.kind]
        ]
        learned = self._learn(state, message.items) if message.items else Decision()
        remembered = self._remember(state, Remember(message.memories))
        opened = [one for one in (*learned.records, *remembered.records) if isinstance(one, Opened)]
        records: list[Any] = [
            one for one in (*learned.records, *remembered.records) if not isinstance(one, Opened)
        ]
        if put:
            records.append(StateChanged(state.sid, tuple(put)))
        if records:
            records = [*(opened[:1] or self._opening(state)), *records]
        return Decision(
            None, records, jobs=remembered.jobs, size=learned.size + remembered.size + _size(put)
        )

    # -- synopsis ----------------------------------------------------------------------------------

    def _read_synopsis(self, state: UserState, message: ReadSynopsis) -> Decision:
        now = message.now
        valid = {name: part for name, part in state.parts.items() if now < part.expires_at}
        if len(valid) == len(self._terms) and not message.refresh:
            return self._hit(state, valid, now)
        if state.job:
            probe("synopsis_joined")
            return Decision(
                _synopsis_view(valid, "pending", state.job), volatile=(SynopsisShown(hit=False),)
            )
        probe("synopsis_stale")
        job, counter = self._job(state, SYNOPSIS_QUEUE, SynopsisSpec(state.sid, state.number + 1))
        records = [
            *self._opening(state, int(now * 1_000_000)),
            StateChanged(state.sid, (counter,)),
            JobsStarted(state.sid, (job,)),
        ]
        return Decision(
            _synopsis_view(valid, "pending", job.id),
            records,
            volatile=(SynopsisShown(hit=False),),
            jobs=(job,),
        )

    def _hit(self, state: UserState, valid: Mapping[str, SynopsisPart], now: float) -> Decision:
        extended = []
        moved = False
        for name, part in valid.items():
            term = self._terms[name]
            if self._refresh and part.text and not part.degraded and now + term > part.expires_at:
                extended.append((name, msgspec.structs.replace(part, expires_at=now + term)))
                moved = moved or now + term - state.terms[name] > _UNJOURNALLED * term
        records = []
        if moved:
            records.append(
                StateChanged(
                    state.sid, tuple(state_item("synopsis", name, part) for name, part in extended)
                )
            )
        return Decision(
            _synopsis_view(valid, _quality(valid)),
            records,
            volatile=(SynopsisShown(hit=True, extended=tuple(extended)),),
        )

    def _outdate(self, state: UserState) -> Decision:
        """Something was taken out of the user's memory: what tells of it, or is being written,
        tells of it no longer.
        """
        held = tuple(("synopsis", name) for name in state.parts)
        running = (state.job,) if state.job else ()
        records = [
            *([StateChanged(state.sid, (), held)] if held else []),
            *(JobDone(job) for job in running),
        ]
        return Decision(None, records, cancel=running)

    def _synopsis_ready(self, state: UserState, result: SynopsisReady) -> Decision:
        if result.job != state.job:
            probe("synopsis_dropped")
            return Decision(False, [JobDone(result.job)])  # stale: nobody waits for it any longer
        put = []
        for name, text, tokens in zip(
            self._terms, (result.identity, result.context), result.tokens, strict=True
        ):
            term = self._terms[name] if text and not result.degraded else min(self._terms.values())
            part = SynopsisPart(text, result.now + term, tokens, result.model, result.degraded)
            put.append(state_item("synopsis", name, part))
        return Decision(
            True, [StateChanged(state.sid, tuple(put)), JobDone(result.job)], size=_size(put)
        )

    # -- shared scopes -----------------------------------------------------------------------------

    def _grant(self, state: UserState, message: Grant) -> Decision:
        by, to, right = message.by, message.to, message.right
        scope = state.key.user
        if right is None and not state.grants:
            raise NotGranted(
                f"{scope!r} has no owner, so nobody has a right there to take away",
                scope=scope,
                who=by,
            )
        grants = state.grants or {by: "own"}
        if grants.get(by) != "own":
            raise NotGranted(
                f"{by!r} does not own {scope!r}, so it can grant nothing there", scope=scope, who=by
            )
        after = {name: held for name, held in {**grants, to: right}.items() if held is not None}
        if "own" not in after.values():
            raise NotGranted(
                f"{to!r} is the last owner of {scope!r}, and must stay", scope=scope, who=by
            )
        put = tuple(
            state_item("grant", name, held)
            for name, held in after.items()
            if state.grants.get(name) != held
        )
        dropped = (("grant", to),) if right is None and to in state.grants else ()
        if not put and not dropped:
            return Decision()
        return Decision(None, [*self._opening(state), StateChanged(state.sid, put, dropped)])

    # -- records -----------------------------------------------------------------------------------

    def _opening(self, state: UserState, at_us: int = 0) -> list[Any]:
        """What comes before an actor's first record."""
        return [] if state.opened else [Opened(state.sid, state.key.user, "", at_us)]

    def _job(self, state: UserState, lane: str, spec: Any) -> tuple[Job, StateItem]:
        """A job under an id that was never used, and the facet that keeps it so.

        A dead letter's row would bar its id.
        """
        number = state.number + 1
        return Job(f"{lane}-{state.sid}-{number}", lane, state.key, spec), state_item(
            "counter", "job", number
        )


def _size(put: Sequence[StateItem]) -> int:
    return sum(len(one.value) for one in put)


def _quality(parts: Mapping[str, SynopsisPart]) -> SynopsisState:
    if not any(part.text for part in parts.values()):
        return "empty"
    return "degraded" if any(part.degraded for part in parts.values()) else "ok"


def _synopsis_view(
    parts: Mapping[str, SynopsisPart], quality: SynopsisState, job: str = ""
) -> Synopsis:
    texts = {name: part.text for name, part in parts.items()}
    tokens = sum(part.tokens for part in parts.values())
    return Synopsis(texts.get("identity", ""), texts.get("context", ""), quality, job, tokens)


def _user_view(state: UserState) -> UserView:
    working = state.working
    return UserView(
        sid=state.sid,
        working_items=len(working) if working is not None else 0,
        working_bytes=working.size_bytes if working is not None else 0,
        evicted=state.evicted,
        accesses=dict(state.accesses),
        synopsis=_synopsis_view(
            state.parts, "pending" if state.job else _quality(state.parts), state.job
        ),
        synopsis_hits=state.hits,
        synopsis_misses=state.misses,
        grants=dict(state.grants),
    )
