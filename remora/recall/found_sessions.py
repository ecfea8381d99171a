"""Sessions that answer a question, by what was found in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remora.recall.memory import Memory
from remora.runtime.concurrency import map_concurrently

_DEPTH = 200  # of the best memories, by which sessions are ranked
_TITLES_AT_ONCE, _TITLE_CHARS = 8, 80
_LOOKED_AT = 3  # messages of a session, for what its user said first
_NEXT = 0.7
"""What the next best message of a session counts (RealMem, a needed session among the first ten:
for .809 of the questions by the best message alone, .817 with 0.7, .815 with 0.5)."""
_COUNTED = 12  # messages of a session
_SHOWN = 3
_SENTENCE = re.compile(r"[.!?](?=\s|$)|[\u3002\uff01\uff1f]")
_LOOKED_AT_CHARS = 2_000  # of a query
_HALF_LIFE_DAYS = 30
"""Of what a session gains by being recent, up to its own score, when the query is a message that
goes on with something (RealMem, asked when its user did: a needed session among the first ten for
.842 of the questions, .817 without, .836 with 14 days, .834 with 60). A question is not: what it
asks for may be old (LoCoMo: the first session is needed for .762 of them, and for .704 with it)."""


class FoundSession(msgspec.Struct, frozen=True):
    """A session that answers a question.

    Attributes:
        session: its id.
        title: the beginning of what its user said first; empty if that is not known.
        first_at: when the oldest of the messages that were found in it was said, aware UTC.
        last_at: when the newest of them was.
        score: comparable within one search only.
        memories: the best messages that were found in it, at most three, best first.
    """

    session: str
    title: str
    first_at: datetime
    last_at: datetime
    score: float
    memories: Sequence[Memory]


async def find_sessions(user: Any, query: str, limit: int) -> list[FoundSession]:
    """See `remora.User.find_sessions`; `user` is one, or one of a client."""
    found = _rank_sessions(await user.recall(query, limit=_DEPTH), query, limit)

    async def find_title(one: FoundSession) -> FoundSession:
        first = await user.session(one.session).history(limit=_LOOKED_AT, attachments=False)
        said = next((one.content for one in first if one.role == "user"), "")
        words = " ".join(said.split()) if isinstance(said, str) else ""
        if len(words) > _TITLE_CHARS:
            words = f"{words[: _TITLE_CHARS - 1].rstrip()}…"
        return msgspec.structs.replace(one, title=words)

    return await map_concurrently(find_title, found, concurrency=_TITLES_AT_ONCE)


def _goes_on(query: str) -> bool:
    """Return whether a query is a message of a conversation, and not only a question.

    It has several sentences.
    """
    return len(_SENTENCE.findall(query[:_LOOKED_AT_CHARS])) > 1


def _rank_sessions(found: Iterable[Memory], query: str, limit: int) -> list[FoundSession]:
    """The best sessions, best first, without titles.

    A session counts by its best messages, each 0.7 times what the one before counts, and for a
    message that goes on with something the recent ones count up to twice.

    Args:
        found: messages, best first.
        query: what they were found for.
        limit: how many sessions at most.
    """
    by_session: dict[str, list[Memory]] = {}
    for one in found:
        if one.session and one.type == "message":
            by_session.setdefault(one.session, []).append(one)
    ranked = [
        FoundSession(
            name,
            "",
            min(one.created_at for one in some),
            max(one.created_at for one in some),
            sum(one.score * _NEXT**place for place, one in enumerate(some[:_COUNTED])),
            some[:_SHOWN],
        )
        for name, some in by_session.items()
    ]
    if ranked and _goes_on(query):
        newest = max(one.last_at for one in ranked)
        ranked = [_weigh_age(one, newest) for one in ranked]
    ranked.sort(key=lambda one: -one.score)
    return ranked[:limit]


def _weigh_age(found: FoundSession, newest: datetime) -> FoundSession:
    half_lives = (newest - found.last_at) / timedelta(days=_HALF_LIFE_DAYS)
    return msgspec.structs.replace(found, score=found.score * (1 + 0.5**half_lives))
