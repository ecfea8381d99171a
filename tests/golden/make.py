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
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import msgspec

from remora.ids import (
    SHARED_PREFIX,
    SessionKey,
    UserKey,
    key_digest,
    keyed_memory_id,
    memory_id,
    row_id,
    working_id,
)
from remora.messages import Entry, encode_message
from remora.runtime.jobs import Job, JobDeadLettered, JobDone, JobRetried
from remora.runtime.log import Write
from remora.storage.ports import Retention
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
PLAIN, FOLDED, LISTED = (
    SessionKey("alice", "plain"),
    SessionKey("alice", "folded"),
    SessionKey("alice", "listed"),
)
RESTATED, CLEARED, RING = (
    SessionKey("bob", "restated"),
    SessionKey("bob", "cleared"),
    SessionKey("bob ☂ o'hara %_", "ring"),
)
LONG = SessionKey("bob", "long")
KEYED = MemoryItem(
    keyed_memory_id("alice", "", "diet ☂"),
    "",
    "",
    "Eats no meat",
    "preference",
    0.25,
    BEGIN_US + 5,
    6,
    key="diet ☂",
    revision=3,
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
    return Summary(
        through,
        "So far: ",
        text,
        20,
        degraded,
        "extractive" if degraded else "golden-1",
        first,
        120,
    )


def plain(sid: int) -> list[list[Any]]:
    """Every role, tool calls, ids, metadata, keys of one message and of several."""
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "look", "arguments": '{"at":"ñ"}'},
    }
    return [
        [
            Opened(sid, *PLAIN, BEGIN_US),
            Appended(sid, (message(1, {"role": "system", "content": "Be brief."}, 1.0),), None),
        ],
        [
            Appended(
                sid,
                (
                    message(
                        2,
                        {
                            "role": "user",
                            "content": "Hello ☂",
                            "id": "m-2",
                            "metadata": {"a": [1, {"b": None}]},
                        },
                        0.1,
                    ),
                    message(
                        3,
                        {"role": "assistant", "content": None, "tool_calls": [call]},
                        0.30000000000000004,
                    ),
                ),
                key_digest("request-1"),
            )
        ],
        [
            Appended(
                sid,
                (
                    message(
                        4, {"role": "tool", "tool_call_id": "call_1", "content": "a bridge"}, 0.0
                    ),
                ),
                None,
            )
        ],
        [
            Appended(
                sid,
                (message(5, {"role": "developer", "content": "x" * 3_000, "id": "m-5"}),),
                key_digest("request-2"),
            )
        ],
        [
            Appended(
                sid,
                (
                    message(
                        6,
                        {
                            "role": "user",
                            "content": [{"type": "text", "text": "in parts"}],
                            "name": "Ann",
                        },
                        2 / 3,
                    ),
                ),
                None,
            )
        ],
    ]


def folded(sid: int) -> list[list[Any]]:
    """A running summary, then another one; a fold under way, flushes done and pending, blocks."""
    first, second = Watermarks(0, 0, 4, 4), Watermarks(0, 4, 4, 4)
    third, fourth, fifth = Watermarks(0, 4, 8, 8), Watermarks(0, 8, 8, 8), Watermarks(0, 8, 10, 10)
    jobs = [
        Job(
            f"summarize-{sid}-0-{n}",
            "summarize",
            FOLDED,
            SummarizeSpec(sid, 0, n - 3 if n < 10 else 9, n),
        )
        for n in (4, 8, 10)
    ]
    flushes = [
        Job(f"flush-{sid}-{n}", "flush", FOLDED, FlushSpec(sid, n - 3 if n < 10 else 9, n))
        for n in (4, 8, 10)
    ]
    blocks = Job(f"blocks-{sid}-0-8", "blocks", FOLDED, BlocksSpec(sid, 8))
    progress = {"seen": [[1, 4]], "state": _encode({"facts": ["likes bridges"]}), "error": ""}
    return [
        [
            Opened(sid, *FOLDED, BEGIN_US),
            Appended(sid, said(1, 6), None),
            BufferMoved(sid, first, jobs=(jobs[0], flushes[0])),
        ],
        [
            BufferMoved(
                sid, second, at_seq=6, summary=summary(4, "one to four"), ended=(jobs[0].id,)
            ),
            Flushed(sid, 4),
            JobDone(flushes[0].id),
        ],
        [
            Appended(sid, said(7, 9), None),
            BufferMoved(sid, third, jobs=(jobs[1], flushes[1], blocks)),
        ],
        [
            BufferMoved(
                sid,
                fourth,
                at_seq=9,
                summary=summary(8, "one to eight", degraded=True),
                ended=(jobs[1].id,),
            )
        ],
        [
            JobRetried(flushes[1].id, 3, 1_767_225_700.5, "LongTermError: away"),
            StateChanged(sid, (StateItem("block", "old", b"\x80"),)),
        ],
        [Appended(sid, said(10, 12), None), BufferMoved(sid, fifth, jobs=(jobs[2], flushes[2]))],
        [
            StateChanged(
                sid,
                (
                    StateItem("block", "facts", _encode(progress)),
                    StateItem("block", "", _encode([[1, 2]])),
                ),
                (("block", "old"),),
            )
        ],
    ]


def listed(sid: int) -> list[list[Any]]:
    """A list of summary entries: one condensed into the running summary, one that left for
    long-term memory.
    """
    condense = Job(
        f"condense-{sid}-0-2", "summarize", LISTED, SummarizeSpec(sid, 0, 1, 2, "condense")
    )
    jobs = [
        Job(f"summarize-{sid}-0-{n}", "summarize", LISTED, SummarizeSpec(sid, 0, n - 1, n, "entry"))
        for n in (2, 4, 6)
    ]
    left = EntryFlushSpec(sid, summary(2, "an entry of two"), BEGIN_US)
    away = Job(f"entry-{sid}-0-2", "flush", LISTED, left)
    return [
        [
            Opened(sid, *LISTED, BEGIN_US),
            Appended(sid, said(1, 7), None),
            BufferMoved(sid, Watermarks(0, 0, 2, 2), jobs=(jobs[0],)),
        ],
        [
            BufferMoved(
                sid,
                Watermarks(0, 2, 2, 2),
                at_seq=7,
                summaries=(summary(2, "an entry of two"),),
                ended=(jobs[0].id,),
            )
        ],
        [BufferMoved(sid, Watermarks(0, 2, 4, 4), jobs=(jobs[1],))],
        [
            BufferMoved(
                sid,
                Watermarks(0, 4, 4, 4),
                at_seq=7,
                summaries=(summary(4, "an entry of four", first=3),),
                ended=(jobs[1].id,),
                jobs=(condense, away),
            ),
            StateChanged(sid, (StateItem(ENTRY_KIND, "2", _encode(left)),)),
        ],
        [
            BufferMoved(
                sid,
                Watermarks(0, 4, 4, 4),
                at_seq=7,
                summary=summary(2, "condensed"),
                ended=(condense.id,),
            )
        ],
        [BufferMoved(sid, Watermarks(0, 4, 6, 6), jobs=(jobs[2],))],
        [
            BufferMoved(
                sid,
                Watermarks(0, 6, 6, 6),
                at_seq=7,
                summaries=(summary(6, "an entry of six", first=5),),
                ended=(jobs[2].id,),
            )
        ],
    ]


def restated(sid: int) -> list[list[Any]]:
    """Messages deleted, and gone back before; what was flushed of them is to leave long-term
    memory.
    """
    flush = Job(f"flush-{sid}-5", "flush", RESTATED, FlushSpec(sid, 1, 5))
    unflush = Job(f"unflush-{sid}-2", "flush", RESTATED, UnflushSpec(sid, (5,), 5))
    return [
        [Opened(sid, *RESTATED, BEGIN_US), Appended(sid, said(1, 7), key_digest("seven"))],
        [BufferMoved(sid, Watermarks(0, 0, 0, 5), jobs=(flush,))],
        [Flushed(sid, 5), JobDone(flush.id)],
        [BufferMoved(sid, Watermarks(1, 0, 0, 5), at_seq=7, reason="restated", removed=(2,))],
        [
            BufferMoved(
                sid,
                Watermarks(2, 1, 1, 5),
                at_seq=7,
                reason="restated",
                summary=summary(1, "the first"),
                removed=(5, 6, 7),
                jobs=(unflush,),
            )
        ],
        [
            Appended(sid, said(8, 9), None),
            JobDeadLettered(unflush.id, 5, "TypeError: no such thing"),
        ],
        [Pruned(RESTATED, (3,))],
    ]


def cleared(sid: int) -> list[list[Any]]:
    """A buffer emptied with a fold under way, and begun anew; ids of before may be used again."""
    job = Job(f"summarize-{sid}-0-2", "summarize", CLEARED, SummarizeSpec(sid, 0, 1, 2))
    return [
        [
            Opened(sid, *CLEARED, BEGIN_US),
            Appended(sid, (message(1, {"role": "user", "content": "gone", "id": "again"}),), None),
        ],
        [Appended(sid, said(2, 4), None), BufferMoved(sid, Watermarks(0, 0, 2, 0), jobs=(job,))],
        [
            BufferMoved(
                sid, Watermarks(1, 4, 4, 4, 4), at_seq=4, reason="cleared", ended=(job.id,)
            ),
            Pruned(CLEARED, (1, 2, 3, 4)),
        ],
        [Appended(sid, (message(5, {"role": "user", "content": "new", "id": "again"}),), None)],
    ]


def ring(sid: int) -> list[list[Any]]:
    """A window without summaries."""
    return [
        [Opened(sid, *RING, BEGIN_US), Appended(sid, said(1, 3), None)],
        [
            Appended(sid, said(4, 4), None),
            BufferMoved(sid, Watermarks(0, 1, 1, 0), at_seq=4, reason="dropped"),
        ],
        [
            Appended(sid, said(5, 5), None),
            BufferMoved(sid, Watermarks(0, 2, 2, 0), at_seq=5, reason="dropped"),
        ],
    ]


def user(sid: int, name: str) -> list[list[Any]]:
    """A user's own actor: memories, and facets of every kind."""
    contents = ("Likes metric units", "Lives in Lisbon ☂", "Was wrong")
    items = [
        MemoryItem(
            memory_id(name, "", text),
            "folded" if n else "",
            "tutor" if n else "",
            text,
            kind,
            0.8,
            BEGIN_US + n,
            7,
        )
        for n, (text, kind) in enumerate(
            zip(contents, ("preference", "fact", "context"), strict=True)
        )
    ]
    key = UserKey(name)
    jobs = [
        Job(
            f"record-{sid}-1", "record", key, RecordSpec(sid, tuple(item.id for item in items[:2]))
        ),
        Job(f"record-{sid}-2", "record", key, RecordSpec(sid, (items[2].id,))),
        Job(f"prune-{sid}-3", "prune", key, PruneSpec(sid, 100, "age", 86_400.5, ("fact",))),
        Job(f"synopsis-{sid}-4", "synopsis", key, SynopsisSpec(sid, 4)),
    ]
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
    state_items = [
        StateItem("embedder", "", _encode("golden-embedder")),
        StateItem("working", str(working["id"]), _encode(working)),
        StateItem("access", row_id(PLAIN, 2), _encode((3, BEGIN_US))),
        StateItem("access", row_id(PLAIN, 3), _encode((1, BEGIN_US))),
        StateItem("synopsis", "identity", _encode(part)),
        StateItem(
            "synopsis", "context", _encode({**part, "text": "Golden journals", "degraded": True})
        ),
        StateItem("counter", "job", _encode(3)),
    ]
    return [
        [Opened(sid, name, "", BEGIN_US), StateChanged(sid, tuple(state_items))],
        [
            Remembered(sid, tuple(items[:2]), tuple(jobs[:1])),
            Remembered(sid, (items[2], items[0]), tuple(jobs[1:2])),
        ],
        [JobsStarted(sid, tuple(jobs[2:]))],
        [
            MemoriesRemoved(sid, (items[2].id,)),
            JobDone(jobs[1].id),
            JobDeadLettered(jobs[0].id, 8, "ValueError: poisoned ☠"),
        ],
        [
            StateChanged(
                sid, (StateItem("counter", "job", _encode(4)),), (("access", row_id(PLAIN, 3)),)
            )
        ],
        [
            StateChanged(sid, (StateItem("changed", "", _encode(True)),)),
            MemoryChanged(
                sid,
                msgspec.structs.replace(
                    items[1],
                    content="Lives in Porto ☂",
                    metadata='{"sure":true,"ñ":[1,null]}',
                    revision=4,
                    updated_us=BEGIN_US + 9,
                ),
                (),
            ),
            Remembered(sid, (KEYED,), ()),
        ],
        [JobRetried(jobs[3].id, 1, 1_767_225_601.0, "ModelUnavailable: away")],
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
            Appended(sid, said(1, 20), key_digest("twenty")),
            Appended(sid, said(21, 40), None),
        ],
        [BufferMoved(sid, Watermarks(0, 38, 38, 38), at_seq=40, reason="dropped", jobs=(flush,))],
        [Flushed(sid, 38), JobDone(flush.id)],
    ]


async def store(journal: SqliteJournal, batches: Sequence[Sequence[Any]]) -> None:
    """Commit each batch by itself."""
    for batch in batches:
        outcome: list[Exception | None] = []
        journal.write(Write(batch, lambda _, error, outcome=outcome: outcome.append(error)))  # type: ignore[misc]
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
        makers = (
            plain,
            folded,
            listed,
            restated,
            cleared,
            ring,
            lambda sid: user(sid, "alice"),
            shared,
            long,
        )
        for sid, batches in enumerate(makers, start=1):
            await store(journal, batches(sid))
        await store(
            journal, [[Opened(99, "carol", "chat", BEGIN_US), Appended(99, said(1, 2), None)]]
        )
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
            database.execute(
                "PRAGMA journal_mode = DELETE"
            )  # one file, whatever leaves others beside it
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
