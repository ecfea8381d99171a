"""Attachments through other processes: workers of a memory in shards, and clients over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import remora
from tests.integration.test_attachments import files, picture, shown, url
from tests.integration.test_client import connected
from tests.workers import OWNERS, end_owner, write_config

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests look into files


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A memory's directory, whose owner is ended after the test."""
    yield tmp_path / "memory"
    end_owner(tmp_path / "memory")


async def use(chat: Any, where: Path | None) -> None:
    """Append, load, read, and a turn; the bytes are in files, and not in the journal."""
    one, two = picture(1), picture(2)
    await chat.append(shown("look", one, "a.png"), key="k")
    assert (await chat.append(shown("look", one, "a.png"), key="k")).duplicate
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chat.append, shown("0", two))
        tasks.start_soon(chat.append, {"role": "user", "content": "1"})
    (first, second, third) = await chat.history()
    assert first.content == shown("look", one, "a.png")["content"]
    assert (second.content[0]["text"], third.content) == ("0", "1")
    (short, *_) = await chat.history(attachments=False)
    assert len(str(short.content)) < 300
    context = await chat.load()
    assert url(one) in str(context.messages[0])
    async with chat.turn({"role": "user", "content": "say"}, key="t") as turn:
        await turn.reply({"role": "assistant", "content": "yes"})
    if where is not None:
        assert {path.read_bytes() for path in files(where)} == {one, two}
        await chat.forget()
        assert files(where) == []


@pytest.mark.usefixtures("memory")
class TestWorkers:
    """A worker of a memory whose owner is another process."""

    pytestmark = OWNERS

    async def test_worker(self, tmp_path: Path) -> None:
        async with remora.connect(write_config(tmp_path)) as worker:
            await use(worker.session("ann", "one"), tmp_path / "memory")


async def test_client(tmp_path: Path) -> None:
    async with (
        remora.Runtime(tmp_path / "memory") as runtime,
        connected(runtime, tmp_path) as client,
    ):
        await use(client.user("ann").session("one"), None)
        assert len(files(tmp_path / "memory")) == 2
