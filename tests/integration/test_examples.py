"""The examples run, as the documents show them."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from prometheus_client.parser import text_string_to_metric_families

import remora
from remora import errors

ROOT = Path(__file__).parents[2]


def run(example: str, directory: Path) -> list[str]:
    command = [sys.executable, "-m", f"examples.{example}", str(directory / "memory")]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT
    ).stdout.splitlines()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an example prints does not depend on how busy the machine is."""
    monkeypatch.setenv("REMORA_RECALL__DEADLINE_S", "60")


def test_quickstart(tmp_path: Path) -> None:
    """S4.01: what was said on Monday is recalled on Friday."""
    lines = run("quickstart", tmp_path)
    assert any("I moved to Lisbon, and my cat is called Figaro." in line for line in lines)
    assert sum("Lovely!" in line for line in run("quickstart", tmp_path)) <= 1, "run again"


def test_developer_controlled(tmp_path: Path) -> None:
    """S4.21: the document's six steps, in its order, twice; what was recorded on Monday is in front
    of Friday's prompt.
    """
    lines = run("developer_controlled", tmp_path)
    steps = [line.split(":")[0] for line in lines if line[0].isdigit()]
    assert steps == 2 * ["1 add", "2 retrieve", "3 build", "4 generate", "5 add", "6 record"]
    assert lines[1] == "2 retrieve: nothing"
    assert lines[2] == "3 build: ['user']"
    friday = lines[lines.index("1 add: When is my birthday?") :]
    assert any("My birthday is on March 15." in line for line in friday)
    assert "3 build: ['system', 'user']" in friday
    assert "4 generate: March 15, of course." in friday


def test_agent_controlled(tmp_path: Path) -> None:
    """S4.22: the model saves on Monday and recalls on Friday, by the tools that it was offered."""
    saved, noted, recalled, answered = run("agent_controlled", tmp_path)
    assert json.loads(saved.split(" -> ")[1])["success"] is True
    memories = json.loads(recalled.split(" -> ")[1])["memories"]
    assert "Birthday: March 15" in [memory["content"] for memory in memories]
    assert (noted, answered) == ("assistant: Noted!", "assistant: It is on March 15.")


def test_simulated_agent(tmp_path: Path) -> None:
    """S5.05: a user's own agent under seeds, with the public tools: each message once, through
    faults and power cuts.
    """
    (told,) = run("simulated_agent", tmp_path)
    assert re.fullmatch(r"100 seeds, [5-9]\d power cuts: every message once, in order", told)


def test_hybrid(tmp_path: Path) -> None:
    """S4.23: the application records what the model has saved: one memory."""
    lines = run("hybrid", tmp_path)
    assert lines[2:] == [
        "fact: My birthday is on March 15.",
        "fact: Prefers short answers",
        "context: Noted!",
    ]


@pytest.mark.anyio
async def test_asgi_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0.28, S5.04: an ASGI server with one runtime; a retried request says nothing twice."""
    monkeypatch.setenv("MEMORY_DIR", str(tmp_path / "memory"))
    module = importlib.reload(importlib.import_module("examples.asgi_server"))
    events: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        events.append(event)

    async def post(path: str, body: dict[str, Any]) -> Any:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        events.clear()
        await module.app({"type": "http", "path": path}, receive, send)
        return events[0]["status"], json.loads(events[1]["body"])

    stop, started = anyio.Event(), anyio.Event()

    async def lifespan_receive() -> dict[str, Any]:
        if started.is_set():
            await stop.wait()
        started.set()
        return {"type": "lifespan"}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(module.app, {"type": "lifespan"}, lifespan_receive, send)
        with anyio.fail_after(60):
            while not any(event["type"] == "lifespan.startup.complete" for event in events):
                await anyio.sleep(0.01)
        with anyio.fail_after(60):
            while (await post("/ready", {}))[0] == 503:
                pass
        assert (await post("/ready", {}))[0] == 200
        for path in ("/livez", "/readyz"):
            assert await post(path, {}) == (200, {"problems": []})
        status, answer = await post("/alice/one", {"content": "hello", "id": "r1"})
        assert (status, answer["reply"]) == (200, "I can see 1 messages, the last: hello")
        assert await post("/alice/one", {"content": "hello", "id": "r1"}) == (status, answer)
        assert (await post("/alice/one", {"content": "bye", "id": "r1"}))[0] == 409
        assert len(await module.runtime.session("alice", "one").history()) == 2
        assert (await post("/alice/one", {"content": 7, "id": "r2"}))[0] == 400
        assert (await post("/al%0Aice/one", {"content": "x", "id": "r3"}))[0] == 400
        stop.set()


def test_turn_with_tools(tmp_path: Path) -> None:
    """The tool runs once; the third request gets the stored reply."""
    assert run("turn_with_tools", tmp_path) == [
        "the thermometer was read",
        "failed: the model is gone",
        "It has 18 degrees in Lisbon.",
        "It has 18 degrees in Lisbon.",
    ]


def test_readme_shows_the_example() -> None:
    """The README's server is examples/fastapi_server.py's own, line for line."""
    shown = re.search(
        r"<!-- examples/fastapi_server.py -->\n```python\n(.*?)```",
        (ROOT / "README.md").read_text(),
        re.DOTALL,
    )
    assert shown is not None
    assert shown[1] in (ROOT / "examples" / "fastapi_server.py").read_text()


def test_the_first_program_of_the_readme(tmp_path: Path) -> None:
    """It runs as it stands there, and prints what stands there."""
    shown = re.search(
        r"<!-- first program -->\n```python\n(.*?)```\n\nIt prints:\n\n```\n(.*?)```",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert shown is not None
    (tmp_path / "first.py").write_text(shown[1], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    date = r"\d{1,2} \w+ \d{4}"
    assert re.sub(date, "a day", done.stdout) == re.sub(date, "a day", shown[2])


SERVER_ANSWERS = {
    "BlockFailed": (503, True), "CommitFailed": (503, True), "ConfigError": (500, False),
    "DirectoryLocked": (500, False), "DirectoryUnusable": (500, False),
    "EmbedderChanged": (500, False), "ErasureDelayed": (503, True),
    "ErasureInProgress": (409, True),
    "IndexOutOfRange": (400, False), "InvalidExport": (400, False), "InvalidId": (400, False),
    "InvalidInput": (400, False), "InvalidMessage": (400, False), "JournalDamaged": (500, False),
    "JournalTooNew": (500, False), "KeyConflict": (409, False), "KeyRefused": (401, False),
    "LongTermError": (503, True), "MailboxFull": (429, True),
    "ModelAnswerInvalid": (502, False), "ModelError": (500, False), "ModelTimeout": (504, True),
    "ModelUnavailable": (503, True), "NoDeadLetter": (404, False), "NoSuchMemory": (404, False),
    "NotGranted": (403, False), "NotReady": (503, True),
    "OutcomeUnknown": (503, True), "OverdraftReached": (429, True),
    "OwnerFailed": (503, True), "OwnerUnreachable": (503, True),
    "OwnershipLost": (503, True), "ProtocolMismatch": (500, False), "RateLimited": (429, True),
    "RecordingFailed": (503, True),
    "RedactionFailed": (500, False), "ReentrantAsk": (500, False), "RemoraError": (500, False),
    "RuntimeClosed": (503, True), "SessionBusy": (429, True),
    "SessionQuarantined": (503, True), "StateConflict": (409, False),
    "StorageError": (503, True), "TurnClosed": (409, False), "WrongLoop": (500, False),
}  # fmt: skip
"""What the example server answers to each error: the status, and whether to retry. A class that
sets ``retryable`` on each instance is looked at as one that may be retried.
"""


def test_every_error_has_an_answer() -> None:
    """A class of errors that is added needs a line here, and its own status in the example."""
    assert sorted(SERVER_ANSWERS) == sorted(errors.__all__)


@pytest.mark.anyio
@pytest.mark.blocking
@pytest.mark.parametrize("name", sorted(SERVER_ANSWERS))
async def test_asgi_server_answers_every_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client learns from each error whether, and when, to send the request again."""
    monkeypatch.setenv("MEMORY_DIR", str(tmp_path / "memory"))
    module = importlib.reload(importlib.import_module("examples.asgi_server"))
    kind = getattr(errors, name)
    error = kind.__new__(kind)
    error.args = ("what went wrong",)
    if name in {"BlockFailed", "LongTermError"}:
        error.retryable = True
    error.retry_after_s = 2.5

    async def fail(*_: object) -> str:
        raise error

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"content": "hello", "id": "r1"}'}

    events: list[dict[str, Any]] = []

    async def send(event: dict[str, Any]) -> None:
        events.append(event)

    monkeypatch.setattr(module, "chat", fail)
    await module.app({"type": "http", "path": "/alice/one"}, receive, send)
    status, retry = SERVER_ANSWERS[name]
    assert events[0]["status"] == status
    advice = dict(events[0]["headers"]).get(b"retry-after")
    assert (advice is not None) == retry
    assert json.loads(events[1]["body"])["retry"] == ("with the same id" if retry else "no")
    if name == "SessionQuarantined":
        assert advice == b"3"


def test_the_benchmark_of_turns_runs(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.turns", "--turns", "20", "--rounds", "1"]
    subprocess.run(
        [*command, "--json", str(file)], capture_output=True, check=True, timeout=120, cwd=ROOT
    )
    assert json.loads(file.read_text())["ratio"] > 0


def test_benchmarks_run() -> None:
    """S4.31: the benchmarks' smoke sizes."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.many_sessions",
        "--sessions",
        "300",
        "--users",
        "30",
        "--messages",
        "3",
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, cwd=ROOT
    )
    assert "301 sessions live, 901 messages stored" in done.stdout


@pytest.mark.anyio
async def test_a_server_without_its_directory_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that somebody else owns: the ASGI server is told that starting failed, and why.
    A lifespan that raised would be taken for one that is not there.
    """
    monkeypatch.setenv("MEMORY_DIR", str(tmp_path / "memory"))
    module = importlib.reload(importlib.import_module("examples.asgi_server"))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.startup"}

    async def send(event: dict[str, Any]) -> None:
        sent.append(event)

    async with remora.Runtime(tmp_path / "memory"):
        await module.app({"type": "lifespan"}, receive, send)
    assert [event["type"] for event in sent] == ["lifespan.startup.failed"]
    assert "memory" in sent[0]["message"]


def test_metrics() -> None:
    """The official parser reads it, and finds what was done."""
    command = [sys.executable, "-m", "examples.metrics"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    shown = {
        sample.name: sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
    }
    assert shown["remora_append_seconds_count"] == 1
    assert shown["remora_lost"] == 0


@pytest.mark.blocking  # the script reads and writes files
@pytest.mark.anyio
async def test_a_user_is_moved(tmp_path: Path) -> None:
    """The user's part of an export is an export: all of theirs comes along, and nobody else's."""
    from examples.move_user import only  # noqa: PLC0415

    async with remora.Runtime.in_memory() as old:
        for name in ("alice", "bob"):
            user = old.user(name)
            await user.session("monday").append({"role": "user", "content": f"I am {name}."})
            await user.remember(f"{name} likes tea.", key="tea", metadata={"cups": 2})
        await old.export(tmp_path / "all.jsonl")
    assert only("alice", tmp_path / "all.jsonl", tmp_path / "alice.jsonl") > 0
    assert (tmp_path / "alice.jsonl").stat().st_mode & 0o777 == 0o600
    async with remora.Runtime.in_memory() as new:
        await new.import_(tmp_path / "alice.jsonl")
        assert [one.user for one in await new.users()] == ["alice"]
        (message,) = await new.session("alice", "monday").history()
        assert message.content == "I am alice."
        memory = await new.user("alice").memory(key="tea")
        assert memory is not None
        assert (memory.text, memory.metadata) == ("alice likes tea.", {"cups": 2})
