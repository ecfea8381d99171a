"""A test that hangs fails by itself, and the run goes on to its summary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import threading
import time

import anyio
import anyio.to_thread
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"


ON_BOTH = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@pytest.mark.anyio
@pytest.mark.timeout(60)  # and loads what the others need
@ON_BOTH
async def test_passes_first(anyio_backend):
    await anyio.lowlevel.checkpoint()


@pytest.mark.blocking
def test_blocks():
    time.sleep(1_000)


@pytest.mark.anyio
@ON_BOTH
async def test_waits(anyio_backend):
    await anyio.sleep_forever()


async def waits_shielded():
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


@pytest.mark.anyio
@ON_BOTH
async def test_waits_shielded(anyio_backend):
    await waits_shielded()


@pytest.mark.anyio
@ON_BOTH
async def test_children_wait_shielded(anyio_backend):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits_shielded)
        tasks.start_soon(waits_shielded)


@pytest.mark.anyio
async def test_waits_for_a_thread():
    await anyio.to_thread.run_sync(threading.Event().wait, 2)


def test_fails():
    assert 1 == 2


@pytest.mark.anyio
@pytest.mark.timeout(60)
@ON_BOTH
async def test_passes(anyio_backend):
    await anyio.lowlevel.checkpoint()
"""


@pytest.mark.blocking
def test_hanging_tests_are_reported(tmp_path: Path) -> None:
    """Blocked, waiting, shielded, in children, for a thread: each fails, and the next one runs."""
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"),
        "--rootdir", str(ROOT),
        "-p", "tests.conftest", "-p", "no:cacheprovider", "-o", "timeout=0.5", str(tmp_path),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "9 failed, 4 passed" in done.stdout
    assert "Timeout (>0.5s) from pytest-timeout" in done.stdout
    assert "BlockingError" not in done.stdout, "what is said is that they hang"
