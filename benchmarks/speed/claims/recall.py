"""Recall of a user whose memories were read before.

*Rows*: a user's memory has so many messages of real conversations, and real questions of 20 to 450
characters are asked of it, none of which was asked before: of the files that `--data` names, or
where that is missing, of stretches of Python's manual in a smoke run alone.

*Contexts*: `Session.load` with a question, by 32 callers at a time, each of a user with 200 indexed
messages, in the default install.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio

from benchmarks.speed.claim import Case, Skipped
from benchmarks.speed.scale import in_turn, messages
from benchmarks.speed.text import percentile, texts
from remora import Config, Runtime

NAME = "recall"
TITLE = "Warm recall"
WORK = (
    "Each question is new, and the user's messages are in memory. `after_append` is the factor by "
    "which `cpu_us` grows if a message was appended before each question. *contexts* are loads by "
    "32 callers, each of a user with 200 messages."
)
CONTESTANTS = ("remora",)
FASTER: dict[str, str] = {}

_A_USER = 200
_CALLERS = 32
_A_SESSION = 100
_SHORTEST, _LONGEST = 20, 450  # characters of a question


def cases(smoke: bool) -> Sequence[Case]:
    asked, box_s = (5, 0.3) if smoke else (200, 5.0)
    return [
        *(
            Case(NAME, f"{rows:,} rows".replace(",", " "), {"rows": rows, "asked": asked})
            for rows in ((200,) if smoke else (200, 2_000))
        ),
        Case(
            NAME,
            "contexts",
            {"callers": 4 if smoke else _CALLERS, "box_s": box_s},
            limit_s=200.0,
            least_repeats=1 if smoke else 7,
        ),
    ]


def _conversations(seed: int, smoke: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages, and questions about them."""
    if smoke:
        return messages(seed, 400), texts(seed + 1, 400, 60)
    files = [Path(one) for one in os.environ.get("SPEED_DATA", "").split(os.pathsep) if one]
    if not files:
        raise Skipped("no conversations: --data FILE, as benchmarks.recall reads them")
    said: list[dict[str, Any]] = []
    asked: list[str] = []
    for row in _rows_in(files):
        if question := row.get("question"):
            if _SHORTEST <= len(question) <= _LONGEST:
                asked.append(question)
        elif text := row.get("content") or row.get("text"):
            said.append({"role": row.get("role", "user"), "content": text})
    return said, asked


def _rows_in(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


async def _rows(
    directory: Path, rows: int, asked: int, said: list[dict[str, Any]], questions: list[str]
) -> dict[str, float]:
    config = Config.from_dict({"recall": {"cache": 0}})
    async with Runtime(directory, config=config) as runtime:
        user = runtime.user("user")
        sessions = [user.session(f"chat-{number}") for number in range(rows // _A_SESSION)]
        for number, session in enumerate(sessions):
            await session.append(said[number * _A_SESSION : (number + 1) * _A_SESSION])
            await session.flush()
        await runtime.settle()
        next_question = iter(questions * 2)
        for _ in range(20):
            await user.recall(next(next_question), limit=16)
        took: list[float] = []
        cpu: list[float] = []
        for appends in (False, True):
            before = len(cpu)
            for number in range(asked):
                if appends:
                    await sessions[-1].append(said[(rows + number) % len(said)])
                question = next(next_question)
                cpu_s, begun = time.process_time(), time.perf_counter()
                assert await user.recall(question, limit=16)
                cpu.append(time.process_time() - cpu_s)
                if not appends:
                    took.append(time.perf_counter() - begun)
            assert len(cpu) == before + asked
    warm, after = cpu[:asked], cpu[asked:]
    return {
        "cpu_us": sum(warm) / asked * 1e6,
        "p50_us": percentile(took, 0.5) * 1e6,
        "p99_us": percentile(took, 0.99) * 1e6,
        "after_append": sum(after) / sum(warm),
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
    smoke: bool,
) -> dict[str, float]:
    sizes = case.sizes
    if case.name == "contexts":
        return anyio.run(_contexts, directory, int(sizes["callers"]), sizes["box_s"], seed)
    said, questions = _conversations(seed, smoke)
    return anyio.run(_rows, directory, int(sizes["rows"]), int(sizes["asked"]), said, questions)
