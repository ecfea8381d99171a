"""Evidence in contexts of several sizes, and how sure a figure is; part of `benchmarks.recall`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["BUDGETS", "LINE_TOKENS", "evidence_in", "fill", "interval"]

BUDGETS = (1_000, 2_000, 4_000, 8_000)
"""Tokens of the contexts."""
LINE_TOKENS = 4
"""Of a recalled line beside the message with its date and speaker."""
_SAMPLES = 1_000


def fill(order: Iterable[int], tokens: Sequence[int], budget: int) -> list[int]:
    """The first of these messages that fit, each taken if there is room for it.

    Args:
        order: numbers of messages, best first.
        tokens: of each message, by number.
        budget: in tokens.
    """
    taken, left = [], budget
    for number in order:
        cost = tokens[number] + LINE_TOKENS
        if cost <= left:
            taken.append(number)
            left -= cost
    return taken


def evidence_in(
    evidence: Sequence[Collection[Any]], shown: Sequence[Collection[Any]], users: Sequence[str]
) -> dict[str, Any]:
    """In how many contexts all, and any, of the evidence stands, and how many messages they show.

    Args:
        evidence: of each question.
        shown: in each context.
        users: of each question.
    """
    pairs = list(zip(evidence, shown, strict=True))
    whole = [set(wanted) <= set(there) for wanted, there in pairs]
    return {
        "all_of_it": float(np.mean(whole)),
        "all_of_it_95": interval(_by_user(users, whole)),
        "any_of_it": float(np.mean([bool(set(wanted) & set(there)) for wanted, there in pairs])),
        "memories": float(np.mean([len(there) for there in shown])),
    }


def interval(values: Mapping[str, Sequence[float]]) -> tuple[float, float] | None:
    """The 95 % interval of the mean over all questions, by a bootstrap over conversations.

    Questions of one conversation are alike, so it is conversations that are drawn. None for one
    conversation, of which nothing can be said.

    Args:
        values: of the questions, by conversation.
    """
    if len(values) < 2:
        return None
    sums = np.array([sum(one) for one in values.values()], float)
    counts = np.array([len(one) for one in values.values()], float)
    drawn = np.random.default_rng(0).integers(len(sums), size=(_SAMPLES, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def _by_user(users: Sequence[str], values: Sequence[float]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for user, value in zip(users, values, strict=True):
        found.setdefault(user, []).append(value)
    return found
