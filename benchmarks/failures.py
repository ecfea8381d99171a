"""What may happen to machines that share a memory, injected under load, as a table.

    python -m benchmarks.failures [NAME …] [--tries 5] [--seed 1]

`tests.failures.table` has the failures: two `remora serve` with a lease of 2 s, started again
whenever they end, over a private PostgreSQL; a worker whose four sessions append, with keys and
without, and load. All that they saw is judged (`tests.failures.talk`). Some need root, and
are not run without.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.failures.table import FAILURES, Found

_HEAD = (
    "| failure | tries | seconds until service | another owner | acknowledged | lost (told) "
    "| doubled | rows that were refused | stale loads | sessions without an order |\n"
    "|---|---|---|---|---|---|---|---|---|---|"
)


def _row(name: str, found: Found) -> str:
    one = found.verdict
    times = sorted(found.seconds)
    middle = times[len(times) // 2]
    told = f" ({found.told} commits)" if found.told else ""
    return (
        f"| {name} | {len(times)} | {times[0]:.1f}, {middle:.1f}, {times[-1]:.1f} "
        f"| {found.moved} | {one.acknowledged:,} | {one.lost}{told} | "
        f"{one.doubled} | {one.stale_rows} | {one.stale_loads} | {one.unexplained} |"
    )


async def _main(names: Sequence[str], tries: int, seed: int) -> None:
    random.seed(seed)
    print(_HEAD)
    for name in names or FAILURES:
        with tempfile.TemporaryDirectory() as directory:
            try:
                found = await FAILURES[name](Path(directory), tries, seed)
            except pytest.skip.Exception as e:
                print(f"| {name} | not run: {e.msg} |", flush=True)
                continue
        print(_row(name, found), flush=True)
    print(f"\nseconds: least, median, most; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if unknown := set(options.names) - FAILURES.keys():
        parser.error(f"no such failure: {', '.join(unknown)}; there are {', '.join(FAILURES)}")
    asyncio.run(_main(options.names, options.tries, options.seed))
