"""Pin a file at run time: it stays in this session's contexts until it is unpinned."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import remora
from remora.blocks import BaseMemoryBlock, ChatMessage


class Pins:
    """The pinned files: the application's own, for example a table of its database."""

    def __init__(self) -> None:
        self.by_session: dict[str, dict[str, str]] = {}

    def pin(self, session: str, path: Path) -> None:
        self.by_session.setdefault(session, {})[path.name] = path.read_text()

    def unpin(self, session: str, name: str) -> None:
        self.by_session.get(session, {}).pop(name, None)


class PinnedFiles(BaseMemoryBlock[str], kw_only=True):
    pins: Pins

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:  # noqa: ARG002
        files = self.pins.by_session.get(block_kwargs["session_id"], {})
        return "\n\n".join(f"# {name}\n{text}" for name, text in files.items())


async def main(path: Path) -> None:
    pins = Pins()
    blocks = [
        PinnedFiles(name="pinned_files", pins=pins, priority=0)
    ]  # priority 0: never truncated
    async with remora.Runtime.in_memory(
        blocks=blocks, policy=remora.BufferPolicy.window(2)
    ) as runtime:
        chat = runtime.session("ana", "code")
        await asyncio.to_thread(pins.pin, chat.key.session, path)
        for n in range(5):
            await chat.append({"role": "user", "content": f"Question {n} about the file."})
        print((await chat.load()).messages[0]["content"])
        pins.unpin(chat.key.session, path.name)
        print("unpinned:", path.name not in str((await chat.load()).messages))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "notes.md"
        file.write_text("The deploy key is rotated on Mondays.")
        asyncio.run(main(file))
