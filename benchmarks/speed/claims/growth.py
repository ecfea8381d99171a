"""What size does to cost: each row is a directory ten times as large as the one before.

*Sessions*: so many sessions of 20 messages of 300 bytes, ten per user, without long-term memory,
all passivated. Measured on 500 drawn from all (100 where there are no more): *activation*, a load
of each, passivated, one at a time; *load* of each, live, one at a time; *append* by 64 callers,
durable, microseconds of wall time each.

*Rows*: long-term memory of so many rows, 200 per user, vectors of 256 numbers, optimized. *flush*
adds 20 rows of a user (a session that ended), synced to the disk. *recall* searches one user's
memories with a question that was not asked before: the user's *first*, for which rows are read, and
another, which finds them in memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import numpy as np

from benchmarks.long_term import Texts, opened, rows_of, vectors_of
from benchmarks.speed.claim import Case
from benchmarks.speed.scale import CONFIG, filled, messages, progress, session_name
from benchmarks.speed.text import percentile
from remora import Runtime
from remora.config import RecallConfig
from remora.models.static import WordLlamaEmbedder
from remora.recall.recall import Recall
from remora.storage.lance.store import LanceStore

NAME = "growth"
TITLE = "What size costs"
WORK = (
    "Activation, load and append on a sample of 100 to 100 000 sessions of 20 messages; flush of "
    "20 rows to, and recall from, a "
    "long-term memory of 1 000 to 100 000 rows. Each is compared with a tenth of its size."
)
CONTESTANTS = ("remora",)
FASTER: dict[str, str] = {}

_MESSAGES = 20
_SAMPLE = 500
_CALLERS = 64
_A_USER = 200
_SESSIONS = (100, 1_000, 10_000, 100_000)
_ROWS = (1_000, 10_000, 100_000)


def _named(count: int, what: str) -> str:
    return f"{count:,} {what}".replace(",", " ")


def cases(smoke: bool) -> Sequence[Case]:
    sessions, rows = ((100,), (400,)) if smoke else (_SESSIONS, _ROWS)
    return [
        *(
            Case(NAME, _named(count, "sessions"), {"sessions": count}, limit_s=300.0)
            for count in sessions
        ),
        *(Case(NAME, _named(count, "rows"), {"rows": count}, limit_s=300.0) for count in rows),
    ]


async def _sessions(directory: Path, count: int, seed: int, seconds: float) -> dict[str, float]:
    pool, rng = messages(seed), random.Random(seed)
    await filled(directory, count, _MESSAGES, seed)
    async with Runtime(directory, config=CONFIG) as runtime:
        handles = [
            runtime.session(*session_name(number))
            for number in rng.sample(range(count), min(_SAMPLE, count))
        ]
        await runtime.session("warm", "up").append(pool[0])
        activations = await _latencies(len(handles), lambda n: handles[n].load())
        loads = await _latencies(len(handles) * 4, lambda n: handles[n % len(handles)].load())
        appends = 0
        begun = time.perf_counter()

        async def append(number: int) -> None:
            nonlocal appends
            while time.perf_counter() < begun + seconds:
                await handles[number].append(pool[appends % len(pool)])
                appends += 1

        async with anyio.create_task_group() as tasks:
            for number in range(min(_CALLERS, len(handles))):
                tasks.start_soon(append, number)
        took = time.perf_counter() - begun
    return {
        "append_us": took / appends * 1e6,
        "load_p50_us": percentile(loads, 0.5) * 1e6,
        "activation_p50_us": percentile(activations, 0.5) * 1e6,
        "activation_p99_us": percentile(activations, 0.99) * 1e6,
    }


async def _latencies(count: int, work: Callable[[int], Awaitable[object]]) -> list[float]:
    took = []
    for number in range(count):
        begun = time.perf_counter()
        await work(number)
        took.append(time.perf_counter() - begun)
    return took


async def _rows(directory: Path, count: int, seed: int, asked: int) -> dict[str, float]:
    words, rng, embedder = Texts(seed), np.random.default_rng(seed), WordLlamaEmbedder()
    users = [f"user-{number}" for number in range(count // _A_USER)]
    async with opened(directory, batch_ms=0.0, batch_rows=20_000, compact_fragments=1) as store:
        for first in range(0, len(users), 100):
            batch = [
                row for user in users[first : first + 100] for row in rows_of(user, _A_USER, words)
            ]
            await store.add(batch, vectors_of(len(batch), rng), may_exist=False)
            progress(f"{(first + 100) * _A_USER} rows of {count}")
        await store.compact()

        async def there() -> LanceStore:
            return store

        async def flush(number: int) -> None:
            rows = rows_of(f"new-{number}", _MESSAGES, words)
            await store.add(rows, vectors_of(len(rows), rng), may_exist=False)

        flushes = await _latencies(asked, flush)
        recall = Recall(there, embedder, RecallConfig(cache=0), importance_weight=0.2)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recall.run)
            some = random.Random(seed).choices(users, k=asked)
            await recall(users[0], words.message(), limit=16)  # the embedder is loaded

            async def first_of(number: int) -> None:
                recall.note_change(some[number], gone=True)
                await recall(some[number], words.message(), limit=16)

            async def again(_: int) -> None:
                await recall(users[0], words.message(), limit=16)

            firsts = await _latencies(asked, first_of)
            agains = await _latencies(asked * 5, again)
            tasks.cancel_scope.cancel()
    return {
        "flush_p50_us": percentile(flushes, 0.5) * 1e6,
        "recall_first_p50_us": percentile(firsts, 0.5) * 1e6,
        "recall_p50_us": percentile(agains, 0.5) * 1e6,
    }


def measure(
    contestant: str,  # noqa: ARG001
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,
) -> dict[str, float]:
    if "rows" in case.sizes:
        return anyio.run(_rows, directory, int(case.sizes["rows"]), seed, 5 if smoke else 60)
    return anyio.run(_sessions, directory, int(case.sizes["sessions"]), seed, 0.3 if smoke else 3.0)
