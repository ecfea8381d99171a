"""Resident memory while the data stays the same size.

    python -m benchmarks.memory_soak [--minutes 60] [--rate 60] [--seed 1] [--dir DIR]
                                     [--json FILE] [--plot FILE]
    python -m benchmarks.memory_soak --drawn-from FILE --plot FILE

Twelve users append, load with and without a query, recall, remember, learn, clear and read
histories, at 60 operations a second. Each keeps its last five sessions: older ones are forgotten,
and after twelve sessions the user is forgotten and begins anew. So from the second minute on the
directory has one size, while sessions are erased, tables rewritten and versions replaced without
end. Configuration is the default, but for a small buffer and a short idle time, which make sessions
be summarized and leave memory all the while.

Every five seconds the process is measured; a line per minute shows the medians. A run of more than
`SETTLED` minutes fails if its last minute is more than a tenth above that minute. `--plot` draws
the curve as SVG (needs the extra ``plots``).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.shared import resident, run
from remora import Config, Runtime
from remora.errors import RemoraError

__all__ = ["SAMPLE_S", "SETTLED", "MemorySoak", "Minute", "draw", "growth", "malloc_info"]

SETTLED = 10
"""The minute that the last one is compared with."""
MOST_GROWTH = 1.1
_USERS = 12
_SESSIONS = 5
_SESSIONS_OF_A_LIFE = 12
SAMPLE_S = 5.0
_CONFIG = Config.from_dict({"activation": {"idle_s": 30.0}, "buffer": {"token_limit": 4_000}})
_ENDINGS = ("rn", "st", "lk", "mp", "nd", "rt", "sk", "ft", "lm", "pt", "xt")
_WORDS = [a + b + c for a in "bdklm" for b in "aeiou" for c in _ENDINGS]


class Minute(msgspec.Struct, frozen=True):
    """Medians of one minute.

    Attributes:
        minute: from 1.
        operations: so far.
        rss_mb: resident memory.
        in_use_mb: of it, what malloc has given out; 0 where the C library does not tell.
        free_mb: what malloc holds and has not given out; 0 where the C library does not tell.
        data_mb: all files of the directory.
        descriptors: open ones.
        threads: of the process.
    """

    minute: int
    operations: int
    rss_mb: float
    in_use_mb: float
    free_mb: float
    data_mb: float
    descriptors: int
    threads: int


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def malloc_info() -> tuple[float, float] | None:
    """What malloc has in use, and what it holds free, in MB; None where it does not tell."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    mallinfo2.restype = _MallocInfo
    found = mallinfo2()
    return (found.uordblks + found.hblkhd) / 2**20, found.fordblks / 2**20


def _bytes_of(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):  # it was replaced meanwhile
                total += (Path(root) / name).stat().st_size
    return total


class MemorySoak:
    """Users of constant data, and what the process held meanwhile.

    Args:
        directory: of the runtime.
        rate: operations a second.
        seed: of what is drawn.
        told: told each minute.

    Attributes:
        minutes: the curve.
        refused: errors that callers got, by name.
        operations: calls so far.
    """

    def __init__(
        self,
        directory: Path,
        *,
        rate: float,
        seed: int,
        told: Callable[[Minute], None] = lambda _: None,
    ) -> None:
        self.minutes: list[Minute] = []
        self.refused: Counter[str] = Counter()
        self._directory = directory
        self._pause_s = _USERS / rate
        self._seed = seed
        self._told = told
        self.operations = 0

    async def run(self, minutes: float) -> None:
        """Let the users talk for so long."""
        async with (
            Runtime(self._directory, config=_CONFIG) as runtime,
            anyio.create_task_group() as tasks,
        ):
            for number in range(_USERS):
                tasks.start_soon(self._talk, runtime, number)
            await self._measure(minutes)
            tasks.cancel_scope.cancel()

    async def _measure(self, minutes: float) -> None:
        begun, samples = time.monotonic(), list[tuple[float, ...]]()
        while time.monotonic() < begun + minutes * 60:
            await anyio.sleep(SAMPLE_S)
            descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
            data = await anyio.to_thread.run_sync(_bytes_of, self._directory)
            allocated = malloc_info() or (0.0, 0.0)
            samples.append((resident() / 2**20, *allocated, data / 2**20, descriptors, threads))
            number = len(self.minutes) + 1
            if time.monotonic() >= begun + number * 60:
                rss, in_use, free, size, files, count = map(
                    statistics.median, zip(*samples, strict=True)
                )
                self.minutes.append(
                    Minute(number, self.operations, rss, in_use, free, size, int(files), int(count))
                )
                samples.clear()
                self._told(self.minutes[-1])

    async def _talk(self, runtime: Runtime, number: int) -> None:
        rng, user = random.Random(self._seed * 1_000 + number), f"user-{number}"
        while True:
            kept: deque[str] = deque()
            for life in range(_SESSIONS_OF_A_LIFE):
                name = f"session-{life}"
                for call in self._turns(runtime, user, name, rng):
                    await self._do(rng, call)
                kept.append(name)
                if len(kept) > _SESSIONS:
                    await self._do(rng, runtime.session(user, kept.popleft()).forget)
            await self._do(rng, runtime.user(user).forget)

    def _turns(
        self, runtime: Runtime, user: str, name: str, rng: random.Random
    ) -> Iterator[Callable[[], Awaitable[Any]]]:
        session, person = runtime.session(user, name), runtime.user(user)
        for _ in range(rng.randint(10, 40)):
            turn: list[dict[str, Any]] = [
                {"role": "user", "content": _text(rng, rng.randint(5, 60))},
                {"role": "assistant", "content": _text(rng, rng.randint(5, 120))},
            ]
            yield partial(session.append, turn)
            what = rng.random()
            if what < 0.3:
                yield lambda: session.load(max_tokens=4_000)
            elif what < 0.5:
                yield lambda: session.load(query=_text(rng, 4), max_tokens=4_000)
            elif what < 0.6:
                yield lambda: person.recall(_text(rng, 3), limit=5)
            elif what < 0.62:
                yield session.clear
            elif what < 0.65:
                yield lambda: person.remember(_text(rng, 8))
            elif what < 0.68:
                yield lambda: person.learn(_text(rng, 8))
            elif what < 0.70:
                yield session.history
        yield session.flush

    async def _do(self, rng: random.Random, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            await call()
        except RemoraError as e:
            self.refused[type(e).__name__] += 1
        self.operations += 1
        await anyio.sleep(self._pause_s * rng.uniform(0.5, 1.5))


def _text(rng: random.Random, words: int) -> str:
    return f"{' '.join(rng.choices(_WORDS, k=words))}. I like {rng.choice(_WORDS)}."


def growth(minutes: list[Minute]) -> float:
    """The last minute's resident memory by that of minute `SETTLED`; 1.0 before that minute."""
    if len(minutes) <= SETTLED:
        return 1.0
    return minutes[-1].rss_mb / minutes[SETTLED - 1].rss_mb


def draw(minutes: list[Minute], file: Path) -> None:
    """The curve as SVG, the same bytes for the same figures."""
    import matplotlib as mpl  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "remora", "svg.fonttype": "none", "font.size": 8}):
        picture = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = picture.add_subplot()
        at = [one.minute for one in minutes]
        for name, label in (
            ("rss_mb", "resident"),
            ("in_use_mb", "malloc: in use"),
            ("free_mb", "malloc: free"),
            ("data_mb", "the directory's files"),
        ):
            axes.plot(at, [getattr(one, name) for one in minutes], label=label)
        if len(minutes) > SETTLED:
            settled = minutes[SETTLED - 1].rss_mb
            label = f"minute {SETTLED} and a tenth"
            axes.axhspan(settled, settled * MOST_GROWTH, alpha=0.15, color="C0", label=label)
        axes.set(xlabel="minute", ylabel="MB", ylim=(0, None), title="Memory with constant data")
        axes.grid(visible=True, linewidth=0.3)
        picture.legend(loc="outside right upper", frameon=False)
        picture.savefig(file, metadata={"Date": None})


_HEADS = ("operations", "rss_mb", "in_use_mb", "free_mb", "data_mb", "descriptors", "threads")


def _line(minute: Minute, minutes: float) -> str:
    figures = " ".join(f"{getattr(minute, name):>{len(name) + 1},.0f}" for name in _HEADS)
    return f"{minute.minute:>3}/{minutes:<3g} {figures}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=60.0, help="operations a second (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the directory is made (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the curve there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curve there, as SVG")
    parser.add_argument("--drawn-from", type=Path, metavar="FILE", help="draw this JSON's curve")
    options = parser.parse_args()
    if options.drawn_from:
        if not options.plot:
            parser.error("--drawn-from needs --plot")
        report = msgspec.json.decode(options.drawn_from.read_bytes())
        draw(msgspec.convert(report["minutes"], list[Minute]), options.plot)
        return
    print(f"{'minute':<7} " + " ".join(f"{name:>{len(name) + 1}}" for name in _HEADS), flush=True)
    with tempfile.TemporaryDirectory(prefix="remora-memory-", dir=options.dir) as base:
        soak = MemorySoak(
            Path(base) / "memory",
            rate=options.rate,
            seed=options.seed,
            told=lambda minute: print(_line(minute, options.minutes), flush=True),
        )
        run(soak.run, options.minutes, loop="asyncio")
    if options.json:
        report = {
            "seed": options.seed,
            "rate": options.rate,
            "refused": dict(soak.refused),
            "minutes": soak.minutes,
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if options.plot:
        draw(soak.minutes, options.plot)
    print(f"callers were refused: {dict(soak.refused) or 'never'}")
    if (grown := growth(soak.minutes)) > MOST_GROWTH:
        sys.exit(f"memory grew to {grown:.2f} times that of minute {SETTLED}")
    if len(soak.minutes) > SETTLED:
        print(f"the last minute is {grown:.2f} times minute {SETTLED}")


if __name__ == "__main__":
    main()
