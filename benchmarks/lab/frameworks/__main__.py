"""Runs the suites, and writes the table. See `benchmarks.lab.frameworks`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.lab.frameworks.conformance import cells_of
from benchmarks.lab.frameworks.environments import make_environment
from benchmarks.lab.frameworks.suites import OWN, SUITES, OwnSuite, Suite
from benchmarks.lab.frameworks.table import insert_table
from benchmarks.peers.environments import python_of
from tools.quick import git

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent
_LIMIT_S = 1_800
_AT_ONCE = 2
_INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = {scope}
markers =
    flaky
    allow_call_model_methods
    requires
    enable_socket
"""


def run_suite(suite: Suite, python: Path, checkout: Path, *, remora: bool) -> dict[str, str]:
    """Run a suite once; returns the outcome of each test: passed, failed or skipped."""
    with tempfile.TemporaryDirectory(prefix="frameworks-") as temporary:
        place = Path(temporary)
        shutil.copytree(checkout / suite.folder, place / "tests")
        shutil.copy(HERE / "places" / "conformance_of_remora.py", place / "tests")
        scope = "session" if suite.plugin == "openai_agents" else "function"
        (place / "pytest.ini").write_text(_INI.format(scope=scope))
        paths = [str(ROOT), *(str(checkout / one) for one in suite.paths), str(place)]
        environment = {
            **{key: one for key, one in os.environ.items() if not key.startswith("PYTEST_")},
            "PYTHONPATH": os.pathsep.join(paths),
            "LANGSMITH_TRACING": "false",
            "OPENAI_API_KEY": "none",
        }
        report = place / "report.xml"
        command: list[str | Path] = [python, "-m", "pytest", "-q", "--junitxml", report]
        command += ["-p", "no:cacheprovider", "-p", "no:remora_pytest"]
        if remora:
            command += ["-p", f"benchmarks.lab.frameworks.places.{suite.plugin}"]
        if "pytest-timeout" in suite.requirements:  # tests that wait for what remora has not
            command += ["--timeout", "20"]
        if suite.select:
            command += ["-k", suite.select]
        command += [f"tests/{one}" for one in suite.tests]
        done = subprocess.run(  # noqa: PLW1510 - tests may fail
            command, cwd=place, env=environment, timeout=_LIMIT_S, capture_output=True, text=True
        )
        if not report.exists():
            sys.exit(f"{suite.framework}: no report\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return _outcomes(report)


def _outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {one.tag for one in case}
        outcome = "failed" if kinds & {"failure", "error"} else "passed"
        name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
        found[name] = "skipped" if "skipped" in kinds else outcome
    return found


def judge(suite: Suite, own: dict[str, str], ours: dict[str, str]) -> dict[str, Any]:
    """The row of a suite: what passed, what cannot apply and why, what failed."""
    row: dict[str, Any] = {
        "suite": suite.framework,
        "tests": len(ours),
        "own": sum(one == "passed" for one in own.values()),
        "passed": sum(one == "passed" for one in ours.values()),
        "inapplicable": {},
        "failed_there_too": [],
        "failed": [],
    }
    for name, outcome in sorted(ours.items()):
        if outcome == "passed":
            continue
        test = name.rpartition("::")[2]
        reason = next(
            (why for start, why in suite.inapplicable.items() if test.startswith(start)), ""
        )
        if reason:
            row["inapplicable"].setdefault(reason, []).append(name)
        elif own.get(name) != "passed":
            row["failed_there_too"].append(name)
        else:
            row["failed"].append(name)
    return row


def run_own(suite: OwnSuite, python: Path) -> dict[str, Any]:
    """Run remora's tests of an adapter; returns its row."""
    with tempfile.TemporaryDirectory(prefix="frameworks-") as temporary:
        report = Path(temporary) / "report.xml"
        command: list[str | Path] = [python, "-m", "pytest", "-q", "--junitxml", report]
        command += ["-p", "no:cacheprovider", f"tests/integration/{suite.test}"]
        environment = {
            **{key: one for key, one in os.environ.items() if not key.startswith("PYTEST_")},
            "PYTHONPATH": str(ROOT),
        }
        done = subprocess.run(  # noqa: PLW1510 - tests may fail
            command, cwd=ROOT, env=environment, timeout=_LIMIT_S, capture_output=True, text=True
        )
        if done.returncode:
            print(f"{suite.framework}: {done.stdout[-6000:]}\n{done.stderr[-3000:]}", flush=True)
        if not report.exists():
            raise RuntimeError(f"the tests of {suite.framework} did not begin")
        found = _outcomes(report)
    failed = sorted(name for name, outcome in found.items() if outcome != "passed")
    return {
        "suite": suite.framework,
        "tests": len(found),
        "own": None,
        "passed": len(found) - len(failed),
        "inapplicable": {},
        "failed_there_too": [],
        "failed": failed,
        "cells": cells_of(found),
    }


def count_lines(modules: Sequence[str]) -> int:
    """Lines of the modules of an adapter, with comments and docstrings."""
    paths = (ROOT / "remora" / "adapters" / f"{name}.py" for name in modules)
    return sum(len(path.read_text().splitlines()) for path in paths)


def _version(python: Path, distribution: str) -> str:
    program = f"from importlib.metadata import version; print(version({distribution!r}))"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _is_installed(distribution: str) -> bool:
    """Whether the running interpreter has it: the tests of its adapter are among all others."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _install(suite: Suite | OwnSuite, venvs: Path) -> Path | None:
    try:
        if isinstance(suite, OwnSuite):
            return make_environment(suite.requirements, venvs / "own")
        return python_of((*suite.requirements, str(ROOT)), venvs)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        said = e.stderr or ""
        why = said.decode() if isinstance(said, bytes) else said
        errors = [line for line in why.splitlines() if line.startswith("ERROR")]
        print(
            f"{suite.framework}: SKIPPED, since {suite.requirements[0]} cannot be installed: {e}",
            *errors[-3:],
            sep="\n    ",
            flush=True,
        )
        return None


def _note(suite: Suite | OwnSuite, python: Path, row: dict[str, Any], results: Path) -> None:
    """Print a row, and keep it if it is in the table."""
    row["version"] = f"{suite.distribution} {_version(python, suite.distribution)}"
    row["lines"] = count_lines(suite.modules)
    if isinstance(suite, Suite) or suite.agents:
        known: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
        known[suite.framework] = row
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    there = "" if row["own"] is None else f", {row['own']} with its own"
    print(
        f"{suite.framework} ({row['version']}): {row['passed']} of {row['tests']} pass{there}; "
        f"failed: {row['failed'] or 'none'}",
        flush=True,
    )


def _run(framework: str, checkout: Path, venvs: Path, results: Path) -> None:
    for suite in SUITES[framework]:
        python = _install(suite, venvs)
        if python is None:
            continue
        own = run_suite(suite, python, checkout, remora=False)
        ours = run_suite(suite, python, checkout, remora=True)
        _note(suite, python, judge(suite, own, ours), results)


def _run_own(frameworks: Sequence[str], venvs: Path, results: Path) -> bool:
    """Run the tests of several adapters, two at a time; returns whether none failed."""

    def run(framework: str) -> tuple[OwnSuite, Path, dict[str, Any]] | None:
        suite = OWN[framework]
        python = _install(suite, venvs)
        return None if python is None else (suite, python, run_own(suite, python))

    with ThreadPoolExecutor(_AT_ONCE) as threads:
        rows = list(threads.map(run, frameworks))
    for row in filter(None, rows):
        _note(*row, results)
    skipped = [name for name, row in zip(frameworks, rows, strict=True) if row is None]
    print(f"skipped: {', '.join(skipped) or 'none'}", flush=True)
    return not any(row[2]["failed"] for row in rows if row is not None)


def last_changed(frameworks: Sequence[str]) -> str:
    """That whose adapter changed within a day of the last commit; else each in its turn."""
    seconds = int(git("log", "-1", "--format=%ct")[0])
    changed = git("log", f"--since={seconds - 86_400}", "--name-only", "--format=")
    stems = {Path(name).stem for name in changed}
    touched = [
        name
        for name in frameworks
        if not stems.isdisjoint({*OWN[name].modules, Path(OWN[name].test).stem})
    ]
    offered = touched or frameworks
    return offered[seconds // 3_600 % len(offered)]


def main() -> None:
    """Run a framework's suites, or write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab.frameworks")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("framework", choices=sorted(SUITES))
    runs.add_argument("checkout", type=Path)
    own = commands.add_parser(
        "own", help="remora's tests of an adapter, with the framework; `changed` chooses one"
    )
    own.add_argument("frameworks", metavar="FRAMEWORK", nargs="*")
    for one in (runs, own):
        one.add_argument("--venvs", type=Path, default=ROOT / "build" / "frameworks")
    table = commands.add_parser("table")
    table.add_argument("--page", type=Path, default=ROOT / "docs" / "evidence" / "frameworks.md")
    for one in (runs, own, table):
        one.add_argument("--results", type=Path, default=HERE / "results.json")
    given = parser.parse_args()
    if given.command == "run":
        _run(given.framework, given.checkout.absolute(), given.venvs, given.results)
    elif given.command == "own":
        if unknown := set(given.frameworks) - {*OWN, "changed"}:
            parser.error(f"no framework {', '.join(unknown)}: choose from {', '.join(OWN)}")
        every = [name for name, suite in OWN.items() if not _is_installed(suite.distribution)]
        if given.frameworks == ["changed"]:
            given.frameworks = [last_changed(every)]
        if not _run_own(given.frameworks or every, given.venvs, given.results):
            sys.exit(1)
    else:
        insert_table(given.page, json.loads(given.results.read_text()))


if __name__ == "__main__":
    main()
