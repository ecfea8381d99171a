"""`remora serve` with faults: ``python -m tests.faulty_owner CONFIGURATION``.

SIGUSR1 stops its event loop for `STUCK_S` seconds while its other threads run. ``SKEW_S`` in the
environment is how many seconds its wall clock is off.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from remora.cli.main import main
from remora.runtime.clock import SystemClock

__all__ = ["STUCK_S"]

STUCK_S = 6.0


def _stick(*_: object) -> None:
    time.sleep(STUCK_S)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _stick)
    if skew_s := float(os.environ.get("SKEW_S", "0")):
        # what a runtime uses where it is given no clock
        SystemClock.time = staticmethod(lambda: time.time() + skew_s)
    sys.exit(main(["serve", sys.argv[1]]))
