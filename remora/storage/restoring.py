"""The images of actors, made of the rows that a database has of them.

A row is its kind (`ACTOR` …), a number to sort by where the order matters, and its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from remora.ids import UserKey, actor_key
from remora.messages import Entry
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import Job
from remora.storage.decoding import (
    SEQ_MASK,
    RowDamaged,
    are_long,
    checksum_differs,
    decode_entry,
    decode_jobs,
    decode_state_item,
    decode_summary,
    row_damage,
)
from remora.storage.records import (
    HOT_KEYS,
    SavedSession,
    SavedUser,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.rows import SEQ_BITS

SavedActor: TypeAlias = SavedSession | SavedUser

ACTOR, MESSAGE, SUMMARY, DIGEST, WITH_IDS, STATE_ITEM, JOB = range(7)
_LONG = (5, 6)  # columns of state items' values and of messages


async def save_actors(
    found_rows: Sequence[Sequence[Any]], keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    rows = await run_in_thread_if(are_long(found_rows, *_LONG), _ActorRows, found_rows)
    found = rows.actors
    saved: list[SavedActor | Exception] = []
    for key in keys:
        if isinstance(key, UserKey):
            sid = found[key][0] if key in found else new_sid()
            if sid in rows.damaged:
                saved.append(row_damage(key, rows.damaged[sid]))
            else:
                saved.append(
                    SavedUser(
                        sid,
                        key in found,
                        tuple(rows.state_items.get(sid, ())),
                        tuple(rows.jobs.get(sid, ())),
                    )
                )
        elif key in found:
            saved.append(rows.session(key, *found[key]))
        else:
            # A number that is never written leaves a gap, which costs nothing.
            saved.append(
                SavedSession(new_sid(), False, Watermarks(), 1, (), None, frozenset(), True)
            )
    return saved


class _ActorRows:
    """The rows of some actors, by their number."""

    def __init__(self, rows: Iterable[Sequence[Any]]) -> None:
        self.actors: dict[Hashable, tuple[int, Watermarks]] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.bounds: dict[int, list[int]] = {}
        """First and last message behind the front, removed ones included."""
        self.damaged: dict[int, RowDamaged] = {}
        self.summaries: dict[int, list[tuple[str, Summary]]] = {}
        self.digests: dict[int, list[bytes]] = {}
        self.with_ids: set[int] = set()
        self.state_items: dict[int, list[StateItem]] = {}
        self.jobs: dict[int, list[Job]] = {}
        numbered: list[Sequence[Any]] = []
        for row in rows:
            if row[0] == MESSAGE:
                self._message(row)
            elif row[0] == ACTOR:
                self._actor(*row[2:13])
            else:
                numbered.append(row)
        for row in sorted(numbered, key=itemgetter(0, 1)):
            try:
                self._take(row[0], row[2:])
            except RowDamaged as e:
                self._damage(row[2], e)

    def _actor(
        self,
        sid: int,
        user: str,
        session: str,
        created_us: int,
        crc: int,
        marks_crc: int,
        *watermarks: int,
    ) -> None:
        self.actors[actor_key(user, session)] = (sid, Watermarks(*watermarks))
        if checksum_differs(crc, (sid, user, session, created_us)):
            self._damage(sid, RowDamaged("its name is not as it was written"))
        elif checksum_differs(marks_crc, (sid, *watermarks)) or not all(
            isinstance(mark, int) for mark in watermarks
        ):
            self._damage(sid, RowDamaged("its marks are not as they were written"))

    def _message(self, row: Sequence[Any]) -> None:
        pos = row[2]
        sid, seq = pos >> SEQ_BITS, pos & SEQ_MASK
        bounds = self.bounds.get(sid)
        if bounds is None:
            bounds = self.bounds[sid] = [seq, seq]
            entries = self.entries[sid] = []
        else:
            if seq != bounds[1] + 1:
                self._damage(sid, RowDamaged(f"message {bounds[1] + 1} is missing"))
            bounds[1] = seq
            entries = self.entries[sid]
        if row[1] is None:
            try:
                entries.append(decode_entry(tuple(row[2:13])))
            except RowDamaged as e:
                self._damage(sid, e)

    def _take(self, kind: int, row: Sequence[Any]) -> None:
        if kind == SUMMARY:
            name, _, summary = decode_summary(row[:14])
            self.summaries.setdefault(row[0], []).append((name, summary))
        elif kind == DIGEST:
            self.digests.setdefault(row[0], []).append(row[1])
        elif kind == WITH_IDS:
            self.with_ids.add(row[0])
        elif kind == STATE_ITEM:
            self.state_items.setdefault(row[0], []).append(decode_state_item(row[:5]))
        else:
            self.jobs.setdefault(row[9], []).extend(decode_jobs([row[:11]]))

    def _damage(self, sid: int, error: RowDamaged) -> None:
        self.damaged.setdefault(sid, error)

    def session(self, key: Hashable, sid: int, watermarks: Watermarks) -> SavedSession | Exception:
        if sid in self.damaged:
            return row_damage(key, self.damaged[sid])
        first, last = self.bounds.get(
            sid, (watermarks.archived_through + 1, watermarks.archived_through)
        )
        if first != watermarks.archived_through + 1:
            return row_damage(key, f"message {watermarks.archived_through + 1} is missing")
        summary = None
        entries: dict[int, Summary] = {}
        for kind, one in self.summaries.get(sid, ()):
            if kind == "entry":
                entries[one.through] = one  # a later one replaces it
            else:
                summary = one
        covered = summary.through if summary else 0
        hot = self.digests.get(sid, [])
        return SavedSession(
            sid,
            opened=True,
            watermarks=watermarks,
            next_seq=last + 1,
            entries=tuple(self.entries.get(sid, ())),
            summary=summary,
            summaries=tuple(one for one in entries.values() if one.through > covered),
            keys=frozenset(hot[:HOT_KEYS]),
            keys_complete=len(hot) <= HOT_KEYS,
            has_ids=sid in self.with_ids,
            state_items=tuple(self.state_items.get(sid, ())),
            jobs=tuple(self.jobs.get(sid, ())),
        )
