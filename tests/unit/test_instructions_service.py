"""Instructions when the journal fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Receipt, Runtime
from remora.errors import CommitFailed, StorageError
from remora.languages.instructions import load_signs
from remora.messages import encode_message
from remora.services.appending import Instructions
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.tokens import HeuristicCounter
from tests.harness import user

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def signs() -> None:
    """Read the file of signs, as a runtime does when it opens: nothing reads it on the loop."""
    load_signs()


class Unreadable(MemoryJournal):
    """A journal whose instructions cannot be read."""

    async def instructions(self, *_: Any, **__: Any) -> Any:
        raise StorageError("the disk is gone")


async def test_a_message_is_stored_though_its_instruction_is_not() -> None:
    async def fail(*_: Any) -> None:
        raise CommitFailed("no room")

    instructions = Instructions(MemoryJournal(), fail, HeuristicCounter(), None)
    entry, _ = encode_message(user("Always answer in French."), now_us=0)
    receipt = Receipt((1,), ("a",))
    await instructions.notice(SessionKey("ada", "one"), [entry], receipt)
    assert not await instructions.get("ada")


async def test_others_run_while_many_messages_are_read() -> None:
    ran = anyio.Event()
    told: list[bool] = []

    async def tell(*_: Any) -> None:
        told.append(ran.is_set())

    async def other() -> None:
        ran.set()

    instructions = Instructions(MemoryJournal(), tell, HeuristicCounter(), None)
    texts = [f"Always answer questions about item {number} in French." for number in range(100)]
    entries = [encode_message(user(text), now_us=0)[0] for text in texts]
    receipt = Receipt(tuple(range(1, 101)), tuple(texts))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await instructions.notice(SessionKey("ada", "one"), entries, receipt)
    assert told == [True]


async def test_a_context_does_without_what_cannot_be_read(tmp_path: Path) -> None:
    async with Runtime(tmp_path, journal=Unreadable()) as runtime:
        session = runtime.session("ada", "one")
        await session.append(user("Always answer in French."))
        context = await session.load()
        assert [one["content"] for one in context.messages] == ["Always answer in French."]


async def test_what_is_redacted_is_not_noted(tmp_path: Path) -> None:
    def redact(text: str) -> str:
        return text.replace("4711", "[code]")

    async with Runtime(tmp_path, redact_long_term=redact) as runtime:
        ada = runtime.user("ada")
        await ada.session("one").append(user("Always use the code 4711."))
        assert [one.text for one in await ada.instructions()] == ["Always use the code [code]."]
