"""remora as a server of MCP, with the official client: in process, as a command, over HTTP."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import uvicorn
from mcp import StdioServerParameters
from mcp.client import Client

import remora
from remora import Config, Runtime
from remora.adapters.mcp import make_server
from remora.testing import HashEmbedder
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
CONFIG = Config.from_dict({"tokens": {"counter": "heuristic"}})
CLIENTS = 8
READING = {"search_memories", "list_memories", "list_sessions", "read_session"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # uvicorn's, and the client's


@asynccontextmanager
async def opened(**options: Any) -> AsyncIterator[tuple[Client, Runtime]]:
    """A client of alice's memory, in this process."""
    async with Runtime.in_memory(config=CONFIG, embedder=HashEmbedder()) as runtime:
        async with Client(make_server(runtime.user("alice"), **options)) as client:
            yield client, runtime


async def ask(client: Client, name: str, **arguments: Any) -> Any:
    result: Any = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return result.structured_content


async def fail(client: Client, name: str, **arguments: Any) -> str:
    result: Any = await client.call_tool(name, arguments)
    assert result.is_error
    text: str = result.content[0].text
    assert "Traceback" not in text
    return text


async def test_a_client_keeps_memories() -> None:
    """It adds, finds, edits, lists page by page, and deletes."""
    async with opened() as (client, runtime):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == READING | {"add_memories", "edit_memory", "delete_memories"}
        added = await ask(client, "add_memories", memories=["Alice likes tea.", "Bob is her cat."])
        again = await ask(client, "add_memories", memories=["Alice likes tea."])
        assert again["ids"] == added["ids"][:1]
        found = await ask(client, "search_memories", query="tea", limit=1)
        assert [one["content"] for one in found["memories"]] == ["Alice likes tea."]
        edited = await ask(client, "edit_memory", id=added["ids"][0], content="Alice likes coffee.")
        assert edited["memory"]["content"] == "Alice likes coffee."
        page = await ask(client, "list_memories", limit=1)
        rest = await ask(client, "list_memories", limit=5, after=page["next"])
        listed = [one["content"] for one in (*page["memories"], *rest["memories"])]
        assert listed == ["Alice likes coffee.", "Bob is her cat."]
        assert rest["next"] == ""
        assert await ask(client, "delete_memories", ids=added["ids"]) == {"deleted": 2}
        assert (await ask(client, "list_memories"))["memories"] == []
        assert await runtime.user("bob").remembered() == []


async def test_what_was_said_is_deleted_if_that_is_allowed() -> None:
    """By the id that a search gives; without the option, it stays."""
    for allowed in (False, True):
        async with opened(delete_said=allowed) as (client, runtime):
            chat = runtime.user("alice").session("one")
            await chat.append({"role": "user", "content": "My PIN hint is a bird."})
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert ("delete_messages" in tools) == allowed
            assert all("\n    " not in (one.description or "") for one in tools.values())
            found = await ask(client, "search_memories", query="PIN hint")
            ids = [one["id"] for one in found["memories"]]
            assert await ask(client, "delete_memories", ids=ids) == {"deleted": 0}
            assert len(await chat.history()) == 1
            if allowed:
                assert (await ask(client, "delete_messages", ids=ids))["deleted"] == 1
                assert await chat.history() == []
                assert "NotFound" in await fail(client, "delete_messages", ids=ids)


async def test_a_client_reads_conversations() -> None:
    """Of this user alone; with tools and as resources, with any text in an id."""
    async with opened() as (client, runtime):
        chat = runtime.user("alice").session("a/b ü")
        await chat.append([{"role": "user", "content": f"m{number}"} for number in range(5)])
        await runtime.session("bob", "his").append({"role": "user", "content": "secret"})
        listed = await ask(client, "list_sessions")
        assert [(one["session"], one["messages"]) for one in listed["sessions"]] == [("a/b ü", 5)]
        read = await ask(client, "read_session", session="a/b ü", last=2)
        assert [one["content"] for one in read["messages"]] == ["m3", "m4"]
        assert read["earlier"] == 3
        assert "no conversation" in await fail(client, "read_session", session="his")
        sessions: Any = await client.read_resource("remora://sessions")
        uri = json.loads(sessions.contents[0].text)["sessions"][0]["uri"]
        whole: Any = await client.read_resource(uri)
        messages = json.loads(whole.contents[0].text)["messages"]
        assert [one["content"] for one in messages] == [f"m{number}" for number in range(5)]
        found = await ask(client, "search_memories", query="m3")
        assert "secret" not in str(found)


async def test_bad_requests_change_nothing() -> None:
    """The client is told why; nothing is written."""
    async with opened() as (client, runtime):
        assert "NoSuchMemory" in await fail(client, "edit_memory", id="0" * 32, content="x")
        assert "InvalidInput" in await fail(client, "add_memories", memories=["fine", " "])
        assert "InvalidInput" in await fail(client, "search_memories", query="x", limit=0)
        await fail(client, "add_memories", memories=7)
        await fail(client, "list_memories", after="nonsense")
        assert await runtime.user("alice").remembered() == []


async def test_null_is_an_argument_that_is_left_out() -> None:
    """Many clients send it for each optional argument."""
    async with opened() as (client, runtime):
        await runtime.user("alice").remember("Alice likes tea.")
        found = await ask(client, "search_memories", query="tea", limit=None)
        assert [one["content"] for one in found["memories"]] == ["Alice likes tea."]
        assert len((await ask(client, "list_memories", limit=None, after=None))["memories"]) == 1
        assert await ask(client, "list_sessions", after=None) == {"sessions": [], "next": ""}


async def test_wrong_arguments_are_named_in_plain_words() -> None:
    """Each of them; without an address of the library that checks them."""
    async with opened() as (client, _):
        for arguments, names in (
            ({"query": None}, ["query"]),
            ({"limit": "ten"}, ["query", "limit"]),
            ({"query": 7, "limit": []}, ["query", "limit"]),
        ):
            text = await fail(client, "search_memories", **arguments)
            assert text.startswith("InvalidInput: query: ")
            assert all(f"{name}: " in text for name in names)
            assert "http" not in text
            assert "pydantic" not in text
            assert "\n" not in text
        text = await fail(client, "add_memories", memories=["fine", 7])
        assert text == "InvalidInput: memories.1: Input should be a valid string"


async def test_a_server_that_only_reads() -> None:
    async with opened(read_only=True) as (client, _):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == READING
        await fail(client, "add_memories", memories=["x"])


async def write(client: Client, number: int, count: int) -> None:
    for place in range(count):
        await ask(client, "add_memories", memories=[f"client {number} knows fact {place}"])


async def test_eight_clients_over_http_lose_nothing(tmp_path: Path) -> None:
    """All write at once to one server."""
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        app = make_server(alice).streamable_http_app()
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            await until(lambda: server.started, "the server has started")
            port = server.servers[0].sockets[0].getsockname()[1]

            async def run(number: int) -> None:
                async with Client(f"http://127.0.0.1:{port}/mcp") as client:
                    await write(client, number, 5)

            async with anyio.create_task_group() as clients:
                for number in range(CLIENTS):
                    clients.start_soon(run, number)
            server.should_exit = True
        texts = {memory.text for memory in await alice.remembered(limit=None)}
        assert texts == {
            f"client {number} knows fact {place}" for number in range(CLIENTS) for place in range(5)
        }


async def test_processes_share_a_memory(tmp_path: Path) -> None:
    """Clients start a process each, as desktop assistants do; the application reads beside them."""
    (tmp_path / "remora.yaml").write_text(
        f"directory: {tmp_path / 'memory'}\ntokens: {{counter: heuristic}}\n"
        "cluster: {linger_s: 0, shards: 1}\n"
    )
    target = str(tmp_path / "remora.yaml")
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "remora", "mcp", target, "--user", "alice"]
    )
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(command)) for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            for number, client in enumerate(clients):
                tasks.start_soon(write, client, number, 3)
        listed = await ask(clients[0], "list_memories")
        assert len(listed["memories"]) == 6
        async with remora.connect(target) as runtime:
            assert len(await runtime.user("alice").remembered()) == 6
