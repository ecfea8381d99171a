"""Durable appends."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.speed.claim import Case
from benchmarks.speed.closed_loop import measured, ran
from benchmarks.speed.stores.store import Store
from benchmarks.speed.text import POOL, counter, percentile, texts

NAME = "append"
TITLE = "Durable appends"
WORK = (
    "So many sessions, each with one caller that appends a message of 300 bytes, waits until it "
    "is durable, and appends the "
    "next; tokens are counted (o200k_base), but for *openai_agents*, *langgraph*, "
    "*langgraph_store*, *adk* and *mem0*, which "
    "count none. Everything is synced at every commit, but *dict-sqlite-normal* and "
    "*redis-everysec*. *limit* is one thread that "
    "counts as many texts as there are sessions and commits them to remora's schema with its "
    "pragmas, and again; *limit-bare* "
    "has the barest table instead; *prototype* is a hundred lines of asyncio with dicts and a "
    "thread that commits what waits. "
    "*remora-heuristic* takes a quarter of the length for a text's tokens: what a faster "
    "tokenizer could gain at most. "
    "*remora* is the default install: it summarizes, and indexes into long-term memory, while it "
    "is measured. *remora-bare* and *remora-heuristic* do neither, as the peers; *remora-folds* "
    "has a budget of 4 000 tokens and the embedded summarizer, and no long-term memory."
)
LIBRARIES = ("openai_agents", "langgraph", "llama_index", "adk", "mem0")
"""Session libraries; `AsyncSqliteStore` and Redis are stores, with no notion of a session."""
CONTESTANTS = (
    "remora",
    "remora-bare",
    "limit",
    "limit-bare",
    "prototype",
    "remora-uvloop",
    "remora-heuristic",
    "remora-folds",
    "dict-sqlite",
    "dict-sqlite-normal",
    *LIBRARIES,
    "langgraph_store",
    "redis",
    "redis-everysec",
)

FASTER = {
    "remora-bare": "it neither summarizes nor indexes",
    "remora-uvloop": "its event loop is written in C",
    "remora-heuristic": "it takes a quarter of the length for a text's tokens",
    "remora-folds": "it has no long-term memory",
    "prototype": (
        "it has no bounds, deadlines, ids, quotas or summaries, and does not tell whether a failed "
        "commit was stored"
    ),
    "dict-sqlite": (
        "it commits on the event loop, and nobody else has it until then: see its lag_p99_ms"
    ),
    "dict-sqlite-normal": "it does not sync",
    "openai_agents": "it counts no tokens and keeps no buffer",
    "langgraph": "it stores a state: it counts no tokens",
    "llama_index": "it keeps a list in memory, and writes it behind the caller",
    "adk": "it stores a row, and counts no tokens",
    "mem0": "it stores a row, and counts no tokens",
    "langgraph_store": (
        "it counts no tokens, keeps no order within a session, and has neither buffer nor budget"
    ),
    "redis": "the server is a program in C with the data in memory, on a core of its own",
    "redis-everysec": "it syncs once a second",
}


def cases(smoke: bool) -> Sequence[Case]:
    if smoke:
        return [Case(NAME, "16", {"sessions": 16})]
    # One session waits for the disk alone, whose mood changes within seconds: many short turns.
    # The others' bars are medians of seven, too.
    return [
        Case(NAME, str(sessions), {"sessions": sessions}, least_repeats=7)
        for sessions in (1, 16, 256, 2_000)
    ]


def measure(
    contestant: str, case: Case, directory: Path, seed: int, smoke: bool
) -> dict[str, float]:
    sessions = int(case.sizes["sessions"])
    box_s = 0.3 if smoke else 1.0 if sessions == 1 else 2.0
    if contestant == "limit":
        return _limit(_remora_schema(directory, sessions), sessions, seed, box_s)
    if contestant == "limit-bare":
        return _limit(_bare_schema(directory), sessions, seed, box_s)
    figures: dict[str, float] = ran(
        lambda: measured(
            contestant,
            directory,
            append_one,
            sessions=sessions,
            seed=seed,
            box_s=box_s,
            prepare_s=1.0 if smoke else 4.0,
            filled=1,
        ),
        contestant,
    )
    return figures


async def append_one(store: Store, session: str, text: Callable[[], str]) -> int:
    """An `Operation`: append a message."""
    await store.append(session, "user", text())
    return 1


Commit = Callable[[int, list[tuple[int, str, int]]], None]
"""Takes a running number, the same for a whole commit, and rows: session, text, tokens."""


def _limit(commit: Commit, sessions: int, seed: int, box_s: float) -> dict[str, float]:
    pool, count = texts(seed), counter()
    count("warm")
    rows, seq, cpu, begun = 0, 1, time.process_time(), time.perf_counter()
    latencies = []
    while (at := time.perf_counter()) - begun < box_s:
        taken = [pool[(rows + n) % POOL] for n in range(sessions)]
        commit(seq, [(n, text, count(text)) for n, text in enumerate(taken)])
        latencies.append(time.perf_counter() - at)
        rows, seq = rows + sessions, seq + 1
    took = time.perf_counter() - begun
    return {
        "per_s": rows / took,
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "cpu_us_per": (time.process_time() - cpu) / rows * 1e6,
        "rows_per_commit": sessions,
    }


def _remora_schema(directory: Path, sessions: int) -> Commit:
    import msgspec  # noqa: PLC0415

    from remora.storage.rows import SEQ_BITS  # noqa: PLC0415
    from remora.storage.sqlite.schema import MIGRATIONS  # noqa: PLC0415

    database = sqlite3.connect(directory / "limit.db", isolation_level=None)
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    database.executescript(MIGRATIONS[0])
    for pragma in (
        "journal_mode = WAL", "synchronous = FULL", "cache_size = -65536", "secure_delete = ON",
        f"wal_autocheckpoint = {16_384 if sessions >= 16 else 1_000}",  # as remora has it
    ):  # fmt: skip
        database.execute(f"PRAGMA {pragma}")
    encode = msgspec.msgpack.Encoder().encode
    insert = (
        "INSERT INTO messages (pos, at_us, tokens, role, epoch, chat, importance, crc) "
        "VALUES (?, ?, ?, 2, 1, ?, 0.5, 4000000000)"
    )

    def commit(seq: int, rows: list[tuple[int, str, int]]) -> None:
        at = time.time_ns() // 1_000
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            insert,
            [
                (n << SEQ_BITS | seq, at, tokens, encode({"role": "user", "content": text}))
                for n, text, tokens in rows
            ],
        )
        database.execute("COMMIT")

    return commit


def _bare_schema(directory: Path) -> Commit:
    from benchmarks.speed.stores.dicts import INSERT, connected  # noqa: PLC0415

    database = connected(directory / "bare.db", "FULL")

    def commit(seq: int, rows: list[tuple[int, str, int]]) -> None:
        at = time.time()
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            INSERT, [(f"s{n}", seq, "user", text, tokens, at) for n, text, tokens in rows]
        )
        database.execute("COMMIT")

    return commit
