"""Long-term memory: rows indexed per second, and the time of a search.

    python -m benchmarks.long_term [--rows 10000 100000] [--concurrency 1 8 32] [--seconds 3]
        [--json FILE] [--smoke]

*Flush*: one caller passes batches to `LanceStore.add` and waits for each, with `batch_ms` 0 so that
only the store is measured: with syncing, as in `durability: power`, and without. For comparison, in
turn in the same run: LanceDB's own `add` of the same prepared Arrow to a table of the same schema.

*Search*: half of the rows belong to users of 20 rows, three tenths to users of 200, a fifth to
users of 2 000, interleaved as they would arrive. Text is in windows of two messages on either side,
about 24 words per message by Zipf's law; vectors have 256 numbers. Each question is a few words of
a row of its user. It is asked of, in this order:

  remora, warm     `Recall` of a user whose rows are in memory. No result is kept, so that every
                   question is embedded and searched.
  remora, written  the same after the user has written: the rows are read again.
  remora, first    the same with nothing in memory: the rows are read, prepared and searched.
  LanceStore       remora's three lists, without ranking.
  LanceDB, lists   the same three queries, without remora, at once, to Arrow.
  LanceDB, vector  the vector query alone.
  numpy            brute force over the same user's vectors: the limit.

`--rows 1000000` takes some ten minutes to build and 4 GB of disk. On a shared machine only the
ratios within a run compare.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import os
import platform
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from remora.cli.replay import percentile
from remora.config import LongTermConfig, RecallConfig
from remora.ids import SessionKey, row_id, user_key
from remora.models.static import WordLlamaEmbedder
from remora.recall.recall import Recall
from remora.recall.user_index import UserIndex
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow

DIMENSION = 256
BATCHES = (1, 10, 100, 1_000, 10_000)
KINDS = {20: 0.5, 200: 0.3, 2_000: 0.2}  # rows of a user -> share of all rows
WORDS_A_ROW = 24
DEPTH = 100
BUILT_AT_ONCE = 20_000
QUESTIONS = 512
WRITERS = ("remora", "remora, not synced", "LanceDB")
METHODS = (
    "remora, warm",
    "remora, written",
    "remora, first",
    "LanceStore",
    "LanceDB, lists",
    "LanceDB, vector",
    "numpy",
)
COLUMNS = [
    "id",
    "user_id",
    "session_id",
    "seq",
    "role",
    "speaker",
    "content",
    "memory_type",
    "importance",
    "created_at",
    "tokens",
]
Ask = Callable[[str, str, npt.NDArray[np.float32]], Awaitable[object]]


class Texts:
    """Messages of words that are as common as words are."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._words = [self._word() for _ in range(20_000)]
        self._weights = list(itertools.accumulate(1 / (n + 3) for n in range(len(self._words))))

    def _word(self) -> str:
        return "".join(
            self._rng.choice("bcdfglmnprst") + self._rng.choice("aeiou")
            for _ in range(self._rng.randint(2, 4))
        )

    def message(self) -> str:
        return self.words(WORDS_A_ROW)

    def words(self, count: int) -> str:
        return " ".join(self._rng.choices(self._words, cum_weights=self._weights, k=count))


def rows_of(user: str, count: int, texts: Texts, first: int = 0) -> list[MemoryRow]:
    """A user's rows, in sessions of twenty messages."""
    said = [texts.message() for _ in range(count)]
    rows = []
    for place, text in enumerate(said):
        session, seq = f"session-{(first + place) // 20}", (first + place) % 20 + 1
        turn = f"(8 May 2023) User: {text}"
        around = [
            turn if n == place else f"User: {said[n]}"
            for n in range(max(place - 2, 0), min(place + 3, count))
        ]
        rows.append(
            MemoryRow(
                row_id(SessionKey(user, session), seq),
                user,
                session,
                seq,
                "user",
                "",
                text,
                turn,
                "\n".join(around),
                "message",
                0.5,
                1_700_000_000_000_000 + (first + place) * 1_000_000,
                40,
            )
        )
    return rows


def vectors_of(count: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    vectors: npt.NDArray[np.float32] = rng.standard_normal((count, DIMENSION), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


@asynccontextmanager
async def opened(
    directory: Path, *, sync: bool = True, **options: Any
) -> AsyncIterator[LanceStore]:
    config = LongTermConfig(**options)
    store = await LanceStore.open(directory, dimension=DIMENSION, config=config, sync=sync)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.run)
        yield store
        tasks.cancel_scope.cancel()
    await store.aclose()


# -- flush -----------------------------------------------------------------------------------------


async def flushes(directory: Path, seconds: float, bar: Progress) -> dict[str, dict[str, float]]:
    """By batch size: rows a second, milliseconds a batch."""
    lancedb = importlib.import_module("lancedb")
    texts, rng = Texts(1), np.random.default_rng(1)
    figures = {}
    task = bar.add_task("flushing", total=len(BATCHES))
    for size in BATCHES:
        there = directory / f"flush-{size}"
        # One table, as the bare one is; a batch of many users is several commits otherwise.
        options: dict[str, Any] = {"shards": 1, "batch_ms": 0.0, "batch_rows": size}
        async with (
            opened(there / "power", **options) as store,
            opened(there / "process", sync=False, **options) as unsynced,
        ):
            pool = rows_of("user", max(size, 2_000), texts)
            vectors = vectors_of(len(pool), rng)
            numbers = itertools.count()

            def batch(
                pool: list[MemoryRow] = pool, size: int = size, numbers: Iterator[int] = numbers
            ) -> list[MemoryRow]:
                at = next(numbers) * size % max(len(pool) - size + 1, 1)
                return [
                    msgspec.structs.replace(row, id=f"{next(numbers):032x}")
                    for row in pool[at : at + size]
                ]

            for one in (store, unsynced):  # makes the table and its indices
                await one.add(batch(), vectors[:size], may_exist=False)
            (shard,) = store.tables.shards.values()
            database = await lancedb.connect_async(str(there / "bare"))
            table = await database.create_table("bare", schema=await shard.table.schema())
            took: dict[str, list[float]] = {name: [] for name in WRITERS}
            end = time.perf_counter() + seconds * 3
            while time.perf_counter() < end or not took["LanceDB"]:
                rows = batch()
                arrow = store.tables.rows.table(
                    zip(rows, vectors[: len(rows)], strict=True), shard.schema
                )
                for name, one in zip(WRITERS, (store, unsynced), strict=False):
                    begun = time.perf_counter()
                    await one.add(rows, vectors[: len(rows)], may_exist=False)
                    took[name].append(time.perf_counter() - begun)
                begun = time.perf_counter()
                await table.add(arrow)
                took["LanceDB"].append(time.perf_counter() - begun)
            database.close()
        figures[str(size)] = {
            name: value
            for who, times in took.items()
            for name, value in (
                (f"{who}_rows_per_s", size * len(times) / sum(times)),
                (f"{who}_p50_ms", statistics.median(times) * 1e3),
                (f"{who}_p99_ms", percentile(times, 0.99) * 1e3),
            )
        }
        shutil.rmtree(there)
        bar.advance(task)
    return figures


# -- search ----------------------------------------------------------------------------------------


class Question(msgspec.Struct, frozen=True):
    user: str
    text: str


def users_by_kind(rows: int) -> dict[int, list[str]]:
    return {
        size: [f"user-{size}-{n}" for n in range(max(int(rows * share) // size, 1))]
        for size, share in KINDS.items()
    }


async def build(
    store: LanceStore, users: dict[int, list[str]], bar: Progress
) -> dict[int, list[Question]]:
    """Fill the store through its own writer, users interleaved; return the questions to ask."""
    texts, rng, chance = Texts(2), np.random.default_rng(2), random.Random(2)
    # Twenty rows at a time: a session that was flushed.
    turns = [
        (user, size, start)
        for size, names in users.items()
        for user in names
        for start in range(0, size, 20)
    ]
    chance.shuffle(turns)
    questions: dict[int, list[Question]] = {size: [] for size in users}
    asked = {size: set(names[: max(QUESTIONS, 1)]) for size, names in users.items()}
    task = bar.add_task("building", total=20 * len(turns))
    done: dict[str, int] = {}
    batch: list[MemoryRow] = []
    for place, (user, size, _) in enumerate(turns):
        rows = rows_of(user, 20, texts, done.get(user, 0))
        done[user] = done.get(user, 0) + 20
        if user in asked[size]:
            words = chance.choice(rows).content.split()
            questions[size].append(
                Question(user, f"what about {' '.join(chance.sample(words, 5))}?")
            )
        batch += rows
        if len(batch) >= BUILT_AT_ONCE or place == len(turns) - 1:
            await store.add(batch, vectors_of(len(batch), rng), may_exist=False)
            bar.advance(task, len(batch))
            batch = []
    await store.compact()
    for mine in questions.values():
        chance.shuffle(mine)
    return {size: mine[:QUESTIONS] for size, mine in questions.items()}


def asks(
    store: LanceStore, vectors: dict[str, npt.NDArray[np.float32]], recall: Recall
) -> dict[str, Ask]:
    """By method: how a question of a user is answered."""
    expr: Any = importlib.import_module("lancedb.expr")
    match: Any = importlib.import_module("lancedb.query").MatchQuery

    async def warm(user: str, text: str, _: npt.NDArray[np.float32]) -> object:
        return await recall(user, text, limit=16)

    async def written(user: str, text: str, _: npt.NDArray[np.float32]) -> object:
        recall.note_change(user, gone=False)
        return await recall(user, text, limit=16)

    async def first(user: str, text: str, _: npt.NDArray[np.float32]) -> object:
        recall.note_change(user, gone=True)
        return await recall(user, text, limit=16)

    async def search_rows(user: str, text: str, vector: npt.NDArray[np.float32]) -> object:
        return await store.search(user, text, vector, depth=DEPTH)

    def table(user: str) -> Any:
        return store.tables.shards[store.tables.name_of(user_key(user))].table

    async def fetch_rows(query: Any, user: str, score: str) -> object:
        mine = expr.col("user_key") == expr.lit(user_key(user))
        return await query.where(mine).limit(DEPTH).select([*COLUMNS, score]).to_arrow()

    async def vector_list(user: str, _: str, vector: npt.NDArray[np.float32]) -> object:
        return await fetch_rows(
            table(user).query().nearest_to(vector).distance_type("cosine"), user, "_distance"
        )

    async def three_lists(user: str, text: str, vector: npt.NDArray[np.float32]) -> object:
        words = [
            fetch_rows(
                table(user).query().nearest_to_text(match(text, column=column)), user, "_score"
            )
            for column in ("turn", "window")
        ]
        return await asyncio.gather(*words, vector_list(user, text, vector))

    async def brute_force(user: str, _: str, vector: npt.NDArray[np.float32]) -> object:
        near = np.vecdot(vectors[user], vector)  # on busy cores BLAS's threads wait for one another
        return np.argsort(-near)[:DEPTH]

    return dict(
        zip(
            METHODS,
            (warm, written, first, search_rows, three_lists, vector_list, brute_force),
            strict=True,
        )
    )


async def time_searches(
    ask: Ask,
    questions: Sequence[Question],
    embedded: Sequence[npt.NDArray[np.float32]],
    callers: int,
    seconds: float,
) -> dict[str, float]:
    """So many callers, each of whom asks again once answered."""
    took: list[float] = []
    numbers = itertools.count()
    end = time.perf_counter() + seconds

    async def caller() -> None:
        while time.perf_counter() < end:
            at = next(numbers) % len(questions)
            begun = time.perf_counter()
            await ask(questions[at].user, questions[at].text, embedded[at])
            took.append(time.perf_counter() - begun)
            await anyio.lowlevel.checkpoint()

    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(callers):
            tasks.start_soon(caller)
    return {
        "p50_ms": statistics.median(took) * 1e3,
        "p99_ms": percentile(took, 0.99) * 1e3,
        "per_s": len(took) / (time.perf_counter() - begun),
    }


async def searches(
    directory: Path, rows: int, callers: Sequence[int], seconds: float, bar: Progress
) -> dict[str, Any]:
    """By size of user, method and number of callers."""
    embedder = WordLlamaEmbedder()
    figures: dict[str, Any] = {}
    users = users_by_kind(rows)
    async with opened(
        directory, batch_ms=0.0, batch_rows=BUILT_AT_ONCE, compact_fragments=1
    ) as store:
        begun = time.perf_counter()
        questions = await build(store, users, bar)
        figures["build_s"] = time.perf_counter() - begun
        figures["rows"] = (await store.statistics()).rows

        async def there() -> LanceStore:
            return store

        task = bar.add_task(f"searching {rows:,}", total=len(users) * len(METHODS) * len(callers))
        for size, mine in questions.items():
            few = list(dict.fromkeys(question.user for question in mine))[:64]
            mine = [question for question in mine if question.user in set(few)]  # noqa: PLW2901
            embedded = list(await embedder.embed([question.text for question in mine]))
            read = {user: await store.embedded_rows(user) for user in few}
            vectors = {user: found for user, (_, found) in read.items() if found is not None}
            one = UserIndex(*read[few[0]])
            # No result is kept, and every vector is computed: a question is new each time. Room for
            # all who are asked about.
            recall = Recall(
                there, embedder, RecallConfig(cache=0, hot_mb=1024), importance_weight=0.2
            )
            figures[str(size)] = {
                "users": len(users[size]),
                "bytes_per_row": one.size_bytes / len(one),
            }
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(recall.run)
                for name, ask in asks(store, vectors, recall).items():
                    for user in few:  # what is loaded once is no part of the figures
                        await ask(user, "warm", embedded[0])
                    figures[str(size)][name] = {}
                    for number in callers:
                        figures[str(size)][name][str(number)] = await time_searches(
                            ask, mine, embedded, number, seconds
                        )
                        bar.advance(task)
                tasks.cancel_scope.cancel()
        begun = time.perf_counter()
        for n in range(500):
            await embedder.embed([f"{n} {questions[20][n % len(questions[20])].text}"])
        figures["embed_ms"] = (time.perf_counter() - begun) / 500 * 1e3
    return figures


async def measure(directory: Path, options: argparse.Namespace, bar: Progress) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, Python "
        f"{platform.python_version()}",
        "flush": await flushes(directory, options.seconds, bar),
        "search": {},
    }
    for rows in options.rows:
        there = directory / f"rows-{rows}"
        figures["search"][str(rows)] = await searches(
            there, rows, options.concurrency, options.seconds, bar
        )
        shutil.rmtree(there)
    return figures


def show(console: Console, figures: dict[str, Any], callers: Sequence[int]) -> None:
    table = Table("rows a batch", *(f"{name}: rows/s, p50 / p99 ms" for name in WRITERS))
    for size, one in figures["flush"].items():
        written = [
            f"{one[f'{name}_rows_per_s']:,.0f}, {one[f'{name}_p50_ms']:.1f} / "
            f"{one[f'{name}_p99_ms']:.1f}"
            for name in WRITERS
        ]
        table.add_row(size, *written)
    console.print(table)
    for rows, found in figures["search"].items():
        table = Table(
            f"{int(rows):,} rows",
            "of a user",
            *(f"{n} at once: p50 / p99 ms, per s" for n in callers),
        )
        for size in map(str, KINDS):
            for method in METHODS:
                cells = [found[size][method][str(n)] for n in callers]
                table.add_row(
                    method,
                    size,
                    *(
                        f"{one['p50_ms']:.2f} / {one['p99_ms']:.2f}, {one['per_s']:,.0f}"
                        for one in cells
                    ),
                )
        console.print(table)
        held = ", ".join(
            f"{found[str(size)]['bytes_per_row']:,.0f} of a user of {size}" for size in KINDS
        )
        console.print(
            f"built in {found['build_s']:.0f} s; embedding a question {found['embed_ms']:.2f} ms; "
            f"bytes a row: {held}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows",
        type=int,
        nargs="*",
        default=[10_000, 100_000],
        help="sizes of the store (10000 100000)",
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 8, 32], help="callers at once (1 8 32)"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (3)")
    parser.add_argument(
        "--directory", type=Path, help="where to build; default: the system's temporary directory"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--smoke", action="store_true", help="a few hundred rows: does it run?")
    options = parser.parse_args()
    if options.smoke:
        options.rows, options.concurrency, options.seconds = [400], [1, 2], 0.05
    with (
        tempfile.TemporaryDirectory(
            prefix="remora-long-term-", dir=options.directory, ignore_cleanup_errors=True
        ) as directory,
        Progress(console=Console(stderr=True), transient=True) as bar,
    ):
        figures = anyio.run(measure, Path(directory), options, bar)
    show(Console(), figures, options.concurrency)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
