"""Facts that a benchmark gives in a chat model's place; part of `benchmarks.recall`."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from remora import Memory
from remora.cli.replay import Conversations
from remora.messages import plain_text

__all__ = ["GivenFacts", "place_of"]

Place = tuple[str, int]  # session, seq


class GivenFacts:
    """A chat model that finds in messages the facts of a file, and calls no fact outdated.

    The file is JSONL: ``{"type": "fact", "conv", "text", "sources": [turn ids]}``.

    Args:
        path: of the file.
        conversations: in which the turns are.
    """

    name = "given"

    def __init__(self, path: Path, conversations: Conversations) -> None:
        self._turns: dict[str, list[tuple[str, str]]] = {}
        for session, messages in conversations.sessions.items():
            for planned in messages:
                turn = session.user, planned.key.removeprefix("replay:")
                self._turns.setdefault(plain_text(planned.message), []).append(turn)
        self._facts: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for line in path.read_text(encoding="utf-8-sig").splitlines():
            row = json.loads(line)
            if row.get("type") == "fact":
                last = str(row["conv"]), row["sources"][-1]
                self._facts.setdefault(last, []).append(row)

    async def complete(self, messages: Sequence[dict[str, Any]]) -> str:
        """The facts whose last turn is among these messages."""
        rows = [json.loads(line) for line in str(messages[-1]["content"]).splitlines()]
        if not rows or "message" not in rows[0]:
            return '{"replaces": []}'
        numbers = {
            turn: row["message"] for row in rows for turn in self._turns.get(row["text"], ())
        }
        found = [
            {
                "text": fact["text"],
                "sources": [
                    numbers[turn[0], one] for one in fact["sources"] if (turn[0], one) in numbers
                ],
            }
            for turn in numbers
            for fact in self._facts.get(turn, ())
        ]
        return json.dumps({"facts": found})


def place_of(memory: Memory, evidence: Collection[Place]) -> Place:
    """Where a memory was said; of a fact, the message that is evidence, if one is."""
    places = [(memory.session, seq) for seq in memory.sources or (memory.seq,)]
    return next((place for place in places if place in evidence), places[0])
