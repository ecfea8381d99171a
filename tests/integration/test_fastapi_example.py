"""The FastAPI example, served by uvicorn on the loopback interface."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import uvicorn
from openai.types.chat import ChatCompletionChunk

from examples.fastapi_server import create_app, think
from remora import Runtime

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without long-term memory, which takes seconds to load."""
    monkeypatch.setenv("REMORA_LONG_TERM__ENABLED", "false")
    monkeypatch.setenv("REMORA_MODELS__EMBEDDER", "none")


class Server(uvicorn.Server):
    """Says when it takes requests."""

    def __init__(self, app: Any) -> None:
        super().__init__(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=5))
        self.ready = anyio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class Model:
    """Says two words of its first reply, and then nothing, until its stream is closed."""

    def __init__(self) -> None:
        self.calls = 0
        self.closed = anyio.Event()

    async def think(self, messages: list[dict[str, Any]]) -> AsyncGenerator[str, None]:
        self.calls += 1
        if self.calls > 1:
            async for word in think(messages):
                yield word
            return
        try:
            yield "Let me "
            yield "think "
            await anyio.sleep_forever()
        finally:
            self.closed.set()


@asynccontextmanager
async def serve(directory: Path, model: Model) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    app = create_app(str(directory), model.think)
    server = Server(app)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client = httpx.AsyncClient(base_url=url, timeout=None)
        async with anyio.create_task_group() as tasks, client:
            tasks.start_soon(server.serve, [listener])
            await server.ready.wait()
            yield client, app.state.runtime
            server.should_exit = True


async def test_streaming_a_disconnect_and_retries(tmp_path: Path) -> None:
    """What the client saw is kept until its retry is answered; another retry gets that answer."""
    model = Model()
    body = {"id": "r1", "content": "hello"}
    async with serve(tmp_path / "memory", model) as (client, runtime):
        chat = runtime.session("alice", "one")
        async with client.stream("POST", "/alice/one", json=body) as response:
            assert response.status_code == 200
            async for text in response.aiter_text():
                if text.endswith("think "):
                    break
        await model.closed.wait()
        async with chat.turn("an aside", query=False):  # it has its turn: the first has ended
            pass
        kept = (await chat.history())[1]
        assert (kept.content, kept.metadata) == ("Let me think ", {"incomplete": True})

        answer = await client.post("/alice/one", json=body)
        assert answer.status_code == 200
        assert answer.text == "I can see 1 messages, the last: hello "
        again = await client.post("/alice/one", json=body)
        assert (again.status_code, again.text) == (200, answer.text)
        assert model.calls == 2
        said = [one.content for one in await chat.history()]
        assert said == ["hello", "an aside", answer.text]

        other = await client.post("/alice/one", json={**body, "content": "bye"})
        assert other.status_code == 409
        assert "Retry-After" not in other.headers
        assert len(runtime.internals.turns) == 0


async def test_a_model_whose_chunks_are_objects(tmp_path: Path) -> None:
    """Chunks of OpenAI's package go into the turn, and their text to the client."""

    class Chunks(Model):
        async def think(self, messages: list[dict[str, Any]]) -> AsyncGenerator[Any, None]:
            for delta in ({"role": "assistant"}, {"content": "In "}, {"content": "Lisbon."}, None):
                given = [] if delta is None else [{"index": 0, "delta": delta}]
                base = {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
                yield ChatCompletionChunk.model_validate({**base, "choices": given})

    async with serve(tmp_path / "memory", Chunks()) as (client, runtime):
        body = {"id": "r1", "content": "Where do I live?"}
        for _ in range(2):
            assert (await client.post("/alice/one", json=body)).text == "In Lisbon."
        said = await runtime.session("alice", "one").history()
        assert [(one.role, one.content) for one in said][1:] == [("assistant", "In Lisbon.")]


async def test_two_requests_at_once(tmp_path: Path) -> None:
    """Their turns do not mix."""
    model = Model()
    model.calls = 1
    async with serve(tmp_path / "memory", model) as (client, runtime):
        async with anyio.create_task_group() as tasks:
            for number in range(4):
                body = {"id": f"r{number}", "content": f"question {number}"}
                tasks.start_soon(partial(client.post, "/alice/one", json=body))
        roles = [one.role for one in await runtime.session("alice", "one").history()]
        assert roles == ["user", "assistant"] * 4


async def test_probes(tmp_path: Path) -> None:
    """Live and ready as the runtime says; what is missing is named by its code."""
    model = Model()
    async with serve(tmp_path / "memory", model) as (client, runtime):
        for path in ("/livez", "/readyz"):
            answer = await client.get(path)
            assert (answer.status_code, answer.json()) == (200, {"problems": []})
        await runtime.aclose()
        assert (await client.get("/livez")).status_code == 200
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"problems": ["closed"]})
