"""What a journal reads as: everything that a runtime, and whoever uses one, gets to see of it.
Plain data.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora import Config, Line, Runtime
from remora.ids import key_digest
from remora.storage.lookups import IdLookup, KeyLookup
from remora.storage.ports import SessionKey, UserKey
from remora.storage.records import SavedSession
from remora.storage.sqlite.journal import SqliteJournal

KEYS = ("request-1", "request-2", "seven", "twenty", "never")
SETTINGS = ("instance", "counter", "embedder", "shards", "colour", "never")
PLAIN_CONFIG = {
    "long_term": {"enabled": False},
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "context": {"quoted_role": "system"},  # as it was when the answers were recorded
}


# The recorded answers have the names that structs and fields had when they were recorded.
RECORDED_AS = {
    "BufferStart": "Past",
    "SavedSession": "SessionImage",
    "SavedUser": "UserImage",
    "StateItem": "Facet",
    "SummaryFigures": "FoldFigures",
    "Watermarks": "Marks",
    "archived_through": "summarized",
    "cleared_through": "cleared",
    "indexing_through": "flushing",
    "last_at": "last_at_us",
    "queue": "lane",
    "state_items": "facets",
    "summarizing_through": "folding",
    "watermarks": "marks",
}


class _Never:
    """A summarizer whose work is never done, so that what waits for it stays as it is."""

    name = "never"

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        await anyio.sleep_forever()
        raise AssertionError


def _plain(value: Any) -> Any:
    """Structs with their names, bytes as hex, sets in order: what JSON can hold."""
    if isinstance(value, msgspec.Struct):
        fields = {
            RECORDED_AS.get(name, name): _plain(getattr(value, name))
            for name in value.__struct_fields__
        }
        name = type(value).__name__
        return {"": RECORDED_AS.get(name, name), **fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    if isinstance(value, frozenset | set):
        return sorted(_plain(one) for one in value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    return value


async def reading(directory: Path) -> dict[str, Any]:
    """Everything in `directory`'s journal. It opens it, and writes to it: read a copy."""
    journal = await SqliteJournal.open(directory / "journal.db", durability="none")
    try:
        actors = await journal.indexed_through()
        found: dict[str, Any] = {
            "settings": {name: await journal.setting(name) for name in SETTINGS},
            "counts": _plain(await journal.counts()),
            "actors": _plain([[*key, through] for key, through in actors]),
            "jobs": _plain(await journal.jobs()),
            "dead": _plain(await journal.jobs(dead=True)),
            "erasures": _plain(await journal.erasures()),
            "findings": _plain(await journal.verify()),
            "unflushed": _plain(await journal.sessions_to_flush(100)),
            "sessions": {},
            "users": {},
        }
        for key, _ in actors:
            if isinstance(key, UserKey):
                (image,) = await journal.hydrate([key])
                found["users"][key.user] = {
                    "image": _plain(image),
                    "memories": _plain(await journal.memories(key.user)),
                    "facets": _plain(await journal.state_items(key)),
                    "sessions": _plain(await journal.sessions(key.user)),
                    "counts": _plain(await journal.counts(key.user)),
                }
            else:
                found["sessions"]["/".join(key)] = await _session(journal, key)
    finally:
        await journal.aclose()
    async with Runtime(
        directory, config=Config.from_dict(PLAIN_CONFIG), summarizer=_Never()
    ) as runtime:
        for key, _ in actors:
            if isinstance(key, SessionKey):
                chat = runtime.session(*key)
                context = await chat.load()
                found["sessions"]["/".join(key)] |= {
                    "context": context.messages,
                    "pending": context.pending,
                    "history": [
                        [one.seq, one.id, str(one.created_at), one.to_chat(), one.metadata]
                        for one in await chat.history()
                    ],
                }
    return found


async def _session(journal: SqliteJournal, key: SessionKey) -> dict[str, Any]:
    (image,) = await journal.hydrate([key])
    assert isinstance(image, SavedSession), image
    last = image.next_seq - 1
    ids = tuple(entry.id for entry in await journal.read(key, 1, last, at=last) if entry.id)
    found: Any = await journal.fetch(key, IdLookup((*ids, "never"), 0))
    return {
        "image": _plain(image),
        "read": _plain(await journal.read(key, 1, last)),
        "then": {
            str(at): [entry.seq for entry in await journal.read(key, 1, at, at=at)]
            for at in range(1, last + 1)
        },
        "past": {str(at): _plain(await journal.buffer_start(key, at)) for at in range(last + 1)},
        "folds": _plain(await journal.summary_figures(key)),
        "pruned": _plain(await journal.pruned_seqs(key)),
        "facets": _plain(await journal.state_items(key)),
        "keys": {
            text: _plain(await journal.fetch(key, KeyLookup(key_digest(text)))) for text in KEYS
        },
        "ids": {id_: one.entry.seq for id_, one in found.items()},
    }
