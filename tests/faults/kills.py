"""Processes at work that are killed with ``kill -9``."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

__all__ = ["kills_of", "work_and_kill"]

ROOT = Path(__file__).parents[2]


def kills_of(most: int) -> pytest.MarkDecorator:
    """A test kills once, and in the nightly run also so often."""
    nightly = pytest.param(most, marks=pytest.mark.nightly)
    return pytest.mark.parametrize("kills", [1, nightly])


def work_and_kill(
    *command: object, when: str = "", count: int = 1, pause_s: float = 0.0
) -> list[str]:
    """Start a Python program, kill it when it has said a word so often, and return what it said.

    Args:
        command: after the interpreter's name.
        when: first word of the lines that are counted. Without it the program kills itself.
        count: how many such lines.
        pause_s: how long it works on then, so that it is killed within what takes some time.

    Raises:
        AssertionError: it ended by itself.
    """
    with subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        assert child.stdout is not None
        said: list[str] = []
        seen = 0
        try:
            for line in child.stdout:
                said.append(line)
                seen += line.split()[0] == when
                if seen == count:
                    break
            time.sleep(pause_s)
        finally:  # a test that is ended leaves no process
            child.kill()
        said += child.stdout
    assert child.returncode == -signal.SIGKILL, said[-3:]
    assert seen >= count or not when, f"it ended before it was killed: {said[-3:]}"
    return [line.rstrip("\n") for line in said if line.endswith("\n")]
