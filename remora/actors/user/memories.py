"""Recorded memories, as the user's own actor decides on them: created, changed, deleted.

The actor does not hold them; the journal does. What depends on the memories that exist looks them
up first. A user whose memories have no keys, and were never changed, needs no lookup: a text names
its memory, and one that exists stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from remora.actors.user.messages import (
    ChangedMemory,
    ChangeMemory,
    DeleteMemories,
    Remember,
    RememberReceipt,
)
from remora.actors.user.state import UserState, new_job, opening, state_item
from remora.actors.user.synopsis import expire_synopsis
from remora.errors import KeyConflict, NoSuchMemory, NotGranted
from remora.ids import memory_id
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.storage.lookups import MemoryLookup
from remora.storage.records import (
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    RecordSpec,
    Remembered,
    StateChanged,
)

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
    """Write instructions, which no job indexes."""
    records = [
        *opening(state, items[0].created_us),
        Remembered(state.sid, tuple(items), ()),
    ]
    return Decision(None, records, size=sum(len(item.content) for item in items))


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
