"""Make the golden journal of today's format: a small one that uses every kind of row, and what it
reads as.

    python -m tests.golden.make [--force]

It is run once for each format, by the code that first writes that format, and what it made is
committed. From then on the journal is replayed by whatever code there is
(`tests/integration/test_golden.py`): it must read as it did, whatever it is migrated to.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import msgspec

from remora.ids import SHARED_PREFIX, key_digest, keyed_memory_id, memory_id, row_id, working_id
from remora.messages import Entry, encode_message
from remora.results import Job
from remora.runtime.jobs import JobDeadLettered, JobDone, JobRetried
from remora.storage.ports import Retention, SessionKey, UserKey, Write
from remora.storage.records import (
    ENTRY_KIND,
    Appended,
    BlocksSpec,
    BufferMoved,
    EntryFlushSpec,
    Flushed,
    FlushSpec,
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    Opened,
    Pruned,
    PruneSpec,
    RecordSpec,
    Remembered,
    StateChanged,
    StateItem,
    SummarizeSpec,
    Summary,
    SynopsisSpec,
    UnflushSpec,
    Watermarks,
)
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.schema import FORMAT
from tests.golden.reading import reading

HERE = Path(__file__).parent
BEGIN_US = 1_767_225_600_000_000  # 2026-01-01
PLAIN, FOLDED, LISTED = (SessionKey("alice", name) for name in ("plain", "folded", "listed"))
RESTATED, CLEARED, LONG = (SessionKey("bob", name) for name in ("restated", "cleared", "long"))
RING = SessionKey("bob ☂ o'hara %_", "ring")
DIET = keyed_memory_id("alice", "", "diet ☂")
KEYED = MemoryItem(
    DIET, "", "", "Eats no meat", "preference", 0.25, BEGIN_US + 5, 6, key="diet ☂", revision=3
)
_encode = msgspec.msgpack.Encoder().encode


def message(seq: int, fields: dict[str, Any], importance: float = 0.5) -> Entry:
    encoded, _ = encode_message({"created_at": (BEGIN_US + seq * 60_000_000) / 1e6, **fields})
    with_seq = encoded.with_seq(seq)
    return msgspec.structs.replace(with_seq, tokens=10 + seq, importance=importance)


def said(first: int, last: int) -> tuple[Entry, ...]:
    roles = ("user", "assistant")
    return tuple(
        message(n, {"role": roles[(n + 1) % 2], "content": f"message {n}"})
        for n in range(first, last + 1)
    )


def summary(through: int, text: str, *, first: int = 1, degraded: bool = False) -> Summary:
    model = "extractive" if degraded else "golden-1"
    return Summary(through, "So far: ", text, 20, degraded, model, first, 120)


def added(sid: int, *entries: Entry, key: str = "") -> Appended:
    return Appended(sid, entries, key_digest(key) if key else None)


def moved(sid: int, *watermarks: int, **fields: Any) -> BufferMoved:
    return BufferMoved(sid, Watermarks(*watermarks), **fields)


def plain(sid: int) -> list[list[Any]]:
    """Every role, tool calls, ids, metadata, keys of one message and of several."""
    function = {"name": "look", "arguments": '{"at":"ñ"}'}
    call = {"id": "call_1", "type": "function", "function": function}
    hello = {"role": "user", "content": "Hello ☂", "id": "m-2", "metadata": {"a": [1, {"b": None}]}}
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "a bridge"}
    long = {"role": "developer", "content": "x" * 3_000, "id": "m-5"}
    parts = {"role": "user", "content": [{"type": "text", "text": "in parts"}], "name": "Ann"}
    asked = message(2, hello, 0.1), message(3, called, 0.30000000000000004)
    return [
        [
            Opened(sid, *PLAIN, BEGIN_US),
            added(sid, message(1, {"role": "system", "content": "Be brief."}, 1.0)),
        ],
        [added(sid, *asked, key="request-1")],
        [added(sid, message(4, result, 0.0))],
        [added(sid, message(5, long), key="request-2")],
        [added(sid, message(6, parts, 2 / 3))],
    ]


def folded(sid: int) -> list[list[Any]]:
    """A running summary, then another one; a fold under way, flushes done and pending, blocks."""
    folds = ((1, 4), (5, 8), (9, 10))
    jobs = [
        Job(f"summarize-{sid}-0-{last}", "summarize", FOLDED, SummarizeSpec(sid, 0, first, last))
        for first, last in folds
    ]
    flushes = [
        Job(f"flush-{sid}-{last}", "flush", FOLDED, FlushSpec(sid, first, last))
        for first, last in folds
    ]
    blocks = Job(f"blocks-{sid}-0-8", "blocks", FOLDED, BlocksSpec(sid, 8))
    progress = {"seen": [[1, 4]], "state": _encode({"facts": ["likes bridges"]}), "error": ""}
    facts = StateItem("block", "facts", _encode(progress))
    ended = summary(4, "one to four"), summary(8, "one to eight", degraded=True)
    return [
        [
            Opened(sid, *FOLDED, BEGIN_US),
            added(sid, *said(1, 6)),
            moved(sid, 0, 0, 4, 4, jobs=(jobs[0], flushes[0])),
        ],
        [
            moved(sid, 0, 4, 4, 4, at_seq=6, summary=ended[0], ended=(jobs[0].id,)),
            Flushed(sid, 4),
            JobDone(flushes[0].id),
        ],
        [added(sid, *said(7, 9)), moved(sid, 0, 4, 8, 8, jobs=(jobs[1], flushes[1], blocks))],
        [moved(sid, 0, 8, 8, 8, at_seq=9, summary=ended[1], ended=(jobs[1].id,))],
        [
            JobRetried(flushes[1].id, 3, 1_767_225_700.5, "LongTermError: away"),
            StateChanged(sid, (StateItem("block", "old", b"\x80"),)),
        ],
        [added(sid, *said(10, 12)), moved(sid, 0, 8, 10, 10, jobs=(jobs[2], flushes[2]))],
        [
            StateChanged(
                sid, (facts, StateItem("block", "", _encode([[1, 2]]))), (("block", "old"),)
            )
        ],
    ]


def listed(sid: int) -> list[list[Any]]:
    """A list of summary entries: one condensed into the running summary, one that left for
    long-term memory.
    """
    spec = SummarizeSpec(sid, 0, 1, 2, "condense")
    condense = Job(f"condense-{sid}-0-2", "summarize", LISTED, spec)
    jobs = [
        Job(f"summarize-{sid}-0-{n}", "summarize", LISTED, SummarizeSpec(sid, 0, n - 1, n, "entry"))
        for n in (2, 4, 6)
    ]
    two, four, six = (
        summary(2, "an entry of two"),
        summary(4, "an entry of four", first=3),
        summary(6, "an entry of six", first=5),
    )
    left = EntryFlushSpec(sid, two, BEGIN_US)
    later = condense, Job(f"entry-{sid}-0-2", "flush", LISTED, left)
    condensed = summary(2, "condensed")
    return [
        [
            Opened(sid, *LISTED, BEGIN_US),
            added(sid, *said(1, 7)),
            moved(sid, 0, 0, 2, 2, jobs=(jobs[0],)),
        ],
        [moved(sid, 0, 2, 2, 2, at_seq=7, summaries=(two,), ended=(jobs[0].id,))],
        [moved(sid, 0, 2, 4, 4, jobs=(jobs[1],))],
        [
            moved(sid, 0, 4, 4, 4, at_seq=7, summaries=(four,), ended=(jobs[1].id,), jobs=later),
            StateChanged(sid, (StateItem(ENTRY_KIND, "2", _encode(left)),)),
        ],
        [moved(sid, 0, 4, 4, 4, at_seq=7, summary=condensed, ended=(condense.id,))],
        [moved(sid, 0, 4, 6, 6, jobs=(jobs[2],))],
        [moved(sid, 0, 6, 6, 6, at_seq=7, summaries=(six,), ended=(jobs[2].id,))],
    ]


def restated(sid: int) -> list[list[Any]]:
    """Messages deleted, and gone back before; what was flushed of them is to leave long-term
    memory.
    """
    flush = Job(f"flush-{sid}-5", "flush", RESTATED, FlushSpec(sid, 1, 5))
    unflush = Job(f"unflush-{sid}-2", "flush", RESTATED, UnflushSpec(sid, (5,), 5))
    again = {"at_seq": 7, "reason": "restated"}
    back = {**again, "summary": summary(1, "the first"), "removed": (5, 6, 7), "jobs": (unflush,)}
    return [
        [Opened(sid, *RESTATED, BEGIN_US), added(sid, *said(1, 7), key="seven")],
        [moved(sid, 0, 0, 0, 5, jobs=(flush,))],
        [Flushed(sid, 5), JobDone(flush.id)],
        [moved(sid, 1, 0, 0, 5, **again, removed=(2,))],
        [moved(sid, 2, 1, 1, 5, **back)],
        [added(sid, *said(8, 9)), JobDeadLettered(unflush.id, 5, "TypeError: no such thing")],
        [Pruned(RESTATED, (3,))],
    ]


def cleared(sid: int) -> list[list[Any]]:
    """A buffer emptied with a fold under way, and begun anew; ids of before may be used again."""
    job = Job(f"summarize-{sid}-0-2", "summarize", CLEARED, SummarizeSpec(sid, 0, 1, 2))
    gone, new = ({"role": "user", "content": text, "id": "again"} for text in ("gone", "new"))
    return [
        [Opened(sid, *CLEARED, BEGIN_US), added(sid, message(1, gone))],
        [added(sid, *said(2, 4)), moved(sid, 0, 0, 2, 0, jobs=(job,))],
        [
            moved(sid, 1, 4, 4, 4, 4, at_seq=4, reason="cleared", ended=(job.id,)),
            Pruned(CLEARED, (1, 2, 3, 4)),
        ],
        [added(sid, message(5, new))],
    ]


def ring(sid: int) -> list[list[Any]]:
    """A window without summaries."""
    return [
        [Opened(sid, *RING, BEGIN_US), added(sid, *said(1, 3))],
        [added(sid, *said(4, 4)), moved(sid, 0, 1, 1, 0, at_seq=4, reason="dropped")],
        [added(sid, *said(5, 5)), moved(sid, 0, 2, 2, 0, at_seq=5, reason="dropped")],
    ]


def user(sid: int, name: str) -> list[list[Any]]:
    """A user's own actor: memories, and facets of every kind."""
    likes, lives, wrong = (
        MemoryItem(memory_id(name, "", text), session, agent, text, kind, 0.8, BEGIN_US + n, 7)
        for n, (text, kind, session, agent) in enumerate(
            (
                ("Likes metric units", "preference", "", ""),
                ("Lives in Lisbon ☂", "fact", "folded", "tutor"),
                ("Was wrong", "context", "folded", "tutor"),
            )
        )
    )
    key, specs = (
        UserKey(name),
        (RecordSpec(sid, (likes.id, lives.id)), RecordSpec(sid, (wrong.id,))),
    )
    record, record_wrong = (
        Job(f"record-{sid}-{n}", "record", key, spec) for n, spec in enumerate(specs, start=1)
    )
    prune = Job(f"prune-{sid}-3", "prune", key, PruneSpec(sid, 100, "age", 86_400.5, ("fact",)))
    synopsis = Job(f"synopsis-{sid}-4", "synopsis", key, SynopsisSpec(sid, 4))
    working = {
        "id": working_id("folded", "a tool said so"),
        "text": "a tool said so",
        "source": "tool:look",
        "scope": "folded",
        "at_us": BEGIN_US,
        "tokens": 6,
        "vector": b"\x00\x00\x80?" + bytes(12),
    }
    part = {
        "text": "Ann, likes bridges",
        "expires_at": 1_800_000_000.25,
        "tokens": 9,
        "model": "golden-1",
        "degraded": False,
    }
    other_part = {**part, "text": "Golden journals", "degraded": True}
    state_items = (
        StateItem("embedder", "", _encode("golden-embedder")),
        StateItem("working", str(working["id"]), _encode(working)),
        StateItem("access", row_id(PLAIN, 2), _encode((3, BEGIN_US))),
        StateItem("access", row_id(PLAIN, 3), _encode((1, BEGIN_US))),
        StateItem("synopsis", "identity", _encode(part)),
        StateItem("synopsis", "context", _encode(other_part)),
        StateItem("counter", "job", _encode(3)),
    )
    gone = (("access", row_id(PLAIN, 3)),)
    moved_house = msgspec.structs.replace(
        lives,
        content="Lives in Porto ☂",
        metadata='{"sure":true,"ñ":[1,null]}',
        revision=4,
        updated_us=BEGIN_US + 9,
    )
    return [
        [Opened(sid, name, "", BEGIN_US), StateChanged(sid, state_items)],
        [
            Remembered(sid, (likes, lives), (record,)),
            Remembered(sid, (wrong, likes), (record_wrong,)),
        ],
        [JobsStarted(sid, (prune, synopsis))],
        [
            MemoriesRemoved(sid, (wrong.id,)),
            JobDone(record_wrong.id),
            JobDeadLettered(record.id, 8, "ValueError: poisoned ☠"),
        ],
        [StateChanged(sid, (StateItem("counter", "job", _encode(4)),), gone)],
        [
            StateChanged(sid, (StateItem("changed", "", _encode(True)),)),
            MemoryChanged(sid, moved_house, ()),
            Remembered(sid, (KEYED,), ()),
        ],
        [JobRetried(synopsis.id, 1, 1_767_225_601.0, "ModelUnavailable: away")],
    ]


def shared(sid: int) -> list[list[Any]]:
    """A scope that several share."""
    rights = [
        StateItem("grant", who, _encode(right))
        for who, right in (("zoe", "own"), ("alice", "write"), ("bo", "read"))
    ]
    return [
        [Opened(sid, SHARED_PREFIX + "team", "", BEGIN_US), StateChanged(sid, tuple(rights))],
        [StateChanged(sid, (), (("grant", "bo"),))],
    ]


def long(sid: int) -> list[list[Any]]:
    """A session whose oldest messages are not kept."""
    flush = Job(f"flush-{sid}-38", "flush", LONG, FlushSpec(sid, 1, 38))
    return [
        [
            Opened(sid, *LONG, BEGIN_US),
            added(sid, *said(1, 20), key="twenty"),
            added(sid, *said(21, 40)),
        ],
        [moved(sid, 0, 38, 38, 38, at_seq=40, reason="dropped", jobs=(flush,))],
        [Flushed(sid, 38), JobDone(flush.id)],
    ]


async def store(journal: SqliteJournal, batches: Sequence[Sequence[Any]]) -> None:
    """Commit each batch by itself."""
    for batch in batches:
        outcome: list[Exception | None] = []
        journal.write(Write(batch, lambda error, outcome=outcome: outcome.append(error)))  # type: ignore[misc]
        while not outcome:
            await anyio.sleep(0)
        if outcome[0] is not None:
            raise outcome[0]


async def make(directory: Path) -> None:
    """A journal with every kind of row, always the same."""
    with mock.patch("secrets.token_hex", lambda size: ("00c0de" * 6)[: 2 * size]):
        journal = await SqliteJournal.open(directory / "journal.db", durability="power")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        await journal.init_setting("counter", "heuristic")
        await journal.change_settings(
            {"embedder": "golden-embedder", "shards": "4", "colour": 'it\'s \u2028 {"json": 1}'}
        )
        makers: list[Callable[[int], list[list[Any]]]] = [plain, folded, listed, restated, cleared]
        makers += [ring, partial(user, name="alice"), shared, long]
        for sid, batches in enumerate(makers, start=1):
            await store(journal, batches(sid))
        carol = Opened(99, "carol", "chat", BEGIN_US)
        await store(journal, [[carol, added(99, *said(1, 2))]])
        await journal.erase("carol")
        await journal.erase("alice", "never was")
        await journal.trim(Retention(max_messages=20), BEGIN_US)
        tasks.cancel_scope.cancel()
    await journal.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--force", action="store_true", help="although there is one: before its format is released"
    )
    place = HERE / f"format-{FORMAT}"
    if (place / "journal.db").exists() and not parser.parse_args().force:
        parser.error(f"{place} is golden already")
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        anyio.run(make, made)
        with sqlite3.connect(made / "journal.db") as database:
            # one file, whatever leaves others beside it
            database.execute("PRAGMA journal_mode = DELETE")
        database.close()
        place.mkdir(exist_ok=True)
        shutil.copyfile(made / "journal.db", place / "journal.db")
        found = anyio.run(reading, made)
    (place / "reads-as.json").write_text(
        json.dumps(found, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8"
    )
    sys.stdout.write(f"{place}: {(place / 'journal.db').stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
