"""How soon busy threads hand the interpreter over: a setting of the process, which is restored."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from remora import Config, Line, Message, Runtime
from remora.models.extractive import ExtractiveSummarizer
from remora.runtime.threads import (
    frequent_switches,
    is_loading,
    load_module,
    wait_until_loaded,
)
from remora.storage.sqlite.connection import JournalConnection
from tests.patience import wait_until
from tests.processes import bound, is_asleep

DEFAULT_S, SHORT_S = 0.005, 0.000198


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT_S)
    yield
    sys.setswitchinterval(before)


def test_the_interval_is_short_during_the_work_and_restored_after_it() -> None:
    """After a failure, too, and although the host sets what it read during the work."""
    with frequent_switches():
        assert sys.getswitchinterval() == pytest.approx(SHORT_S)
    assert sys.getswitchinterval() == pytest.approx(DEFAULT_S)
    with pytest.raises(ModuleNotFoundError):
        load_module("remora.no_such_module")
    assert sys.getswitchinterval() == pytest.approx(DEFAULT_S)
    with frequent_switches():
        sys.setswitchinterval(sys.getswitchinterval())
    assert sys.getswitchinterval() == pytest.approx(DEFAULT_S)


def test_an_interval_of_the_host_is_left_alone() -> None:
    """And one that it sets during the work is kept."""
    for own_s in (0.02, 0.001, 0.0002, 0.00005):
        sys.setswitchinterval(own_s)
        with frequent_switches():
            assert sys.getswitchinterval() == pytest.approx(own_s)
        assert sys.getswitchinterval() == pytest.approx(own_s)
    sys.setswitchinterval(DEFAULT_S)
    with frequent_switches():
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_it_is_short_until_the_last_of_several_threads_is_done() -> None:
    begun, first_may_end = threading.Barrier(2), threading.Event()

    def first() -> None:
        with frequent_switches():
            begun.wait()
            wait_until(first_may_end.is_set, "the first may end")

    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(first)
        with frequent_switches():
            begun.wait()
        assert sys.getswitchinterval() == pytest.approx(SHORT_S)
        first_may_end.set()
        work.result()
    assert sys.getswitchinterval() == pytest.approx(DEFAULT_S)


def test_a_child_that_is_forked_during_the_work_has_the_default() -> None:
    program = """if True:
        import os, sys
        from remora.runtime.threads import frequent_switches
        with frequent_switches():
            child = os.fork()
            if not child:
                os._exit(sys.getswitchinterval() != 0.005)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.anyio
async def test_a_summary_is_extracted_with_the_short_interval() -> None:
    seen = set()

    def count(text: str) -> int:
        seen.add(round(sys.getswitchinterval(), 6))
        return len(text) // 4

    lines = [Line("user", "User", f"I moved to town {n} in May.", n) for n in range(20)]
    assert await ExtractiveSummarizer(count).summarize(None, lines, max_tokens=40)
    assert seen == {SHORT_S}
    assert sys.getswitchinterval() == pytest.approx(DEFAULT_S)


@pytest.mark.anyio
@pytest.mark.parametrize("own_s", [None, 0.0002])
async def test_commits_are_made_with_the_short_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_s: float | None
) -> None:
    seen: set[float] = set()
    run = JournalConnection.run_in_place

    def watched(self: JournalConnection, *arguments: Any) -> None:
        seen.add(round(sys.getswitchinterval(), 6))
        run(self, *arguments)

    monkeypatch.setattr(JournalConnection, "run_in_place", watched)
    alone = Config.from_dict({"long_term": {"enabled": False}})
    async with Runtime(tmp_path, config=alone) as runtime:
        await runtime.ready()
        if own_s is not None:
            sys.setswitchinterval(own_s)

        async def say(number: int) -> None:
            await runtime.session("ann", f"chat {number}").append(
                Message(role="user", content="hello")
            )

        for senders in (1, 40):
            seen.clear()
            async with anyio.create_task_group() as tasks:
                for number in range(senders):
                    tasks.start_soon(say, number)
            assert seen == {own_s or SHORT_S}
            assert sys.getswitchinterval() == pytest.approx(own_s or DEFAULT_S)


def test_what_ends_waits_for_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter must not be taken down while a thread loads native code."""
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "slow_events", SimpleNamespace(begun=begun, go_on=go_on))
    (tmp_path / "slow_to_load.py").write_text(
        "import slow_events\nslow_events.begun.set()\nslow_events.go_on.wait()\nDONE = True\n"
    )
    loading = threading.Thread(target=load_module, args=("slow_to_load",), daemon=True)
    loading.start()
    wait_until(begun.is_set, "the module is being loaded")
    assert is_loading()
    waiting = threading.Thread(target=wait_until_loaded, daemon=True)
    waiting.start()
    assert waiting.is_alive()
    go_on.set()
    waiting.join()
    assert sys.modules["slow_to_load"].DONE
    loading.join()
    assert not is_loading()


ENDS_WHILE_LOADING = """
import atexit, sys, threading
from remora.runtime.threads import is_loading, load_module

atexit.register(print, "ending", flush=True)  # the last one that is registered is called first
sys.path.insert(0, sys.argv[1])
threading.Thread(target=load_module, args=("slow_to_load",), daemon=True).start()
while not is_loading():
    pass
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")
def test_ctrl_c_at_the_end_of_a_program_shows_no_traceback(tmp_path: Path) -> None:
    """It waits for what is loaded, and the one who does not want to wait has said so."""
    (tmp_path / "slow_to_load.py").write_text("import sys\nsys.stdin.read()\n")
    command = bound(sys.executable, "-c", ENDS_WHILE_LOADING, tmp_path)
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ending\n"
        wait_until(lambda: is_asleep(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stderr.read() == ""
