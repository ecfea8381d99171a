"""The process that computes for background jobs, and what becomes of work when it dies."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from remora import Config, Runtime
from remora.api import build
from remora.services.computing import ComputingProcess
from tests.harness import user
from tests.patience import until, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
SENTENCE = "We looked at the harbour of Lisbon and its ships, number {}, and went on to Porto. "


@pytest.fixture
def computing() -> Iterator[ComputingProcess]:
    process = ComputingProcess(busy_s=0.0, answer_s=60.0)
    process.join()
    yield process
    anyio.run(process.leave)


def started(process: ComputingProcess) -> int:
    """The id of the process, when it answers."""

    def answer() -> int | None:
        pid = process.call(os.getpid)
        return None if pid == os.getpid() else pid

    return wait_until(answer, "the process answers")


async def test_it_computes_elsewhere_and_dies_with_its_last_user(
    computing: ComputingProcess,
) -> None:
    pid = await anyio.to_thread.run_sync(started, computing)
    assert pid == computing.pid
    assert computing.call(operator.add, [1], [2]) == [1, 2]
    await computing.leave()
    assert not computing.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert computing.call(os.getpid) == os.getpid()


async def test_what_it_does_not_answer_is_computed_here(computing: ComputingProcess) -> None:
    """It is killed, or stopped in the middle; another one is started."""
    pid = await anyio.to_thread.run_sync(started, computing)
    os.kill(pid, signal.SIGKILL)
    assert computing.call(os.getpid) == os.getpid()
    stopped = ComputingProcess(busy_s=0.0, answer_s=0.2)
    stopped.join()
    pid = await anyio.to_thread.run_sync(started, stopped)
    os.kill(pid, signal.SIGSTOP)
    assert stopped.call(operator.add, 1, 2) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert await anyio.to_thread.run_sync(started, stopped) != pid
    await stopped.leave()


async def test_errors_and_objects_of_the_application_stay_here(
    computing: ComputingProcess,
) -> None:
    """An error is raised as without it; what an application wrote is never loaded there."""
    await anyio.to_thread.run_sync(started, computing)
    with pytest.raises(ZeroDivisionError):
        computing.call(operator.truediv, 1, 0)
    called: Callable[[], int] = lambda: os.getpid()  # noqa: E731, PLW0108 -- of this module
    assert computing.call(called) == os.getpid()
    assert computing.call(operator.call, called) == os.getpid()
    assert computing.pid is not None


@pytest.mark.parametrize(
    "command",
    [("/no/python",), ("python-but-not-there",), (sys.executable, "-c", "raise SystemExit(1)")],
)
async def test_without_it_threads_compute(
    command: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be started, or ends at once: that is said once, and nothing is lost."""
    process = ComputingProcess(command, busy_s=0.0)
    process.join()

    def unable() -> bool:
        assert process.call(operator.add, 1, 2) == 3
        return "computing_process_unable" in caplog.text

    await until(unable, "that is said")
    assert process.call(operator.add, 1, 2) == 3
    assert caplog.text.count("computing_process_unable") == 1
    await process.leave()


async def test_it_ends_with_a_server_that_is_killed() -> None:
    """Nothing is left of a server that had no time to end it."""
    program = (
        "import os, signal\n"
        "from remora.services.computing import ComputingProcess\n"
        "process = ComputingProcess(busy_s=0.0)\n"
        "process.join()\n"
        "while (pid := process.call(os.getpid)) == os.getpid(): pass\n"
        "print(pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    run = partial(subprocess.run, [sys.executable, "-c", program], capture_output=True, check=False)
    done = await anyio.to_thread.run_sync(run)
    pid = int(done.stdout)

    def gone() -> bool:
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"

    await until(gone, "the process ended")


async def test_a_fork_leaves_the_process_to_its_parent() -> None:
    """A server that forks after it started: each child has a process of its own, or none."""
    program = (
        "import os\n"
        "from remora.services.computing import shared_process as process\n"
        "process._busy_after_s = 0.0\n"
        "process.join()\n"
        "while (pid := process.call(os.getpid)) == os.getpid(): pass\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if process.call(os.getpid) == os.getpid() else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "assert process.call(os.getpid) == pid\n"
        "process._leave()\n"
    )
    await anyio.to_thread.run_sync(
        lambda: subprocess.run([sys.executable, "-c", program], check=True)
    )


async def test_a_runtime_whose_process_is_killed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computing: ComputingProcess
) -> None:
    """Summaries are written and messages indexed as without it; a user who is forgotten in the
    middle is in no file.
    """
    monkeypatch.setattr(build, "shared_process", computing)
    config = Config.from_dict({"buffer": {"token_limit": 2_000}})
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        for number in range(5):
            pid = await anyio.to_thread.run_sync(started, computing)
            for name in ("alice", "bob"):
                said = [user(SENTENCE.format(f"{name}-{number}-{n}") * 5) for n in range(40)]
                await runtime.session(name, "chat").append(said)
            os.kill(pid, signal.SIGKILL)
        await runtime.user("bob").forget()
        await runtime.session("alice", "chat").flush()
        await runtime.settle()
        assert (await runtime.user("alice").stats()).long_term_rows == 200
        context = await runtime.session("alice", "chat").load(max_tokens=1_500)
        assert context.sources.summary.messages is not None
    files = [path for path in (tmp_path / "memory").rglob("*") if path.is_file()]
    assert [path for path in files if b"bob-" in path.read_bytes()] == []
