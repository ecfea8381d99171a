"""Recall of a user whose memories were read before.

*One user*: long-term memory of so many rows, 200 per user, vectors of 256 numbers, optimized; one
of the users asks questions that were not asked before. The question is embedded, 200 rows are
searched by words and by vectors, and the best 16 are returned. *numpy* in the same process, in
turn: the question is embedded, and its product with as many vectors sorted.

*Contexts*: `Session.load` with a question, by 32 callers at a time, each of a user with 200 indexed
messages, in the default install.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import numpy as np

from benchmarks.long_term import Texts, opened, rows_of, vectors_of
from benchmarks.speed.claim import Bar, Case
from benchmarks.speed.scale import in_turn, messages, progress
from benchmarks.speed.text import percentile, texts
from remora import Runtime
from remora.config import RecallConfig
from remora.models.static import WordLlamaEmbedder
from remora.recall.recall import Recall
from remora.storage.lance.store import LanceStore

NAME = "recall"
TITLE = "Warm recall"
WORK = (
    "A question that was not asked before, of a user of 200 rows, which are in memory, among a "
    "million in all, and the same with numpy alone: embed it, multiply it with the 200 vectors, "
    "sort. And contexts with such questions a second, 32 callers at a time, each of such a user, "
    "in the default install."
)
CONTESTANTS = ("remora",)

_A_USER = 200
_CALLERS = 32
_ROWS = 1_000_000


def cases(smoke: bool) -> Sequence[Case]:
    rows, asked, box_s = (400, 5, 0.3) if smoke else (_ROWS, 500, 5.0)
    return [
        Case(NAME, "one user", {"rows": rows, "asked": asked}, limit_s=570.0),
        Case(
            NAME,
            "contexts",
            {"callers": 4 if smoke else _CALLERS, "box_s": box_s},
            limit_s=200.0,
            least_repeats=1 if smoke else 7,
        ),
    ]


_WORK = (
    "by parts, on a slower moment of the same machine, of 10.5 ms: the question 7.7, the search "
    "2.6, the memories 0.2. Of the question's 24 words, which are syllables in a row, 22 are in no "
    "vocabulary, and finding the words near one of them takes 0.2 to 0.3 ms (the average of its "
    "tokens, a product with 10 327 vectors of 64 numbers, one with 300 of 256). Questions of 60 "
    "characters from Python's manual, which have one or two such words, took 2.4 ms: 1.5, 0.7, 0.1."
)
_CONTEXT = (
    "by parts, on a quicker machine: of 2.5 ms of processor time, nearly all of it Python's on "
    "one core, finding the memories takes 1.6, and making lines of them, without what the "
    "hundred messages that are shown say, 0.5. A question that comes again, whose memories are "
    "held, still takes 0.62: 1 600 contexts/s, the most that faster recall could bring."
)
BARS = (
    Bar("one user", "≤ 300 µs", "p50_us", most=300.0, note=_WORK),
    Bar("one user", "≤ 10 times numpy", "of_numpy", most=10.0, note=_WORK),
    Bar("contexts", "≥ 1 500 contexts/s", "per_s", least=1_500.0, note=_CONTEXT),
)


async def _one_user(directory: Path, rows: int, asked: int, seed: int) -> dict[str, float]:
    words, rng, embedder = Texts(seed), np.random.default_rng(seed), WordLlamaEmbedder()
    users = [f"user-{number}" for number in range(rows // _A_USER)]
    async with opened(directory, batch_ms=0.0, batch_rows=50_000, compact_fragments=1) as store:
        for first in range(0, len(users), 250):
            some = users[first : first + 250]
            batch = [row for user in some for row in rows_of(user, _A_USER, words)]
            await store.add(batch, vectors_of(len(batch), rng), may_exist=False)
            progress(f"{(first + len(some)) * _A_USER} rows of {rows}")
        await store.compact()

        async def there() -> LanceStore:
            return store

        recall = Recall(there, embedder, RecallConfig(cache=0), importance_weight=0.2)
        vectors = vectors_of(_A_USER, rng)
        ours, bare = [], []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recall.run)
            user = random.Random(seed).choice(users)
            await recall(user, words.message(), limit=16)
            for _ in range(asked):
                question = words.message()
                begun = time.perf_counter()
                found = await recall(user, question, limit=16)
                ours.append(time.perf_counter() - begun)
                assert found
                question = words.message()
                begun = time.perf_counter()
                (asking,) = await embedder.embed([question])
                np.argsort(vectors @ asking)[-16:].tolist()
                bare.append(time.perf_counter() - begun)
            tasks.cancel_scope.cancel()
    return {
        "p50_us": percentile(ours, 0.5) * 1e6,
        "p99_us": percentile(ours, 0.99) * 1e6,
        "numpy_p50_us": percentile(bare, 0.5) * 1e6,
        "of_numpy": percentile(ours, 0.5) / percentile(bare, 0.5),
    }


async def _contexts(directory: Path, callers: int, box_s: float, seed: int) -> dict[str, float]:
    pool, questions = messages(seed, 2_000), texts(seed + 1, 4_000, 60)
    async with Runtime(directory) as runtime:
        sessions = [runtime.session(f"user-{number}", "chat") for number in range(callers)]

        async def fill(number: int) -> None:
            start = number * 37 % (len(pool) - _A_USER)
            for at in range(start, start + _A_USER, 50):
                await sessions[number].append(pool[at : at + 50])
            await sessions[number].flush()

        await in_turn(callers, callers, fill)
        await runtime.settle()
        await in_turn(callers, 1, lambda number: sessions[number].load("what was it?"))
        took: list[float] = []
        begun = time.perf_counter()

        async def ask(number: int) -> None:
            place = number
            while (at := time.perf_counter()) - begun < box_s:
                context = await sessions[number].load(questions[place % len(questions)])
                assert context.messages
                took.append(time.perf_counter() - at)
                place += callers

        async with anyio.create_task_group() as tasks:
            for number in range(callers):
                tasks.start_soon(ask, number)
        whole = time.perf_counter() - begun
    return {
        "per_s": len(took) / whole,
        "p50_ms": percentile(took, 0.5) * 1e3,
        "p99_ms": percentile(took, 0.99) * 1e3,
    }


def measure(
    contestant: str,  # noqa: ARG001
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    sizes = case.sizes
    if case.name == "contexts":
        return anyio.run(_contexts, directory, int(sizes["callers"]), sizes["box_s"], seed)
    return anyio.run(_one_user, directory, int(sizes["rows"]), int(sizes["asked"]), seed)
