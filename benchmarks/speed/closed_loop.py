"""The closed loop of `append` and `turn`: each caller waits for its operation before the next.

Each session has one caller. Before the clock starts, sessions are opened and get their first
messages. A session that is not ready within the preparation's time limit takes no part; the figures
then say how many did.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.claim import Skipped
from benchmarks.speed.stores import opened
from benchmarks.speed.stores.store import Store
from benchmarks.speed.text import percentile, texts

__all__ = ["Operation", "measured", "ran"]

Operation = Callable[[Store, str, Callable[[], str]], Awaitable[int]]
"""Does the work once in a session, taking texts from an endless supply; returns how many messages
that stored.
"""

_AT_ONCE = 16
_LAG_S = 0.001


def ran(main: Callable[[], Any], contestant: str) -> Any:
    """Run it on asyncio's own loop, or on uvloop where the contestant's name says so."""
    if not contestant.endswith("uvloop"):
        return asyncio.run(main())
    try:
        import uvloop  # noqa: PLC0415
    except ImportError as e:
        raise Skipped("uvloop is not installed") from e
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


async def measured(
    contestant: str,
    directory: Path,
    operation: Operation,
    *,
    sessions: int,
    seed: int,
    box_s: float,
    prepare_s: float,
    filled: int,
    warm_s: float = 0.0,
) -> dict[str, float]:
    """Prepare, run for a while, close, count.

    Args:
        contestant: one of `benchmarks.speed.stores`.
        directory: empty.
        operation: what callers do over and over.
        sessions: how many, each with one caller.
        seed: of the texts.
        box_s: no caller begins anything after so many seconds; what was begun is waited for.
        prepare_s: time box of the preparation.
        filled: messages that each session has before.
        warm_s: for so many seconds callers do the same before anything is measured; then what they
            have left to be done in the background is waited for at the end.

    Returns:
        ``per_s``, ``p50_ms`` and ``p99_ms`` of an operation, ``cpu_us_per`` (processor time of the
        process and of its server by operation), ``lag_p99_ms`` (how late a task wakes that sleeps 1
        ms), ``rows_per_commit`` where it is known. With `warm_s` also ``settled_cpu_us_per`` and
        ``apart_cpu_us_per`` (processor time of this process, and of others that it started, by
        operation, from the first until nothing is left to do), ``rss_mb`` (the most memory of this
        process) and ``behind_s`` (how long work in the background goes on when the last caller has
        ended); and where they are not as they should be ``sessions_done``, ``errors`` (operations
        that raised) and ``lost`` (messages that were acknowledged and are not there).
    """
    pool = texts(seed)
    numbers = itertools.count()

    def text() -> str:
        return pool[next(numbers) % len(pool)]

    store = await opened(contestant, directory)
    closed = False
    try:
        ready = await _prepare_sessions(
            store, [f"s{n}" for n in range(sessions)], text, filled, prepare_s
        )
        latencies: list[float] = []
        errors: list[Exception] = []
        acknowledged = filled * len(ready)

        async def caller(session: str, end: float) -> None:
            nonlocal acknowledged
            while (begun := time.perf_counter()) < end:
                try:
                    stored = await operation(store, session, text)
                except Exception as e:
                    errors.append(e)
                else:
                    latencies.append(time.perf_counter() - begun)
                    acknowledged += stored
                # What never waits would otherwise let nobody else begin.
                await asyncio.sleep(0)

        async def call_for(seconds: float) -> None:
            end = time.perf_counter() + seconds
            await asyncio.gather(*(caller(session, end) for session in ready))

        first, cpu_of_all = acknowledged, _cpu_s(store)
        if warm_s:
            await call_for(warm_s)
            latencies.clear()
        before = acknowledged
        lags: list[float] = []
        watch = asyncio.create_task(_watch(lags))
        await asyncio.sleep(0)
        commits, cpu, begun = store.commits, _cpu_s(store), time.perf_counter()
        await call_for(box_s)
        took, cpu = time.perf_counter() - begun, _cpu_s(store) - cpu
        commits = None if commits is None or store.commits is None else store.commits - commits
        watch.cancel()
        if warm_s:
            ended = time.perf_counter()
            await store.settle()
            behind_s = time.perf_counter() - ended
            cpu_of_all = _cpu_s(store) - cpu_of_all
        closed = True
        stored = await store.close()
    finally:
        if not closed:
            await store.close()
    if not latencies:
        raise errors[0] if errors else TimeoutError("nothing was done within the time box")
    done = len(latencies)
    figures: dict[str, float] = {}
    if warm_s:
        each = 1e6 / (acknowledged - first)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)  # which ended with the store
        figures["settled_cpu_us_per"] = cpu_of_all * each
        figures["apart_cpu_us_per"] = (children.ru_utime + children.ru_stime) * each
    figures |= {
        "per_s": done / took,
        "p50_ms": percentile(latencies, 0.5) * 1e3,
        "p99_ms": percentile(latencies, 0.99) * 1e3,
        "cpu_us_per": cpu / done * 1e6,
        "lag_p99_ms": percentile(lags, 0.99) * 1e3,
    }
    if commits:
        figures["rows_per_commit"] = (acknowledged - before) / commits
    if warm_s:
        figures["rss_mb"] = _most_mb()
        figures["behind_s"] = behind_s
    if len(ready) < sessions:
        figures["sessions_done"] = len(ready)
    if errors:
        figures["errors"] = len(errors)
    if stored < acknowledged:
        figures["lost"] = acknowledged - stored
    return figures


async def _prepare_sessions(
    store: Store, sessions: Sequence[str], text: Callable[[], str], filled: int, prepare_s: float
) -> list[str]:
    """Sessions that are filled within the time box.

    Raises:
        Exception: not one of them could be.
    """
    ready: list[str] = []
    errors: list[Exception] = []
    end = time.perf_counter() + prepare_s

    async def fill(session: str) -> None:
        try:
            await store.fill(session, [text() for _ in range(filled)])
            ready.append(session)
        except Exception as e:
            errors.append(e)

    await fill(sessions[0])  # alone: some libraries make their tables here
    for at in range(1, len(sessions), _AT_ONCE):
        if time.perf_counter() >= end:
            break
        await asyncio.gather(*(fill(session) for session in sessions[at : at + _AT_ONCE]))
    if not ready:
        raise errors[0]
    # What is still done in the background when the time is up goes on beside what is measured.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(store.settle(), max(end - time.perf_counter(), 0.1))
    return ready


async def _watch(lags: list[float]) -> None:
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(_LAG_S)
        lags.append(time.perf_counter() - begun - _LAG_S)


def _most_mb() -> float:
    """The most memory of this process; of `getrusage` it would be that of who started it."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def _cpu_s(store: Store) -> float:
    mine = resource.getrusage(resource.RUSAGE_SELF)
    return mine.ru_utime + mine.ru_stime + (_cpu_s_of(store.server) if store.server else 0.0)


def _cpu_s_of(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
