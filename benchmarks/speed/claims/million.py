"""A million sessions of a hundred thousand users, a hundred thousand of them live at once.

Made through `Session.append`, by 512 tasks: every session begins with one message of 300 bytes or
with two, and every hundredth with fifty, in one append each, durable by `synchronous=FULL`.
Sessions live in memory up to a bound a little over 100 000; the longest idle leave it. At the end,
with that many live: appends and loads by 64 callers on live sessions, loads of sessions that are
not live, one at a time; then the runtime is closed and opened again. Without long-term memory.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import in_turn, messages, progress, resident
from benchmarks.speed.text import percentile
from remora import Config, Runtime

NAME = "million"
TITLE = "A million sessions"
WORK = (
    "1 000 000 sessions of 100 000 users, of one or two messages of 300 bytes, every hundredth of "
    "fifty; 100 000 live at once. "
    "Then appends and loads on live sessions by 64 callers, loads of passivated ones one at a "
    "time, and a new start."
)
CONTESTANTS = ("remora",)
FASTER: dict[str, str] = {}

_SESSIONS_A_USER = 10
_LONG = 50
_AT_ONCE = 512
_CALLERS = 64


def cases(smoke: bool) -> Sequence[Case]:
    count = 2_000 if smoke else 1_000_000
    return [
        Case(
            NAME,
            f"{count:,}".replace(",", " "),
            {"sessions": count, "live": count // 10},
            limit_s=900.0,
        )
    ]


def _name(number: int) -> tuple[str, str]:
    return f"user-{number // _SESSIONS_A_USER}", f"session-{number}"


async def _measure(directory: Path, case: Case, seed: int) -> dict[str, float]:
    sessions, live = int(case.sizes["sessions"]), int(case.sizes["live"])
    pool, rng = messages(seed), random.Random(seed)
    # What leaves when the bound is reached is a twentieth of it.
    config = Config.from_dict(
        {"long_term": {"enabled": False}, "activation": {"max_live": live * 106 // 100}}
    )
    found: dict[str, float] = {}
    async with Runtime(directory, config=config) as runtime:
        begun = time.perf_counter()

        async def make(number: int) -> None:
            count = _LONG if number % 100 == 99 else 1 + number % 2
            start = number % (len(pool) - _LONG)
            await runtime.session(*_name(number)).append(pool[start : start + count])
            if number % 50_000 == 49_999:
                progress(
                    f"{number + 1} sessions, {resident() / 1e6:.0f} MB, "
                    f"{time.perf_counter() - begun:.0f} s"
                )

        await in_turn(sessions, _AT_ONCE, make)
        found["made_per_s"] = sessions / (time.perf_counter() - begun)
        found["live"] = runtime.statistics().registry.live
        recent = [rng.randrange(sessions - live * 9 // 10, sessions) for _ in range(5_000)]
        early = [rng.randrange(sessions // 2) for _ in range(500)]
        found |= await _time_work(
            "append", recent, _CALLERS, lambda n: runtime.session(*_name(n)).append(pool[0])
        )
        found |= await _time_work(
            "load", recent, _CALLERS, lambda n: runtime.session(*_name(n)).load()
        )
        found |= await _time_work(
            "activation", early, 1, lambda n: runtime.session(*_name(n)).load()
        )
        found["resident_mb"] = resident() / 1e6
        found["sessions_done"] = (await runtime.counts()).sessions
        begun = time.perf_counter()
    found["close_s"] = time.perf_counter() - begun
    found["disk_mb"] = sum(file.stat().st_size for file in directory.iterdir()) / 1e6  # noqa: ASYNC240 - nothing waits
    begun = time.perf_counter()
    async with Runtime(directory, config=config):
        found["open_s"] = time.perf_counter() - begun
    return found


async def _time_work(
    what: str, numbers: Sequence[int], at_once: int, work: Callable[[int], Awaitable[object]]
) -> dict[str, float]:  # fmt: skip
    """Latencies of that, for each of these sessions."""
    took: list[float] = []

    async def one(place: int) -> None:
        begun = time.perf_counter()
        await work(numbers[place])
        took.append(time.perf_counter() - begun)

    await in_turn(len(numbers), at_once, one)
    return {
        f"{what}_p50_us": percentile(took, 0.5) * 1e6,
        f"{what}_p99_us": percentile(took, 0.99) * 1e6,
    }


def measure(
    contestant: str,  # noqa: ARG001
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    return anyio.run(_measure, directory, case, seed)
