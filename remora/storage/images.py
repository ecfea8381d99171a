"""From rows back to what actors are restored from: hundreds of actors in a handful of queries."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from remora.errors import JournalDamaged
from remora.identity import SessionKey, UserKey
from remora.logs import get_logger
from remora.messages import Entry, decode_chat
from remora.runtime.log import Job
from remora.storage.records import ENTRY_FACET, HOT_KEYS, Facet, Marks, SessionImage, Spec, Summary, UserImage
from remora.storage.rows import ROLES
from remora.storage.schema import SEQ_BITS

__all__ = [
    "ENTRY_COLUMNS",
    "JOB_COLUMNS",
    "SEQ_MASK",
    "SUMMARY_COLUMNS",
    "Image",
    "Read",
    "actor_key",
    "entry_of",
    "jobs_of",
    "read_images",
    "summary_of",
]

Read: TypeAlias = Callable[[str, Iterable[Any]], Awaitable[list[Any]]]
"""Runs one query; a transaction of its own."""
Image: TypeAlias = SessionImage | UserImage

_logger = get_logger("remora.journal")
SEQ_MASK = (1 << SEQ_BITS) - 1
ENTRY_COLUMNS = "m.pos, m.at_us, m.tokens, m.role, m.chat, m.meta, m.id, m.importance"
JOB_COLUMNS = "j.id, j.lane, s.user, s.session, j.payload, j.attempts, j.not_before, j.dead, j.error"
SUMMARY_COLUMNS = "f.through, f.prefix, f.text, f.tokens, f.degraded, f.model, f.first, f.input_tokens"
_decode_payload = msgspec.msgpack.Decoder(Spec).decode


def actor_key(user: str, session: str) -> SessionKey | UserKey:
    """The key of the actor in this row; one without a session is the user's own."""
    return SessionKey(user, session) if session else UserKey(user)


def jobs_of(rows: Iterable[Sequence[Any]]) -> list[Job]:
    """The jobs in rows of `JOB_COLUMNS`; one that cannot be read stays where it is, and no other suffers for it."""
    found = []
    for row in rows:
        try:
            found.append(_job(row))
        except msgspec.DecodeError as e:
            _logger.error("job_unreadable", job=row[0], lane=row[1], error=str(e))
    return found


def _job(row: Sequence[Any]) -> Job:
    id_, lane, user, session, payload, attempts, not_before, dead, error = row
    key = actor_key(user, session)
    return Job(id_, lane, key, _decode_payload(payload), attempts, not_before, resumed=True, dead=bool(dead), error=error)


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The message in a row of `ENTRY_COLUMNS`."""
    pos, at_us, tokens, code, chat, meta, id_, importance = row
    role = ROLES[code]
    calls: tuple[str, ...] = ()
    answers = None
    if role == "assistant" and b"tool_calls" in chat:
        calls = tuple(call["id"] for call in decode_chat(chat).get("tool_calls") or ())
    elif role == "tool":
        answers = decode_chat(chat)["tool_call_id"]
    return Entry(pos & SEQ_MASK, at_us, tokens, role, chat, meta, id_, calls, answers, importance)


def summary_of(row: Sequence[Any]) -> Summary:
    """The summary in a row of `SUMMARY_COLUMNS`."""
    through, prefix, text, tokens, degraded, model, first, input_tokens = row
    return Summary(through, prefix, text, tokens, bool(degraded), model, first, input_tokens)


async def read_images(read: Read, keys: Sequence[Hashable], new_sid: Callable[[], int]) -> list[Image | Exception]:
    """The image of each actor; new ones are given their number by `new_sid`."""
    wanted = msgspec.json.encode(keys).decode()
    found: dict[Hashable, tuple[int, Marks]] = {}
    for sid, user, session, *marks in await read(
        "SELECT s.sid, s.user, s.session, s.generation, s.summarized, s.folding, s.flushing, s.cleared FROM json_each(?) AS w "
        "JOIN actors AS s ON s.user = w.value ->> 0 AND s.session = coalesce(w.value ->> 1, '')",
        (wanted,),
    ):
        found[actor_key(user, session)] = (sid, Marks(*marks))
    facts = _Facts()
    if found:
        live = [(sid, marks.summarized, marks.generation, marks.cleared) for sid, marks in found.values()]
        await facts.read(read, msgspec.json.encode(live).decode())
    images: list[Image | Exception] = []
    for key in keys:
        if isinstance(key, UserKey):
            sid = found[key][0] if key in found else new_sid()
            images.append(UserImage(sid, key in found, tuple(facts.facets.get(sid, ())), tuple(facts.jobs.get(sid, ()))))
        elif key in found:
            images.append(facts.session(key, *found[key]))
        else:
            # A number that is never written leaves a gap, which costs nothing.
            images.append(SessionImage(new_sid(), False, Marks(), 1, (), None, frozenset(), True))
    return images


class _Facts:
    """What the journal holds of some actors, by their number."""

    def __init__(self) -> None:
        self.entries: dict[int, list[Entry]] = {}
        self.bounds: dict[int, tuple[int, int]] = {}  # first and last message after the front, removed ones included
        self.damaged: dict[int, Exception] = {}
        self.summaries: dict[int, list[tuple[str, Summary]]] = {}
        self.digests: dict[int, list[bytes]] = {}
        self.with_ids: set[int] = set()
        self.facets: dict[int, list[Facet]] = {}
        self.jobs: dict[int, list[Job]] = {}

    async def read(self, read: Read, live: str) -> None:
        for row in await read(
            f"SELECT m.removed, {ENTRY_COLUMNS} FROM json_each(?) AS w JOIN messages AS m "
            f"ON m.pos > ((w.value ->> 0) << {SEQ_BITS}) + (w.value ->> 1) AND m.pos < ((w.value ->> 0) + 1) << {SEQ_BITS} "
            "ORDER BY m.pos",
            (live,),
        ):
            sid, seq = row[1] >> SEQ_BITS, row[1] & SEQ_MASK
            self.bounds[sid] = (self.bounds[sid][0] if sid in self.bounds else seq, seq)
            if row[0] is not None:
                continue
            try:
                self.entries.setdefault(sid, []).append(entry_of(row[1:]))
            except (msgspec.DecodeError, LookupError, TypeError) as e:
                self.damaged[sid] = e
        for sid, kind, *summary in await read(
            f"SELECT f.sid, f.kind, {SUMMARY_COLUMNS} FROM json_each(?) AS w JOIN folds AS f ON f.sid = w.value ->> 0 "
            "AND f.generation = w.value ->> 2 AND f.kind IN ('summary', 'entry') ORDER BY f.number",
            (live,),
        ):
            self.summaries.setdefault(sid, []).append((kind, summary_of(summary)))
        for sid, digest in await read(
            "SELECT sid, key FROM (SELECT m.pos >> 32 AS sid, m.key, "
            "row_number() OVER (PARTITION BY m.pos >> 32 ORDER BY m.pos DESC) AS n "
            "FROM json_each(?) AS w JOIN messages AS m ON m.pos >> 32 = w.value ->> 0 AND m.key IS NOT NULL) "
            f"WHERE n <= {HOT_KEYS + 1}",
            (live,),
        ):
            self.digests.setdefault(sid, []).append(digest)
        self.with_ids.update(
            sid
            for (sid,) in await read(
                "SELECT DISTINCT w.value ->> 0 FROM json_each(?) AS w JOIN messages AS m ON m.pos >> 32 = w.value ->> 0 "
                f"AND m.id IS NOT NULL AND m.removed IS NULL AND m.pos & {SEQ_MASK} > w.value ->> 3 "
                f"AND m.pos & {SEQ_MASK} <= w.value ->> 1",
                (live,),
            )
        )
        for sid, kind, name, value in await read(
            "SELECT x.sid, x.kind, x.name, x.value FROM json_each(?) AS w JOIN facets AS x ON x.sid = w.value ->> 0 "
            f"WHERE x.kind != '{ENTRY_FACET}' ORDER BY x.rowid",
            (live,),
        ):
            self.facets.setdefault(sid, []).append(Facet(kind, name, value))
        for sid, *job in await read(
            f"SELECT j.sid, {JOB_COLUMNS} FROM json_each(?) AS w JOIN jobs AS j ON j.sid = w.value ->> 0 "
            "JOIN actors AS s ON s.sid = j.sid WHERE NOT j.dead ORDER BY j.number",
            (live,),
        ):
            self.jobs.setdefault(sid, []).extend(jobs_of([job]))

    def session(self, key: Hashable, sid: int, marks: Marks) -> SessionImage | Exception:
        if sid in self.damaged:
            return JournalDamaged(f"session {key!r} holds a message that cannot be read: {self.damaged[sid]}")
        first, last = self.bounds.get(sid, (marks.summarized + 1, marks.summarized))
        if first != marks.summarized + 1:
            return JournalDamaged(f"session {key!r} lacks message {marks.summarized + 1}")
        summary = None
        entries: list[Summary] = []
        for kind, one in self.summaries.get(sid, ()):
            if kind == "entry":
                entries.append(one)
            else:
                summary = one
        covered = summary.through if summary else 0
        hot = self.digests.get(sid, [])
        return SessionImage(
            sid,
            opened=True,
            marks=marks,
            next_seq=last + 1,
            entries=tuple(self.entries.get(sid, ())),
            summary=summary,
            summaries=tuple(one for one in entries if one.through > covered),
            keys=frozenset(hot[:HOT_KEYS]),
            keys_complete=len(hot) <= HOT_KEYS,
            has_ids=sid in self.with_ids,
            facets=tuple(self.facets.get(sid, ())),
            jobs=tuple(self.jobs.get(sid, ())),
        )
