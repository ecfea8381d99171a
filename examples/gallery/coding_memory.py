"""A memory for coding agents, one for each repository, as a server of MCP on standard input.

``pip install "./remora[mcp]"``, and in the configuration of the agent, ``.mcp.json`` for instance::

    {"mcpServers": {"memory": {
        "command": "python",
        "args": ["-m", "examples.gallery.coding_memory", "/home/me/coding-memory"],
        "env": {"PYTHONPATH": "/home/me/remora"}
    }}}

The agent gets the tools of ``remora mcp`` to search, add, edit, delete and list memories, and two
of its own, for decisions about files. The directory in which the agent starts the server says whose
memory it is: what was noted on one repository is not found in another. Each window of an editor
starts a server; they share the memory, as each connects to the process that owns it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio

import remora
from remora.adapters.mcp import make_server


def find_repository(start: Path) -> Path:
    """Return the directory that has .git, or where we are, if none has."""
    return next((one for one in (start, *start.parents) if (one / ".git").exists()), start)


def make_memory_server(repository: remora.User) -> Any:
    server = make_server(repository)

    @server.tool()
    async def note_decision(file: str, decision: str, reason: str) -> dict[str, Any]:
        """Note a decision about a file, with its reason, for those who work on it later.

        Give the file's path in the repository. Another decision about the file does not replace it.
        """
        text = f"Decision about {file}: {decision} Reason: {reason}"
        (noted,) = await repository.remember(text, type="procedural", metadata={"file": file})
        return {"id": noted}

    @server.tool()
    async def read_decisions(file: str) -> dict[str, Any]:
        """Read what was decided about a file, oldest first. Do so before you change it."""
        noted = await repository.remembered(limit=None, where={"file": file})
        return {"decisions": [{"id": one.id, "decision": one.text} for one in noted]}

    return server


async def main(directory: str) -> None:
    repository = str(find_repository(Path.cwd()))
    async with remora.connect(directory) as memory:
        await make_memory_server(memory.user(repository)).run_stdio_async()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
