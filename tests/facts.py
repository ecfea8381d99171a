"""A chat model for tests of facts: it finds what messages say as ``name is value``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from remora import Config, Session
from remora.messages import ChatDict

_FACT = re.compile(r"\b(\w+) is (\w+)")


class FactModel:
    """Extracts every ``name is value``; a name that is said again has a new value.

    Args:
        answer: replaces what it would answer, or raises.

    Attributes:
        extractions: the texts that it was shown, by call.
        relations: how often it was asked which facts take the place of others.
    """

    name = "facts"

    def __init__(self, answer: Callable[[str], str] = lambda answer: answer) -> None:
        self._answer = answer
        self.extractions: list[list[str]] = []
        self.relations = 0

    async def complete(self, messages: Sequence[ChatDict]) -> str:
        system, said = (str(message["content"]) for message in messages[-2:])
        if '{"facts": [' in system:
            rows = [json.loads(line) for line in said.splitlines()]
            self.extractions.append([row["text"] for row in rows])
            return self._answer(json.dumps({"facts": _find(rows)}))
        if '{"replaces": [' in system:
            self.relations += 1
            rows = [json.loads(line) for line in said.splitlines()]
            return json.dumps({"replaces": _relate(rows)})
        return "A summary."


def _find(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for match in _FACT.finditer(row["text"]):
            fact = found.setdefault(match[0], {"text": match[0], "sources": []})
            fact["sources"].append(row["message"])
    return list(found.values())


def _relate(rows: Sequence[dict[str, Any]]) -> list[dict[str, int]]:
    """Each new fact takes the place of the last one before it on the same name."""
    found, last = [], dict[str, int]()
    for number, row in enumerate(rows, start=1):
        name = str(row["text"]).split()[0]
        if "new" in row and name in last:
            found.append({"new": number, "old": last[name]})
        last[name] = number
    return found


def config(**sections: Any) -> Config:
    """Facts are extracted; jobs are retried at once."""
    tree: dict[str, Any] = {
        "facts": {"enabled": True},
        "models": {"embedder": "none"},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.01, "max_attempts": 3},
        "long_term": {"batch_ms": 5},
        "recall": {"deadline_s": 600},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.from_dict(tree)


async def say(chat: Session, *texts: str, at: float | None = None) -> None:
    """Append what a user says, index it, and wait for the facts in it."""
    said: list[dict[str, Any]] = [{"role": "user", "content": text} for text in texts]
    if at is not None:
        said = [{**one, "created_at": at} for one in said]
    await chat.append(said)
    await chat.flush()
    await chat.settle()
