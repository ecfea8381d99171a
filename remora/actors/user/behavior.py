"""The user's own actor: a state machine over plain data, for what outlives the user's sessions.

It owns working memory, the synopsis, access counts of long-term memory, keyed state, and the grants
of a shared scope. Most reads write nothing: access counts are journalled by the hundred, a synopsis
that was extended by reads when a tenth of its term has passed. What is not journalled yet is
written before the actor leaves memory; a crash may lose it.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import starmap
from typing import Any

from remora.actors.keyed_state import (
    ChangeValues,
    DeleteValue,
    ReadNamed,
    ReadValue,
    ReadValues,
    SetValue,
    adopt_keyed,
    handle_keyed,
)
from remora.actors.user.memories import (
    RECORD_QUEUE,
    change_memory,
    delete_memories,
    note_instructions,
    record,
    remember,
)
from remora.actors.user.messages import (
    AdoptUser,
    ChangeMemory,
    CleanUp,
    DeleteMemories,
    ExpireSynopsis,
    Grant,
    InspectUser,
    Learn,
    PruneNow,
    ReadGrants,
    ReadSynopsis,
    Remember,
    ScoredItem,
    ScoredItems,
    SearchWorking,
    SynopsisReady,
    TakeFacts,
    TakeInstructions,
    Touch,
    UserView,
)
from remora.actors.user.state import (
    MemoryFitted,
    Touched,
    UserState,
    apply,
    new_job,
    opening,
    state_item,
    value_bytes,
)
from remora.actors.user.synopsis import (
    SYNOPSIS_PARTS,
    SynopsisTerms,
    current_synopsis,
    expire_synopsis,
    read_synopsis,
    take_synopsis,
)
from remora.actors.user.working import WorkingItem, WorkingMemory, unpack_vector
from remora.errors import InvalidInput, NotGranted
from remora.ids import UserKey
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.probes import probe
from remora.storage.records import (
    JobsStarted,
    Opened,
    PruneSpec,
    SavedUser,
    StateChanged,
    StateItem,
)

__all__ = ["MOST_EVICTED", "PRUNE_QUEUE", "RECORD_QUEUE", "UserBehavior"]

PRUNE_QUEUE = "prune"

_MAX_PENDING = 256  # rows whose access counts are not journalled yet
_MAX_ACCESSES = 10_000  # rows whose access counts are kept; the least recently retrieved go first
MOST_EVICTED = 2_000
"""Items that leave working memory at once, where that is enough: it takes some 5 ms."""
_OVERFULL = 2  # times its limit: working memory of this size does not wait for the next cleanup


class UserBehavior:
    """Implements `remora.runtime.actor.Behavior` for users' own actors.

    Args:
        dimension: length of the vectors in working memory; None without an embedder.
        embedder: its name; items of another embedder are ignored, and dropped with the next item.
        max_bytes: limit of one user's working memory.
        identity_ttl: seconds for which the synopsis' identity is valid.
        context_ttl: seconds for which its context is valid.
        refresh_on_access: whether a synopsis that is read is valid for a whole term from then on.
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
        seconds = dict(zip(SYNOPSIS_PARTS, (identity_ttl, context_ttl), strict=True))
        self._terms = SynopsisTerms(seconds, refresh_on_access)

    def restore(self, key: Hashable, image: SavedUser) -> UserState:
        """The state of the journal's rows."""
        assert isinstance(key, UserKey)
        return UserState(key, image, self._dimension, self._embedder)

    def size(self, state: UserState) -> int:
        """Bytes of working memory, the synopsis, the access counts, the grants and keyed state."""
        return state.size

    def on_idle(self, state: UserState, *, closing: bool = False) -> CleanUp | None:  # noqa: ARG002 - both cases are the same
        """Write access counts and extended terms, and evict what is over the limit."""
        overfull = state.working is not None and state.working.content_bytes > self._max_bytes
        return CleanUp(self._max_bytes) if overfull or state.pending or state.extended else None

    def apply(self, state: UserState, record: Any) -> None:
        """Apply one record to the state."""
        apply(state, record)

    # -- deciding ----------------------------------------------------------------------------------

    def handle(self, state: UserState, message: Any) -> Decision | NeedsLookup:
        """Decide what one message changes."""
        match message:
            case Learn():
                return self._learn(state, message.items)
            case SearchWorking():
                working = self._working(state)
                vector = unpack_vector(message.vector)
                found = working.search(vector, message.k, message.scope)
                return Decision(ScoredItems(tuple(starmap(ScoredItem, found))))
            case ReadSynopsis():
                return read_synopsis(state, self._terms, message)
            case SynopsisReady():
                return take_synopsis(state, self._terms, message)
            case ExpireSynopsis():
                return expire_synopsis(state)
            case Touch():
                return self._touch(state, tuple(dict.fromkeys(message.rows)), message.at_us)
            case CleanUp():
                return self._clean_up(state, message.max_bytes)
            case Remember():
                return remember(state, message)
            case TakeFacts(items=items, progress=progress):
                recorded = record(state, items) if items else Decision()
                records = (*recorded.records, progress)
                return Decision(None, records, jobs=recorded.jobs, size=recorded.size)
            case TakeInstructions(items=items):
                return note_instructions(state, items)
            case ChangeMemory():
                return change_memory(state, message)
            case DeleteMemories():
                return delete_memories(state, message)
            case PruneNow():
                return self._prune(state, message)
            case AdoptUser():
                return self._adopt(state, message)
            case Grant():
                return self._grant(state, message)
            case ReadGrants():
                return Decision(dict(state.grants))
            case (
                ReadValue()
                | ReadValues()
                | ReadNamed()
                | SetValue()
                | DeleteValue()
                | ChangeValues()
            ):
                return handle_keyed(
                    state.keyed, state.key, state.sid, message, partial(opening, state)
                )
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
        working.validate_items(items)
        for item in items:
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
            least = working.excess(_OVERFULL * self._max_bytes, added)
            most = max(len(least), MOST_EVICTED)
            gone = working.excess(self._max_bytes, added, most=most)
        leaving = set(gone)
        put = [state_item("working", item.id, item) for item in added if item.id not in leaving]
        if state.learned_with != state.embedder:
            put.insert(0, state_item("embedder", "", state.embedder))
        dropped = tuple(("working", id_) for id_ in gone if id_ not in fresh)
        records = opening(state, added[0].at_us)
        if state.stale:
            records.append(
                StateChanged(state.sid, dropped=tuple(("working", id_) for id_ in state.stale))
            )
        records.append(StateChanged(state.sid, tuple(put), dropped))
        return Decision(len(added), records, size=value_bytes(put))

    def _clean_up(self, state: UserState, max_bytes: int) -> Decision:
        working = state.working
        gone: list[str] = []
        volatile: tuple[Any, ...] = ()
        if working is not None and working.size_bytes > max_bytes:
            probe("working_memory_evicted")
            gone = working.excess(max_bytes, most=MOST_EVICTED)
            volatile = () if gone else (MemoryFitted(),)
        put, dropped = self._access_changes(state, {})
        put.extend(state_item("synopsis", name, part) for name, part in state.extended.items())
        dropped.extend(("working", id_) for id_ in gone)
        if not put and not dropped:
            return Decision(0, volatile=volatile)
        at_us = max((state.accesses[row][1] for row in state.pending), default=0)
        records = [
            *opening(state, at_us),
            StateChanged(state.sid, tuple(put), tuple(dropped)),
        ]
        return Decision(len(gone), records, volatile=volatile, size=value_bytes(put))

    # -- long-term memory --------------------------------------------------------------------------

    def _touch(self, state: UserState, rows: tuple[str, ...], at_us: int) -> Decision:
        touched = Touched(rows, at_us)
        if len(state.pending.keys() | rows) <= _MAX_PENDING:
            return Decision(None, volatile=(touched,))
        put, dropped = self._access_changes(state, state.accesses_after(rows, at_us))
        records = [
            *opening(state, at_us),
            StateChanged(state.sid, tuple(put), tuple(dropped)),
        ]
        return Decision(None, records, volatile=(touched,), size=value_bytes(put))

    def _access_changes(
        self, state: UserState, touched: Mapping[str, tuple[int, int]]
    ) -> tuple[list[StateItem], list[tuple[str, str]]]:  # fmt: skip
        """Access counts to journal, with those of `touched`, and those to drop."""
        if not state.pending and not touched:
            return [], []
        figures = {**state.accesses, **touched}
        surplus = len(figures) - _MAX_ACCESSES
        oldest = heapq.nsmallest(max(surplus, 0), figures, key=lambda row: (figures[row][1], row))
        changed = {**dict.fromkeys(state.pending), **dict.fromkeys(touched)}
        for row in oldest:
            changed.pop(row, None)
        put = [state_item("access", row, figures[row]) for row in changed]
        return put, [("access", row) for row in oldest]

    def _prune(self, state: UserState, message: PruneNow) -> Decision:
        spec = PruneSpec(
            state.sid, message.keep, message.strategy, message.max_age_s, message.types
        )
        job, counter = new_job(state, PRUNE_QUEUE, spec)
        records = [
            *opening(state),
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
        put += adopt_keyed(state.keyed, message.state_items)
        learned = self._learn(state, message.items) if message.items else Decision()
        remembered = record(state, message.memories) if message.memories else Decision()
        if not state.changed and any(item.revision and not item.key for item in message.memories):
            put.append(state_item("changed", "", True))
        both = (*learned.records, *remembered.records)
        opened = [one for one in both if isinstance(one, Opened)]
        records: list[Any] = [one for one in both if not isinstance(one, Opened)]
        if put:
            records.append(StateChanged(state.sid, tuple(put)))
        if records:
            records = [*(opened[:1] or opening(state)), *records]
        size = learned.size + remembered.size + value_bytes(put)
        return Decision(None, records, jobs=remembered.jobs, size=size)

    # -- shared scopes -----------------------------------------------------------------------------

    def _grant(self, state: UserState, message: Grant) -> Decision:
        by, to, right = message.by, message.to, message.right
        scope = state.key.user
        if right is None and not state.grants:
            raise NotGranted(
                "the shared scope has no owner and no rights to remove", scope=scope, who=by
            )
        grants = state.grants or {by: "own"}
        if grants.get(by) != "own":
            raise NotGranted(
                "who does not own a shared scope cannot grant rights in it", scope=scope, who=by
            )
        after = {name: held for name, held in {**grants, to: right}.items() if held is not None}
        if "own" not in after.values():
            raise NotGranted("the last owner of a shared scope must stay", scope=scope, who=by)
        put = tuple(
            state_item("grant", name, held)
            for name, held in after.items()
            if state.grants.get(name) != held
        )
        dropped = (("grant", to),) if right is None and to in state.grants else ()
        if not put and not dropped:
            return Decision()
        return Decision(None, [*opening(state), StateChanged(state.sid, put, dropped)])


def _user_view(state: UserState) -> UserView:
    working = state.working
    return UserView(
        sid=state.sid,
        working_items=len(working) if working is not None else 0,
        working_bytes=working.size_bytes if working is not None else 0,
        evicted=state.evicted,
        accesses=dict(state.accesses),
        synopsis=current_synopsis(state),
        synopsis_hits=state.hits,
        synopsis_misses=state.misses,
        grants=dict(state.grants),
        state_keys=len(state.keyed.by_key) if state.keyed is not None else 0,
    )
