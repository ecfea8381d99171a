"""A test that hangs fails by itself, and the run goes on to its summary."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
from contextlib import suppress
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
@ON_BOTH
async def test_passes_first(anyio_backend):
    await anyio.lowlevel.checkpoint()


@pytest.mark.blocking
def test_blocks():
    time.sleep(1_000)


def test_is_busy():
    while True:
        pass


@pytest.fixture
def ends_never():
    yield
    time.sleep(1_000)


@pytest.mark.blocking
def test_fails_and_blocks_at_last(ends_never):
    assert 1 == 2


@pytest.mark.blocking
def test_cannot_be_interrupted():
    while True:
        with suppress(BaseException):
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
@pytest.mark.blocking
async def test_blocks_its_loop():
    time.sleep(1_000)


@pytest.mark.anyio
async def test_waits_for_a_thread():
    await anyio.to_thread.run_sync(threading.Event().wait, 8)


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
@ON_BOTH
async def test_passes(anyio_backend):
    await anyio.lowlevel.checkpoint()
"""


@pytest.mark.nightly
@pytest.mark.blocking
def test_hanging_tests_are_reported(tmp_path: Path) -> None:
    """Blocked, busy, waiting, shielded, in children, for a thread, at last: each fails, and the
    next one runs. A process that cannot be interrupted is ended.
    """
    (tmp_path / "test_hanging.py").write_text(TESTS)
    command = [
        sys.executable, "-m", "pytest", "-q", "-c", str(ROOT / "pyproject.toml"),
        "--rootdir", str(ROOT), "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "1",
        "-o", "quiet_limit=3", "-o", "processor_limit=5", str(tmp_path),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    said = done.stdout
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, said + done.stderr
    assert "15 failed, 4 passed, 1 error" in said
    assert "nothing moved for 3 s, here:" in said
    assert "5 s of processor time are used up" in said
    assert "crashed while running 'test_hanging.py::test_cannot_be_interrupted'" in said
    assert "BlockingError" not in said, "what is said is that they hang"
