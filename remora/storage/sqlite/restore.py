"""What actors are restored from: hundreds of actors by one query."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from remora.ids import UserKey, actor_key
from remora.messages import Entry
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.jobs import Job
from remora.storage.records import (
    ENTRY_KIND,
    HOT_KEYS,
    SavedSession,
    SavedUser,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.connection import Query
from remora.storage.sqlite.decoding import (
    CHECKED_JOB_COLUMNS,
    ENTRY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
    RowDamaged,
    are_long,
    checksum_differs,
    decode_entry,
    decode_jobs,
    decode_state_item,
    decode_summary,
    row_damage,
)
from remora.storage.sqlite.schema import SEQ_BITS

__all__ = ["SavedActor", "restore_actors"]

SavedActor: TypeAlias = SavedSession | SavedUser

# Everything about some actors by one statement: an activation is one call to the connection's
# thread. A call costs as much as reading a session's messages: seven statements took 460 µs for a
# session of 50 messages.
#
# A row is its kind, a number to sort by where the order matters (a part of a compound cannot be
# sorted; messages come in the order of their tree), and its columns, padded with NULLs. CROSS JOIN
# keeps the order of the tables, and the plus (no affinity) lets the partial indices be used.
_ACTOR, _MESSAGE, _SUMMARY, _DIGEST, _WITH_IDS, _STATE_ITEM, _JOB = range(7)
_WIDTH = 16
_LONG = (5, 6)  # columns of state items' values and of messages


def _part(kind: int, columns: str, rest: str, *, distinct: str = "") -> str:
    filled = ", NULL" * (_WIDTH - 2 - columns.count(","))
    return f"SELECT {distinct}{kind}, {columns}{filled} FROM {rest}"


_ASKED = "asked AS s CROSS JOIN "
_SELECT_ACTORS = (
    "WITH asked AS MATERIALIZED (SELECT a.sid, a.user, a.session, a.created_us, a.crc, "
    "a.marks_crc, a.generation, a.summarized, "
    "a.folding, a.flushing, a.cleared FROM json_each(?) AS w "
    "JOIN actors AS a ON a.user = w.value ->> 0 AND a.session = coalesce(w.value ->> 1, '')) "
) + " UNION ALL ".join(
    (
        _part(
            _ACTOR,
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, "
            "s.generation, s.summarized, s.folding, s.flushing, s.cleared",
            "asked AS s",
        ),
        _part(
            _MESSAGE,
            f"m.removed, {ENTRY_COLUMNS}",
            f"{_ASKED} messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.summarized AND m.pos < "
            f"(s.sid + 1) << {SEQ_BITS}",
        ),
        _part(
            _SUMMARY,
            f"f.number, {SUMMARY_COLUMNS}",
            f"{_ASKED} folds AS f ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN "
            "('summary', 'entry')",
        ),
        _part(
            _DIGEST,
            "n, sid, key",
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM {_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
        ),
        _part(
            _WITH_IDS,
            "0, s.sid",
            f"{_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.id IS NOT NULL AND "
            "m.removed IS NULL "
            f"AND m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized",
            distinct="DISTINCT ",
        ),
        _part(
            _STATE_ITEM,
            f"x.rowid, {STATE_ITEM_COLUMNS}",
            f"{_ASKED} facets AS x ON x.sid = s.sid AND x.kind != '{ENTRY_KIND}'",
        ),
        _part(
            _JOB,
            f"j.number, {CHECKED_JOB_COLUMNS}",
            f"{_ASKED} jobs AS j ON j.sid = s.sid WHERE NOT j.dead",
        ),
    )
)


async def restore_actors(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """What the journal has of each actor; a new one gets its number from `new_sid`."""
    found_rows = await read(_SELECT_ACTORS, (msgspec.json.encode(keys).decode(),))
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
    """What the journal has of some actors, by their number."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
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
        numbered: list[tuple[Any, ...]] = []
        for row in rows:
            if row[0] == _MESSAGE:
                self._message(row)
            elif row[0] == _ACTOR:
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

    def _message(self, row: tuple[Any, ...]) -> None:
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
                entries.append(decode_entry(row[2:13]))
            except RowDamaged as e:
                self._damage(sid, e)

    def _take(self, kind: int, row: Sequence[Any]) -> None:
        if kind == _SUMMARY:
            name, _, summary = decode_summary(row[:14])
            self.summaries.setdefault(row[0], []).append((name, summary))
        elif kind == _DIGEST:
            self.digests.setdefault(row[0], []).append(row[1])
        elif kind == _WITH_IDS:
            self.with_ids.add(row[0])
        elif kind == _STATE_ITEM:
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
