"""The images of actors: hundreds of actors by one query."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import msgspec

from remora.storage.decoding import (
    CHECKED_JOB_COLUMNS,
    ENTRY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
)
from remora.storage.records import ENTRY_KIND, HOT_KEYS
from remora.storage.restoring import (
    ACTOR,
    DIGEST,
    JOB,
    MESSAGE,
    STATE_ITEM,
    SUMMARY,
    WITH_IDS,
    SavedActor,
    save_actors,
)
from remora.storage.rows import SEQ_BITS
from remora.storage.sqlite.connection import Query

__all__ = ["restore_actors"]

# Everything about some actors by one statement: an activation is one call to the connection's
# thread. A call costs as much as reading a session's messages: seven statements took 460 µs for a
# session of 50 messages.
#
# A row is its kind, a number to sort by where the order matters (a part of a compound cannot be
# sorted; messages come in the order of their tree), and its columns, padded with NULLs. CROSS JOIN
# keeps the order of the tables, and the plus (no affinity) lets the partial indices be used.
_WIDTH = 16


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
            ACTOR,
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, "
            "s.generation, s.summarized, s.folding, s.flushing, s.cleared",
            "asked AS s",
        ),
        _part(
            MESSAGE,
            f"m.removed, {ENTRY_COLUMNS}",
            f"{_ASKED} messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.summarized AND m.pos < "
            f"(s.sid + 1) << {SEQ_BITS}",
        ),
        _part(
            SUMMARY,
            f"f.number, {SUMMARY_COLUMNS}",
            f"{_ASKED} folds AS f ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN "
            "('summary', 'entry')",
        ),
        _part(
            DIGEST,
            "n, sid, key",
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM {_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
        ),
        _part(
            WITH_IDS,
            "0, s.sid",
            f"{_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.id IS NOT NULL AND "
            "m.removed IS NULL "
            f"AND m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized",
            distinct="DISTINCT ",
        ),
        _part(
            STATE_ITEM,
            f"x.rowid, {STATE_ITEM_COLUMNS}",
            f"{_ASKED} facets AS x ON x.sid = s.sid AND x.kind != '{ENTRY_KIND}'",
        ),
        _part(
            JOB,
            f"j.number, {CHECKED_JOB_COLUMNS}",
            f"{_ASKED} jobs AS j ON j.sid = s.sid WHERE NOT j.dead",
        ),
    )
)


async def restore_actors(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    found_rows = await read(_SELECT_ACTORS, (msgspec.json.encode(keys).decode(),))
    return await save_actors(found_rows, keys, new_sid)
