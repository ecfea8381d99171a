"""What open sessions hold of the process."""

from __future__ import annotations

from pathlib import Path

from benchmarks.lab.correctness.programs.bench import Bench
from benchmarks.lab.correctness.protocol import marked

__all__ = ["open_sessions"]


async def open_sessions(bench: Bench) -> None:
    """Open sessions of different users, each with a message, and keep them open."""
    subject = await bench.open("open")
    await subject.append("first/1", [marked("first", 4)])
    await subject.settle()
    before = _count_held()
    for number in range(bench.sizes.open):
        await subject.append(f"user{number}/1", [marked(f"n{number}", 4)])
    after = _count_held()
    bench.report(
        {
            "sessions": bench.sizes.open,
            "descriptors": after[0] - before[0],
            "threads": after[1] - before[1],
            "base_descriptors": before[0],
        }
    )
    await subject.close()


def _count_held() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))
