"""The LangGraph agent of the gallery: programs one after the other, and a run that is cut."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from examples.gallery import langgraph_agent
from examples.gallery.langgraph_agent import ask
from remora import Message, Runtime
from tests.configs import LEAN, LEAN_ENVIRONMENT
from tests.programs import run_program

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
PICTURE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
    "+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FOUND = "A-4711: a red bicycle, with the carrier in Porto"


def roles(history: list[Message]) -> list[str]:
    return [one.role for one in history]


async def test_a_later_thread_knows_what_a_tool_found(tmp_path: Path) -> None:
    """Each question is asked by a program of its own; the picture comes back byte for byte."""
    picture = tmp_path / "picture.png"
    picture.write_bytes(b64decode(PICTURE))

    def run(thread: str, *words: object) -> str:
        agent = ("examples.gallery.langgraph_agent", tmp_path / "memory", thread)
        lean: Any = LEAN_ENVIRONMENT
        return run_program(*agent, *words, **lean).stdout

    assert run("monday", "What is in order A-4711?") == f"I looked: {FOUND}.\n"
    assert run("monday", "Is it this one?", picture) == "I see a picture (image/png).\n"
    assert run("friday", "Where is my bicycle?") == f"I know this: {FOUND}\n"
    async with Runtime(tmp_path / "memory", config=LEAN) as runtime:
        monday = await runtime.session("alice", "monday").history()
        assert roles(monday) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        sent = monday[4].to_chat()["content"]
        assert sent[1]["image_url"]["url"] == f"data:image/png;base64,{PICTURE}"
        friday = await runtime.session("alice", "friday").history()
        assert roles(friday) == ["user", "assistant"]


class Broken(dict[str, str]):
    """Orders that cannot be read."""

    def get(self, *_: object) -> Any:
        raise ConnectionError("the shop does not answer")


async def test_a_run_that_was_cut_is_finished_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool had failed: it is called again, and the model is asked what comes next."""
    async with Runtime.in_memory(config=LEAN) as runtime:
        alice = runtime.user("alice")
        with monkeypatch.context() as patch:
            patch.setattr(langgraph_agent, "ORDERS", Broken())
            with pytest.raises(ConnectionError):
                await ask(alice, "monday", "What is in order A-4711?")
        assert await ask(alice, "monday", "Thank you.") == "Noted."
        history = await alice.session("monday").history()
        assert roles(history) == ["user", "assistant", "tool", "assistant", "user", "assistant"]
        assert history[2].content == FOUND
