"""From rows back to what actors are restored from: hundreds of actors in a handful of queries.

Every row's checksum is verified here, whoever reads it: what does not agree with it is damage that
is named, and no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from remora.errors import JournalDamaged
from remora.ids import SessionKey, UserKey, actor_key
from remora.logging import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.log import Job
from remora.storage.records import (
    ENTRY_KIND,
    HOT_KEYS,
    MemoryItem,
    SavedSession,
    SavedUser,
    Spec,
    StateItem,
    Summary,
    Watermarks,
)
from remora.storage.sqlite.connection import Query
from remora.storage.sqlite.rows import ROLES, SHARES, row_crc
from remora.storage.sqlite.schema import SEQ_BITS

__all__ = [
    "CHECKED_JOB_COLUMNS",
    "ENTRY_COLUMNS",
    "JOB_COLUMNS",
    "MEMORY_COLUMNS",
    "SEQ_MASK",
    "STATE_ITEM_COLUMNS",
    "SUMMARY_COLUMNS",
    "RowDamaged",
    "SavedActor",
    "checked_key",
    "checksum_differs",
    "damaged",
    "decode_entry",
    "decode_jobs",
    "decode_memory",
    "decode_state_item",
    "decode_summary",
    "read_images",
]

SavedActor: TypeAlias = SavedSession | SavedUser

_logger = get_logger("remora.journal")
SEQ_MASK = (1 << SEQ_BITS) - 1
ENTRY_COLUMNS = (
    "m.pos, m.at_us, m.tokens, m.role, m.chat, m.meta, m.id, m.importance, m.key, m.batch, m.crc"
)
JOB_COLUMNS = (
    "j.id, j.lane, s.user, s.session, j.payload, j.attempts, j.not_before, j.dead, j.error"
)
CHECKED_JOB_COLUMNS = f"{JOB_COLUMNS}, j.sid, j.crc"
"""The same, and what the checksum takes; journals of format 1 have no such columns."""
SUMMARY_COLUMNS = (
    "f.sid, f.at_seq, f.kind, f.generation, f.first, f.through, f.prefix, f.text, f.tokens, "
    "f.degraded, f.model, "
    "f.input_tokens, f.crc"
)
STATE_ITEM_COLUMNS = "x.sid, x.kind, x.name, x.value, x.crc"
MEMORY_COLUMNS = "m.id, m.sid, m.session, m.agent, m.content, m.type, m.importance, m.created_us, m.tokens, m.crc"  # noqa: E501
_decode_payload = msgspec.msgpack.Decoder(Spec).decode


class RowDamaged(ValueError):
    """A row does not agree with its checksum, or cannot be read; the text says which."""


def checksum_differs(crc: int | None, values: tuple[Any, ...]) -> bool:
    """Whether a row is another than the one that was written; rows of format 1 have no checksum."""
    if crc is None:
        return False
    try:
        return crc != row_crc(values)
    except (
        ValueError,
        TypeError,
        OverflowError,
    ):  # something that was never written: text that is no text, say
        return True


def damaged(key: Hashable, what: object) -> JournalDamaged:
    """The error that says of whose rows one is damaged, and how."""
    whose = (
        f"the session {key.session!r} of the user {key.user!r}"
        if isinstance(key, SessionKey)
        else f"{key!r}"
    )
    return JournalDamaged(
        f"the journal is damaged: of {whose}, {what}; `remora verify` says what else is, a backup "
        "may have it"
    )


def checked_key(
    sid: int, user: str, session: str, created_us: int, crc: int | None
) -> SessionKey | UserKey:
    """The same, verified.

    Raises:
        RowDamaged: it is not as it was written; whose it was is not known.
    """
    if checksum_differs(crc, (sid, user, session, created_us)):
        raise RowDamaged(f"the name of the actor {sid} is not as it was written")
    return actor_key(user, session)


def decode_jobs(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """The jobs in rows of `JOB_COLUMNS` or `CHECKED_JOB_COLUMNS`.

    One that cannot be read, or is damaged, stays where it is, and no other suffers for it.
    """
    found = []
    for row in rows:
        try:
            found.append(_job(*row))
        except (msgspec.DecodeError, RowDamaged) as e:
            _logger.error("job_unreadable", job=row[0], lane=row[1], error=str(e))
    return found


def _job(
    id_: str, lane: str, user: str, session: str, payload: bytes, attempts: int, not_before: float, dead: int, error: str,  # noqa: E501
    sid: int = 0, crc: int | None = None,
) -> Job:  # fmt: skip
    if checksum_differs(crc, (id_, lane, sid, payload)):
        raise RowDamaged(f"the job {id_} is not as it was written")
    key = actor_key(user, session)
    return Job(
        id_,
        lane,
        key,
        _decode_payload(payload),
        attempts,
        not_before,
        resumed=True,
        dead=bool(dead),
        error=error,
    )


def decode_entry(row: tuple[Any, ...]) -> Entry:
    """The message in a row of `ENTRY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    pos, at_us, tokens, code, chat, meta, id_, importance, digest, batch, crc = row
    try:
        share = SHARES // 2 if importance == 0.5 else int(importance * SHARES)
        if checksum_differs(crc, (pos, at_us, tokens, code, chat, meta, id_, share, digest, batch)):
            raise RowDamaged(f"message {pos & SEQ_MASK} is not as it was written")
        role = ROLES[code]
        calls: tuple[str, ...] = ()
        answers = None
        if role == "assistant" and b"tool_calls" in chat:
            calls = tuple(call["id"] for call in decode_chat(chat).get("tool_calls") or ())
        elif role == "tool":
            answers = decode_chat(chat)["tool_call_id"]
    except (msgspec.DecodeError, LookupError, TypeError, OverflowError) as e:
        raise RowDamaged(f"message {pos & SEQ_MASK} cannot be read ({e})") from e
    return Entry(pos & SEQ_MASK, at_us, tokens, role, chat, meta, id_, calls, answers, importance)


def decode_summary(row: Sequence[Any]) -> tuple[str, int, Summary]:
    """Kind, generation and summary in a row of `SUMMARY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    *values, crc = row
    if checksum_differs(crc, tuple(values)):
        raise RowDamaged(f"a summary up to message {row[5]} is not as it was written")
    _, _, kind, generation, first, through, prefix, text, tokens, degraded, model, input_tokens = (
        values
    )
    return (
        kind,
        generation,
        Summary(through, prefix, text, tokens, bool(degraded), model, first, input_tokens),
    )


def decode_state_item(row: Sequence[Any]) -> StateItem:
    """The facet in a row of `STATE_ITEM_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    sid, kind, name, value, crc = row
    if checksum_differs(crc, (sid, kind, name, value)):
        raise RowDamaged(f"what is kept as {kind!r}, {name!r}, is not as it was written")
    return StateItem(kind, name, value)


def decode_memory(row: Sequence[Any]) -> MemoryItem:
    """What was recorded on purpose, in a row of `MEMORY_COLUMNS`.

    Raises:
        RowDamaged: it is not as it was written.
    """
    *values, crc = row
    if checksum_differs(crc, tuple(values)):
        raise RowDamaged(f"the memory {row[0]} is not as it was written")
    id_, _, *what = values
    return MemoryItem(id_, *what)


# All that the journal holds of some actors, by one statement: an activation is one call to the
# connection's thread. Such a call takes as long as a session's messages do: by seven statements,
# 460 µs for a session of 50 messages.
#
# Each row is its kind, a number to sort by where the order matters (an arm of a compound cannot be
# sorted; messages come in their tree's own order), and its columns, filled up with NULLs. CROSS
# JOIN keeps the order of the tables, and the plus (no affinity) lets the partial indices be used.
_ACTOR, _MESSAGE, _SUMMARY, _DIGEST, _WITH_IDS, _FACET, _JOB = range(7)
_WIDTH = 15


def _arm(kind: int, columns: str, rest: str, *, distinct: str = "") -> str:
    filled = ", NULL" * (_WIDTH - 2 - columns.count(","))
    return f"SELECT {distinct}{kind}, {columns}{filled} FROM {rest}"


_ASKED = "asked AS s CROSS JOIN "
_SELECT_IMAGES = (
    "WITH asked AS MATERIALIZED (SELECT a.sid, a.user, a.session, a.created_us, a.crc, "
    "a.marks_crc, a.generation, a.summarized, "
    "a.folding, a.flushing, a.cleared FROM json_each(?) AS w "
    "JOIN actors AS a ON a.user = w.value ->> 0 AND a.session = coalesce(w.value ->> 1, '')) "
) + " UNION ALL ".join(
    (
        _arm(
            _ACTOR,
            "0, s.sid, s.user, s.session, s.created_us, s.crc, s.marks_crc, "
            "s.generation, s.summarized, s.folding, s.flushing, s.cleared",
            "asked AS s",
        ),
        _arm(
            _MESSAGE,
            f"m.removed, {ENTRY_COLUMNS}",
            f"{_ASKED} messages AS m ON m.pos > (s.sid << {SEQ_BITS}) + s.summarized AND m.pos < "
            f"(s.sid + 1) << {SEQ_BITS}",
        ),
        _arm(
            _SUMMARY,
            f"f.number, {SUMMARY_COLUMNS}",
            f"{_ASKED} folds AS f ON f.sid = s.sid AND f.generation = s.generation AND f.kind IN "
            "('summary', 'entry')",
        ),
        _arm(
            _DIGEST,
            "n, sid, key",
            "(SELECT s.sid, m.key, row_number() OVER (PARTITION BY s.sid ORDER BY m.pos DESC) AS n "
            f"FROM {_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
        ),
        _arm(
            _WITH_IDS,
            "0, s.sid",
            f"{_ASKED} messages AS m ON m.pos >> {SEQ_BITS} = +s.sid AND m.id IS NOT NULL AND "
            "m.removed IS NULL "
            f"AND m.pos & {SEQ_MASK} > s.cleared AND m.pos & {SEQ_MASK} <= s.summarized",
            distinct="DISTINCT ",
        ),
        _arm(
            _FACET,
            f"x.rowid, {STATE_ITEM_COLUMNS}",
            f"{_ASKED} facets AS x ON x.sid = s.sid AND x.kind != '{ENTRY_KIND}'",
        ),
        _arm(
            _JOB,
            f"j.number, {CHECKED_JOB_COLUMNS}",
            f"{_ASKED} jobs AS j ON j.sid = s.sid WHERE NOT j.dead",
        ),
    )
)


async def read_images(
    read: Query, keys: Sequence[Hashable], new_sid: Callable[[], int]
) -> list[SavedActor | Exception]:
    """The image of each actor; new ones are given their number by `new_sid`."""
    facts = _Facts(await read(_SELECT_IMAGES, (msgspec.json.encode(keys).decode(),)))
    found = facts.actors
    images: list[SavedActor | Exception] = []
    for key in keys:
        if isinstance(key, UserKey):
            sid = found[key][0] if key in found else new_sid()
            if sid in facts.damaged:
                images.append(damaged(key, facts.damaged[sid]))
            else:
                images.append(
                    SavedUser(
                        sid,
                        key in found,
                        tuple(facts.state_items.get(sid, ())),
                        tuple(facts.jobs.get(sid, ())),
                    )
                )
        elif key in found:
            images.append(facts.session(key, *found[key]))
        else:
            # A number that is never written leaves a gap, which costs nothing.
            images.append(
                SavedSession(new_sid(), False, Watermarks(), 1, (), None, frozenset(), True)
            )
    return images


class _Facts:
    """What the journal holds of some actors, by their number."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self.actors: dict[Hashable, tuple[int, Watermarks]] = {}
        self.entries: dict[int, list[Entry]] = {}
        self.bounds: dict[
            int, list[int]
        ] = {}  # first and last message after the front, removed ones included
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
            name, _, summary = decode_summary(row[:13])
            self.summaries.setdefault(row[0], []).append((name, summary))
        elif kind == _DIGEST:
            self.digests.setdefault(row[0], []).append(row[1])
        elif kind == _WITH_IDS:
            self.with_ids.add(row[0])
        elif kind == _FACET:
            self.state_items.setdefault(row[0], []).append(decode_state_item(row[:5]))
        else:
            self.jobs.setdefault(row[9], []).extend(decode_jobs([row[:11]]))

    def _damage(self, sid: int, error: RowDamaged) -> None:
        self.damaged.setdefault(sid, error)

    def session(self, key: Hashable, sid: int, watermarks: Watermarks) -> SavedSession | Exception:
        if sid in self.damaged:
            return damaged(key, self.damaged[sid])
        first, last = self.bounds.get(
            sid, (watermarks.archived_through + 1, watermarks.archived_through)
        )
        if first != watermarks.archived_through + 1:
            return damaged(key, f"message {watermarks.archived_through + 1} is missing")
        summary = None
        entries: list[Summary] = []
        for kind, one in self.summaries.get(sid, ()):
            if kind == "entry":
                entries.append(one)
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
            summaries=tuple(one for one in entries if one.through > covered),
            keys=frozenset(hot[:HOT_KEYS]),
            keys_complete=len(hot) <= HOT_KEYS,
            has_ids=sid in self.with_ids,
            state_items=tuple(self.state_items.get(sid, ())),
            jobs=tuple(self.jobs.get(sid, ())),
        )
