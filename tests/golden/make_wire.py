"""Note the bytes of one sample of each message and reply that crosses to another process.

    python -m tests.golden.make_wire

They are in ``wire-N.json``, by struct. When a struct gets a field (last, with a default), N is
raised here, the program is run once, and the file is committed: the older files stay, and
`tests/unit/test_wire_types.py` decodes them all.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from remora import BufferPolicy, Receipt
from remora.actors import keyed_state
from remora.actors.session import messages as session
from remora.actors.user import messages as user
from remora.actors.user.working import WorkingItem, pack_vector
from remora.actors.wire_types import to_sent
from remora.messages import Entry
from remora.storage.keyed_values import KeyedImage, KeyedValue
from remora.storage.records import MemoryItem, MessageRange, Reader, StateItem, Summary, Watermarks

__all__ = ["MESSAGES", "NEWEST", "REPLIES", "files"]

NEWEST = 4
HERE = Path(__file__).parent
AT_US = 1_767_225_600_000_000  # 2026-01-01

_chat = msgspec.msgpack.encode({"role": "assistant", "content": "Zürich ☂"})
_meta = msgspec.msgpack.encode({"mood": "good"})
_entry = Entry(7, AT_US, 12, "assistant", _chat, _meta, "mine", ("call-1",), None, 0.75)
_plain = Entry(8, AT_US + 1, 9, "tool", _chat, answers="call-1")
_range = MessageRange(3, 5, 2)
_summary = Summary(
    5, "Summary:\n", "they met", 11, True, "gpt", 2, 90, (_range,), (_range,), 4, "met", 3
)  # fmt: skip
_marks = Watermarks(1, 2, 3, 4, 5)
_policy = BufferPolicy(above_tokens=900, keep_messages=4, overdraft="wait")
_state_item = StateItem("block", "facts", b"\x81\xa1a\x01")
_value = KeyedValue(4, AT_US, b'{"a":1}')
_synopsis = user.Synopsis("Ada", "tea", "ok", "job-2", 9, "")
_working = WorkingItem(
    "w1", "ten euros", "tool:search", "chat", AT_US, 3, pack_vector(np.array([0.6, 0.8]))
)
_memory = MemoryItem(
    "m1", "chat", "cook", "likes tea", "fact", 0.5, AT_US, 6, "drink", '{"a":1}', 2, AT_US, (3, 4),
    "topic",
)  # fmt: skip

MESSAGES: tuple[Any, ...] = (
    session.Append(
        (_entry, _plain), b"\x01" * 16, 40, True, 5, session.TurnMark(7, _chat, 8, 3), True
    ),
    session.FindTurn(b"\x02" * 16),
    session.Load(4_000, 8, 3, True, True),
    session.Clear(),
    session.Flush(now=True),
    session.Inspect(),
    session.Remove((0, -1), ("mine",)),
    session.Truncate(4),
    session.Rewind(3),
    session.Replace((_entry,), _summary, 20),
    keyed_state.ReadValue("cart"),
    keyed_state.ReadValues("c", "ca", 10, backward=True),
    keyed_state.SetValue("cart", b"[1]", 0, AT_US, 1_000),
    keyed_state.DeleteValue("cart", None),
    keyed_state.ReadNamed(("cart", "step")),
    keyed_state.ChangeValues((("cart", b"[1]"),), ("step",), (("cart", 0),), AT_US, 1_000),
    user.Learn((_working,)),
    user.SearchWorking(pack_vector(np.array([1.0, 0.0])), 5, "chat"),
    user.Remember((_memory,), replace=True),
    user.ChangeMemory("m1", "cook", AT_US, "likes coffee", 0.25, "{}", 7),
    user.DeleteMemories(("m1",), None),
    user.ExpireSynopsis(),
    user.Grant("lead", "scout", "write"),
    user.ReadGrants(),
    user.InspectUser(),
)
"""One of each kind, no field with its default."""

REPLIES: tuple[Any, ...] = (
    Receipt((7, 8), ("mine", "id8"), duplicate=True),
    session.TurnReceipt((7,), ("mine",), duplicate=True, sid=3),
    session.StoredTurn(3, 1, (_entry,), (_plain,), 2, overtaken=True),
    session.Snapshot(
        _summary,
        (_summary,),
        (_entry, _plain),
        40,
        1,
        2,
        ("call-2",),
        1,
        True,
        (_state_item,),
        _range,
        80,
        30,
        (_summary,),
        12,
        True,
        "1a2b3c-3-",
        (12, 9),
        1,
        5,
        1,
        300,
        1,
        _range,
        1,
        True,
        2,
        9,
    ),
    session.SessionView(
        3,
        _marks,
        8,
        2,
        21,
        1,
        12,
        _summary,
        (_summary,),
        (_state_item,),
        _policy,
        (_entry,),
        _range,
        KeyedImage((("cart", _value),), 4),
        (Reader(4_000, 7, _summary),),
    ),
    keyed_state.StoredValue(_value),
    keyed_state.StoredValues((("cart", _value),)),
    keyed_state.StaleVersion(_value),
    keyed_state.StaleKey("cart", _value),
    user.RememberReceipt(("m1",), "job-1"),
    user.ChangedMemory(_memory),
    user.ScoredItems((user.ScoredItem(_working, 0.5),)),
    user.UserView(4, 1, 300, 2, {"row": (3, AT_US)}, _synopsis, 5, 6, {"lead": "own"}, 7),
)
"""The same of replies."""


def files() -> dict[int, dict[str, Any]]:
    """What each file holds: the bytes in hex, by struct."""
    found = sorted(HERE.glob("wire-*.json"))
    return {int(one.stem.removeprefix("wire-")): json.loads(one.read_text()) for one in found}


def _main() -> None:
    encoded = {
        type(one).__name__: msgspec.msgpack.encode(to_sent(one)).hex()
        for one in (*MESSAGES, *REPLIES)
    }
    (HERE / f"wire-{NEWEST}.json").write_text(json.dumps(encoded, indent=0) + "\n")


if __name__ == "__main__":
    _main()
