"""Programs of the repository that tests run: examples, benchmarks, the command line."""

from __future__ import annotations

import io
import os
import runpy
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

import anyio.to_thread

from remora.cli.main import main

__all__ = ["PATIENT", "ROOT", "printed", "run_command", "run_command_aside", "run_program"]

ROOT = Path(__file__).parents[1]
PATIENT = {"REMORA_RECALL__DEADLINE_S": "600"}
"""What a program prints does not depend on how busy the machine is."""


def run_program(
    *words: object, check: bool = True, cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a module with its arguments in a process of its own, and wait for its end."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **PATIENT, **variables},
        capture_output=True,
        text=True,
        check=check,
    )


def run_command(*words: object) -> int:
    """Run ``remora`` with these words here; returns its exit code. What it prints is printed."""
    try:
        return main([*map(str, words)])
    except SystemExit as e:
        return int(str(e.code))


async def run_command_aside(*words: object) -> int:
    """Run ``remora`` in another thread, beside what the event loop does; returns its exit code."""
    return await anyio.to_thread.run_sync(run_command, *words)


def printed(module: str, *words: object, **variables: str) -> str:
    """What a module prints when it is run here as a program; a process would take seconds."""
    out = io.StringIO()
    with (
        redirect_stdout(out),
        patch.object(sys, "argv", [module, *map(str, words)]),
        patch.dict(os.environ, {**PATIENT, **variables}),
        warnings.catch_warnings(),
    ):
        # another program may have imported this one
        warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
        try:
            runpy.run_module(module, run_name="__main__")
        except SystemExit as e:
            if e.code:
                raise
    return out.getvalue()
