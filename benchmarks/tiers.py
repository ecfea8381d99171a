"""What each tier costs (S2.32), and what a synopsis saves (S2.26).

    python -m benchmarks.tiers [--rows 100000] [--users 1000] [--json FILE] [--smoke]
    python -m benchmarks.tiers --savings locomo_dev.jsonl

The first is MUXI's latency table on 100 000 rows of 1 000 users, the second compares the tokens of
whole conversations with those of synopses. Configuration: the defaults with the embedded models; a
chat model's time is not remora's, so the extract writes the synopsis. Each operation is measured
one after the other on an idle runtime, and again while 32 callers load whole contexts.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.shared import texts
from remora import Config, Runtime
from remora.cli.replay import percentile, read_conversations, replay

LOADERS = 32
# operation -> what the document says, in milliseconds
SAID: dict[str, str] = {
    "buffer add": "< 1",
    "buffer search": "1-5",
    "working search": "5-20",
    "persistent search": "20-100",
    "synopsis, cached": "-",
    "synopsis, written": "500-2000",
    "full context": "50-200",
}
WORKING_ITEMS = 200


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def fill(runtime: Runtime, users: int, rows: int) -> None:
    """Sessions of twenty messages until there are `rows` of them, all flushed, every shard
    compacted; some working memory.
    """
    pool = texts(5_000)
    rng = random.Random(0)
    limiter = anyio.CapacityLimiter(64)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("appending and flushing", total=rows)

        async def converse(user: int, session: int) -> None:
            async with limiter:
                chat = runtime.session(f"user-{user}", f"session-{session}")
                await chat.append(rng.sample(pool, 20))
                await chat.flush()
                await chat.settle()
                progress.advance(bar, 20)

        async with anyio.create_task_group() as tasks:
            for number in range(rows // 20):
                tasks.start_soon(converse, number % users, number // users)
        bar = progress.add_task("learning", total=min(users, 50))
        for user in range(min(users, 50)):
            chosen = rng.sample(pool, WORKING_ITEMS)
            await runtime.user(f"user-{user}").learn(
                [f"{n} {one['content']}" for n, one in enumerate(chosen)], source="tool"
            )
            progress.advance(bar)
    await (await runtime.internals.long_term()).compact()


def operations(runtime: Runtime, users: int) -> dict[str, Callable[[int], Awaitable[object]]]:
    """What is measured; each takes the number of its repetition."""
    pool = texts(5_000)
    few = min(users, 50)

    def query(n: int) -> str:
        words = str(pool[(n * 37) % len(pool)]["content"]).split()
        return " ".join(words[n % 7 : n % 7 + 8])

    async def add(n: int) -> object:
        return await runtime.session(f"user-{n % users}", "session-0").append(pool[n % len(pool)])

    async def buffer_search(n: int) -> object:
        return await runtime.session(f"user-{n % users}", "session-1").search(query(n))

    async def working_search(n: int) -> object:
        return await runtime.user(f"user-{n % few}").search_working(query(n))

    async def persistent_search(n: int) -> object:
        return await runtime.user(f"user-{n % users}").recall(query(n))

    async def synopsis(n: int) -> object:
        return await runtime.user(f"user-{n % few}").synopsis()

    async def write_rows(n: int) -> object:
        return await runtime.user(f"user-{n % few}").synopsis(refresh=True)

    async def context(n: int) -> object:
        return await runtime.session(f"user-{n % few}", "session-2").load(
            query(n), max_tokens=4_000
        )

    return {
        "buffer add": add,
        "buffer search": buffer_search,
        "working search": working_search,
        "persistent search": persistent_search,
        "synopsis, written": write_rows,
        "synopsis, cached": synopsis,
        "full context": context,
    }


async def timed(run: Callable[[int], Awaitable[object]], repetitions: int) -> dict[str, float]:
    took = []
    for n in range(repetitions):
        begun = time.perf_counter()
        await run(n)
        took.append((time.perf_counter() - begun) * 1000)
    return {"p50_ms": statistics.median(took), "p95_ms": percentile(took, 0.95)}


async def measure(
    directory: Path, users: int, rows: int, repetitions: int, loaders: int
) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "rows": rows,
        "users": users,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    config = Config.from_dict(
        {
            "recall": {"cache": 1},
            "long_term": {"compact_interval_s": 5.0},
            "synopsis": {"shown": "always"},
        }
    )
    async with Runtime(directory, config=config) as runtime:
        begun = time.perf_counter()
        await fill(runtime, users, rows)
        figures["filled_s"] = time.perf_counter() - begun
        figures["long_term_rows"] = (await runtime.long_term_statistics()).rows
        table = operations(runtime, users)
        for name, run in table.items():
            await timed(run, 5)  # warm
            figures[name] = {"idle": await timed(run, repetitions)}
            say(f"{name}: idle {figures[name]['idle']}")
        served = 0

        async def load(place: int) -> None:
            nonlocal served
            n = place
            while True:
                await table["full context"](n)
                served += 1
                n += loaders

        async with anyio.create_task_group() as tasks:
            for place in range(loaders):
                tasks.start_soon(load, place)
            await anyio.sleep(1)
            began, already = time.perf_counter(), served
            for name, run in table.items():
                figures[name]["loaded"] = await timed(run, max(repetitions // 4, 5))
                say(f"{name}: beside {loaders} loads {figures[name]['loaded']}")
            figures["contexts_per_s"] = (served - already) / (time.perf_counter() - began)
            tasks.cancel_scope.cancel()
    return figures


async def savings(directory: Path, path: Path) -> dict[str, Any]:
    """Tokens of each user's whole history against those of the synopsis."""
    conversations = read_conversations(path)
    config = Config.from_dict({"synopsis": {"shown": "always"}})
    async with Runtime(directory, config=config) as runtime:
        await replay(runtime, conversations, concurrency=8, progress=lambda _: None)
        found = []
        for user in conversations.users:
            counts = await runtime.counts(user)
            synopsis = await runtime.user(user).synopsis()
            found.append((user, counts.tokens, synopsis.tokens))
    full, short = sum(tokens for _, tokens, _ in found), sum(tokens for _, _, tokens in found)
    return {
        "users": [
            {"user": user, "full_tokens": tokens, "synopsis_tokens": of}
            for user, tokens, of in found
        ],
        "saving": 1 - short / full,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=100_000, help="messages in long-term memory (100000)"
    )
    parser.add_argument("--users", type=int, default=1_000, help="users that they belong to (1000)")
    parser.add_argument("--repetitions", type=int, default=200, help="of each operation (200)")
    parser.add_argument(
        "--savings",
        type=Path,
        metavar="FILE",
        help="conversations to measure a synopsis on, instead",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--smoke", action="store_true", help="a few hundred rows: does it run?")
    arguments = parser.parse_args()
    loaders = LOADERS
    if arguments.smoke:
        arguments.rows, arguments.users, arguments.repetitions = 400, 10, 5
        loaders = 4
    if arguments.savings and not arguments.savings.is_file():
        say(f"skipped: there is no {arguments.savings}")
        return 0
    console = Console()
    with tempfile.TemporaryDirectory(
        prefix="remora-tiers-", ignore_cleanup_errors=True
    ) as directory:
        if arguments.savings:
            figures = anyio.run(savings, Path(directory), arguments.savings)
            table = Table("user", "whole history, tokens", "synopsis, tokens", "saving")
            for one in figures["users"]:
                saved = 1 - one["synopsis_tokens"] / one["full_tokens"]
                table.add_row(
                    one["user"],
                    f"{one['full_tokens']:,}",
                    str(one["synopsis_tokens"]),
                    f"{saved:.1%}",
                )
            table.add_row("all", "", "", f"{figures['saving']:.1%}")
        else:
            figures = anyio.run(
                measure,
                Path(directory),
                arguments.users,
                arguments.rows,
                arguments.repetitions,
                loaders,
            )
            table = Table(
                "operation",
                "the document, ms",
                "idle p50",
                "idle p95",
                f"beside {loaders} loads p50",
                "p95",
            )
            for name, said in SAID.items():
                idle, loaded = figures[name]["idle"], figures[name]["loaded"]
                cells = [idle["p50_ms"], idle["p95_ms"], loaded["p50_ms"], loaded["p95_ms"]]
                table.add_row(name, said, *(f"{cell:.2f}" for cell in cells))
    console.print(table)
    if not arguments.savings:
        console.print(
            f"{figures['contexts_per_s']:.0f} contexts/s beside the measured operations; "
            f"{figures['long_term_rows']} rows"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
