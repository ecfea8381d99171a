"""The first message to a passivated session of 50 messages of 300 bytes.

The runtime is opened on a journal that has them: none is in memory, and the kernel's page cache has
the file. Then each is spoken to once: *load* (what a model should see now), *append* (one more
message, durable by `synchronous=FULL`), or all of a group of 256 at once, which remora reads in one
batch.

The limit is the bare `SELECT` of the same columns of the same rows, found by user and session and
fetched, on a connection with the same cache: by `sqlite3` on the calling thread (*limit*), and
through aiosqlite, as remora reads (*limit-aiosqlite*). For *append* an `INSERT` of one row into the
same table and its commit, same pragmas, come on top; for 256 at once the limit reads one session
after another. SQLite has read none of these pages before, neither here nor there.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import anyio

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import CONFIG, filled, messages, session_name
from benchmarks.speed.text import percentile
from remora import Config, Runtime
from remora.storage.decoding import ENTRY_COLUMNS
from remora.storage.rows import SEQ_BITS

NAME = "activation"
TITLE = "Activation"
WORK = (
    "The first load of a passivated session of 50 messages, or the first append to it. *limit* is "
    "the bare `SELECT` of its rows, and for append the `INSERT` and its commit."
)
CONTESTANTS = ("remora", "remora-bare", "limit", "limit-aiosqlite")
FASTER = {"remora-bare": "it has no long-term memory"}

_MESSAGES = 50
_AT_ONCE = 256
_SELECT = (
    f"SELECT {ENTRY_COLUMNS} FROM actors AS s JOIN messages AS m "
    f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {(1 << SEQ_BITS) - 1} "
    "WHERE s.user = ? AND s.session = ?"
)
_INSERT = (
    "INSERT INTO messages (pos, at_us, tokens, role, epoch, chat, importance) "
    f"SELECT max(m.pos) + 1, 0, 60, 2, 1, ?, 0.5 FROM actors AS s JOIN messages AS m "
    f"ON m.pos BETWEEN s.sid << {SEQ_BITS} AND (s.sid << {SEQ_BITS}) + {(1 << SEQ_BITS) - 1} "
    "WHERE s.user = ? AND s.session = ?"
)


def cases(smoke: bool) -> Sequence[Case]:
    sessions = 60 if smoke else 512
    at_once = 64 if smoke else _AT_ONCE
    sizes: dict[str, int | float] = {"sessions": sessions, "messages": _MESSAGES}
    return [
        Case(NAME, "load", sizes, limit_s=300.0),
        *([] if smoke else [Case(NAME, "append", sizes, least_repeats=5, limit_s=300.0)]),
        Case(
            NAME,
            f"load, {_AT_ONCE} at once",
            {**sizes, "sessions": max(sessions, at_once), "at_once": at_once},
            limit_s=300.0,
        ),
    ]


async def _remora(directory: Path, case: Case, config: Config) -> dict[str, float]:
    (message,) = messages(0, 1)
    took: list[float] = []
    async with Runtime(directory, config=config) as runtime:
        await runtime.settle()  # until all is indexed, and what the first opening does is done
    async with Runtime(directory, config=config) as runtime:
        if config.long_term.enabled:  # a runtime loads it in the background, see `start`
            await runtime.user("warm").recall("what was it?")
        await runtime.session("warm", "up").append(message)

        async def speak(number: int) -> None:
            handle = runtime.session(*session_name(number))
            begun = time.perf_counter()
            if case.name == "append":
                await handle.append(message)
            else:
                context = await handle.load()
                assert len(context.messages) == _MESSAGES
            took.append(time.perf_counter() - begun)

        found = await _time_speaking(case, speak)
    return _latencies(took) | found


async def _time_speaking(
    case: Case, speak: Callable[[int], Coroutine[Any, Any, object]]
) -> dict[str, float]:
    sessions, at_once = int(case.sizes["sessions"]), int(case.sizes.get("at_once", 1))
    begun = time.perf_counter()
    for first in range(0, sessions - at_once + 1, at_once):
        if at_once == 1:
            await speak(first)
            continue
        async with anyio.create_task_group() as tasks:
            for number in range(first, first + at_once):
                tasks.start_soon(speak, number)
    done = sessions - sessions % at_once
    return {"each_us": (time.perf_counter() - begun) / done * 1e6}


def _latencies(took: Sequence[float]) -> dict[str, float]:
    return {"p50_us": percentile(took, 0.5) * 1e6, "p99_us": percentile(took, 0.99) * 1e6}


def _sqlite(directory: Path, case: Case) -> dict[str, float]:
    chat = messages(0, 1)[0]["content"].encode()
    sessions = int(case.sizes["sessions"])
    took = []
    with closing(sqlite3.connect(directory / "journal.db", isolation_level=None)) as database:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536"):
            database.execute(f"PRAGMA {pragma}")
        database.execute(_SELECT, ("warm", "up")).fetchall()
        whole = time.perf_counter()
        for number in range(sessions):
            begun = time.perf_counter()
            rows = database.execute(_SELECT, session_name(number)).fetchall()
            if case.name == "append":
                database.execute(_INSERT, (chat, *session_name(number)))
            took.append(time.perf_counter() - begun)
            assert len(rows) == _MESSAGES
        each_us = (time.perf_counter() - whole) / sessions * 1e6
    return _latencies(took) | {"each_us": each_us}


async def _aiosqlite(directory: Path, case: Case) -> dict[str, float]:
    chat = messages(0, 1)[0]["content"].encode()
    took = []
    async with aiosqlite.connect(directory / "journal.db", isolation_level=None) as database:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -65536"):
            await database.execute(f"PRAGMA {pragma}")
        await database.execute_fetchall(_SELECT, ("warm", "up"))

        async def speak(number: int) -> None:
            begun = time.perf_counter()
            rows = list(await database.execute_fetchall(_SELECT, session_name(number)))
            if case.name == "append":
                await database.execute(_INSERT, (chat, *session_name(number)))
            took.append(time.perf_counter() - begun)
            assert len(rows) == _MESSAGES

        found = await _time_speaking(case, speak)
    return _latencies(took) | found


def measure(
    contestant: str,
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    anyio.run(filled, directory, int(case.sizes["sessions"]), _MESSAGES, seed)
    if contestant == "limit":
        return _sqlite(directory, case)
    if contestant == "limit-aiosqlite":
        return anyio.run(_aiosqlite, directory, case)
    return anyio.run(_remora, directory, case, CONFIG if contestant == "remora-bare" else Config())
