"""The tools by which a model looks after its own memory, and the loop that they are called in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from remora import Config, Runtime
from remora.errors import LongTermError
from remora.results import MemoryTools
from remora.testing import HashEmbedder

pytestmark = pytest.mark.anyio

CONFIG = Config.from_dict({"long_term": {"batch_ms": 1}, "tokens": {"counter": "heuristic"}})
NAMES = ["save_to_memory", "recall_from_memory"]
BIRTHDAY: Any = {"role": "user", "content": "My birthday is March 15"}


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Runtime.in_memory(config=CONFIG, embedder=HashEmbedder()) as opened:
        yield opened


async def test_save_and_recall(runtime: Runtime) -> None:
    """S4.07, S4.22: the document's own call; what was saved is found by keyword, each memory once,
    the best first.
    """
    alice = runtime.user("alice")
    tools = alice.tools(session="s1")
    saved = await tools.save_to_memory(
        thinking="User mentioned birthday", content=["Birthday: March 15"]
    )
    assert saved["success"] is True
    assert saved["message"] == "Saved 1 memory."
    (id_,) = saved["memory_ids"]
    await tools.save_to_memory("Pets matter", ["Has a cat called Figaro", "Has a dog called Rex"])
    await alice.settle()
    found = await tools.recall_from_memory(keywords=["birthday"], limit=1)
    (memory,) = found["memories"]
    assert found["success"] is True
    wanted = {"id": id_, "content": "Birthday: March 15", "type": "fact", "importance": 0.5}
    assert wanted.items() <= memory.items()
    assert json.loads(json.dumps(found)) == found
    both = await tools.recall_from_memory(["cat Figaro", "cat", "dog Rex"], limit=1)
    assert [memory["content"] for memory in both["memories"]] == [
        "Has a cat called Figaro",
        "Has a dog called Rex",
    ]
    assert (await tools.recall_from_memory(["birthday"]))["message"] == "Found 3 memories."
    kept = await alice.memories()
    assert {memory.session for memory in kept} == {"s1"}
    # what the model thought is for itself
    assert not [one for one in kept if "mentioned" in one.text or "matter" in one.text]


async def test_a_failure_is_an_answer(runtime: Runtime) -> None:
    """S4.22: whatever a model passes, and whatever fails beneath, a dict with success False comes
    back; nothing is raised.
    """
    tools = runtime.user("alice").tools()
    bad: list[Any] = [None, [], [""], [None], 7, {"a": 1}, ["good", 7], [["nested"]]]
    for value in bad:
        saved = await tools.save_to_memory("", value)
        assert saved["success"] is False, value
        assert saved["error"]
    for value in (None, [], [None], 7):
        assert (await tools.recall_from_memory(value))["success"] is False  # type: ignore[arg-type]
    for limit in (0, -1, "5", None, True, 1.5):
        assert (await tools.recall_from_memory(["x"], limit))["success"] is False  # type: ignore[arg-type]
    assert (await tools.save_to_memory(7, ["x"]))["success"] is False  # type: ignore[arg-type]
    for name in (None, {"a": 1}, ["save_to_memory"], "save", ""):
        answer = json.loads(await tools.call(name, {}))  # type: ignore[arg-type]
        assert answer["error"].startswith(f"there is no tool {name!r}")
    assert (await runtime.counts()).memories == 0

    async def away(*_: object, **__: object) -> None:
        raise LongTermError("the disk is gone", retryable=True)

    async def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    for failure, text in ((away, "the disk is gone"), (bug, "ZeroDivisionError")):
        broken = MemoryTools(_Broken(failure))
        failed = {"success": False, "error": text}
        assert await broken.recall_from_memory(["x"]) == failed
        assert await broken.save_to_memory("", ["x"]) == failed


class _Broken:
    def __init__(self, failure: Any) -> None:
        self.remember = self.recall_many = failure


async def test_specifications(runtime: Runtime) -> None:
    """S4.22: both forms, plain and OpenAI's, with the document's names; what a caller does to one
    does not reach the next.
    """
    tools = runtime.user("alice").tools()
    plain = tools.specs()
    assert [set(spec) for spec in plain] == [{"name", "description", "function"}] * 2
    assert [(spec["name"], spec["function"]) for spec in plain] == [
        ("save_to_memory", tools.save_to_memory),
        ("recall_from_memory", tools.recall_from_memory),
    ]
    assert plain[0]["description"].startswith("Save important information")
    assert plain[1]["description"].startswith("Search your memory")
    for spec in tools.openai():  # each call gives new dicts
        assert spec["type"] == "function"
        schema = spec["function"]["parameters"]
        assert set(schema["required"]) <= set(schema["properties"])
        spec["function"]["parameters"]["properties"].clear()
    save, recall = (spec["function"] for spec in tools.openai())
    assert (save["name"], recall["name"]) == ("save_to_memory", "recall_from_memory")
    content = save["parameters"]["properties"]["content"]
    assert {"type": "array", "items": {"type": "string"}}.items() <= content.items()
    assert set(save["parameters"]["properties"]) == {"thinking", "content"}
    assert set(recall["parameters"]["properties"]) == {"keywords", "limit"}
    assert recall["parameters"]["properties"]["limit"]["default"] == 5


async def test_a_tool_call_loop(runtime: Runtime) -> None:
    """S4.22, S4.44: `call` takes what a model wrote and returns JSON for the tool message, however
    wrong it was.
    """
    alice = runtime.user("alice")
    tools = alice.tools()
    saved = json.loads(
        await tools.call("save_to_memory", '{"thinking": "…", "content": ["Birthday: March 15"]}')
    )
    assert saved["success"] is True
    old = json.loads(await tools.call("record_to_memory", {"content": "Birthday:  March 15"}))
    assert old["memory_ids"] == saved["memory_ids"]
    await alice.settle()
    found = json.loads(
        await tools.call("retrieve_from_memory", '{"keywords": ["birthday"], "limit": 2}')
    )
    assert [memory["content"] for memory in found["memories"]] == ["Birthday: March 15"]
    for name, arguments in (
        ("save_to_memory", "{not json"),
        ("save_to_memory", "[]"),
        ("save_to_memory", "null"),
        ("save_to_memory", ""),
        ("save_to_memory", "[" * 100_000),
        ("save_to_memory", '{"content": ["x"], "user": "bob"}'),
        ("recall_from_memory", "{}"),
        ("recall_from_memory", 7),
        ("recall_from_memory", None),
        ("recall_from_memory", '{"keywords": ["x"], "limit": 1e400}'),
        ("forget_everything", "{}"),
        ("half an emoji \ud83d", "{}"),
        ("specs", "{}"),
        ("__init__", "{}"),
        (None, "{}"),
        (["x"], "{}"),
    ):
        text = await tools.call(name, arguments)  # type: ignore[arg-type]
        answer = json.loads(text.encode())
        assert answer["success"] is False, (name, arguments)
        assert answer["error"]


async def test_both_at_once_store_a_fact_once(runtime: Runtime) -> None:
    """S4.23: what the application records and the model saves, in whatever order and blanks, is one
    memory.
    """
    alice = runtime.user("alice")
    tools = alice.tools()
    (recorded,) = await alice.record([BIRTHDAY])
    saved = await tools.save_to_memory("important", ["My birthday  is March 15 ", "Likes cake"])
    assert saved["memory_ids"][0] == recorded
    assert await alice.remember("Likes cake", importance=1.0) == saved["memory_ids"][1:]
    await alice.settle()
    memories = await alice.memories()
    assert sorted(memory.text for memory in memories) == ["Likes cake", "My birthday is March 15"]
    assert [memory.type for memory in memories if memory.id == recorded] == ["context"]
    assert sorted(await (await runtime.internals.long_term()).row_ids()) == sorted(
        {recorded, *saved["memory_ids"]}
    )


async def test_what_was_said_and_recorded_is_found_once(runtime: Runtime) -> None:
    """S4.23, S2.29: a message that is flushed, and recorded as well, takes one place among the
    results.
    """
    alice = runtime.user("alice")
    for name in ("one", "two"):
        await alice.session(name).append(BIRTHDAY)
        await alice.session(name).flush()
    await alice.record([BIRTHDAY])
    await alice.remember("My cat's birthday is in May")
    await runtime.settle()
    found = await alice.recall("birthday", limit=9)
    said, other = BIRTHDAY["content"], "My cat's birthday is in May"
    assert {memory.text for memory in found} == {said, other}
    # Whichever ranks higher: as it was said, twice, or as it was recorded.
    places = sorted((memory.type, memory.session) for memory in found if memory.text == said)
    assert places in ([("context", "")], [("message", "one"), ("message", "two")])
    recorded = await alice.recall("birthday", types="context")
    assert [memory.type for memory in recorded] == ["context"]


@pytest.mark.blocking  # imports the clients
async def test_shapes_of_other_apis(runtime: Runtime) -> None:
    """The clients' own types take each shape; all describe the same tools."""
    # 2 s, for which no other test waits
    from anthropic.types import ToolParam  # noqa: PLC0415
    from google.genai.types import GenerateContentConfig, Tool  # noqa: PLC0415
    from openai.types.chat import ChatCompletionFunctionToolParam  # noqa: PLC0415
    from openai.types.responses import FunctionToolParam  # noqa: PLC0415

    tools = runtime.user("alice").tools()
    assert [tool.__name__ for tool in tools] == NAMES
    chat = TypeAdapter(list[ChatCompletionFunctionToolParam]).validate_python(tools.openai())
    assert [one["function"]["name"] for one in chat] == NAMES
    flat = TypeAdapter(list[FunctionToolParam]).validate_python(tools.responses())
    assert [one["name"] for one in flat] == NAMES
    claude = TypeAdapter(list[ToolParam]).validate_python(tools.anthropic())
    assert [one["name"] for one in claude] == NAMES
    (gemini,) = GenerateContentConfig.model_validate({"tools": tools.gemini()}).tools or []
    assert isinstance(gemini, Tool)
    declared = gemini.function_declarations or []
    assert [one.name for one in declared] == NAMES
    for place, one in enumerate(declared):
        schema = chat[place]["function"]["parameters"]
        assert one.parameters_json_schema == schema == flat[place]["parameters"]
        assert claude[place]["input_schema"] == schema
