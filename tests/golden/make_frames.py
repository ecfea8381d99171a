"""Note the bytes of one sample of each request and reply between a worker and an owner.

    python -m tests.golden.make_frames

They are in ``frames-N.json``, where N is the version of the protocol. A struct that gets a field
(last, with a default) gets a second sample under another name; the first stays.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from remora.actors.session.messages import Load
from remora.cluster.wire import (
    WIRE,
    Ask,
    Bye,
    Call,
    Cancel,
    Draining,
    Hello,
    Progress,
    Raised,
    Returned,
    ShardInfo,
    Welcome,
    frame,
)

__all__ = ["REPLIES", "REQUESTS", "SHORTER", "files"]

HERE = Path(__file__).parent

REQUESTS: dict[str, Any] = {
    "hello": Hello(1, "0.1.0", "d1", "w1"),
    "hello-of-shard": Hello(1, "0.1.0", "d1", "w1", 3),
    "hello-to-an-owner": Hello(1, "0.1.0", "d1", "w1", 3, 4, 8),
    "ask": Ask(7, 3, "Zoë", "one", Load(4_000), 12, 1.5),
    "post": Ask(0, 3, "Zoë", "", Load(4_000)),
    "ask-with-recall": Ask(7, 3, "Zoë", "one", Load(4_000, recalls=True), 12, 1.5),
    "call": Call(8, 3, "archive.stats", b"\x90"),
    "cancel": Cancel(7),
    "bye": Bye(),
}
"""Each as it is sent."""
SHORTER = frozenset({"hello", "hello-of-shard", "ask", "post"})
"""Samples of before their structs got a field; they are read, and sent longer."""

REPLIES: dict[str, Any] = {
    "welcome": (0, Welcome(1, "0.1.0", (ShardInfo(5, "i1", recalls=False, blocks=True),), 9)),
    "draining": (0, Draining()),
    "returned": (8, Returned(b"\x90")),
    "progress": (8, Progress(3, 4)),
    "raised": (7, Raised("NoDeadLetter", "none", {"ids": ["a"]}, {"ids": "tuple"})),
    "nothing": (7, None),
    "count": (7, 3),
}
"""The same of what an owner sends."""


def files() -> dict[int, dict[str, str]]:
    """What each file holds: frames in hex, by name."""
    found = sorted(HERE.glob("frames-*.json"))
    return {int(one.stem.removeprefix("frames-")): json.loads(one.read_text()) for one in found}


def _main() -> None:
    frames = {name: frame([one]).hex() for name, one in REQUESTS.items()}
    frames |= {name: frame([(6,), [one]]).hex() for name, one in REPLIES.items()}
    earlier = files().get(WIRE, {})
    frames |= {name: earlier[name] for name in SHORTER}
    (HERE / f"frames-{WIRE}.json").write_text(json.dumps(frames, indent=0) + "\n")


if __name__ == "__main__":
    _main()
