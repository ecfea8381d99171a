"""Makes a person's daily life with an assistant; see `make_daily`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.synthetic.chats import make_chats

__all__ = ["make_daily"]

Row = dict[str, Any]

_MATERIAL = Path(__file__).parent / "material" / "daily.toml"
_USER = "ines"
_OTHERS = ("goran", "hana")
_ACKNOWLEDGED = ("Noted.", "Got it, thanks for telling me.", "Understood.", "All right!")
_ASSISTANT = "assistant: "


def make_daily() -> list[Row]:
    """Messages of one user, and what she asks later, as dicts of docs/reference/replay-format.md.

    What she tells is in `material/daily.toml`; the rest are the chats of two others, without what
    these are asked about. The categories of the questions are the kinds there.
    """
    rng = Random("remora daily")
    cases: Sequence[Row] = tomllib.loads(_MATERIAL.read_text(encoding="utf-8"))["case"]
    sessions = [[*session] for session in _sessions_of_others()]
    evidence: list[list[str]] = [[] for _ in cases]
    for case, keys in zip(cases, evidence, strict=True):
        told = list(_statements(case["said"]))
        wanted = case.get("wanted", [len(case["said"]) - 1])
        places = sorted(rng.sample(range(len(sessions)), len(told)))
        number = 0
        for place, texts in zip(places, told, strict=True):
            session = sessions[place]
            at = rng.randrange(0, len(session) + 1, 2)
            added = [*texts] if len(texts) > 1 else [*texts, rng.choice(_ACKNOWLEDGED)]
            session[at:at] = [
                {"role": role, "content": text}
                for role, text in zip(("user", "assistant"), added, strict=True)
            ]
            for one in session[at : at + len(texts)]:
                if number in wanted:
                    one["keys"] = keys
                number += 1
    return [
        *_number_messages(sessions),
        *(
            {
                "type": "qa",
                "conv": _USER,
                "qid": f"{_USER}-{number}",
                "category": case["kind"],
                "question": case["question"],
                "evidence": keys,
            }
            for number, (case, keys) in enumerate(zip(cases, evidence, strict=True), start=1)
        ),
    ]


def _statements(said: Sequence[str]) -> Iterator[list[str]]:
    """What is said at once: a text of the user, and the assistant's if it is given."""
    waiting: list[str] = []
    for text in said:
        if text.startswith(_ASSISTANT):
            yield [*waiting, text.removeprefix(_ASSISTANT)]
            waiting = []
            continue
        if waiting:
            yield waiting
        waiting = [text]
    if waiting:
        yield waiting


def _sessions_of_others() -> list[list[Row]]:
    """The chats of others, by time, in pairs of a request and an answer."""
    rows = [row for row in make_chats() if row.get("user", row.get("conv")) in _OTHERS]
    asked_about = {
        (row["conv"], key) for row in rows if row.get("type") == "qa" for key in row["evidence"]
    }
    by_session: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.get("type") != "qa":
            by_session.setdefault((row["user"], row["session"]), []).append(row)
    found = []
    for session in sorted(by_session.values(), key=lambda one: str(one[0]["timestamp"])):
        pairs = [
            (first, second)
            for first, second in pairwise(session)
            if (first["role"], second["role"]) == ("user", "assistant")
            and second["content"]
            and not {(one["user"], one["key"]) for one in (first, second)} & asked_about
        ]
        kept = [one for pair in pairs for one in pair]
        if kept:
            found.append(kept)
    return found


def _number_messages(sessions: Sequence[Sequence[Mapping[str, Any]]]) -> Iterator[Row]:
    at = datetime.fromisoformat("2025-01-04T08:00:00+00:00")
    for number, session in enumerate(sessions):
        at = at.replace(hour=8) + timedelta(days=5)
        for place, one in enumerate(session, start=1):
            at += timedelta(seconds=40)
            key = f"{number}.{place}"
            if "keys" in one:
                one["keys"].append(key)
            yield {
                "user": _USER,
                "session": f"session-{number}",
                "timestamp": at.isoformat(),
                "key": key,
                "role": one["role"],
                "content": one["content"],
            }
