"""Processes that tests start, stop and end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["stop"]


def stop(pid: int) -> None:
    """Stop a process, and return when none of its threads runs."""
    os.kill(pid, signal.SIGSTOP)
    while any(_state(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
        os.sched_yield()


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(") ")[2][0]
