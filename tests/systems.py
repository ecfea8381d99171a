"""Processes that have what a process on Windows or macOS has, for tests on Linux."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import bound

__all__ = ["COLD", "LOOPBACK", "SYSTEMS", "environment_of", "open_memory", "run_on"]

COLD = pytest.mark.cold
"""Mark of the tests: an interpreter reads its environment when it starts."""
LOOPBACK = {"linux": ["windows"], "win32": ["this one"]}.get(sys.platform, [])
"""Systems whose socket in a memory directory is a port of loopback; see `environment_of`."""
SYSTEMS = ["windows", "macos"] if sys.platform == "linux" else ["this one"]
_HERE = Path(__file__).parent
_LONGEST_S = 300


def environment_of(system: str, **more: str) -> dict[str, str]:
    """The environment that makes an interpreter, and those that it starts, one of a system.

    Args:
        system: ``windows`` or ``macos``, a directory with a ``sitecustomize``; or ``this one``, as
            it is.
        more: other variables.
    """
    paths = [str(_HERE.parent), os.environ.get("PYTHONPATH", "")]
    if system in {"windows", "macos"}:
        paths.insert(0, str(_HERE / system))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def run_on(system: str, *words: str | Path, **more: str) -> str:
    """What a command of remora prints on a system; or a program, if there is one word."""
    asked = ["-m", "remora", *map(str, words)]
    if len(words) == 1:
        asked = ["-c", textwrap.dedent(str(words[0]))]
    done = subprocess.run(
        bound(sys.executable, *asked),
        env=environment_of(system, **more),
        capture_output=True,
        encoding="utf-8",
        timeout=_LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_OPEN = """
import asyncio, sys, remora
async def main():
    async with remora.Runtime(sys.argv[1]) as runtime:
        await runtime.user("ann").session("one").append({"role": "user", "content": "a secret"})
        await runtime.ready()
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)
asyncio.run(main())
"""


@contextmanager
def open_memory(system: str, directory: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process on a system that has a memory open, and closes it in the end."""
    command = bound(sys.executable, "-c", _OPEN, directory)
    with subprocess.Popen(
        command,
        env=environment_of(system, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        if process.poll() is None:
            process.communicate()
            assert process.returncode == 0
