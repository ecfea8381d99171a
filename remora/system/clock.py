"""The clock that runs on while a machine sleeps and a process stands still."""

from __future__ import annotations

import sys
import time

if sys.platform == "linux":

    def boot_time() -> float:
        """Seconds since the machine started: the same clock for all its processes."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

elif sys.platform == "darwin":

    def boot_time() -> float:
        """Seconds since the machine started: the same clock for all its processes."""
        return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)  # `time.monotonic` sleeps, too

else:

    def boot_time() -> float:
        """Seconds since the machine started: the same clock for all its processes."""
        return time.monotonic()
