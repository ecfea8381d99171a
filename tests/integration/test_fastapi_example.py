"""The FastAPI example, served by uvicorn on the loopback interface."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import httpx
import pytest
import uvicorn
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from examples.fastapi_server import TOOLS, create_app, think
from remora import Runtime
from tests.endpoints import Handler, listening

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
        assert answer.text == "I can see 2 messages, the last: hello "
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


CALL = {"name": "read_thermometer", "arguments": '{"city": "Lisbon"}'}


class Endpoint(Handler):
    """An endpoint like OpenAI's: it says something, calls a tool, and then says what that gave.
    Its first stream that has a tool's result breaks off.
    """

    asked: list[list[dict[str, Any]]]

    def answer(self) -> None:
        messages = self.body()["messages"]
        self.asked.append(messages)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if messages[-1]["role"] == "tool":
            self.send({"content": "It has "})
            if len(self.asked) == 2:
                return  # without an end
            self.send({"content": messages[-1]["content"]}, "stop")
        else:
            self.send({"content": "I look. "})
            for piece in (CALL, {"arguments": ""}):
                call = {"index": 0, "id": "call-1", "type": "function", "function": piece}
                self.send({"tool_calls": [call]})
            self.send({}, "tool_calls")
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        base = {"id": "1", "created": 1, "model": "m", "object": "chat.completion.chunk"}
        self.wfile.write(f"data: {json.dumps({**base, 'choices': [choice]})}\n\n".encode())


class OpenAIModel(Model):
    """OpenAI's client; a stream without an end is an error."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0)

    async def think(self, messages: list[dict[str, Any]]) -> AsyncGenerator[Any, None]:
        finished = None
        async with self._client.chat.completions.stream(
            model="m", messages=cast("Any", messages)
        ) as events:
            async for event in events:
                if event.type == "chunk":
                    yield event.chunk
                    finished = finished or event.chunk.choices[0].finish_reason
        if finished is None:
            raise ConnectionError("the stream broke off")


async def test_streaming_with_tools(tmp_path: Path) -> None:
    """What the model says before and after a tool call is one streamed reply. The endpoint fails
    behind the tool: the retry neither asks for the call again nor runs the tool again.
    """
    ran: list[str] = []

    async def read_thermometer(city: str) -> str:
        ran.append(city)
        return f"18 degrees in {city}"

    handler: Any = type("Handler", (Endpoint,), {"asked": []})
    with (
        pytest.MonkeyPatch.context() as patch,
        listening(handler) as address,
    ):
        patch.setitem(TOOLS, "read_thermometer", read_thermometer)
        model = OpenAIModel(f"{address}/v1")
        async with serve(tmp_path / "memory", model) as (client, runtime):
            body = {"id": "r1", "content": "How warm is it in Lisbon?"}
            with pytest.raises(httpx.RemoteProtocolError):
                await client.post("/alice/one", json=body)
            answer = await client.post("/alice/one", json=body)
            assert (answer.status_code, answer.text) == (200, "It has 18 degrees in Lisbon")
            again = await client.post("/alice/one", json=body)
            assert again.text == answer.text
            said = await runtime.session("alice", "one").history()
    assert ran == ["Lisbon"]
    assert [one.role for one in said] == ["user", "assistant", "tool", "assistant"]
    assert [one.content for one in said[1:]] == ["I look. ", "18 degrees in Lisbon", answer.text]
    assert len(handler.asked) == 3
    for messages in handler.asked:
        assert messages[0]["role"] == "system"
    assert [one["role"] for one in handler.asked[2]] == ["system", "user", "assistant", "tool"]


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
