"""The ten tasks of a first day run as their files are, with models behind HTTP on loopback."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.endpoints import Handler, listening
from tests.processes import bound
from tests.workers import end_owner

ROOT = Path(__file__).parents[2]
TASKS = sorted((ROOT / "examples" / "first_day").glob("t*.py"))

pytestmark = pytest.mark.blocking


class Endpoint(Handler):
    """An endpoint like OpenAI's: its model repeats what it was told, and saves it if it can."""

    requests: list[Any]

    def answer(self) -> None:
        body = self.body()
        self.requests.append(body)
        if self.path.endswith("/embeddings"):
            self.send({"data": [embedding(i, text) for i, text in enumerate(body["input"])]})
        elif self.path.endswith("/responses"):
            self.send(response(f"You know: {body['instructions']}"))
        elif body.get("stream"):
            words = re.findall(r"\S+\s*", answer_to(body["messages"])["content"])
            self.send_events([chunk({"content": word}) for word in words])
        else:
            self.send(completion(answer_to(body["messages"], tools=bool(body.get("tools")))))

    def send(self, content: Any) -> None:
        self.send_json(json.dumps(content).encode())

    def send_events(self, events: list[Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in [*map(json.dumps, events), "[DONE]"]:
            self.wfile.write(f"data: {event}\n\n".encode())


def answer_to(messages: list[Any], *, tools: bool = False) -> dict[str, Any]:
    said = [message["content"] for message in messages if message["role"] == "user"][-1]
    if tools and messages[-1]["role"] != "tool":
        arguments = json.dumps({"thinking": "it is new", "content": [said]})
        function = {"name": "save_to_memory", "arguments": arguments}
        calls = [{"id": "call_1", "type": "function", "function": function}]
        return {"role": "assistant", "content": None, "tool_calls": calls}
    last = messages[-1]["content"] if messages[-1]["role"] == "tool" else said
    return {"role": "assistant", "content": f"You said: {last}"}


def completion(message: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


def chunk(delta: dict[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    shared = {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m"}
    return {**shared, "choices": [choice]}


def response(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    shared = {"id": "r", "object": "response", "created_at": 0, "model": "m", "tools": []}
    choice = {"parallel_tool_calls": True, "tool_choice": "auto"}
    return {**shared, **choice, "output": [{**item, "content": [part]}]}


def embedding(index: int, text: str) -> dict[str, Any]:
    """1536 numbers; texts that share words are near."""
    vector = [0.0] * 1_536
    for word in re.findall(r"\w+", text.lower()):
        vector[int.from_bytes(sha256(word.encode()).digest()[:2]) % 1_536] += 1.0
    return {"index": index, "embedding": vector}


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Endpoint]]:
    """The endpoint that OPENAI_BASE_URL names; the program runs in an empty directory."""
    handler = type("Handler", (Endpoint,), {"requests": []})
    with listening(handler) as address:
        for name, value in {
            "OPENAI_BASE_URL": f"{address}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
            "REMORA_MODELS__EMBEDDER": "none",  # the embedded one takes two seconds to load
        }.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        yield handler


def run(task: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"examples.first_day.{task}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_chat_endpoint(endpoint: type[Endpoint]) -> None:
    """Starlette's client starts the application twice. The reply is streamed and stored; a retry,
    also after a restart, gets it without the model.
    """
    app = importlib.import_module("examples.first_day.t01_chat_endpoint").app
    body = {"id": "r1", "content": "I moved to Lisbon."}
    with TestClient(app) as client:
        assert client.post("/alice/monday", json=body).text == "You said: I moved to Lisbon."
        assert client.post("/alice/monday", json=body).text == "You said: I moved to Lisbon."
        assert len(endpoint.requests) == 1
    with TestClient(app) as client:
        assert client.post("/alice/monday", json=body).text == "You said: I moved to Lisbon."
        assert client.post("/alice/monday", json={"id": "r2", "content": "Hm."}).is_success
    contents = [message["content"] for message in endpoint.requests[-1]["messages"]]
    assert contents[-3:] == ["I moved to Lisbon.", "You said: I moved to Lisbon.", "Hm."]


def test_recall_across_chats(endpoint: type[Endpoint], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMORA_MODELS__EMBEDDER")
    assert run("t02_recall_across_chats").endswith('User: "I moved to Lisbon."\n')
    assert not endpoint.requests


def test_tools_for_the_model(endpoint: type[Endpoint]) -> None:
    printed = run("t03_tools_for_the_model", "My birthday is on March 15.")
    assert '"success": true' in printed
    assert [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]] == [
        "save_to_memory",
        "recall_from_memory",
    ]
    saved = subprocess.run(
        [sys.executable, "-m", "remora", "recall", "alice", "birthday", "--dir", "memory"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert endpoint.requests[1]["messages"][-1]["role"] == "tool"
    assert "March 15" in saved.stdout, saved.stderr


def test_own_summarizer(endpoint: type[Endpoint]) -> None:
    assert run("t04_own_summarizer").splitlines() == [
        "system: Summary of earlier conversation: Hello Lisbon",
        "user: Figaro sleeps.",
        "user: Good night.",
    ]


def test_openai_embeddings(endpoint: type[Endpoint]) -> None:
    assert run("t05_openai_embeddings") == "Alice's cat is called Figaro.\n"
    assert {request["model"] for request in endpoint.requests} == {"text-embedding-3-small"}


def test_openai_agents(endpoint: type[Endpoint]) -> None:
    """The agent has the tools, and is told what the user said before, quoted."""
    printed = run("t06_openai_agents")
    assert '"Alice lives in Lisbon."\n</recalled>' in printed
    assert [tool["name"] for tool in endpoint.requests[0]["tools"]] == [
        "save_to_memory",
        "recall_from_memory",
    ]


def test_look_inside(endpoint: type[Endpoint]) -> None:
    """The command line works beside the program that owns the directory."""
    first, *rest = run("t07_look_inside").splitlines()
    assert first == "alice monday 1"
    commands = [line for line in rest if line.startswith("$ remora ")]
    assert len(commands) == 4
    assert "1 message ever, 1 in the buffer" in " ".join(rest)
    assert rest[-1].strip() == "user: Hello!"


def test_delete_a_user(endpoint: type[Endpoint]) -> None:
    receipt, files = run("t08_delete_a_user").splitlines()
    assert "'messages': 1" in receipt
    assert files == "[]"


def test_test_an_agent(endpoint: type[Endpoint]) -> None:
    file = ROOT / "examples" / "first_day" / "t09_test_an_agent.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "remora_pytest", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(file)], capture_output=True, text=True, check=False
    )
    assert re.search(r"\d passed", done.stdout), done.stdout + done.stderr


def test_several_workers(endpoint: type[Endpoint], tmp_path: Path) -> None:
    """Each sees what the others appended; a process that opens the memory itself is refused."""
    command = bound(sys.executable, "-m", "examples.first_day.t10_several_workers")
    with ExitStack() as workers:
        workers.callback(end_owner, tmp_path / "memory")
        for number in ("0", "1"):
            worker = workers.enter_context(
                subprocess.Popen(
                    [*command, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert worker.stdout is not None
            greetings = ["Hello, worker 0!", "Hello, worker 1!"][: int(number) + 1]
            assert worker.stdout.readline() == f"{greetings}\n"


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """It is told who has the memory, and what to do."""
    lines = "async with remora.Runtime('memory'): print('open', flush=True); sys.stdin.read()"
    program = f"import asyncio, remora, sys\nasync def main():\n {lines}\nasyncio.run(main())"
    command = bound(sys.executable, "-c", program)
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": tmp_path}
    with subprocess.Popen(command, text=True, **pipes) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        second = subprocess.run(
            command,
            env={**os.environ, "REMORA_LOCK_WAIT_S": "0"},
            stdin=subprocess.DEVNULL,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        first.communicate("")
    assert second.returncode == 1
    assert re.search(
        rf"DirectoryLocked: .*memory is in use by process {first.pid} since .*; one process owns a "
        r"memory directory: stop that one, start the server with one worker \(--workers 1\), "
        r"choose another directory, or have all of them use remora\.connect instead of Runtime, "
        r"to share it\n",
        second.stderr,
    )


# -- the table -------------------------------------------------------------------------------------


def count_lines(source: str) -> int:
    """Lines of a program without blank lines, comments, imports and docstrings."""
    tree = ast.parse(source)
    skipped = {
        line
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom)) or is_docstring(node)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)  # type: ignore[attr-defined]
    }
    return sum(
        number not in skipped and bool(line.strip()) and not line.strip().startswith("#")
        for number, line in enumerate(source.splitlines(), start=1)
    )


def is_docstring(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


def test_the_table_of_lines() -> None:
    """examples/README.md says how many lines each task takes."""
    text = (ROOT / "examples" / "README.md").read_text()
    rows = dict(re.findall(r"^\| \[(t\d\d_\w+)\.py\][^|]*\|[^|]*\| (\d+) \|", text, re.MULTILINE))
    counted = {path.stem: str(count_lines(path.read_text())) for path in TASKS}
    assert len(counted) == 10
    assert rows == counted
