"""Run the tests that are nearest to what changed by the imports, in one process.

    python3 tasks.py quick [--since COMMIT]     with lint and types before it

The graph of imports is that of remora and its tests, late imports included. A test file is near
if few imports lead from it to a module that changed. As many files are chosen as fit into twelve
seconds of processor time; how long each takes is known from earlier runs on this machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["SECONDS", "Chosen", "changed_files", "choose_tests", "git", "main"]

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "build" / "seconds.json"
"""Of processor time that each test took when it ran last; tests/conftest.py writes them."""
BUDGET_S = 12.0
UNKNOWN_S = 2.0
FAR_S = 6.0
"""A file that takes longer than this is not for a quick look, unless it changed itself."""


class Chosen(NamedTuple):
    """Test files, nearest first, and how many others depend on the change."""

    files: list[str]
    left_out: int


def git(*words: str) -> list[str]:
    """The lines that git prints."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def changed_files(since: str | None = None) -> list[str]:
    """What differs from a commit, or from the last one, new files included."""
    changed = git("diff", "--name-only", since or "HEAD")
    changed += git("ls-files", "--others", "--exclude-standard")
    return sorted(name for name in set(changed) if (ROOT / name).is_file())


def module_of(name: str) -> str:
    """The module that a file is."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def choose_tests(changed: Iterable[str]) -> Chosen:
    """The test files that a change may break, as many as fit into the time."""
    import grimp  # noqa: PLC0415

    packages = ("remora", "tests", "tools", "benchmarks", "examples")
    graph = grimp.build_graph(*packages, cache_dir=str(ROOT / "build" / "grimp"))
    ahead = {module_of(name) for name in changed if name.endswith(".py")} & graph.modules
    distance, steps = dict.fromkeys(ahead, 0), 0
    while ahead:
        steps += 1
        ahead = {
            importer
            for module in ahead
            for importer in graph.find_modules_that_directly_import(module)
            if importer not in distance
        }
        distance.update(dict.fromkeys(ahead, steps))
    known: Counter[str] = Counter()
    for test, seconds in json.loads(SECONDS.read_text()).items() if SECONDS.exists() else ():
        known[test.partition("::")[0]] += seconds
    tests = sorted(
        (steps, known[name] or UNKNOWN_S, name)
        for module, steps in distance.items()
        if (name := module.replace(".", "/") + ".py").startswith("tests/")
        and "/test_" in name
        and (ROOT / name).exists()
    )
    chosen, spent_s = [], 0.0
    for steps, seconds, name in tests:
        if not steps or (seconds < FAR_S and spent_s + seconds <= BUDGET_S):
            chosen.append(name)
            spent_s += seconds
    return Chosen(chosen, len(tests) - len(chosen))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", metavar="COMMIT", help="the last one if it is not given")
    parser.add_argument("--list", action="store_true", help="print the files, and run nothing")
    options, words = parser.parse_known_args(arguments)
    files = changed_files(options.since)
    found = choose_tests(files)
    print(*(f"changed: {name}" for name in files), *found.files, sep="\n")
    print(f"{found.left_out} other test files depend on it, too: tasks.py test", flush=True)
    if any(Path(name).name == "conftest.py" for name in files):
        print("all tests below a conftest.py depend on it: tasks.py test", flush=True)
    if options.list or not found.files:
        return 0
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not nightly"]
    return subprocess.run([*command, *found.files, *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
