"""The model of the gallery, and the real one that the README of the examples puts in its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from openai import AsyncOpenAI, omit

from examples.gallery.chat_page import TOOLS
from examples.gallery.model import text_of, think
from remora import Runtime
from tests.configs import LEAN
from tests.endpoints import started_endpoint
from tests.integration.test_tutorial import reply
from tests.programs import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


async def test_a_turn_stores_what_it_streams() -> None:
    """Its chunks are read as OpenAI's are: calls of tools, then words."""
    async with Runtime.in_memory(config=LEAN) as runtime:
        async with runtime.session("alice", "one").turn("How warm is it in Porto?") as turn:
            async for _ in turn.stream(think(turn.context.messages, TOOLS)):
                pass
            (call,) = turn.open_calls
            assert (call.function.name, call.function.arguments) == (
                "read_thermometer",
                '{"city": "Porto"}',
            )
            await turn.reply({"role": "tool", "tool_call_id": call.id, "content": "18 degrees"})
            context = await turn.load()
            words = [text_of(one) async for one in turn.stream(think(context.messages, TOOLS))]
        assert words == ["I ", "looked: ", "18 ", "degrees."]
        assert turn.replies[-1].content == "".join(words)


async def test_the_readme_puts_in_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines ask an OpenAI-compatible endpoint; tools are offered if there are any."""
    shown = re.search(
        r"<!-- a real model -->\n```python\n(.*?)```",
        (ROOT / "examples" / "README.md").read_text(),
        re.DOTALL,
    )
    assert shown is not None
    with started_endpoint() as endpoint:
        endpoint.answer = reply
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        names: dict[str, Any] = {"AsyncOpenAI": AsyncOpenAI, "omit": omit}
        exec(shown[1], names)
        real: Callable[..., Any] = names["think"]
        question = {"role": "user", "content": "Where do I live?"}
        for tools in ([], TOOLS):
            chunks = [text_of(one) async for one in real([question], tools)]
            assert chunks == ["In ", "Lisbon."]
        first, second = (body for _, _, body in endpoint.requests)
        assert ("tools" in first, second["tools"]) == (False, TOOLS)
