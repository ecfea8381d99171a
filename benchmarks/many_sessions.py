"""Ten thousand sessions of a thousand users in one process, twenty messages each.

    python -m benchmarks.many_sessions [--sessions 10000] [--users 1000] [--messages 20]
        [--json FILE]

Measured: descriptors, threads, memory and time. Configuration: the defaults, with long-term memory;
a hundred callers at a time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import anyio

from benchmarks.shared import resident, texts
from remora import Runtime


def standing() -> dict[str, int]:
    """What the process holds now."""
    return {
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "python_threads": threading.active_count(),
        "resident_mb": resident() // 2**20,
    }


async def measure(directory: Path, users: int, sessions: int, messages: int) -> dict[str, Any]:
    pool = texts(1_000)
    figures: dict[str, Any] = {"before": standing()}
    async with Runtime(directory) as runtime:
        await runtime.internals.long_term()  # opened now, not in the middle
        await runtime.session("warm", "up").append(pool[0])
        figures["open"] = standing()
        limiter = anyio.CapacityLimiter(100)

        async def converse(number: int) -> None:
            async with limiter:
                session = runtime.session(f"user-{number % users}", f"session-{number}")
                for n in range(messages):
                    await session.append(pool[(number + n) % 1_000])

        begun = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(converse, number)
        figures["seconds"] = time.perf_counter() - begun
        figures["appends_per_s"] = sessions * messages / figures["seconds"]
        figures["live"] = runtime.statistics().registry.live
        figures["full"] = standing()
        checked = [
            len((await runtime.session(f"user-{n % users}", f"session-{n}").load()).messages)
            for n in range(0, sessions, 97)
        ]
        assert set(checked) == {messages}, checked
        figures["stored"] = (await runtime.counts()).messages
    figures["after"] = standing()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        figures = anyio.run(
            measure, Path(temporary), options.users, options.sessions, options.messages
        )
    for moment in ("before", "open", "full", "after"):
        print(
            f"{moment:>7}: "
            + ", ".join(f"{name} {value}" for name, value in figures[moment].items())
        )
    print(
        f"{figures['live']:,} sessions live, {figures['stored']:,} messages stored, "
        f"{figures['appends_per_s']:,.0f} durable "
        f"appends/s over {figures['seconds']:.1f} s"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
