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


@pytest.fixture
async def opened():
    await anyio.lowlevel.checkpoint()
    yield
    await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
@ON_BOTH
async def test_waits_while_its_fixture_is_open(opened, anyio_backend):
    await anyio.sleep_forever()


def test_fails():
    assert 1 == 2


@pytest.mark.anyio
@pytest.mark.timeout(60)
@ON_BOTH
async def test_passes(anyio_backend):
    await anyio.lowlevel.checkpoint()
"""


BLOCKED_AT_LAST = """
import time
import pytest

@pytest.fixture
def opened():
    yield
    time.sleep(1_000)


@pytest.mark.blocking
@pytest.mark.timeout(0)
def test_fails_and_blocks_at_last(opened):
    assert 1 == 2


def test_passes():
    pass
"""


def run_pytest(path: Path, *words: str) -> str:
    """What the tests of a file print; some of them fail."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"),
        "--rootdir", str(ROOT),
        "-p", "tests.conftest", "-p", "no:cacheprovider", *words, str(path),
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
    return done.stdout


@pytest.mark.blocking
def test_hanging_tests_are_reported(tmp_path: Path) -> None:
    """Blocked, waiting, shielded, in children, for a thread: each fails, and the next one runs."""
    (tmp_path / "test_hanging.py").write_text(TESTS)
    said = run_pytest(tmp_path, "-o", "timeout=0.5")
    assert "11 failed, 4 passed" in said
    assert "Timeout (>0.5s) from pytest-timeout" in said
    assert "BlockingError" not in said, "what is said is that they hang"


@pytest.mark.blocking
def test_a_failed_test_whose_end_hangs(tmp_path: Path) -> None:
    """Its process is ended, and another one goes on."""
    (tmp_path / "test_blocked.py").write_text(BLOCKED_AT_LAST)
    watch = ("faulthandler_timeout=10", "faulthandler_exit_on_timeout=true")
    said = run_pytest(tmp_path, "-n", "1", "--dist", "worksteal", "-o", watch[0], "-o", watch[1])
    assert "crashed while running" in said
    assert "failed, 1 passed" in said
