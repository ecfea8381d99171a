"""``remora health`` and ``remora top``: what an operator sees of a running process."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
import pytest
from rich.console import Console

from remora import Runtime, observe
from remora.cli.health import show_status
from remora.cluster.sharded import ShardedRuntime
from remora.results import Health, HealthProblem, Histogram
from remora.runtime.meters import SECONDS
from tests.configs import PLAIN
from tests.harness import user
from tests.programs import run_command, run_command_aside

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
    pytest.mark.skipif(sys.platform != "linux", reason="the sockets need Linux"),
]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


async def remora(command: str, *words: object) -> int:
    patient = ["--timeout", "600"] if command == "health" else []
    return await run_command_aside(command, *words, *patient)


async def test_health_of_a_running_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready: 0. Not, and the reason is printed: 1, unless only being live is asked for."""
    path = tmp_path / "remora-memory"
    runtime = Runtime(path, config=PLAIN)
    async with runtime:
        assert await remora("health", path) == 0
        assert capsys.readouterr().out.startswith("ready  process ")
        monkeypatch.chdir(tmp_path)
        assert await remora("health") == 0
        capsys.readouterr()
        journal = runtime.internals.journal
        failing = msgspec.structs.replace(journal.statistics(), failing="FULL", refusing=True)
        monkeypatch.setattr(journal, "statistics", lambda: failing)
        assert await remora("health", path) == 1
        assert "not ready" in (shown := capsys.readouterr().out)
        assert "commits_fail: the last commit of the journal failed (FULL)" in shown
        assert await remora("health", path, "--live", "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["health"]["problems"][0]["code"] == "commits_fail"
        assert (answer["shards"], answer["served"]) == (1, 1)


async def test_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each says what is the matter."""
    for command in ("health", "top"):
        assert await remora(command, tmp_path) == 1
        assert "no process has" in capsys.readouterr().err
        assert await remora(command, tmp_path / "none") == 1
        assert "there is no directory" in capsys.readouterr().err
    assert run_command("top", tmp_path, "--interval", "0") == 2


async def test_top_of_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows what was done between two looks, of all shards."""
    path = tmp_path / "memory"
    memory = ShardedRuntime.of(Runtime(path, config=PLAIN), shards=2)
    async with memory:
        for number in range(5):
            await memory.session(f"user {number}", "s").append(user("hello"))
        assert await remora("top", path, "--looks", 2, "--interval", 0.1) == 0
    shown = capsys.readouterr().out
    assert "2 shards" in shown
    appends = [line for line in shown.splitlines() if line.startswith("append")]
    assert [line.split()[-1] for line in appends] == ["5", "5"]
    assert "5 sessions and users" in shown


async def test_top_in_a_pipe(tmp_path: Path) -> None:
    """Each look is written at once, as plain lines; a reader that has enough ends it."""
    path = tmp_path / "memory"

    def read() -> tuple[list[bytes], bytes]:
        command = [sys.executable, "-m", "remora", "top", str(path), "--interval", "0.1"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            lines: list[bytes] = []
            while sum(line.startswith(b"append") for line in lines) < 2:
                lines.append(process.stdout.readline())
                assert lines[-1]
            process.stdout.close()
            return lines, process.stderr.read()

    async with Runtime(path, config=PLAIN) as runtime:
        await runtime.session("ann", "s").append(user("hello"))
        lines, said = await anyio.to_thread.run_sync(read)
    assert not any(b"\x1b" in line for line in lines)
    assert lines.count(lines[0]) == 2
    assert said == b""


async def some_status(path: Path) -> observe.RuntimeStatus:
    async with Runtime(path, config=PLAIN) as runtime:
        await runtime.session("ann", "s").append(user("hello"))
        status = await anyio.to_thread.run_sync(observe.ask, path)
    assert status is not None
    return status


def picture(statuses: list[observe.RuntimeStatus]) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=80, force_terminal=False).print(show_status(Path("memory"), statuses))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def line_of(lines: list[str], first: str) -> str:
    return next(line for line in lines if line.startswith(first))


async def test_what_top_draws(tmp_path: Path) -> None:
    """Rates and times are of ten seconds, and the bars of a minute. Large figures, names that
    control terminals, long texts: nothing is wider than eighty columns, or is obeyed.
    """
    status = await some_status(tmp_path / "memory")
    statistics: Any = status.statistics
    replace = msgspec.structs.replace

    def at(at_s: float, fast: int, slow: int) -> observe.RuntimeStatus:
        counts = [0] * (len(SECONDS) + 1)
        counts[SECONDS.index(0.005)], counts[-1] = fast, slow
        verbs = replace(statistics.verbs, append_s=Histogram(SECONDS, tuple(counts), 1.0))
        return replace(status, at_s=at_s, statistics=replace(statistics, verbs=verbs))

    lines = picture([at(0, 0, 0), at(20, 9_000, 5), at(25, 9_100, 5), at(30, 9_200, 5)])
    assert line_of(lines, "append").split() == (
        ["append", "20.0", "≤", "5", "ms", "≤", "5", "ms", "9,205", "█▁▁"]
    )
    slow = line_of(picture([at(0, 0, 0), at(10, 50, 50)]), "append").split()
    assert slow[2:8] == ["≤", "5", "ms", ">", "10", "s"]

    busy = replace(
        statistics.supervisor.queues["summarize"],
        **dict.fromkeys(("waiting", "delayed", "done"), 9_999_999),
        running=64,
        oldest_s=1e6,
        dead=999,
    )
    problem = HealthProblem("jobs_late", "degraded", "\x1b[31m" + "very late " * 30)
    mailbox = observe.FullMailbox("\x1b]0;title\x07" + "u" * 60, "s[red]", 99_999)
    crowded = replace(statistics.registry, live=10**8, bytes=10**12)
    late = replace(statistics.supervisor, queues={"summarize": busy})
    status = replace(
        status,
        health=Health(live=True, ready=True, degraded=True, problems=(problem,)),
        mailboxes=(mailbox,) * 20,
        statistics=replace(statistics, registry=crowded, supervisor=late),
    )
    lines = picture([status])
    assert max(map(len, lines)) <= 80
    assert not set("\n".join(lines)) & {"\x1b", "\x07"}
    assert "9,999,999" in line_of(lines, "summarize")
    assert line_of(lines, "full mailboxes")
