"""Bytes of memory that a session takes: live and idle, and passivated.

Sessions of 20 messages of 300 bytes, ten per user, are appended one session at a time, and live,
idle, in memory. Then the runtime's clock is moved past `activation.idle_s`, and all are passivated.
Measured is resident memory of the process, after garbage collection and `malloc_trim`, minus what
it was before the first session, divided by their number. Before that first look 100 sessions have
come and gone, so that what is made once (code, tokenizer, tables) is there, and memory has been the
same for five seconds: long-term memory makes its indices, 30 MB, a while after its first rows.

Allocators keep much of what they once had: `bytes_kept_by_allocators` is what is left by the
sessions of this one round. It is paid once, for the most that ever lived at once. So the cost of
passivated sessions is measured while as many others live: a second round is followed by three more,
and memory with the last round live, minus memory with the second live, is divided by the number of
those passivated in between. A negative result counts as 0. `objects_passivated` is exact: blocks of
Python's allocator, over the same rounds.

SQLite's two page caches are bounded (64 MB each) and belong to no session: here they are bounded to
1 MB, and filled by those first 100 sessions. The rest is default, without long-term memory. The
limit is the bytes of the messages as remora keeps them, msgpack of the chat format, without
anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import CONFIG, MovableClock, in_turn, messages, progress, settled_memory
from remora import Config, Runtime
from remora.storage.sqlite.journal import SqliteJournal

NAME = "memory"
TITLE = "Memory of a session"
WORK = (
    "Resident bytes that a live, idle session of 20 messages of 300 bytes adds, and the bytes that "
    "remain after passivation. *limit* is the bytes of the encoded messages."
)
CONTESTANTS = ("remora", "remora-bare", "limit")
FASTER = {"remora-bare": "it has no long-term memory"}

_MESSAGES = 20
_WARM = 100
_LOOKS = 40  # between two moves of the clock: 2 s
_SAME_BYTES, _SAME_LOOKS, _MOST_LOOKS = 1_000_000, 5, 60


def cases(smoke: bool) -> Sequence[Case]:
    if smoke:
        return [Case(NAME, "500", {"sessions": 500, "rounds": 1})]
    return [
        Case(NAME, "10 000", {"sessions": 10_000, "rounds": 3}, limit_s=300.0),
        Case(NAME, "100 000", {"sessions": 100_000, "rounds": 0}, limit_s=400.0),
    ]


class _Bounded(SqliteJournal):
    """The journal, with small page caches."""

    async def bound(self) -> None:
        for connection in (self._writer, self._reader):
            await connection.execute("PRAGMA cache_size = -1024")


async def _steady_memory(pause_s: float) -> int:
    looks: list[int] = []
    while len(looks) < _MOST_LOOKS:
        looks.append(settled_memory())
        last = looks[-_SAME_LOOKS:]
        if len(last) == _SAME_LOOKS and max(last) - min(last) < _SAME_BYTES:
            break
        await anyio.sleep(pause_s)
    return looks[-1]


async def _remora(
    directory: Path, count: int, rounds: int, seed: int, config: Config, pause_s: float
) -> dict[str, float]:
    pool, clock = messages(seed), MovableClock()
    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)

    async def opened() -> SqliteJournal:
        journal = await _Bounded.open(directory / "journal.db", durability="power")
        assert isinstance(journal, _Bounded)
        await journal.bound()
        return journal

    async with Runtime(directory, config=config, journal=opened, clock=clock) as runtime:
        if config.long_term.enabled:
            await runtime.internals.long_term()

        async def make(number: int) -> None:
            start = number % (len(pool) - _MESSAGES)
            await runtime.session(f"{prefix}-{number // 10}", f"session-{number}").append(
                pool[start : start + _MESSAGES]
            )
            if number % 10_000 == 9_999:
                progress(f"{number + 1} sessions of {count}")

        async def wait_until_passivated() -> None:
            looks = 0
            while runtime.statistics().registry.live:  # a sweep says nothing to anybody
                if looks % _LOOKS == 0:  # a job that ends after a move has used its actor since
                    clock.move(CONFIG.activation.idle_s * 1.2)
                looks += 1
                await anyio.sleep(0.05)
            await runtime.internals.journal.checkpoint()

        prefix = "warm"
        await in_turn(_WARM, 256, make)
        await wait_until_passivated()
        before = await _steady_memory(pause_s)
        prefix = "user"
        await in_turn(count, 256, make)
        await runtime.internals.journal.checkpoint()
        live = await _steady_memory(pause_s)
        found = {
            "bytes_live": (live - before) / count,
            "of_allowance": (live - before) / count / (2 * _encoded(pool) + 2_048),
            "resident_mb": live / 1e6,
        }
        if config.long_term.enabled:  # its users' actors are live as well
            return found
        assert runtime.statistics().registry.live == count
        await wait_until_passivated()
        left = settled_memory()
        looks = []
        for number in range(rounds + bool(rounds)):
            prefix = f"other-{number}"
            await in_turn(count, 256, make)
            looks.append((settled_memory(), sys.getallocatedblocks()))
            await wait_until_passivated()
    found["bytes_kept_by_allocators"] = max(left - before, 0) / count
    if looks:
        grown, more = (
            max(last - first, 0) / count / rounds
            for first, last in zip(looks[0], looks[-1], strict=True)
        )
        found |= {"bytes_passivated": grown, "objects_passivated": more}
    return found


def _encoded(pool: Sequence[dict[str, Any]]) -> float:
    """Bytes of a session's messages."""
    return sum(len(msgspec.msgpack.encode(message)) for message in pool) / len(pool) * _MESSAGES


def measure(
    contestant: str,
    case: Case,
    directory: Path,
    seed: int,
    smoke: bool,
) -> dict[str, float]:
    if contestant == "limit":
        return {"bytes_live": _encoded(messages(seed))}
    config = CONFIG if contestant == "remora-bare" else Config()
    sessions, rounds = int(case.sizes["sessions"]), int(case.sizes["rounds"])
    pause_s = 0.05 if smoke else 1.0
    return anyio.run(_remora, directory, sessions, rounds, seed, config, pause_s)
