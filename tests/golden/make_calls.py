"""Note the calls between a worker and an owner: names, arguments, results.

    python -m tests.golden.make_calls

They are in ``calls-N.json``, where N is the version of the protocol. Add calls, and arguments with
defaults at the end, between releases; what changes a call that is there changes `WIRE`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from remora.cluster.calls import CALLS, CallType
from remora.cluster.wire import WIRE

__all__ = ["file", "shape"]


def file() -> Path:
    """Of this version of the protocol."""
    return Path(__file__).parent / f"calls-{WIRE}.json"


def shape(call: CallType) -> dict[str, Any]:
    """What another release must agree with."""
    return {
        "arguments": [
            [one.name, _words(one.type), not one.required]
            for one in msgspec.structs.fields(call.arguments)
        ],
        "progress": call.has_progress,
    }


def _words(hint: Any) -> str:
    """A type without the modules of its parts, which move."""
    text = hint.__qualname__ if isinstance(hint, type) else str(hint)
    return re.sub(r"(\w+\.)+", "", text)


def _main() -> None:
    lines = [f"{json.dumps(name)}: {json.dumps(shape(CALLS[name]))}" for name in sorted(CALLS)]
    file().write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _main()
