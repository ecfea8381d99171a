"""Applications of `examples/gallery` as processes, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.configs import LEAN_ENVIRONMENT
from tests.patience import wait_until
from tests.processes import bound, free_port
from tests.programs import ROOT
from tests.workers import end_owner

__all__ = ["App", "environment", "running_app"]


def environment(**variables: str) -> dict[str, str]:
    """The environment of a newcomer's shell, with a memory that searches by words."""
    lean = {**LEAN_ENVIRONMENT, "REMORA_CLUSTER__OWNERS": "1", "REMORA_CLUSTER__SHARDS": "2"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **lean, **variables}


class App(NamedTuple):
    """An application under uvicorn."""

    address: str
    process: subprocess.Popen[bytes]


@contextmanager
def running_app(name: str, directory: Path, *words: str, **variables: str) -> Iterator[App]:
    """An application, once it answers; its memory is `directory`."""
    port = free_port()
    command = ("-m", "uvicorn", f"examples.gallery.{name}:app", "--port", str(port), *words)
    process = subprocess.Popen(
        bound(sys.executable, *command),
        cwd=ROOT,
        env=environment(MEMORY_DIR=str(directory), **variables),
    )
    address = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        assert process.poll() is None, "the server has ended"
        try:
            return httpx.get(f"{address}/readyz", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(is_ready, f"{name} answers")
        yield App(address, process)
    finally:
        process.terminate()
        process.wait()
        end_owner(directory)
