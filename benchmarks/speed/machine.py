"""What a machine can do, so that figures of two days, or of two machines, can be compared."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

__all__ = ["described_machine", "measured_machine"]

_STEPS = 1_000_000
_MEMORY = 1 << 28  # bytes: more than a processor caches
_READS = 500_000
_TURNS = 5_000
_SYNCS = 200
_PAGE = 4_096


def described_machine() -> str:
    """The machine and the interpreter."""
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}, "
        f"Python {platform.python_version()}"
    )


def measured_machine(directory: Path | None) -> str:
    """How long it takes now for what most of the suite's work is made of; two seconds.

    Args:
        directory: on the disk that is measured; None for that of temporary files.
    """
    step = _best(_steps) / _STEPS
    memory = bytearray(_MEMORY)
    memory[::_PAGE] = bytes([1]) * (_MEMORY // _PAGE)  # its pages are there
    read = _best(lambda: _reads(memory)) / _READS
    turn = _best(_turns) / _TURNS
    with tempfile.TemporaryFile(dir=directory) as file:
        sync = _best(lambda: _syncs(file.fileno())) / _SYNCS
    return (
        f"a step of a Python loop takes {step * 1e9:.0f} ns, one that reads a byte anywhere in "
        f"{_MEMORY >> 20} MB {read * 1e9:.0f} ns, a thread's answer to another {turn * 1e6:.0f} "
        f"µs, a page that is written and synced {sync * 1e3:.2f} ms"
    )


def _best(work: Callable[[], None]) -> float:
    """Seconds, the least of three."""
    took = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return min(took)


def _steps() -> None:
    total = 0
    for number in range(_STEPS):
        total += number


def _reads(memory: bytearray) -> None:
    place = 1
    for _ in range(_READS):  # where the next one is, no processor guesses (Numerical Recipes)
        place = (place * 1_664_525 + 1_013_904_223) & (_MEMORY - 1)
        place ^= memory[place]


def _turns() -> None:
    asked: SimpleQueue[int] = SimpleQueue()
    answered: SimpleQueue[int] = SimpleQueue()

    def answer() -> None:
        for _ in range(_TURNS):
            answered.put(asked.get())

    thread = Thread(target=answer)
    thread.start()
    for number in range(_TURNS):
        asked.put(number)
        answered.get()
    thread.join()


def _syncs(descriptor: int) -> None:
    for number in range(_SYNCS):
        os.pwrite(descriptor, bytes(_PAGE), number * _PAGE)
        os.fsync(descriptor)
