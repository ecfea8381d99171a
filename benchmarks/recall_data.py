"""The questions of `benchmarks.recall`, where their evidence is, and what was found for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from remora.cli.replay import Conversations

__all__ = ["Answer", "Place", "Question", "Rows", "read_questions", "read_unanswerable"]

_UNANSWERABLE = (5, "unanswerable")  # LoCoMo's number for it, and the synthetic set's name
Place = tuple[str, int]  # session, seq


class Question(msgspec.Struct, frozen=True):
    """One question, and where its evidence stands."""

    user: str
    category: str
    text: str
    evidence: tuple[Place, ...]


class Answer(msgspec.Struct, frozen=True):
    """What one method gave for one question."""

    found: list[Place]
    seconds: float
    tokens: int = 0


class Rows(msgspec.Struct):
    """One user's rows as LanceDB holds them, in order."""

    places: list[Place]
    turns: list[str]
    tokens: list[int]
    newest_first: list[int]
    vectors: npt.NDArray[np.float32] | None


def read_questions(path: Path, conversations: Conversations) -> list[Question]:
    """The file's questions that have an answer and evidence; evidence that names no turn is left
    out.
    """
    places = {
        (session.user, planned.key.removeprefix("replay:")): (session.session, number)
        for session, messages in conversations.sessions.items()
        for number, planned in enumerate(messages, start=1)
    }
    questions = []
    for row in _asked(path):
        if row.get("category") in _UNANSWERABLE:
            continue
        user = str(row["conv"])
        evidence = dict.fromkeys(
            places[user, turn] for turn in row.get("evidence") or () if (user, turn) in places
        )
        if evidence:
            questions.append(
                Question(user, str(row.get("category", "")), row["question"], tuple(evidence))
            )
    return questions


def read_unanswerable(path: Path, conversations: Conversations) -> list[Question]:
    """The file's questions whose answer nobody said, as their category says."""
    users = conversations.users
    return [
        Question(str(row["conv"]), str(row["category"]), row["question"], ())
        for row in _asked(path)
        if row.get("category") in _UNANSWERABLE and str(row["conv"]) in users
    ]


def _asked(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        row = json.loads(line) if '"qa"' in line else {}
        if row.get("type") == "qa":
            yield row
