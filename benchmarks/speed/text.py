"""Messages, and their tokens. Standard library and tiktoken only."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pydoc_data.topics import topics

__all__ = ["POOL", "counter", "percentile", "role_of", "texts"]

POOL = 20_000


@cache
def _words() -> list[str]:
    return " ".join(topics[name] for name in sorted(topics)).split()


def texts(seed: int, count: int = POOL, size: int = 300) -> list[str]:
    """Natural text, prose with bits of code: stretches of Python's own manual, which every Python
    brings along.

    Args:
        seed: of where they begin.
        count: how many, at most 60 000; enough that neither they nor their words stay in a
            processor's cache.
        size: of each, in bytes of UTF-8.
    """
    words, rng = _words(), random.Random(seed)
    found = []
    for at in rng.sample(range(len(words) - size), count):
        text = " ".join(words[at : at + size // 2])
        found.append(text.encode()[:size].decode(errors="ignore"))
    return found


def role_of(number: int) -> str:
    """User and assistant by turns."""
    return "assistant" if number % 2 else "user"


def counter() -> Callable[[str], int]:
    """Tokens of a text by o200k_base; takes half a second the first time."""
    import tiktoken  # noqa: PLC0415  # children that count nothing need not have it

    encode = tiktoken.get_encoding("o200k_base").encode_ordinary
    return lambda text: len(encode(text))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie (nearest rank); 0 for none."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0
