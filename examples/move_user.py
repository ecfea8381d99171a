"""Write one user's part of an export, to move the user to another memory directory.

``python -m examples.move_user all.jsonl alice.jsonl alice``
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def only(user: str, source: Path, target: Path) -> int:
    """Copy the lines of one user; returns how many there are.

    The format is described in docs/reference/export-format.md: a header, lines that name their
    user, and an end that counts the lines before it.
    """
    target.touch(mode=0o600, exist_ok=False)
    written = 0
    with source.open(encoding="utf-8") as lines, target.open("w", encoding="utf-8") as out:
        for line in lines:
            entry = json.loads(line)
            if entry["type"] == "end":
                out.write(json.dumps({**entry, "lines": written}) + "\n")
            elif entry["type"] == "remora-export" or entry["user"] == user:
                out.write(line)
                written += 1
    return written - 1


if __name__ == "__main__":
    print(only(sys.argv[3], Path(sys.argv[1]), Path(sys.argv[2])), "lines")
