"""The example servers and scripts, as the documents show them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest

import remora
from remora import errors
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


class Requests:
    """Sends requests to the example server, and keeps what its application answers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MEMORY_DIR", str(directory))
        self.module = importlib.reload(importlib.import_module("examples.asgi_server"))
        self.events: list[dict[str, Any]] = []

    async def send(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        self.events.clear()
        await self.module.app({"type": "http", "path": path}, receive, self.send)
        return self.events[0]["status"], json.loads(self.events[1]["body"])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Requests:
    return Requests(tmp_path / "memory", monkeypatch)


async def test_asgi_server(server: Requests) -> None:
    """S0.28, S5.04: an ASGI server with one runtime; a retried request says nothing twice."""
    stop, asked = anyio.Event(), 0

    async def receive() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked > 1:
            await stop.wait()
        return {"type": "lifespan"}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.module.app, {"type": "lifespan"}, receive, server.send)
        await until(lambda: [one["type"] for one in server.events], "the server has started")
        assert [one["type"] for one in server.events] == ["lifespan.startup.complete"]

        async def is_ready() -> Any:
            return (await server.post("/ready", {}))[0] != 503

        await until(is_ready, "the server is ready")
        assert (await server.post("/ready", {}))[0] == 200
        for path in ("/livez", "/readyz"):
            assert await server.post(path, {}) == (200, {"problems": []})
        hello = {"content": "hello", "id": "r1"}
        status, answer = await server.post("/alice/one", hello)
        assert (status, answer["reply"]) == (200, "I can see 1 messages, the last: hello")
        assert await server.post("/alice/one", hello) == (status, answer)
        assert len(await server.module.runtime.session("alice", "one").history()) == 2
        for path, body, refused in (
            ("/alice/one", {"content": "bye", "id": "r1"}, 409),
            ("/alice/one", {"content": 7, "id": "r2"}, 400),
            ("/al%0Aice/one", {"content": "x", "id": "r3"}, 400),
        ):
            assert (await server.post(path, body))[0] == refused
        stop.set()


SERVER_ANSWERS = {
    "BlockFailed": (503, True), "BudgetTooSmall": (400, False),
    "CommitFailed": (503, True), "ConfigError": (500, False),
    "DirectoryLocked": (500, False), "DirectoryUnusable": (500, False),
    "EmbedderChanged": (500, False), "ErasureDelayed": (503, True),
    "ErasureInProgress": (409, True),
    "IndexOutOfRange": (400, False), "InvalidExport": (400, False), "InvalidId": (400, False),
    "InvalidInput": (400, False), "InvalidMessage": (400, False), "JournalDamaged": (500, False),
    "JournalTooNew": (500, False), "IdConflict": (409, False), "KeyConflict": (409, False),
    "KeyRefused": (401, False),
    "LongTermError": (503, True), "MailboxFull": (429, True),
    "ModelAnswerInvalid": (502, False), "ModelError": (502, False), "ModelTimeout": (504, True),
    "ModelUnavailable": (503, True), "NoDeadLetter": (404, False), "NoSuchMemory": (404, False),
    "NotFound": (404, False), "NotGranted": (403, False), "NotReady": (503, True),
    "OutcomeUnknown": (503, True), "OverdraftReached": (429, True),
    "OwnerFailed": (503, True), "OwnerUnreachable": (503, True),
    "OwnershipLost": (503, True), "ProtocolMismatch": (500, False), "RateLimited": (429, True),
    "RecordingFailed": (503, True),
    "RedactionFailed": (500, False), "ReentrantAsk": (500, False), "RemoraError": (500, False),
    "RuntimeClosed": (503, True), "SessionBusy": (429, True),
    "SessionQuarantined": (503, True), "StateConflict": (409, False),
    "StorageError": (503, True), "TooManyKeys": (400, False), "TurnClosed": (409, False),
    "WrongLoop": (500, False),
}  # fmt: skip
"""What the example server answers to each error: the status, and whether to retry. A class that
sets ``retryable`` on each instance is looked at as one that may be retried.
"""


def error_named(name: str) -> Any:
    """One that may be retried, if its class lets it, after 2.5 s."""
    kind = getattr(errors, name)
    error = kind.__new__(kind)
    error.args = ("what went wrong",)
    if name in {"BlockFailed", "LongTermError"}:
        error.retryable = True
    error.retry_after_s = 2.5
    return error


async def test_asgi_server_answers_every_error(
    server: Requests, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client learns from each error whether, and when, to send the request again. A class of
    errors that is added needs a line above.
    """
    assert sorted(SERVER_ANSWERS) == sorted(errors.__all__)
    for name, (status, retry) in SERVER_ANSWERS.items():
        error = error_named(name)
        monkeypatch.setattr(server.module, "chat", AsyncMock(side_effect=error))
        got = await server.post("/alice/one", {"content": "hello", "id": "r1"})
        assert (got[0], got[1]["retry"]) == (status, "with the same id" if retry else "no"), name
        advice = dict(server.events[0]["headers"]).get(b"retry-after")
        assert (advice is not None) == retry, name
        if name == "SessionQuarantined":
            assert advice == b"3"


async def test_a_server_without_its_directory_does_not_start(server: Requests) -> None:
    """A directory that somebody else owns: the ASGI server is told that starting failed, and why.
    A lifespan that raised would be taken for one that is not there.
    """
    async with remora.Runtime(server.module.runtime.path):
        receive = AsyncMock(return_value={"type": "lifespan.startup"})
        await server.module.app({"type": "lifespan"}, receive, server.send)
    (told,) = server.events
    assert told["type"] == "lifespan.startup.failed"
    assert "memory" in told["message"]


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
