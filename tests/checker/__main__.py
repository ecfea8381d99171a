"""``python -m tests.checker``: play seeds, and print the smallest counterexample of the
first that fails.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from remora.errors import InvalidInput
from remora.testing import count_probes
from remora.testing.probes import PROBES
from tests.checker.exploring import Run, draw_case, play, read_case, report, smallest
from tests.checker.shrinking import counterexample

_SHOWN_S = 1.0


def main(words: Sequence[str] | None = None) -> int:
    """Returns 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.checker",
        description="Play seeds: each is a program of calls with its schedule, faults and power "
        "cuts, on the whole runtime in "
        "virtual time. A seed that breaks a guarantee is made small and printed; the same seed "
        "always does the same.",
    )
    parser.add_argument(
        "seeds", type=int, nargs="?", default=1_000, help="how many (default: 1000)"
    )
    parser.add_argument(
        "--first", type=int, default=0, metavar="SEED", help="the first of them (default: 0)"
    )
    parser.add_argument(
        "--size", type=int, default=12, help="calls of a program, about (default: 12)"
    )
    parser.add_argument(
        "--journal",
        choices=["memory", "sqlite"],
        default="memory",
        help="sqlite: the real one, on a lane",
    )
    parser.add_argument(
        "--long-term",
        choices=["memory", "lance"],
        default="memory",
        help="lance: LanceDB itself, on a lane",
    )
    parser.add_argument(
        "--failures",
        type=int,
        default=1,
        metavar="N",
        help="stop at the N-th seed that fails (default: 1)",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=600,
        metavar="N",
        help="runs spent on making a failure small (0: none)",
    )
    parser.add_argument(
        "--probes", action="store_true", help="print how often each rare branch was taken"
    )
    parser.add_argument(
        "--case",
        metavar="JSON",
        help="play this case instead of seeds; a counterexample ends with its own",
    )
    parser.add_argument(
        "--history",
        action="store_true",
        help="print each seed's program and history, failing or not",
    )
    asked = parser.parse_args(words)
    logging.disable(logging.CRITICAL)  # a run is full of failures, by design
    options: dict[str, Any] = {"journal": asked.journal, "long_term": asked.long_term}
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.case:
        return _replay(asked.case, options)
    failed: list[Run] = []
    schedules: set[tuple[int, ...]] = set()
    played = steps = 0
    began_s, cpu_s = time.monotonic(), time.process_time()
    with count_probes() as probes:
        for seed in _with_progress(seeds, failed):
            run = play(draw_case(seed, size=asked.size), **options)
            played += 1
            steps += run.steps
            schedules.add(run.fingerprints)
            if asked.history:
                print(counterexample(run.case, run.history, run.violations), end="\n\n")
            if run.violations:
                failed.append(run)
                if len(failed) >= asked.failures:
                    break
    cpu_s = time.process_time() - cpu_s
    print(
        f"{played} seeds, {steps} steps, {len(schedules)} schedules, {len(failed)} violated; "
        f"{cpu_s:.1f} s of CPU, {played / cpu_s * 60:.0f} seeds a CPU minute, "
        f"{time.monotonic() - began_s:.1f} s by the wall"
    )
    if asked.probes:
        _print_probes(probes)
    for run in failed:
        if asked.tries:
            small, shrunk = smallest(run, tries=asked.tries, **options)
            minimal = "nothing smaller fails" if shrunk.minimal else "the tries ran out"
            print(f"\nseed {run.case.seed}, made small in {shrunk.tries} runs ({minimal}):")
            run = small  # noqa: PLW2901
        print(report(run))
    return 1 if failed else 0


def _replay(text: str, options: dict[str, Any]) -> int:
    try:
        run = play(read_case(text), **options)
    except InvalidInput as e:
        print(e, file=sys.stderr)
        return 2
    print(report(run))
    return 1 if run.violations else 0


def _with_progress(seeds: range, failed: Sequence[Run]) -> Iterator[int]:
    """The seeds, with their progress on standard error where that is a terminal."""
    shown_s = 0.0
    for count, seed in enumerate(seeds):
        if sys.stderr.isatty() and time.monotonic() - shown_s > _SHOWN_S:
            shown_s = time.monotonic()
            print(
                f"\r{count} of {len(seeds)} seeds, {len(failed)} violated",
                end="",
                file=sys.stderr,
                flush=True,
            )
        yield seed
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def _print_probes(counts: Counter[str]) -> None:
    width = max(map(len, PROBES))
    for name, meaning in PROBES.items():
        print(f"{name:<{width}} {counts[name]:>8}  {meaning}")


if __name__ == "__main__":
    raise SystemExit(main())
