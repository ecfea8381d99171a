"""How a program sees a library, and the local models that all libraries are given.

Needs the standard library only. Every message carries a mark, ``[[a1]]``. A message counts as
there if a context holds its mark, or a summary that was made from it. The summarizer forgets
nothing: its answer is a number, ``((s7))``, and it records what that summary covers. So what is
missing was lost by the library, not by a model.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Embedding", "Open", "Setting", "Subject", "Summaries", "marked", "marks", "user_of"]

_MARK = re.compile(r"\[\[(\w+)\]\]")
_SUMMARY = re.compile(r"\(\(s(\d+)\)\)")
_TEXT = (
    "the train to the coast was late again so we walked along the river and talked about the "
    "garden the cello lessons and "
    "what grandmother used to cook on winter evenings before supper"
)
_WORDS = _TEXT.split()
DIMENSION = 64


def marked(mark: str, words: int = 30) -> str:
    """A message of about a token and a third a word, found again by its mark."""
    return f"[[{mark}]] " + " ".join(_WORDS[n % len(_WORDS)] for n in range(words)) + "."


def marks(texts: Iterable[str]) -> Counter[str]:
    """How often each mark stands in the texts."""
    return Counter(mark for text in texts for mark in _MARK.findall(text))


def user_of(session: str) -> str:
    """Sessions are named ``user/number``."""
    return session.partition("/")[0]


class Summaries:
    """A summarizer that forgets nothing, slow or failing as a program wants it.

    Args:
        delay_s: how long each summary takes.
    """

    def __init__(self, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self.failing = False
        self.calls = 0
        self.running = 0
        self.begun = asyncio.Event()
        self._covered: list[set[str]] = []

    async def __call__(self, prompt: str) -> str:
        """A summary of all that the prompt holds, earlier summaries included.

        Raises:
            RuntimeError: while it is failing.
        """
        self.calls += 1
        self.running += 1
        self.begun.set()
        try:
            await asyncio.sleep(self.delay_s)
        finally:
            self.running -= 1
        if self.failing:
            raise RuntimeError("the model is away")
        self._covered.append(self.covered([prompt]))
        return f"((s{len(self._covered) - 1}))"

    def covered(self, texts: Iterable[str]) -> set[str]:
        """The marks that the texts carry, in their own words or by a summary."""
        found: set[str] = set()
        for text in texts:
            found.update(_MARK.findall(text))
            for number in _SUMMARY.findall(text):
                found |= self._covered[int(number)]
        return found


class Embedding:
    """Hashed words: deterministic, near for texts that share words.

    Args:
        fails_at: the number of the call that fails, once; 0 for never.
    """

    def __init__(self, fails_at: int = 0) -> None:
        self.fails_at = fails_at
        self.calls = 0

    def __call__(self, text: str) -> list[float]:
        """A unit vector of `DIMENSION` numbers.

        Raises:
            RuntimeError: at the call that fails.
        """
        self.calls += 1
        if self.calls == self.fails_at:
            raise RuntimeError("the embedder is away")
        return self.of(text)

    @staticmethod
    def of(text: str) -> list[float]:
        """The same without failing."""
        vector = [0.0] * DIMENSION
        for word in re.findall(r"\w+", text.lower()):
            digest = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
            vector[digest % DIMENSION] += 1 if digest >> 63 else -1
        length = sum(one * one for one in vector) ** 0.5 or 1.0
        return [one / length for one in vector]


@dataclass(frozen=True)
class Setting:
    """What a program asks of a library's configuration; all else is at its default.

    Attributes:
        limit_tokens: messages beyond so many tokens leave the short-term memory.
        summarize: where given, what leaves is summarized by it.
        embed: where given, what leaves (or all, where there is no short-term memory) goes into
            long-term memory, embedded by it.
        one_block: sessions share the object that searches long-term memory, not just the store; of
            interest to LlamaIndex alone.
    """

    limit_tokens: int = 30_000
    summarize: Callable[[str], Awaitable[str]] | None = None
    embed: Callable[[str], list[float]] | None = None
    one_block: bool = False


class Subject(Protocol):
    """A library, opened on a directory. Sessions are named ``user/number``; all calls may be made
    concurrently.
    """

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:
        """Add messages, by one call if the library has one for several.

        Args:
            session: whose.
            texts: of the messages; the user's and the assistant's by turns.
            key: names the request, by whatever means the library has for that.
        """
        ...

    async def load(self, session: str, query: str = "") -> list[str]:
        """Every text that a model would be shown now."""
        ...

    async def buffered(self, session: str) -> list[str]:
        """Those of them that are in short-term memory, word for word."""
        ...

    async def kept(self, session: str) -> list[str]:
        """What the library can still return of the session by any documented call."""
        ...

    async def delivered(self) -> list[str]:
        """Every row of long-term memory."""
        ...

    async def delete(self, user: str, sessions: Sequence[str]) -> None:
        """Delete all that is the user's, by the library's own call for that."""
        ...

    async def settle(self) -> None:
        """Wait for background work."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


Open = Callable[[Path, Setting], Awaitable[Subject]]
