"""Sessions that answer a question, by what was found in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from remora.recall.memory import Memory
from remora.runtime.concurrency import map_concurrently

_DEPTH = 200  # of the best memories, by which sessions are ranked
_TITLES_AT_ONCE, _TITLE_CHARS = 8, 80
_LOOKED_AT = 3  # messages of a session, for what its user said first
_NEXT = 0.7
"""What the next best message of a session counts (RealMem, a needed session among the first ten:
for .606 of the questions by the best message alone, .619 with 0.7, .617 with 0.5)."""
_COUNTED = 12  # messages of a session
_SHOWN = 3


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
    found = _rank_sessions(await user.recall(query, limit=_DEPTH), limit)

    async def find_title(one: FoundSession) -> FoundSession:
        first = await user.session(one.session).history(limit=_LOOKED_AT, attachments=False)
        said = next((one.content for one in first if one.role == "user"), "")
        words = " ".join(said.split()) if isinstance(said, str) else ""
        if len(words) > _TITLE_CHARS:
            words = f"{words[: _TITLE_CHARS - 1].rstrip()}…"
        return msgspec.structs.replace(one, title=words)

    return await map_concurrently(find_title, found, concurrency=_TITLES_AT_ONCE)


def _rank_sessions(found: Iterable[Memory], limit: int) -> list[FoundSession]:
    """The best sessions, best first, without titles.

    A session counts by its best messages, each 0.7 times what the one before counts.

    Args:
        found: messages, best first.
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
    ranked.sort(key=lambda one: -one.score)
    return ranked[:limit]
