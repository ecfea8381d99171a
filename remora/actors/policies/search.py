"""Searching a buffer: a scan over a few dozen texts, by words or by meaning."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

__all__ = ["lexical_scores"]

_WORD = re.compile(r"\w+")
_K1, _B = 1.2, 0.75


def lexical_scores(query: str, texts: Sequence[str]) -> list[float]:
    """BM25 of each text for the query (Robertson & Zaragoza 2009).

    0 for a text without any of its words.
    """
    bags = [Counter(_WORD.findall(text.lower())) for text in texts]
    lengths = [sum(bag.values()) for bag in bags]
    mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
    scores = [0.0] * len(texts)
    for word in dict.fromkeys(_WORD.findall(query.lower())):
        holding = sum(word in bag for bag in bags)
        weight = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        for place, bag in enumerate(bags):
            if count := bag[word]:
                scores[place] += (
                    weight
                    * count
                    * (_K1 + 1)
                    / (count + _K1 * (1 - _B + _B * lengths[place] / mean))
                )
    return scores
