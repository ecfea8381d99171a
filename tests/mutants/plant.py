"""Plant bugs into a copy of remora, one at a time, and see whether the suite notices.

    python -m tests.mutants.plant                      what there is to be planted
    python -m tests.mutants.plant --all                plant everything
    python -m tests.mutants.plant mailbox_lifo …       plant these

Each bug (`tests/mutants/catalogue.py`) goes into a copy of the package, on which the simulation's
seeds are played, in a process of their own, until one breaks a guarantee; from three different
first seeds, for one count would say little. What the simulation cannot notice must be noticed by
the tests that the catalogue names. Before anything is planted, the same seeds are played on the
package as it is, and must find nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.mutants.catalogue import CATALOGUE, Journal, Mutant

__all__ = ["Outcome", "Played", "main", "plant", "planted", "played", "tested"]

ROOT = Path(__file__).resolve().parents[2]
FIRST = (0, 100_000, 200_000)
SEEDS = 1_500
_LIMIT_S = 900.0  # a bug may hang the interpreter
_SIGNAL = (
    "-o",
    "timeout_method=signal",
)  # a test that hangs fails, and does not take the report along
_MARKS = ("<!-- mutants: begin -->", "<!-- mutants: end -->")


class Played(msgspec.Struct, frozen=True):
    """What came of playing seeds.

    Attributes:
        seeds: how many were played; the last of them failed if there is a violation.
        cpu_s: seconds of CPU.
        violation: what the last seed broke; None if nothing was broken.
    """

    seeds: int
    cpu_s: float
    violation: str | None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a mutant.

    Attributes:
        mutant: its name.
        runs: what came of the seeds, from each first one.
        tests: the tests that failed on it, where the seeds did not notice.
        cpu_s: seconds of CPU, all in all.
    """

    mutant: str
    runs: tuple[Played, ...]
    tests: tuple[str, ...]
    cpu_s: float

    @property
    def by_seeds(self) -> bool:
        """The simulation noticed it, wherever it began."""
        return bool(self.runs) and all(run.violation is not None for run in self.runs)

    @property
    def killed(self) -> bool:
        """Something noticed it."""
        return self.by_seeds or bool(self.tests)


@contextmanager
def planted(mutant: Mutant | None) -> Iterator[Path]:
    """A directory with the package, planted with a bug, and its tests. None: as it is.

    Raises:
        ValueError: the text to be replaced is not there exactly once.
    """
    with tempfile.TemporaryDirectory(prefix="remora-mutant-") as made:
        place = Path(made)
        for name in ("remora", "tests", "benchmarks", "examples"):
            shutil.copytree(ROOT / name, place / name)
        shutil.copy2(ROOT / "pyproject.toml", place)
        if mutant is not None:
            (place / mutant.path).write_text(mutant.planted(ROOT))
        yield place


def played(place: Path, first: int, seeds: int, journal: Journal) -> Played:
    """Play seeds on the package at `place`, in a process of their own."""
    began_s = time.monotonic()
    try:
        done = _run(
            place, "-m", "tests.mutants.playing", str(first), str(seeds), "--journal", journal
        )
    except subprocess.TimeoutExpired:
        return Played(
            seeds, time.monotonic() - began_s, f"it hangs: no answer within {_LIMIT_S:g} s"
        )
    if done.returncode:
        raise RuntimeError(f"the seeds cannot be played:\n{done.stderr}")
    return msgspec.json.decode(done.stdout, type=Played)


def tested(place: Path, tests: Sequence[str]) -> tuple[str, ...]:
    """Run tests on the package at `place`; those that failed."""
    report = place / "failed.json"
    plugin = place / "telling.py"
    plugin.write_text(_TELLING.format(report=str(report)))
    try:
        _run(
            place,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "telling",
            "-p",
            "no:cacheprovider",
            *_SIGNAL,
            *tests,
        )
    except subprocess.TimeoutExpired:
        return (f"{tests[0]} (hangs)",)
    return (
        tuple(json.loads(report.read_text()))
        if report.exists()
        else (f"{tests[0]} (cannot be begun)",)
    )


_TELLING = """
import json
failed = []
def pytest_runtest_logreport(report):
    if report.failed:
        failed.append(report.nodeid)
def pytest_collectreport(report):
    if report.failed:
        failed.append(report.nodeid)
def pytest_sessionfinish(session):
    with open({report!r}, "w") as file:
        json.dump(failed, file)
"""


def _run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=place,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )


def plant(
    mutant: Mutant,
    *,
    firsts: Sequence[int] = FIRST,
    seeds: int = SEEDS,
    journal: Journal | None = None,
) -> Outcome:
    """Plant one bug, and let the suite look for it."""
    with planted(mutant) as place:
        began = os.times()
        runs = []
        for first in firsts if mutant.simulated else ():
            runs.append(played(place, first, seeds, journal or mutant.journal))
            if runs[-1].violation is None:
                break  # it survived
        by_seeds = bool(runs) and runs[-1].violation is not None
        failed = tested(place, mutant.tests) if mutant.tests and not by_seeds else ()
        ended = os.times()
        cpu_s = (
            ended.children_user
            + ended.children_system
            - began.children_user
            - began.children_system
        )
        return Outcome(mutant.name, tuple(runs), failed, cpu_s)


# -- telling ---------------------------------------------------------------------------------------


def _row(mutant: Mutant, outcome: Outcome) -> tuple[str, ...]:
    if outcome.by_seeds:
        counts = [run.seeds for run in outcome.runs]
        by = (
            "simulation"
            if (outcome.runs and mutant.journal == "memory")
            else "simulation, on SQLite"
        )
        spread = (
            f"{statistics.median(counts):g} ({', '.join(map(str, counts))})"
            if len(counts) > 1
            else str(counts[0])
        )
        seen = outcome.runs[0].violation or ""
        cpu = statistics.median(run.cpu_s for run in outcome.runs)
    elif outcome.tests:
        by, spread, cpu = "test", "1", outcome.cpu_s
        seen = outcome.tests[0]
    else:
        by, spread, seen, cpu = "**nothing**", "-", "it survives", outcome.cpu_s
    return mutant.name, mutant.guarantee, mutant.what, by, spread, f"{cpu:.1f}", _short(seen)


def _short(text: str, most: int = 160) -> str:
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= most else flat[: most - 1] + "…"


_HEADS = ("bug", "guarantee", "what was written", "noticed by", "seeds needed", "CPU s", "as")


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [_HEADS, tuple("---" for _ in _HEADS), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(path: Path, text: str) -> None:
    """Put a table between its marks in a file; at the end, in a section of its own, if there are
    none.
    """
    begin, end = _MARKS
    old = path.read_text() if path.exists() else "# Testing\n"
    if begin not in old:
        old = f"{old.rstrip()}\n\n## Planted bugs\n\n{begin}\n{end}\n"
    head, _, rest = old.partition(begin)
    path.write_text(f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}")


def main(words: Sequence[str] | None = None) -> int:
    """Returns 1 if a bug survives, or if the package fails without any."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.plant",
        description="Plant bugs into a copy of remora, and see whether the suite notices.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which bugs; without a name, they are listed"
    )
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        metavar="N",
        help=f"seeds played at most (default: {SEEDS})",
    )
    parser.add_argument(
        "--first", type=int, nargs="+", default=list(FIRST), metavar="SEED",
        help="the first of them; several times, for several counts (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--journal",
        choices=["memory", "sqlite"],
        help="the journal to play on, instead of the bug's own",
    )
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="write the table into this file, between its marks",
    )
    parser.add_argument(
        "--no-control", action="store_true", help="do not play the package as it is first"
    )
    asked = parser.parse_args(words)
    unknown = set(asked.names) - set(CATALOGUE)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; without a name, they are listed")
    chosen = list(CATALOGUE.values()) if asked.all else [CATALOGUE[name] for name in asked.names]
    if not chosen:
        width = max(map(len, CATALOGUE))
        print(
            "\n".join(
                f"{one.name:<{width}}  {one.guarantee:<7}  {one.what}" for one in CATALOGUE.values()
            )
        )
        return 0
    if not asked.no_control and not _sound(chosen, asked.first, asked.seeds, asked.journal):
        return 1
    rows, survivors = [], []
    for mutant in chosen:
        outcome = plant(mutant, firsts=asked.first, seeds=asked.seeds, journal=asked.journal)
        rows.append(_row(mutant, outcome))
        if not outcome.killed:
            survivors.append(mutant.name)
        print("  ".join(rows[-1][place] for place in (0, 1, 3, 4, 5, 6)), flush=True)
    print(
        f"{len(rows)} planted, {len(survivors)} "
        f"survived{': ' if survivors else ''}{', '.join(survivors)}"
    )
    if asked.table is not None:
        written(asked.table, table(rows))
    return 1 if survivors else 0


def _sound(
    chosen: Sequence[Mutant], firsts: Sequence[int], seeds: int, journal: Journal | None
) -> bool:
    """Whether the package as it is stands the same seeds."""
    with planted(None) as place:
        journals: set[Journal] = {journal or one.journal for one in chosen if one.simulated}
        for used in sorted(journals):
            for first in firsts:
                run = played(place, first, seeds, used)
                print(
                    f"nothing planted, {used}: {run.seeds} seeds from {first}, {run.cpu_s:.1f} s "
                    "of CPU",
                    flush=True,
                )
                if run.violation is not None:
                    print(f"seed {first + run.seeds - 1} fails without any bug: {run.violation}")
                    return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
