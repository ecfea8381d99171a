"""The memory of coding agents in the gallery, with the official client of MCP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import StdioServerParameters
from mcp.client import Client

from tests.gallery import environment
from tests.workers import OWNERS, end_owner

pytestmark = [pytest.mark.anyio, *OWNERS]
DECISION = {
    "file": "src/pay.py",
    "decision": "Amounts are integers of cents.",
    "reason": "Floats lost a cent.",
}


@pytest.fixture(autouse=True)
def owned(tmp_path: Path) -> Iterator[None]:
    """The owner of the memory ends with the test."""
    yield
    end_owner(tmp_path / "memory")


async def ask(client: Client, name: str, **arguments: Any) -> Any:
    result: Any = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return result.structured_content


async def test_agents_of_a_repository_share_its_memory(tmp_path: Path) -> None:
    """Two windows of one repository, one of them in a folder of it, and one of another."""
    for folder in ("shop/.git", "shop/src", "blog/.git"):
        (tmp_path / folder).mkdir(parents=True)
    command: dict[str, Any] = {
        "command": sys.executable,
        "args": ["-m", "examples.gallery.coding_memory", str(tmp_path / "memory")],
        "env": environment(),
    }
    async with AsyncExitStack() as stack:
        first, second, other = [
            await stack.enter_async_context(
                Client(StdioServerParameters(cwd=tmp_path / folder, **command))
            )
            for folder in ("shop", "shop/src", "blog")
        ]
        offered = {tool.name for tool in (await first.list_tools()).tools}
        assert {"note_decision", "read_decisions", "search_memories"} <= offered
        noted = await ask(first, "note_decision", **DECISION)
        assert await ask(first, "note_decision", **DECISION) == noted
        text = "Decision about src/pay.py: Amounts are integers of cents. "
        text += "Reason: Floats lost a cent."
        known = {"decisions": [{"id": noted["id"], "decision": text}]}
        assert await ask(second, "read_decisions", file="src/pay.py") == known
        assert await ask(second, "read_decisions", file="src/cart.py") == {"decisions": []}
        assert await ask(other, "read_decisions", file="src/pay.py") == {"decisions": []}
        (found,) = (await ask(second, "search_memories", query="cents"))["memories"]
        assert found["content"] == text
        assert (await ask(other, "search_memories", query="cents"))["memories"] == []
