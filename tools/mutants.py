"""Mutants: change one operator, number or statement of the package, and see whether a test fails.

    python3 tasks.py coverage             first: which tests execute which lines
    python -m tools.mutants --places 400 --seed 1
    python -m tools.mutants --changed origin/main

A place stands on one line. It is an operator (a comparison, a sum or product, `and` or `or`, `not`)
that becomes another one, a whole number, `True` or `False`, a condition that is negated, or a
statement that is left out: a call for its effect, an assignment to an attribute or an item, `del`,
`raise`, `return` without a value, `break`, `continue`. For each, the mutant is planted in a copy of
the repository, and the tests that execute its line run there, the quickest first, until one fails.
A mutant that no test fails on survives, as does one on a line that no test executes. The table is
by folder; each survivor is printed with its line, to be read: a test is missing, the line is not
needed, or it makes no difference.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from rich.progress import Progress

from tools.quick import SECONDS, git

__all__ = ["Place", "main", "places"]

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "build" / "coverage" / "data"
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
LARGEST = 1_000_000
QUICK, SLOWEST_S = 40, 30.0
"""How many tests are tried first, and how long the others may take in all."""
LIMITS = ("-o", "quiet_limit=30", "-o", "processor_limit=120")
HANGING_S = 300.0
_NOT_RUN = frozenset({4, 5})  # pytest's codes for wrong names, and for no tests
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["pytest", "trio", "blockbuster", "numpy", "pyarrow", "pydantic", "aiosqlite",
     "structlog", "sentencex", "tiktoken", "wordllama", "rich.progress"]
)  # fmt: skip


class Place(NamedTuple):
    """A mutant: what stands on a line of a file, and what is put there."""

    file: str
    line: int
    begin: int
    end: int
    new: str

    @property
    def folder(self) -> str:
        """Of the package, as the table names it."""
        parts = Path(self.file).parts
        return "/".join(parts[:2]) if len(parts) > 2 else parts[0]

    def drawn(self, seed: int) -> bytes:
        """Sorts a choice, so that it stays the same when other lines of the package change."""
        line = _lines(self.file)[self.line - 1].strip()
        return sha256(f"{seed} {self.file} {self.new} {line}".encode()).digest()

    def planted(self, text: str) -> str:
        """The file's text with the mutant."""
        lines = text.encode().splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.begin] + f"({self.new})".encode() + line[self.end :]
        return b"".join(lines).decode()


@cache
def _lines(file: str) -> list[str]:
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


def places(file: str, text: str) -> Iterator[Place]:
    """Every place of a file."""
    tree = ast.parse(text)
    annotations = {
        id(one)
        for node in ast.walk(tree)
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if part is not None
        for one in ast.walk(part)
    }
    conditions = {
        id(node.test) for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp | ast.While)
    }
    for node in ast.walk(tree):
        if id(node) in annotations or not isinstance(node, ast.expr | ast.stmt):
            continue
        if isinstance(node, ast.stmt):
            new: ast.expr | None = ast.Constant(...) if _can_be_left_out(node) else None
        else:
            new = _mutant(node)
            if new is None and id(node) in conditions:
                new = ast.UnaryOp(ast.Not(), node)
        if new is not None and node.lineno == node.end_lineno:
            yield Place(
                file,
                node.lineno,
                node.col_offset,
                node.end_col_offset or 0,
                ast.unparse(ast.fix_missing_locations(new)),
            )


def _can_be_left_out(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="probe"))):
            return False  # tests count these
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()):
            return True
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
        case ast.Return(value=value):
            return value is None
        case ast.AugAssign() | ast.Delete() | ast.Raise() | ast.Break() | ast.Continue():
            return True
    return False


def _mutant(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=others):
            swapped: Any = SWAPPED.get(type(operator))
            return ast.Compare(left, [swapped()], others) if swapped else None
        case ast.BinOp(left=left, op=operator, right=right) if not _has_text(node):
            swapped = SWAPPED.get(type(operator))
            return ast.BinOp(left, swapped(), right) if swapped else None
        case ast.BoolOp(op=operator, values=values):
            swapped = SWAPPED[type(operator)]
            return ast.BoolOp(swapped(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value)) if value < LARGEST:
            return ast.Constant(value + 1)
    return None


def _has_text(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str | bytes))
        for one in ast.walk(node)
    )


# -- which tests -----------------------------------------------------------------------------------


class Executed:
    """Which tests execute a line, as ``tasks.py coverage`` wrote it, and how long each takes."""

    def __init__(self, path: Path) -> None:
        from coverage import CoverageData  # noqa: PLC0415

        self._data = CoverageData(str(path))
        self._data.read()
        self._files = {
            Path(one).relative_to(ROOT).as_posix(): one for one in self._data.measured_files()
        }
        self._by_line: dict[str, dict[int, list[str]]] = {}
        self._seconds: dict[str, float] = json.loads(SECONDS.read_text())

    def tests(self, place: Place) -> list[str]:
        """Node ids, the quickest first."""
        found = self._by_line.get(place.file)
        if found is None:
            name = self._files.get(place.file)
            found = {} if name is None else self._data.contexts_by_lineno(name)
            self._by_line[place.file] = found
        ids = {context for context in found.get(place.line, []) if context}
        return sorted(ids, key=lambda one: self._seconds.get(one, 1.0))

    def seconds(self, test: str) -> float:
        """How long a test takes."""
        return self._seconds.get(test, 1.0)

    def outside_tests(self, place: Place) -> bool:
        """Whether the line runs when its module is imported, or in a process that a test starts.

        Any test of the module may tell.
        """
        self.tests(place)
        return "" in self._by_line[place.file].get(place.line, [])

    def of_module(self, place: Place) -> list[str]:
        """The tests that execute anything of the place's module, the quickest first."""
        self.tests(place)
        ids = {one for tests in self._by_line[place.file].values() for one in tests if one}
        return sorted(ids, key=lambda one: self._seconds.get(one, 1.0))


# -- playing ---------------------------------------------------------------------------------------


class Copy:
    """A copy of the repository, in which one mutant at a time is planted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._proven = False
        for name in git("ls-files", "--cached", "--others", "--exclude-standard"):
            if (ROOT / name).is_file():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, directory / name)

    def play(self, place: Place, executed: Executed) -> str:
        """``killed by TEST`` or ``survived``."""
        tests = executed.tests(place)
        if executed.outside_tests(place):
            tests = list(dict.fromkeys([*tests, *executed.of_module(place)]))
        if not tests:
            return "survived: no test executes it"
        first, others, seconds = tests[:QUICK], [], 0.0
        for test in tests[QUICK:]:
            seconds += executed.seconds(test)
            if seconds > SLOWEST_S:
                break
            others.append(test)
        path = self.directory / place.file
        text = path.read_text(encoding="utf-8")
        path.write_text(place.planted(text), encoding="utf-8")
        try:
            verdict = self._run(first) or (others and self._run(others)) or "survived"
        finally:
            path.write_text(text, encoding="utf-8")
        if not self._proven and verdict != "survived":
            self._proven = True
            if failed := self._run(first):
                raise SystemExit(f"tests fail without any mutant: {failed}")
        return verdict

    def _collects(self, tests: Sequence[str]) -> bool:
        """Whether these tests are there: a mutant may keep them from being imported."""
        names = {test.partition("::")[0] for test in tests}
        return all((self.directory / name).exists() for name in names)

    def _run(self, tests: Sequence[str]) -> str:
        """The test that failed; empty if all passed."""
        told = self.directory / "told.txt"
        child = FORKS.Process(target=_run_tests, args=(self.directory, list(tests), told))
        child.start()
        child.join(HANGING_S)
        if child.is_alive():
            child.kill()
            child.join()
            return "killed by hanging"
        if child.exitcode == 0:
            return ""
        if child.exitcode in _NOT_RUN and not self._collects(tests):
            raise SystemExit("the tests have changed since tasks.py coverage ran: run it again")
        text = told.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        last = text.strip().splitlines()[-1:] or ["it ended without a word"]
        return f"killed by {failed[1] if failed else last[0]}"


def _run_tests(directory: Path, tests: Sequence[str], told: Path) -> None:
    """In a forked process, which has imported what is no part of the repository."""
    os.chdir(directory)
    sys.path.insert(0, str(directory))
    sys.dont_write_bytecode = True
    output = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    import pytest  # noqa: PLC0415

    options = ("-q", "-x", "--no-header", "--tb=no", "-n", "0", "-p", "no:cacheprovider", *LIMITS)
    imported = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    code = pytest.main([*options, *imported, *tests])
    sys.stdout.flush()
    os._exit(code)  # a thread that a mutant left would wait for ever


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the mutants; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--changed", metavar="COMMIT", help="places on lines changed since then")
    which.add_argument("--places", type=int, metavar="N", help="so many places of all")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the choice; today's")
    parser.add_argument("--minutes", type=float, default=60, help="stop after this; 60")
    parser.add_argument("--map", type=Path, default=MAP, help="what tasks.py coverage wrote")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write each verdict there")
    options = parser.parse_args(arguments)
    if not options.map.exists():
        parser.error(f"{options.map} is not there: python3 tasks.py coverage writes it")
    chosen = [
        place
        for path in sorted((ROOT / "remora").rglob("*.py"))
        if "testing" not in path.parts
        for place in places(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    if options.changed:
        lines = changed_lines(options.changed)
        chosen = [place for place in chosen if place.line in lines.get(place.file, ())]
    chosen.sort(key=lambda place: place.drawn(options.seed))
    chosen = chosen[: options.places]
    print(f"{len(chosen)} places, seed {options.seed}", flush=True)
    verdicts = play(chosen, Executed(options.map), time.monotonic() + options.minutes * 60)
    if options.json:
        rows = [{**place._asdict(), "verdict": verdict} for place, verdict in verdicts.items()]
        options.json.write_text(json.dumps(rows, indent=1))
    print_table(verdicts, len(chosen))
    return 0


def changed_lines(commit: str) -> dict[str, set[int]]:
    """The lines of the package that differ from a commit, by file."""
    lines: defaultdict[str, set[int]] = defaultdict(set)
    for name in git("ls-files", "--others", "--exclude-standard", "--", "remora"):
        lines[name].update(range(1, len(_lines(name)) + 1))
    name = ""
    for line in git("diff", "--unified=0", commit, "--", "remora"):
        if line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/")
        elif found := re.match(r"@@ .* \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(found[1]), int(found[2] or 1)
            lines[name].update(range(first, first + count))
    return lines


def play(chosen: Sequence[Place], executed: Executed, until_s: float) -> dict[Place, str]:
    """The verdict of each place, as far as the time goes."""
    verdicts: dict[Place, str] = {}
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as directory, Progress(transient=True) as progress:
        copies: SimpleQueue[Copy] = SimpleQueue()
        workers = min(os.cpu_count() or 1, 8)
        for number in range(workers):
            copies.put(Copy(Path(directory, str(number))))
        bar = progress.add_task("mutants", total=len(chosen))

        def run(place: Place) -> None:
            if time.monotonic() < until_s:
                copy = copies.get()
                try:
                    with lock:
                        executed.tests(place)  # reads the map, in one thread at a time
                    verdicts[place] = copy.play(place, executed)
                finally:
                    copies.put(copy)
                progress.advance(bar)

        with ThreadPoolExecutor(workers) as threads:
            list(threads.map(run, chosen))
    return verdicts


def print_table(verdicts: dict[Place, str], asked: int) -> None:
    """Print the survivors, and how many were noticed by folder."""
    survivors = sorted(place for place, verdict in verdicts.items() if verdict.startswith("surv"))
    for place in survivors:
        line = _lines(place.file)[place.line - 1]
        why = verdicts[place].partition(": ")[2]
        print(f"{place.file}:{place.line}: {line.strip()}\n    -> {place.new}  {why}")
    every = Counter(place.folder for place in verdicts)
    alive = Counter(place.folder for place in survivors)
    print(f"\n{'folder':24} {'places':>7} {'noticed':>8}")
    for folder, count in sorted(every.items()):
        print(f"{folder:24} {count:7} {(count - alive[folder]) / count:8.0%}")
    total = len(verdicts)
    share = (total - len(survivors)) / total if total else 0.0
    print(f"{'all':24} {total:7} {share:8.1%}" + (f" of {asked} asked" if total < asked else ""))


if __name__ == "__main__":
    sys.exit(main())
