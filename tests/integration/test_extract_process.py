"""Extracts in a process of their own: the same as in a thread, whatever becomes of the process."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

import anyio
import pytest

from remora import Config, Runtime
from remora.models.extract_process import ExtractProcess, is_useful
from remora.models.extractive import ExtractiveSummarizer
from remora.models.ports import Line
from remora.runtime.threads import run_in_thread
from remora.tokens import HeuristicCounter, TiktokenCounter

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

COUNTER = HeuristicCounter()
SIZES = (20, 60, 400, 100_000)


def lines(
    number: int, text: str = "I moved to town {} in May. Is it far? It has 3 parks."
) -> list[Line]:
    return [
        Line(role="user", speaker="Ann" if n % 2 else "Bo", text=text.format(n), at_us=n * 10**9)
        for n in range(number)
    ]


def conversations() -> list[tuple[str | None, list[Line]]]:
    return [
        (None, lines(40)),
        ("- 8 May 2023, Ann: I sail.\nloose", lines(7)),
        ("", []),
        (None, lines(3, "日本語の文です。私は東京{}に住んでいます。")),
        (None, lines(2, "\n\n\t {} 🐙 \x00 - A: B")),
        (None, lines(1, "word{0} " * 30_000)),
    ]


@pytest.fixture
async def process() -> AsyncIterator[ExtractProcess]:
    made = ExtractProcess("heuristic", "bytes", worth_s=0)
    yield made
    await made.aclose()
    assert made.pid is None


async def extracts(summarizer: ExtractiveSummarizer, number: int = 12) -> list[str]:
    ask = summarizer.prepare(None, lines(number))
    return [await ask(size) for size in SIZES]


async def used(summarizer: ExtractiveSummarizer, log: pytest.LogCaptureFixture) -> None:
    """Until the process answers."""
    log.clear()
    with anyio.fail_after(300):
        while "extract_process_started" not in log.text:
            await extracts(summarizer)
            await anyio.sleep(0)


async def gone(pid: int) -> None:
    """Until there is no such process, or only its exit code."""
    stat = Path(f"/proc/{pid}/stat")
    with anyio.fail_after(300):
        while True:
            try:
                if stat.read_text().rpartition(")")[2].split()[0] in {"Z", "X"}:
                    return
            except (FileNotFoundError, ProcessLookupError):
                return
            await anyio.sleep(0.01)


@pytest.fixture(autouse=True)
def events(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "remora")
    return caplog


@pytest.mark.parametrize(
    ("kind", "detail", "count"),
    [
        ("tiktoken", "o200k_base", TiktokenCounter("o200k_base").count),
        ("heuristic", "characters", HeuristicCounter("characters").count),
    ],
    ids=["tiktoken", "heuristic"],
)
async def test_extracts_are_those_of_a_thread(
    kind: Literal["tiktoken", "heuristic"],
    detail: str,
    count: Callable[[str], int],
    events: pytest.LogCaptureFixture,
) -> None:
    """In all sizes, of several conversations by turns."""
    process = ExtractProcess(kind, detail, worth_s=0)
    beside = ExtractiveSummarizer(count, process)
    alone = ExtractiveSummarizer(count)
    try:
        await used(beside, events)
        asks = [(beside.prepare(*one), alone.prepare(*one)) for one in conversations()]
        for size in SIZES:
            for ask, expect in asks:
                assert await ask(size) == await expect(size)
        assert "extract_process_failed" not in events.text
    finally:
        await process.aclose()


async def test_it_starts_when_threads_have_taken_long_enough(
    events: pytest.LogCaptureFixture,
) -> None:
    """Nobody who extracts little pays for a process."""
    process = ExtractProcess("heuristic", "bytes", worth_s=3_600)
    assert await extracts(ExtractiveSummarizer(COUNTER.count, process))
    assert process.pid is None
    await process.aclose()
    process = ExtractProcess("heuristic", "bytes", worth_s=0.02)
    await used(ExtractiveSummarizer(COUNTER.count, process), events)
    assert process.pid is not None
    await process.aclose()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_process_that_dies_loses_no_extract(
    process: ExtractProcess, events: pytest.LogCaptureFixture, number: signal.Signals
) -> None:
    """The thread makes it; later another process does."""
    summarizer = ExtractiveSummarizer(COUNTER.count, process)
    expected = await extracts(ExtractiveSummarizer(COUNTER.count))
    await used(summarizer, events)
    assert process.pid is not None
    os.kill(process.pid, number)
    await gone(process.pid)
    assert await extracts(summarizer) == expected
    assert events.text.count("extract_process_failed") == 1
    assert f"exit_code={-number}" in events.text
    await used(summarizer, events)
    assert await extracts(summarizer) == expected


async def test_a_process_that_is_not_ready_in_time_is_given_up(
    events: pytest.LogCaptureFixture,
) -> None:
    process = ExtractProcess("heuristic", "bytes", worth_s=0, answer_s=0)
    summarizer = ExtractiveSummarizer(COUNTER.count, process)
    expected = await extracts(ExtractiveSummarizer(COUNTER.count))
    assert await extracts(summarizer) == expected
    assert "TimeoutError: it was not ready in time" in events.text
    await process.aclose()


async def test_one_that_stands_still_does_not_hold_up_closing(
    process: ExtractProcess, events: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for its answer gets the thread's."""
    summarizer = ExtractiveSummarizer(COUNTER.count, process)
    expected = await extracts(ExtractiveSummarizer(COUNTER.count))
    await used(summarizer, events)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    found: list[str] = []
    async with anyio.create_task_group() as group:

        async def ask() -> None:
            found.extend(await extracts(summarizer))

        group.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        await process.aclose()
    assert found == expected
    assert "extract_process_failed" not in events.text


async def test_it_needs_another_interpreter(
    process: ExtractProcess, events: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none can be started, threads go on."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert await extracts(ExtractiveSummarizer(COUNTER.count, process))
    assert "extract_process_failed" in events.text
    assert process.pid is None


def test_after_each_failure_it_takes_twice_as_long_to_the_next_start(
    events: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine on which none can be started is not kept busy with trying."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    process = ExtractProcess("heuristic", "bytes", worth_s=0.01)

    def work(_: int) -> str:
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return "done"

    extract = process.prepare(None, [], work)
    starts = []
    for number in range(1, 33):
        events.clear()
        assert extract(9) == "done"
        if "extract_process_failed" in events.text:
            starts.append(number)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert len(starts) > 2
    assert gaps == sorted(set(gaps))


@pytest.mark.parametrize(
    ("executable", "processors", "expected"),
    [
        ("/usr/bin/python3.11", {0, 1}, True),
        ("/usr/bin/python3.11", {3}, False),
        ("/opt/agent/agent", {0, 1}, False),
        ("/usr/bin/uwsgi", {0, 1}, False),
        ("", {0, 1}, False),
        (None, {0, 1}, False),
    ],
)
def test_it_is_for_several_processors_and_a_plain_interpreter(
    monkeypatch: pytest.MonkeyPatch,
    executable: str | None,
    processors: set[int],
    expected: bool,
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: processors, raising=False)
    assert is_useful() is expected


async def test_it_leaves_signals_to_its_parent_and_ends_with_it(tmp_path: Path) -> None:
    """SIGTERM for a whole service ends no extract; SIGKILL of the parent leaves nothing."""
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
        import time
        from remora.models.extract_process import ExtractProcess
        process = ExtractProcess("heuristic", "bytes", worth_s=0)
        extract = process.prepare(None, [], lambda size: "thread")
        while extract(9) == "thread":
            time.sleep(0.01)
        print(process.pid, flush=True)
        input()
        print(extract(8) or "process", flush=True)
        input()
        """)
    )
    command = [sys.executable, str(program)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin
        assert parent.stdout
        pid = int(await run_in_thread(parent.stdout.readline))
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert await run_in_thread(parent.stdout.readline) == "process\n"
        parent.kill()
    await gone(pid)


async def test_a_busy_runtime_has_one_and_closes_it(
    tmp_path: Path, events: pytest.LogCaptureFixture
) -> None:
    """What it summarizes is what a runtime without it does."""
    settings = {"buffer": {"token_limit": 600}, "long_term": {"enabled": False}}
    text = "On day {} I took the ferry to island {}, which has a harbour, a school and {} goats. "

    async def talk(runtime: Runtime, first: int) -> None:
        session = runtime.session("ann", "talk")
        batch = [text.format(n, n * 7, n % 13) * 40 for n in range(first, first + 25)]
        await session.append([{"role": "user", "content": said} for said in batch])
        await session.settle()

    rounds = 0
    async with Runtime(tmp_path / "with", config=Config.from_dict(settings)) as runtime:
        with anyio.fail_after(600):
            while "extract_process_started" not in events.text:
                await talk(runtime, 25 * rounds)
                rounds += 1
        for _ in range(3):
            await talk(runtime, 25 * rounds)
            rounds += 1
        summary = (await runtime.session("ann", "talk").inspect()).summary
        (pid,) = (
            one.split("pid=")[1].split()[0]
            for one in events.text.splitlines()
            if "extract_process_started" in one
        )
    await gone(int(pid))
    assert "extract_process_failed" not in events.text
    settings["models"] = {"extract_process": False}
    async with Runtime(tmp_path / "without", config=Config.from_dict(settings)) as runtime:
        for number in range(rounds):
            await talk(runtime, 25 * number)
        assert summary
        assert (await runtime.session("ann", "talk").inspect()).summary == summary
    assert events.text.count("extract_process_started") == 1
