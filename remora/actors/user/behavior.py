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
from typing import Any, TypeAlias

import msgspec

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
from remora.actors.user.messages import (
    AdoptUser,
    ChangedMemory,
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
    RememberReceipt,
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
from remora.errors import InvalidInput, KeyConflict, NoSuchMemory, NotGranted
from remora.ids import UserKey, memory_id
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.storage.lookups import MemoryLookup
from remora.storage.records import (
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    Opened,
    PruneSpec,
    RecordSpec,
    Remembered,
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

    def apply(self, state: UserState, record: object) -> None:
        """Apply one record to the state."""
        apply(state, record)

    # -- deciding ----------------------------------------------------------------------------------

    def handle(self, state: UserState, message: object) -> Decision | NeedsLookup:
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


# -- recorded memories, as the user's own actor decides on them: created, changed, deleted ---------
#
# The actor does not hold them; the journal does. What depends on the memories that exist looks them
# up first. A user whose memories have no keys, and were never changed, needs no lookup: a text
# names its memory, and one that exists stays as it is.

RECORD_QUEUE = "record"

Known: TypeAlias = Mapping[str, MemoryItem]


def remember(state: UserState, message: Remember) -> Decision | NeedsLookup:
    """Record memories; one that exists stays, unless it has a key and is to be replaced."""
    items = message.items
    if not items:
        return Decision(RememberReceipt((), ""))
    for item in items:
        _check_writer(state, item.agent)
    if not state.changed and not any(item.key for item in items):
        return record(state, items)
    wanted = [id_ for item in items for id_ in _ids_of(state, item)]
    known = _known(state, message, tuple(dict.fromkeys(wanted)))
    if isinstance(known, NeedsLookup):
        return known
    placed: dict[str, MemoryItem] = {}
    ids = []
    for item in items:
        one = _place(state, item, {**known, **placed}, replace=message.replace)
        ids.append(one.id)
        placed[one.id] = one
    new = [item for item in placed.values() if item.id not in known]
    changed = [item for item in placed.values() if item != known.get(item.id, item)]
    if not new and not changed:
        return Decision(RememberReceipt(tuple(ids), ""))
    written = tuple(item.id for item in (*new, *changed))
    rows = tuple(known[item.id].row_id for item in changed)
    decision = record(state, new, RecordSpec(state.sid, written, rows), changed)
    if changed:
        _expire_synopsis(state, decision)
    decision.reply = msgspec.structs.replace(decision.reply, ids=tuple(ids))
    return decision


def _check_writer(state: UserState, who: str) -> None:
    """A shared scope checks its writers here; who is no member writes elsewhere."""
    if state.grants and state.grants.get(who) not in {"write", "own"}:
        raise NotGranted(
            "the member may not write in the shared scope", scope=state.key.user, who=who
        )


def _may_change(state: UserState, item: MemoryItem, agent: str | None) -> bool:
    """Return whether a handle may change a memory: any agent's, its own, or a scope's owner's."""
    return agent in {None, item.agent} or state.grants.get(agent or "") == "own"


def record(
    state: UserState,
    new: Sequence[MemoryItem],
    spec: RecordSpec | None = None,
    changed: Sequence[MemoryItem] = (),
) -> Decision:
    """Write these memories, and one job that indexes them; of the new, existing ones stay."""
    ids = tuple(item.id for item in new)
    if spec is None:
        spec = RecordSpec(state.sid, tuple(dict.fromkeys(ids)))
    job, counter = new_job(state, RECORD_QUEUE, spec)
    records = [
        *opening(state, new[0].created_us if new else 0),
        StateChanged(state.sid, (counter,)),
        Remembered(state.sid, tuple(new), (job,)),
        *(MemoryChanged(state.sid, item, ()) for item in changed),
    ]
    size = sum(len(item.content) for item in (*new, *changed))
    return Decision(RememberReceipt(ids, job.id), records, jobs=(job,), size=size)


def note_instructions(state: UserState, items: Sequence[MemoryItem]) -> Decision:
    """Write instructions, which no job indexes; a profile may quote what they take back."""
    records = [
        *opening(state, items[0].created_us),
        Remembered(state.sid, tuple(items), ()),
    ]
    decision = Decision(None, records, size=sum(len(item.content) for item in items))
    return _expire_synopsis(state, decision) if any(item.metadata for item in items) else decision


def _place(state: UserState, item: MemoryItem, known: Known, *, replace: bool) -> MemoryItem:
    """The memory as it is from now on: new, as it was, or changed under its key."""
    number = state.number + 1
    if item.key:
        present = known.get(item.id)
        if present is None:
            return msgspec.structs.replace(item, revision=number)
        if _same(present, item):
            return present
        if not replace:
            probe("memory_key_conflict")
            raise KeyConflict(
                f"the key {item.key!r} names another memory of {state.key.words}: nothing was "
                "written; pass replace=True to change that memory, or use another key"
            )
        return _changed(present, item, number)
    for id_ in _ids_of(state, item):
        present = known.get(id_)
        if present is None:
            return msgspec.structs.replace(item, id=id_)
        if _plain(present.content) == _plain(item.content):
            return present
        probe("memory_id_taken")  # the memory that it names says something else by now
    return msgspec.structs.replace(item, id=memory_id(item.agent, item.id, str(number)))


def _changed(present: MemoryItem, item: MemoryItem, number: int) -> MemoryItem:
    same_text = present.content == item.content
    return msgspec.structs.replace(
        item,
        id=present.id,
        created_us=present.created_us,
        updated_us=max(item.updated_us or item.created_us, present.created_us),
        revision=present.revision if same_text else max(number, present.revision + 1),
    )


def change_memory(state: UserState, message: ChangeMemory) -> Decision | NeedsLookup:
    """Change a memory; replies it as it is then."""
    _check_writer(state, message.agent or "")
    known = _known(state, message, (message.id,))
    if isinstance(known, NeedsLookup):
        return known
    present = known.get(message.id)
    if present is None or not _may_change(state, present, message.agent):
        raise NoSuchMemory(
            f"there is no memory {message.id!r} that this handle may change; nothing was changed",
            id=message.id,
        )
    wanted: dict[str, Any] = {}
    if message.content is not None and message.content != present.content:
        wanted = {"content": message.content, "revision": max(state.number, present.revision) + 1}
    if message.importance is not None:
        wanted["importance"] = message.importance
    if message.metadata is not None:
        wanted["metadata"] = message.metadata
    item = msgspec.structs.replace(present, **wanted)
    if item == present:
        return Decision(ChangedMemory(present))
    item = msgspec.structs.replace(
        item,
        updated_us=max(message.at_us, present.updated_us, present.created_us),
        tokens=message.tokens if "content" in wanted else present.tokens,
    )
    jobs: tuple[Job, ...] = ()
    put = []
    if (item.row_id, item.importance) != (present.row_id, present.importance):
        spec = RecordSpec(state.sid, (item.id,), (present.row_id,))
        job, counter = new_job(state, RECORD_QUEUE, spec)
        jobs = (job,)
        put.append(counter)
    if "content" in wanted and not state.changed:
        put.append(state_item("changed", "", True))
    changes = StateChanged(state.sid, tuple(put))
    records = [*([changes] if put else []), MemoryChanged(state.sid, item, jobs)]
    size = len(item.content) + len(item.metadata)
    decision = Decision(ChangedMemory(item), records, jobs=jobs, size=size)
    return _expire_synopsis(state, decision) if "content" in wanted else decision


def delete_memories(state: UserState, message: DeleteMemories) -> Decision | NeedsLookup:
    """Delete memories; replies the ids of those that there were."""
    _check_writer(state, message.agent or "")
    known = _known(state, message, message.ids)
    if isinstance(known, NeedsLookup):
        return known
    gone = [
        item
        for id_ in dict.fromkeys(message.ids)
        if (item := known.get(id_)) is not None and _may_change(state, item, message.agent)
    ]
    if not gone:
        return Decision(())
    ids = tuple(item.id for item in gone)
    spec = RecordSpec(state.sid, ids, tuple(item.row_id for item in gone))
    job, counter = new_job(state, RECORD_QUEUE, spec)
    records = [StateChanged(state.sid, (counter,)), MemoriesRemoved(state.sid, ids, (job,))]
    return _expire_synopsis(state, Decision(ids, records, jobs=(job,)))


def _known(state: UserState, message: object, ids: tuple[str, ...]) -> Known | NeedsLookup:
    """The memories that exist of these; each message looks them up again."""
    if state.looked_up is not None and state.looked_up[0] is message:
        return state.looked_up[1]

    def store(answer: Known) -> None:
        state.looked_up = (message, answer)

    probe("memories_looked_up")
    return NeedsLookup(MemoryLookup(ids), store)


def _expire_synopsis(state: UserState, decision: Decision) -> Decision:
    """Also drop the user's profile, which may quote what a memory said."""
    expired = expire_synopsis(state)
    decision.records = [*decision.records, *expired.records]
    decision.cancel = expired.cancel
    return decision


def _ids_of(state: UserState, item: MemoryItem) -> tuple[str, ...]:
    """Where a memory may be: a text has a second place, if its first now says something else."""
    if item.key:
        return (item.id,)
    return item.id, memory_id(state.key.user, item.agent, f"{item.id} {item.content}")


def _same(present: MemoryItem, item: MemoryItem) -> bool:
    return (present.content, present.type, present.importance, present.metadata) == (
        item.content,
        item.type,
        item.importance,
        item.metadata,
    )


def _plain(text: str) -> str:
    return " ".join(text.split())
