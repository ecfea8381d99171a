"""Run the tests that are nearest to what changed by the imports, in one process.

    python3 tasks.py quick [--since COMMIT]     with lint and types before it
    python3 tasks.py tests-of PATH … [--run]    the tests of these folders or files
    python3 tasks.py tests-of                   what tests share: models, servers, waiting …

The graph of imports is that of remora and its tests, late imports included. A test file is near
if few imports lead from it to a module that changed. As many files are chosen as fit into twelve
seconds of processor time; how long each takes is known from earlier runs on this machine.

``tests-of`` lists the test files that import a module of these folders, or are named after one, and
those that do so through a module of `tests`. ``--run`` runs them. Without a path it lists the
modules that tests share, with how many files use each.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import grimp

__all__ = ["SECONDS", "Chosen", "changed_files", "choose_tests", "git", "main", "tests_of"]

ROOT = Path(__file__).resolve().parents[1]
SECONDS = ROOT / "build" / "seconds.json"
"""Of processor time that each test took when it ran last; tests/conftest.py writes them."""
BUDGET_S = 12.0
UNKNOWN_S = 2.0
FAR_S = 6.0
"""A file that takes longer than this is not for a quick look, unless it changed itself."""
COMMON = 30
"""A module of `tests` that more test files use says little about them."""


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


def test_file_of(module: str) -> str | None:
    """The file of a module that has tests."""
    name = module.replace(".", "/") + ".py"
    is_one = name.startswith("tests/") and "/test_" in name and (ROOT / name).exists()
    return name if is_one else None


def read_imports() -> grimp.ImportGraph:
    """The graph of imports of all Python files."""
    import grimp  # noqa: PLC0415

    packages = ("remora", "tests", "tools", "benchmarks", "examples")
    return grimp.build_graph(*packages, cache_dir=str(ROOT / "build" / "grimp"))


def seconds_of_files() -> Mapping[str, float]:
    """The processor time of each test file, as far as it ran on this machine."""
    known: Counter[str] = Counter()
    for test, seconds in json.loads(SECONDS.read_text()).items() if SECONDS.exists() else ():
        known[test.partition("::")[0]] += seconds
    return known


def tests_of(paths: Iterable[str]) -> dict[str, list[str]]:
    """The test files of folders or files: by "" their own, then by the module they go through.

    Raises:
        SystemExit: there is no Python module at a path.
    """
    graph, own, names = read_imports(), set[str](), set[str]()
    for path in paths:
        names.add(Path(path).stem)
        name = module_of(path.strip("/"))
        found = {one for one in graph.modules if one == name or one.startswith(f"{name}.")}
        if not found:
            sys.exit(f"no module is there: {path}; give a folder or a file of the repository")
        own |= found
    files = {module: file for module in graph.modules if (file := test_file_of(module))}

    def importers(modules: Iterable[str]) -> set[str]:
        return {by for one in modules for by in graph.find_modules_that_directly_import(one)}

    direct = importers(own) | own
    answer = {"": {file for module, file in files.items() if module in direct}}
    for file in files.values():
        if names & set(Path(file).stem.split("_")[1:]):
            answer[""].add(file)
    known = set(answer[""])
    for through in sorted(direct):
        if through.startswith("tests.") and through not in files:
            answer[through] = {files[one] for one in importers([through]) if one in files} - known
    return {through: sorted(found) for through, found in answer.items() if found}


def shared_modules() -> list[tuple[str, int, str]]:
    """Each module of `tests` that has no tests: its name, how many files use it, what it is."""
    graph = read_imports()
    found = []
    for module in sorted(one for one in graph.modules if one.startswith("tests.")):
        path = ROOT / module.replace(".", "/")
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        about = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if about is not None and test_file_of(module) is None:
            users = graph.find_modules_that_directly_import(module)
            found.append((module, len(users), about.partition("\n")[0]))
    return found


def show_tests_of(arguments: Sequence[str]) -> int:
    """Print the test files of folders, or run them; returns the exit code."""
    parser = argparse.ArgumentParser(prog="tasks.py tests-of")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="a folder or file of remora")
    parser.add_argument("--run", action="store_true", help="run them; other words go to pytest")
    options, words = parser.parse_known_args(arguments)
    if not options.paths:
        for module, users, about in shared_modules():
            print(f"{module:32} {users:3}  {about}")
        return 0
    known, run = seconds_of_files(), list[str]()
    for through, files in tests_of(options.paths).items():
        if through:
            print(f"\nthrough {through}:")
        if len(files) > COMMON and through:
            print(f"  {len(files)} files")
            continue
        for name in files:
            print(f"  {name:60} {f'{known[name]:6.1f} s' if known[name] else ''}".rstrip())
        run += files
    return run_tests([*dict.fromkeys(run)], words) if options.run else 0


def choose_tests(changed: Iterable[str]) -> Chosen:
    """The test files that a change may break, as many as fit into the time."""
    graph = read_imports()
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
    known = seconds_of_files()
    tests = sorted(
        (steps, known[name] or UNKNOWN_S, name)
        for module, steps in distance.items()
        if (name := test_file_of(module)) is not None
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
    return run_tests(found.files, words)


def run_tests(files: Sequence[str], words: Sequence[str]) -> int:
    """Run test files in one process; returns the exit code."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "not nightly"]
    return subprocess.run([*command, *files, *words], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["tests-of"]:
        sys.exit(show_tests_of(sys.argv[2:]))
    sys.exit(main())
