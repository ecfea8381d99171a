"""The page on long-term memory, held against what actors are told."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from remora.actors.user import messages as user_protocol
from remora.storage.records import MemoryItem

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "long-term-memory.md"


def test_messages_between_agents_are_documented() -> None:
    """S4.42: docs/explanation/long-term-memory.md names each message that agents share by, with
    exactly its fields, and each can cross a process.
    """
    table = re.findall(r"^\| `(\w+)` \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    rows = {name: re.findall(r"`(\w+)`", fields) for name, fields in table}
    assert set(rows) == {
        "Grant",
        "ReadGrants",
        "Remember",
        "ChangeMemory",
        "DeleteMemories",
        "Touch",
        "PruneNow",
        "MemoryItem",
        "RememberReceipt",
    }
    item = MemoryItem("id", "s", "a", "text", "fact", 0.5, 1, 2)
    samples = {
        "Grant": user_protocol.Grant("lead", "scout", None),
        "ReadGrants": user_protocol.ReadGrants(),
        "Remember": user_protocol.Remember((item,)),
        "ChangeMemory": user_protocol.ChangeMemory("id", "lead", 7, "text"),
        "DeleteMemories": user_protocol.DeleteMemories(("id",), "lead"),
        "Touch": user_protocol.Touch(("row",), 7),
        "PruneNow": user_protocol.PruneNow(-1, "age", 5.0, ("fact",)),
        "MemoryItem": item,
        "RememberReceipt": user_protocol.RememberReceipt(("id",), "job"),
    }
    for name, sample in samples.items():
        assert rows[name] == list(sample.__struct_fields__), name
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(sample), type=type(sample)) == sample
