"""Evidence in contexts of several sizes, and how sure a figure is; part of `benchmarks.recall`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from rich.progress import Progress

from benchmarks.recall_data import Answer, Question, Rows
from benchmarks.reference import Reference
from remora.cli.replay import percentile

__all__ = [
    "BUDGETS",
    "LINE_TOKENS",
    "evidence_in",
    "fill",
    "fill_contexts",
    "interval",
    "judged_contexts",
    "show_contexts",
    "show_unanswerable",
]

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


def fill_contexts(
    rows: dict[str, Rows], questions: Sequence[Question], bar: Progress
) -> dict[str, dict[int, list[Answer]]]:
    """Contexts that plain BM25 fills, and contexts of the newest messages, of each size."""
    task = bar.add_task("filling contexts", total=len(questions))
    references = {
        user: Reference([session for session, _ in one.places], one.turns, None)
        for user, one in rows.items()
    }
    filled: dict[str, dict[int, list[Answer]]] = {
        name: {budget: [] for budget in BUDGETS}
        for name in ("filled by BM25", "the newest messages")
    }
    for question in questions:
        mine = rows[question.user]
        orders = references[question.user].bm25(question.text), mine.newest_first
        for order, answers in zip(orders, filled.values(), strict=True):
            for budget, found in answers.items():
                shown = fill(order, mine.tokens, budget)
                tokens = sum(mine.tokens[number] + LINE_TOKENS for number in shown)
                found.append(Answer([mine.places[number] for number in shown], 0.0, tokens))
        bar.advance(task)
    return filled


def judged_contexts(questions: Sequence[Question], answers: Sequence[Answer]) -> dict[str, Any]:
    """In how many contexts all, and any, of the evidence stands; also of each category."""
    seconds = [answer.seconds for answer in answers]
    figures: dict[str, Any] = {
        "p50_ms": percentile(seconds, 0.5) * 1e3,
        "p95_ms": percentile(seconds, 0.95) * 1e3,
    }
    for category in ["all", *sorted({question.category for question in questions})]:
        chosen = [
            (question, answer)
            for question, answer in zip(questions, answers, strict=True)
            if category in ("all", question.category)
        ]
        figures[category] = evidence_in(
            [question.evidence for question, _ in chosen],
            [answer.found for _, answer in chosen],
            [question.user for question, _ in chosen],
        )
        figures[category]["tokens"] = float(np.mean([answer.tokens for _, answer in chosen]))
    return figures


def show_contexts(contexts: Mapping[str, Mapping[int, dict[str, Any]]]) -> None:
    """Print what contexts hold."""
    print(
        "evidence in contexts of so many tokens, all / any of it; by category: all, of each method"
    )

    def line(name: str, cells: Sequence[str]) -> None:
        print(f"{name:<26}" + "".join(f"{cell:>24}" for cell in cells))

    line("", [f"{budget:,}" for budget in BUDGETS])
    for method, sizes in contexts.items():
        overall = [one["all"] for one in sizes.values()]
        line(method, [f"{one['all_of_it']:.3f} / {one['any_of_it']:.3f}" for one in overall])
    remora = contexts["remora"].values()
    kinds = [kind for kind in next(iter(remora)) if kind not in {"all", "p50_ms", "p95_ms"}]
    for kind in kinds:
        of_each = [
            [f"{one[kind]['all_of_it']:.3f}" for one in sizes.values()]
            for sizes in contexts.values()
        ]
        cells = [" / ".join(same) for same in zip(*of_each, strict=True)]
        line(f"  {kind}", cells)
    if all(bounds := [one["all"]["all_of_it_95"] for one in remora]):
        line("  remora, all, 95 %", [f"{low:.3f} - {high:.3f}" for low, high in bounds])
    line("  tokens", [f"{one['all']['tokens']:,.0f}" for one in remora])
    line("  memories", [f"{one['all']['memories']:.1f}" for one in remora])
    line("  p50 / p95 ms", [f"{one['p50_ms']:.1f} / {one['p95_ms']:.1f}" for one in remora])


def show_unanswerable(unanswerable: Mapping[str, Mapping[int, float]], questions: int) -> None:
    """Print what questions cost that have no answer."""
    print(f"tokens of memories for {questions:,} questions without an answer")
    for method, sizes in unanswerable.items():
        print(f"{method:<26}" + "".join(f"{tokens:>24,.0f}" for tokens in sizes.values()))
