"""remora's command with faults: ``python -m tests.failures.owner serve CONFIGURATION``.

SIGUSR1 stops its event loop for `STUCK_S` seconds while its other threads run. In the environment,
``SKEW_S`` is how many seconds its wall clock is off, and ``RELEASE`` by how many releases it is
newer: each has one more version of the protocol between processes, and of the journal's format.
"""

from __future__ import annotations

import os
import signal
import sys
import time

__all__ = ["STUCK_S"]

STUCK_S = 6.0


def _stick(*_: object) -> None:
    time.sleep(STUCK_S)


def _upgrade(releases: int) -> None:
    """Make this process's remora a newer one, before what takes over these values is imported."""
    import remora  # noqa: PLC0415
    from remora.cluster import wire  # noqa: PLC0415
    from remora.storage.postgres import opening, schema  # noqa: PLC0415

    remora.__version__ = f"99.{releases}"
    wire.WIRE += releases  # type: ignore[misc]
    later = schema.FORMAT + releases
    more = "; ".join(f"ALTER TABLE remora.journal ADD later_{n} int" for n in range(releases))
    migrations = {
        **{number: f"{sql}; {more}" for number, sql in schema.MIGRATIONS.items()},
        schema.FORMAT: more,
    }
    for module in (schema, opening):
        vars(module).update(MIGRATIONS=migrations, FORMAT=later)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _stick)
    if releases := int(os.environ.get("RELEASE", "0")):
        _upgrade(releases)
    from remora.cli.main import main
    from remora.runtime.clock import SystemClock

    if skew_s := float(os.environ.get("SKEW_S", "0")):
        # what a runtime uses where it is given no clock
        SystemClock.time = staticmethod(lambda: time.time() + skew_s)
    sys.exit(main(sys.argv[1:]))
