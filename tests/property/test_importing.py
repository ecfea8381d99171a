"""Conversations come back from the files of other products as they went in."""

from __future__ import annotations

import json
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Runtime
from remora.errors import InvalidInput
from remora.maintenance.import_ import check_session, check_user
from remora.maintenance.importing.records import Conversation, Notes
from remora.maintenance.importing.translate import SOURCES, translate
from remora.storage.export.jsonl import JsonlReader
from remora.transfer import SessionExport
from tests.configs import PLAIN
from tests.foreign import (
    chatgpt,
    chatgpt_talk,
    claude,
    claude_message,
    letta_message,
    mem0,
    node,
    sharegpt,
    zep_message,
)

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(str.strip)
talks = st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=4)


def read(product: str, text: str, suffix: str) -> tuple[list[Conversation], Notes]:
    source, notes = SOURCES[product], Notes()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"file{suffix}"
        path.write_text(text, encoding="utf-8")
        with source.open(path) as records:
            found = [one for _, raw in records.each for one in source.translate(raw, notes)]
    return [one for one in found if isinstance(one, Conversation)], notes


def said(found: Conversation) -> list[str]:
    return [one.chat["content"] for one in found.messages]


@settings(deadline=None)
@given(talks, st.sampled_from([None, 1, "\t"]), st.booleans(), st.booleans())
def test_sharegpt(talks: list[list[str]], indent: Any, ascii_: bool, lines: bool) -> None:
    """In every notation of JSON, whatever quotes, brackets and line breaks the texts hold."""
    rows = [
        sharegpt(*((("human", "gpt")[n % 2], text) for n, text in enumerate(talk)), id=number)
        for number, talk in enumerate(talks)
    ]
    if lines:
        text = "\n".join(json.dumps(row, ensure_ascii=ascii_) for row in rows)
    else:
        text = json.dumps(rows, indent=indent, ensure_ascii=ascii_)
    found, notes = read("sharegpt", text, ".jsonl" if lines else ".json")
    assert [said(one) for one in found] == talks
    assert len({one.id for one in found}) == len(talks)
    assert not notes.left_out


@settings(deadline=None)
@given(st.data())
def test_trees_of_chatgpt(data: st.DataObject) -> None:
    """Of any tree the branch to the current node is imported, and the others are counted."""
    count = data.draw(st.integers(1, 12))
    nodes: dict[str, dict[str, Any]] = {}
    for number in range(count):
        parent = data.draw(st.sampled_from([None, *nodes])) if nodes else None
        role = data.draw(st.sampled_from(["user", "assistant"]))
        nodes[f"n{number}"] = node(role, data.draw(words), parent=parent, at=float(number))
    current = data.draw(st.sampled_from([*nodes]))
    branch: list[str] = []
    at: str | None = current
    while at is not None:
        branch.append(at)
        at = nodes[at]["parent"]
    order = data.draw(st.permutations([*nodes]))
    talk = chatgpt("c", {name: nodes[name] for name in order}, current)
    [found], notes = read("chatgpt", json.dumps([talk]), ".json")
    assert [one.id for one in found.messages] == branch[::-1]
    expected = [nodes[name]["message"]["content"]["parts"][0] for name in branch[::-1]]
    assert said(found) == expected
    left = {reason: one.count for reason, one in notes.left_out.items()}
    others = count - len(branch)
    assert left == ({"message of another branch (edited or regenerated)": others} if others else {})


SHAPES: dict[str, Any] = {
    "chatgpt": [chatgpt_talk("c-1", "Hi", "Hello")],
    "claude": [
        claude(
            "u-1",
            [
                claude_message("human", "Hi", attachments=[{"file_name": "a", "file_size": 1}]),
                claude_message(
                    "assistant",
                    {"type": "tool_use", "id": "c", "name": "run", "input": {}},
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"text": "Done"}]},
                ),
            ],
        )
    ],
    "sharegpt": [sharegpt(("human", "Hi"), ("function_call", "{}"), ("tool", "Done"), id=1)],
    "mem0": {"results": [mem0("Likes tea", metadata={"a": 1}, categories=["food"])]},
    "letta": {
        "agents": [
            {
                "name": "Sam",
                "block_ids": ["b"],
                "messages": [
                    letta_message("user", "Hi", id="m"),
                    letta_message("assistant", "", tool_calls=[{"function": {"name": "run"}}]),
                    letta_message("tool", "{}", tool_returns=[{"tool_call_id": "c"}]),
                ],
            }
        ],
        "blocks": [{"id": "b", "label": "human", "value": "Ann"}],
    },
    "zep": {
        "sessions": [{"session_id": "s", "user_id": "ann", "facts": [{"fact": "Ann is here"}]}],
        "messages": [{**zep_message("user", "Hi"), "session_id": "s"}],
    },
}
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8)
)
anything = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of the value, with a key of it."""
    keys = value if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found


@pytest.mark.anyio
@pytest.mark.blocking
@pytest.mark.parametrize("product", [*SHAPES])
async def test_whatever_stands_in_a_file(product: str) -> None:
    """Anything in any place of a file: it is imported, or a record is broken, and no error is one
    of the program; what was translated can be imported.
    """
    with tempfile.TemporaryDirectory() as directory:
        path, made = Path(directory) / "file.json", Path(directory) / "made.jsonl"
        async with Runtime.in_memory(config=PLAIN) as runtime:
            parts = runtime.internals.transfers.parts

            @settings(deadline=None, max_examples=150)
            @given(st.data())
            def translate_changed(data: st.DataObject) -> None:
                value = json.loads(json.dumps(SHAPES[product]))
                for _ in range(data.draw(st.integers(1, 2))):
                    holder, key = data.draw(st.sampled_from(places(value)))
                    holder[key] = data.draw(anything)
                path.write_text(json.dumps(value))
                made.unlink(missing_ok=True)
                with suppress(InvalidInput):
                    translate(SOURCES[product], path, made, parts, user="bob", skip_broken=True)
                    reader = JsonlReader(made)
                    for _, one in reader.read():
                        if isinstance(one, SessionExport):
                            check_session(one, parts.intake)
                        else:
                            check_user(one, parts)
                    reader.close()

            await anyio.to_thread.run_sync(translate_changed)
