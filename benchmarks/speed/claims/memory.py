"""Bytes of memory that a session takes: live and idle, and passivated.

Sessions of 20 messages of 300 bytes, ten of each user, are appended a session at a time, and live, idle, in memory. Then the
runtime's clock is moved past `activation.idle_s`, and all are passivated. What is measured is resident memory of the process,
after garbage collection and `malloc_trim`, less what it was before the first of them, by their number. Before that first look
500 sessions have come and gone, so that what is made once (code, tokenizer, tables) is there already.

Allocators keep much of what they once had, for what comes next. So a passivated session is measured by a second round: as many
other sessions live and are passivated, and what memory has grown by from the end of the first round to the end of the second is
theirs. What the first round left, by its sessions, is `bytes_kept_by_allocators`: paid once for the most that ever lived at
once. Less than nothing counts as 0.

SQLite's two page caches are bounded (64 MB each), and are no session's: here they are bounded to 1 MB, and filled by those first
500 sessions. Everything else is at its default, without long-term memory. The limit is the bytes of the messages as remora keeps
them, msgpack of the chat format, and nothing around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec

from benchmarks.speed.claim import Bar, Case
from benchmarks.speed.scale import CONFIG, MovableClock, in_turn, messages, progress, settled_memory
from remora import Runtime
from remora.storage.journal import SqliteJournal

NAME = "memory"
TITLE = "Memory of a session"
WORK = (
    "Resident bytes that a live, idle session of 20 messages of 300 bytes adds, and what is left of it once all are passivated; "
    "SQLite's page caches, which are bounded and no session's, are held at 1 MB. *limit* is the bytes of the encoded messages; "
    "`of_allowance` is the live bytes by twice that and 2 kB. Passivated: by how much memory grows when as many others come and "
    "go."
)
CONTESTANTS = ("remora", "limit")

_MESSAGES = 20
_WARM = 500


def cases(smoke: bool) -> Sequence[Case]:
    counts = (1_000,) if smoke else (10_000, 100_000)
    return [Case(NAME, f"{count:,}".replace(",", " "), {"sessions": count}, limit_s=400.0) for count in counts]


BARS = tuple(
    bar
    for name in ("10 000", "100 000")
    for bar in (
        Bar(name, "live: ≤ 2 times the encoded bytes + 2 kB", "of_allowance", most=1.0),
        Bar(name, "passivated: ≤ 200 bytes", "bytes_passivated", most=200.0),
    )
)


class _Bounded(SqliteJournal):
    """The journal, with small page caches."""

    async def bound(self) -> None:
        for connection in (self._writer, self._reader):
            await connection.execute("PRAGMA cache_size = -1024")


async def _remora(directory: Path, count: int, seed: int) -> dict[str, float]:
    pool, clock = messages(seed), MovableClock()
    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)

    async def opened() -> SqliteJournal:
        journal = await _Bounded.open(directory / "journal.db", durability="power")
        assert isinstance(journal, _Bounded)
        await journal.bound()
        return journal

    async with Runtime(directory, config=CONFIG, journal=opened, clock=clock) as runtime:

        async def make(number: int) -> None:
            start = number % (len(pool) - _MESSAGES)
            await runtime.session(f"{prefix}-{number // 10}", f"session-{number}").append(pool[start : start + _MESSAGES])
            if number % 10_000 == 9_999:
                progress(f"{number + 1} sessions of {count}")

        async def passivated() -> None:
            clock.ahead_s += CONFIG.activation.idle_s * 1.2
            while runtime.statistics().directory.live:  # noqa: ASYNC110 - a sweep says nothing to anybody
                await anyio.sleep(0.05)
            await runtime.journal.checkpoint()

        prefix = "warm"
        await in_turn(_WARM, 256, make)
        await passivated()
        before = settled_memory()
        prefix = "user"
        await in_turn(count, 256, make)
        await runtime.journal.checkpoint()
        live = settled_memory()
        assert runtime.statistics().directory.live == count
        await passivated()
        first = settled_memory()
        prefix = "other"
        await in_turn(count, 256, make)
        await passivated()
        second = settled_memory()
    bytes_live = (live - before) / count
    return {
        "bytes_live": bytes_live,
        "of_allowance": bytes_live / (2 * _encoded(pool) + 2_048),
        "bytes_passivated": max(second - first, 0) / count,
        "bytes_kept_by_allocators": max(first - before, 0) / count,
        "resident_mb": live / 1e6,
    }


def _encoded(pool: Sequence[dict[str, str]]) -> float:
    """Bytes of a session's messages."""
    return sum(len(msgspec.msgpack.encode(message)) for message in pool) / len(pool) * _MESSAGES


def measure(contestant: str, case: Case, directory: Path, seed: int, smoke: bool) -> dict[str, float]:  # noqa: ARG001
    if contestant == "limit":
        return {"bytes_live": _encoded(messages(seed))}
    return anyio.run(_remora, directory, int(case.sizes["sessions"]), seed)
