"""The clock that runs on while a machine sleeps and a process stands still."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)  # Linux alone has it


def boot_time() -> float:
    """Seconds since the machine started: the same clock for all its processes."""
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
