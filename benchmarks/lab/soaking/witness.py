"""What a session's callers know, kept outside of the runtime.

That is: which messages were acknowledged, their numbers, and which were deleted. A message says who
sent it, in which append and at which place in it, so that a history can be checked by reading it.
An append takes four bytes here, because the soak measures its own process.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from remora.messages import Message, Receipt, split_tool_calls

__all__ = ["SessionWitness", "Violations", "unit"]

_WORDS = (
    "what of the garden, the bridge, the river in the morning, "
    "seven hundred paces of walnut and copper, a quiet harbour?"
)


class Violations:
    """What should not have happened, by name, with the first few told in full."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []

    def add(self, name: str, detail: str) -> None:
        """Note one."""
        self.counts[name] += 1
        if len(self.told) < 20:
            self.told.append(f"{name}: {detail}")


def unit(owner: str, voice: int, number: int) -> list[dict[str, Any]]:
    """The messages of a voice's append: words, a call with its result, a call alone, and its result
    alone, in turn.
    """
    place = f"{voice}.{number}"
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    match number % 4:
        case 0:
            return [{"role": "user", "content": f"{place}.0 {owner} says: {_WORDS}"}]
        case 1:
            return [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": f"{place}.0", **call}],
                },
                {
                    "role": "tool",
                    "tool_call_id": f"{place}.0",
                    "content": f"{place}.1 {owner} finds {_WORDS}",
                },
            ]
        case 2:
            return [
                {"role": "assistant", "content": None, "tool_calls": [{"id": f"{place}.0", **call}]}
            ]
        case _:
            return [
                {
                    "role": "tool",
                    "tool_call_id": f"{voice}.{number - 1}.0",
                    "content": f"{place}.0 {owner} finds {_WORDS}",
                }
            ]


def _size(number: int) -> int:
    return 2 if number % 4 == 1 else 1


def _place(message: Message) -> tuple[int, int, int]:
    named = (
        message.tool_calls[0].id
        if message.tool_calls
        else str(message.content).split(maxsplit=1)[0]
    )
    voice, number, part = named.split(".")
    return int(voice), int(number), int(part)


class SessionWitness:
    """One session's: nothing of it was told by anybody but the receipts.

    Args:
        name: of the session, for messages.
        owner: the user's name, which is in every message of theirs and in nobody else's.
        voices: callers that append at the same time, each in order.
        violations: where to tell.
    """

    def __init__(self, name: str, owner: str, voices: int, violations: Violations) -> None:
        self.name = name
        self.owner = owner
        self.deleted: set[int] = set()
        self.cleared: list[range] = []
        """Messages that were cleared before they were handed over to long-term memory: they need
        not come there.
        """
        self._first = [array("I") for _ in range(voices)]
        self._violations = violations

    @property
    def acknowledged(self) -> int:
        """Messages that are to be there."""
        return sum(_size(number) for firsts in self._first for number in range(len(firsts))) - len(
            self.deleted
        )

    def next(self, voice: int) -> int:
        """The number of a voice's next append."""
        return len(self._first[voice])

    def heard(self, voice: int, number: int, receipt: Receipt) -> None:
        """An append was acknowledged, for the first time or again."""
        firsts, seqs = self._first[voice], receipt.seqs
        if len(seqs) != _size(number) or any(b != a + 1 for a, b in itertools.pairwise(seqs)):
            self._violations.add("torn", f"{self.name}: append {voice}.{number} got {seqs}")
        if number < len(firsts):
            if firsts[number] != seqs[0] or not receipt.duplicate:
                self._violations.add(
                    "doubled",
                    f"{self.name}: append {voice}.{number} was {firsts[number]}, then {seqs}",
                )
            return
        if firsts and seqs[0] <= firsts[-1]:
            self._violations.add(
                "disordered", f"{self.name}: append {voice}.{number} got {seqs} after {firsts[-1]}"
            )
        firsts.append(seqs[0])

    def history(self, messages: Sequence[Message]) -> None:
        """Compare a history, taken while nobody appends, with what was acknowledged."""
        there = {message.seq or 0: _place(message) for message in messages}
        wanted = {
            first + part: (voice, number, part)
            for voice, firsts in enumerate(self._first)
            for number, first in enumerate(firsts)
            for part in range(_size(number))
            if first + part not in self.deleted
        }
        for seq in wanted.keys() - there.keys():
            self._violations.add(
                "lost", f"{self.name}: {wanted[seq]} at {seq} is not in the history"
            )
        for seq in there.keys() - wanted.keys():
            self._violations.add(
                "doubled", f"{self.name}: {there[seq]} at {seq} was never acknowledged there"
            )
        for seq in there.keys() & wanted.keys():
            if there[seq] != wanted[seq]:
                self._violations.add(
                    "disordered",
                    f"{self.name}: {there[seq]} stands at {seq} instead of {wanted[seq]}",
                )
        seqs = [message.seq for message in messages]
        if seqs != sorted(set(seqs), key=lambda seq: seq or 0):
            self._violations.add(
                "disordered", f"{self.name}: the history's numbers are {seqs[:20]}…"
            )

    def context(self, messages: Sequence[dict[str, Any]], tokens: int, budget: int) -> None:
        """Look at a context: calls whole, within the budget, nobody else's words."""
        if split := split_tool_calls(messages):
            self._violations.add(
                "split",
                f"{self.name}: {split} tool calls without their results, or the other way round",
            )
        if tokens > budget:
            self._violations.add("over budget", f"{self.name}: {tokens} of {budget} tokens")
        self.words(str(message.get("content") or "") for message in messages)

    def words(self, texts: Iterable[str]) -> None:
        """Whoever speaks in them is this user."""
        for text in texts:
            for word in text.split():
                if word.startswith("owner-") and word.rstrip(":,") != self.owner:
                    self._violations.add(
                        "leaked", f"{self.name}: words of {word} are shown to {self.owner}"
                    )
