"""The tool by which a model reads what a context shows in part, and tools whose results stay."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from remora import Config, Runtime
from remora.errors import InvalidInput

pytestmark = pytest.mark.anyio


def call(number: int, tool: str) -> dict[str, Any]:
    function = {"name": tool, "arguments": "{}"}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


async def test_a_model_reads_the_original() -> None:
    """By the number that the excerpt says, part by part, and nothing of another session."""
    async with Runtime.in_memory() as runtime:
        ann = runtime.user("ann")
        chat = ann.session("one")
        text = "".join(f"line {n} · é 漢\n" for n in range(6_000))
        await chat.append([{"role": "user", "content": "read the log"}, call(1, "log")])
        await chat.append(result(1, text))
        await ann.session("two").append([{"role": "user", "content": "secret"}] * 4)
        context = await chat.load(max_tokens=2_000)
        found = re.search(r"it is message (\d+)", str(context.messages[-1]["content"]))
        assert found is not None
        tools = ann.tools(session="one", read=True)
        names = [one["function"]["name"] for one in tools.openai()]
        assert names == ["save_to_memory", "recall_from_memory", "read_message"]
        assert [tool.__name__ for tool in tools] == names
        read, parts = "", 1
        part = 1
        while part <= parts:
            answer = json.loads(
                await tools.call("read_message", {"number": int(found[1]), "part": part})
            )
            assert answer["success"], answer
            assert len(answer["content"].encode()) <= 8_000
            read, parts, part = read + answer["content"], answer["parts"], part + 1
        assert read == text
        for wrong in ({"number": 4}, {"number": 3, "part": parts + 1}, {"number": 0}, {}):
            assert not json.loads(await tools.call("read_message", wrong))["success"]
        with pytest.raises(InvalidInput, match="session"):
            ann.tools(read=True)
        assert "no tool" in await ann.tools(session="one").call("read_message", {"number": 1})


async def test_results_of_tools_that_are_kept() -> None:
    config = Config.from_dict({"context": {"keep_results": ["policy"], "whole_results": 1}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("ann", "one")
        await chat.append({"role": "user", "content": "go on"})
        for number in range(12):
            tool = "policy" if number == 2 else "search"
            text = f"{tool} {number}: " + "some words of it " * 60
            await chat.append([call(number, tool), result(number, text)])
        context = await chat.load(max_tokens=2_000)
        results = [one for one in context.messages if one["role"] == "tool"]
        told = {one["tool_call_id"]: one["content"] for one in results}
        assert told["c2"].count("some words of it") == 60
        assert all(told[one].count("some words of it") < 30 for one in told if one in {"c1", "c3"})
