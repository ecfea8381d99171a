"""The images of actors: hundreds of actors by one query."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol

from remora.ids import SessionKey
from remora.storage.decoding import (
    CHECKED_JOB_COLUMNS,
    ENTRY_COLUMNS,
    SEQ_MASK,
    STATE_ITEM_COLUMNS,
    SUMMARY_COLUMNS,
)
from remora.storage.postgres.texts import job_texts, state_item_texts, summary_texts
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


class Query(Protocol):
    """Runs one query, in a transaction of its own."""

    def __call__(self, sql: str, /, *arguments: Any) -> Awaitable[list[tuple[Any, ...]]]: ...


# what is selected of them, and from where
_PARTS: dict[int, tuple[str, str]] = {
    ACTOR: (
        (
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, s.generation, "
            "s.summarized, s.folding, s.flushing, s.cleared"
        ),
        "asked AS s",
    ),
    MESSAGE: (
        f"m.removed, {ENTRY_COLUMNS}",
        (
            f"asked AS s JOIN remora.messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + "
            f"s.summarized AND m.pos < (s.sid + 1) << {SEQ_BITS}"
        ),
    ),
    SUMMARY: (
        f"f.number, {SUMMARY_COLUMNS}",
        (
            "asked AS s JOIN remora.folds AS f ON f.sid = s.sid AND f.generation = s.generation "
            "AND f.kind IN ('summary', 'entry')"
        ),
    ),
    DIGEST: (
        "n, sid, key",
        (
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM asked AS s JOIN remora.messages AS m ON m.pos >> {SEQ_BITS} = s.sid AND "
            f"m.key IS NOT NULL) AS k WHERE n <= {HOT_KEYS + 1}"
        ),
    ),
    WITH_IDS: (
        "0, s.sid",
        (
            "asked AS s WHERE EXISTS (SELECT 1 FROM remora.messages AS m WHERE "
            f"m.pos >> {SEQ_BITS} = s.sid AND m.id IS NOT NULL AND m.removed IS NULL AND "
            f"m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized)"
        ),
    ),
    STATE_ITEM: (
        f"x.number, {STATE_ITEM_COLUMNS}",
        f"asked AS s JOIN remora.facets AS x ON x.sid = s.sid AND x.kind <> '{ENTRY_KIND}'",
    ),
    JOB: (
        f"j.number, {CHECKED_JOB_COLUMNS}",
        "asked AS s JOIN remora.jobs AS j ON j.sid = s.sid WHERE j.dead = 0",
    ),
}
# Everything about some actors by one statement: of one moment, in one round trip. A row is its
# kind and a record: a number to sort by where the order matters, and columns.
_SELECT_ACTORS = (
    "WITH asked AS MATERIALIZED (SELECT s.* FROM unnest($1::text[], $2::text[]) AS w (u, n) "
    "JOIN remora.actors AS s ON s.user = w.u AND s.session = w.n) "
) + " UNION ALL ".join(
    f"(SELECT {kind}, ROW({columns}) FROM {rest}{' ORDER BY m.pos' if kind == MESSAGE else ''})"
    for kind, (columns, rest) in _PARTS.items()
)
_PADDING = (None,) * 5  # every row has the columns that can be long
_TEXTS: dict[int, Callable[[Sequence[Any]], tuple[Any, ...]]] = {
    SUMMARY: summary_texts,
    STATE_ITEM: state_item_texts,
    JOB: job_texts,
}


async def restore_actors(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """Return what the journal has of each actor; a new one gets its number from `new_sid`."""
    names: list[Any] = list(dict.fromkeys(keys))
    sessions = [one.session if isinstance(one, SessionKey) else "" for one in names]
    found = await read(_SELECT_ACTORS, [one.user for one in names], sessions)
    rows = []
    for kind, record in found:
        number, *row = record
        texts = _TEXTS.get(kind)
        row = row if texts is None else texts(row)
        rows.append((kind, number, *row, *_PADDING[len(row) :]))
    return await save_actors(rows, keys, new_sid)
