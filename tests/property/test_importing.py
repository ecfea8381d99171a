"""Conversations come back from the files of other products as they went in."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from remora.maintenance.importing.records import Conversation, Notes
from remora.maintenance.importing.translate import SOURCES
from tests.foreign import chatgpt, node, sharegpt

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
