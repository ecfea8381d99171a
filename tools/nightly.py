"""All that is not worth waiting for at each change, in one command with a report.

    python3 tasks.py nightly [STEP ...] [--minutes N]

Each step is a command that can be repeated by itself; one that fails stops no other. The report is
build/nightly.md: what failed, how it ended, and the command that repeats it, with its seed; and
which mutants survived.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tools.quick import git

__all__ = ["STEPS", "Step", "main"]

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "build" / "nightly.md"
TAIL = 40
PYTHONS = ("3.12", "3.13", "3.14")


class Step(NamedTuple):
    """A command and what it is for; ``{seed}`` and ``{minutes}`` are filled in."""

    what: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = MappingProxyType({})

    def shown(self, **values: object) -> str:
        """As a shell takes it."""
        words = [*(f"{name}={value}" for name, value in self.environment.items()), *self.command]
        return " ".join(words).format(**values)


def task(what: str, *words: str, **environment: str) -> Step:
    """A step that is a word of tasks.py."""
    return Step(what, ("python3", "tasks.py", *words), environment)


STEPS: dict[str, Step] = {
    "all": task("every test, the nightly ones too", "pytest", "--examples-seed={seed}"),
    "uvloop": task(
        "on uvloop", "test", "tests/integration", "--examples-seed={seed}",
        REMORA_TEST_LOOP="uvloop",
    ),
    "frameworks": task("adapters, each with its framework", "frameworks"),
    "examples": task(
        "property tests and seeds, long", "prop-soak", "--examples-seed={seed}",
        REMORA_EXAMPLES="2000",
    ),
    "container": task("the image of remora http, without an engine", "container"),
    "soak": task("mixed load with faults and kills", "soak", "{minutes}", "--seed", "{seed}"),
    "memory": task(
        "load whose memory must not grow", "memory-soak", "{minutes}", "--seed", "{seed}",
    ),
    "coverage": task("which lines tests execute", "coverage", "--examples-seed={seed}"),
    "mutants": task(
        "mutants at random places", "mutants", "--places", "150", "--seed", "{seed}",
        "--minutes", "60",
    ),
    "changed": task(
        "mutants on lines changed in a day", "mutants", "--changed", "{yesterday}",
    ),
    **{
        f"python{version}": Step(
            f"on Python {version}",
            (f"python{version}", "-m", "tools.nightly", "--in-python", version,
             "--seed", "{seed}"),
        )
        for version in PYTHONS
    },
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", choices=[*STEPS, []], metavar="STEP",
                        help=f"of {', '.join(STEPS)}; all of them if none is named")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=20, help="of each soak; 20")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of examples")
    parser.add_argument("--in-python", metavar="VERSION", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.in_python:
        return test_in(options.in_python, options.seed)
    REPORT.parent.mkdir(exist_ok=True)
    values = {
        "seed": options.seed,
        "minutes": f"{options.minutes:g}",
        "yesterday": next(iter(git("rev-list", "-1", "--before=1.day.ago", "HEAD")), "HEAD"),
    }
    rows, details = [], []
    for name in options.steps or STEPS:
        step = STEPS[name]
        shown = step.shown(**values)
        print(f"{name}: {step.what}\n    {shown}", flush=True)
        if not is_there(step.command[0]):
            outcome, took_s, said = f"skipped: no {step.command[0]}", 0.0, list[str]()
        else:
            began_s = time.monotonic()
            code, said = run(name, step, values)
            outcome, took_s = (
                "passed" if not code else f"FAILED ({code})",
                time.monotonic() - began_s,
            )
        print(f"    {outcome} after {took_s:.0f} s", flush=True)
        rows.append(f"| {name} | {step.what} | {outcome} | {took_s / 60:.1f} min |")
        if outcome.startswith("FAILED") or (said and step.command[2:3] == ("mutants",)):
            details += [f"## {name}", "", f"Repeat: `{shown}`", "", "```", *said, "```", ""]
        head = ["# Nightly", "", "| step | | outcome | took |", "|---|---|---|---|"]
        REPORT.write_text("\n".join([*head, *rows, "", *details]), encoding="utf-8")
    failed = sum("FAILED" in row for row in rows)
    print(f"{len(rows) - failed} of {len(rows)} did not fail; {REPORT.relative_to(ROOT)}")
    return 1 if failed else 0


def run(name: str, step: Step, values: dict[str, object]) -> tuple[int, list[str]]:
    """Run a step; returns its code and the last lines of build/nightly/NAME.log."""
    log = ROOT / "build" / "nightly" / f"{name}.log"
    log.parent.mkdir(exist_ok=True)
    command = [word.format(**values) for word in step.command]
    with log.open("wb") as file:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **step.environment}, stdout=file,
            stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return done.returncode, lines[-TAIL:]


def is_there(program: str) -> bool:
    """Whether a program can be run: a shim of pyenv may have none behind it."""
    if shutil.which(program) is None:
        return False
    return not subprocess.run([program, "--version"], capture_output=True, check=False).returncode


def test_in(version: str, seed: int) -> int:
    """Run the tests in an environment of another Python, made once under build/."""
    made = ROOT / "build" / f"python{version}"
    python = made / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
    command = [str(python), "tasks.py", "test", f"--examples-seed={seed}"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
