"""Recalled memories, and the results of a search as they are held."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from remora.ids import topic_of_fact
from remora.languages.instructions import Noticed, find_takers
from remora.messages import plain_name, quote
from remora.recall.quotes import recalled_text
from remora.recall.ranking import Ranked, Ranking
from remora.runtime.threads import run_in_thread
from remora.storage.standings import MOST_INSTRUCTIONS, WITHDRAWS

_ALWAYS = 16  # memories, however relevant: words alone do not tell that nothing is
_ENOUGH = 0.5  # of a question, as `Ranking.coverage` says it
_LIST_SHARE = 0.5
"""Of the least share, for questions that ask for several things: their evidence is further down
(LoCoMo, contexts of 4,000 tokens: all of it in .690 of them, and in .667 with the whole share)."""
_LONG = 4_000  # characters
LONG_TOKENS = 400
"""A memory that is larger is shown in part in a context; see `remora.recall.gather`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


class Memory(msgspec.Struct, frozen=True):
    """Something that was said before, or recorded, and was found again.

    Attributes:
        text: what was said.
        role: the chat role of who said it; ``system`` for what is no message.
        speaker: their name, where several share a role.
        session: where it was said; empty for what was recorded outside of any.
        seq: the message's number there; 0 for what is no message.
        created_at: when, aware UTC.
        score: rank score; comparable within one recall only. It is no sum of `parts`: how well the
            session matches, neighbours, speakers, times, days and importance count as well.
        parts: what each list gave it, scaled to 0…1: ``turn`` (BM25 of the message), ``window``
            (BM25 of the message with its neighbours), ``vector`` (cosine) and, if a reranker judged
            it, ``reranker``.
        tokens: size in a context.
        id: of a message, the message's (`Message.id`); it never changes. `User.delete` takes it.
        type: ``message``, ``summary``, or what it was recorded as: ``fact``, ``preference``,
            ``context``, ``procedural``, ``message_batch``; ``instruction`` for one that was
            noticed.
        importance: 0 to 1, as its sender gave it.
        agent: the agent it belongs to; empty for all of the user's agents.
        key: what its caller named it; empty for none.
        metadata: what its caller stored with it; empty for messages.
        updated_at: when it was changed last, aware UTC; None for never.
        sources: of a fact that was extracted, the numbers of the messages of `session` that it
            rests on; empty for anything else.
        superseded_by: the id of the newer fact that took its place; empty if it holds. `recall`
            leaves such facts out. Of a message with an instruction, the id of what took that
            back, or replaced it.
    """

    text: str
    role: str
    speaker: str
    session: str
    seq: int
    created_at: datetime
    score: float
    parts: dict[str, float]
    tokens: int
    id: str = ""
    type: str = "message"
    importance: float = 0.5
    agent: str = ""
    key: str = ""
    metadata: dict[str, Any] = {}
    updated_at: datetime | None = None
    sources: tuple[int, ...] = ()
    superseded_by: str = ""

    @property
    def cursor(self) -> str:
        """Give it as `after` to `User.remembered` to have the memories that follow this one."""
        return f"{(self.created_at - _EPOCH) // _US}/{self.id}"

    @property
    def line(self) -> str:
        """One line for a context, as in (8 May 2023) User Caroline: "I moved to Lisbon".

        The text is a JSON string. What is no message has its type instead of a role.
        """
        said = self.type == "message"
        label = (self.role if said else self.type.replace("_", " ")).capitalize()
        name = plain_name(self.speaker, self.role) if said and self.speaker else ""
        if name and name.casefold() != self.role:
            label = f"{label} {name}"
        line = f"({self.created_at.day} {self.created_at:%B %Y}) {label}: {quote(self.text)}"
        return f"{line} (what it asks for no longer holds)" if said and self.superseded_by else line


class FoundMemories:
    """The result of a search. It makes memories of those rows alone that are asked for.

    Args:
        ranking: the rows that match.
    """

    def __init__(self, ranking: Ranking) -> None:
        self._ranking = ranking

    @property
    def nbytes(self) -> int:
        """Bytes that holding it takes."""
        return self._ranking.nbytes

    def best(
        self,
        limit: int,
        without: Collection[tuple[str, int]] = (),
        *,
        max_tokens: int | None = None,
        relevance: float = 0.0,
    ) -> list[Memory]:
        """The best that are not in `without`, made for this call: the caller may change them.

        Args:
            limit: how many at most.
            without: messages to leave out, by session and number.
            max_tokens: none after those that have so many together, of long ones their parts; None
                for no such bound.
            relevance: after the first 16, leave out what scores less than this share of the best.
                Where no message has half of the question's words, the share is larger: the best
                is worth less. Where the question asks for several things, it is half as large.
        """
        best: list[Memory] = []
        tokens, least, share = 0, 0.0, self._least_share(relevance)
        ranking = self._ranking
        ranked = _distinct(ranking, without) if ranking.mixed else ranking.iterate(without)
        for one in ranked:
            if not best:
                least = one.score * share
            if len(best) == limit or (len(best) >= _ALWAYS and one.score < least):
                break
            if max_tokens is not None and tokens > max_tokens:
                break
            tokens += min(one.row.tokens, LONG_TOKENS)
            best.append(make_memory(one))
        return best

    def _least_share(self, relevance: float) -> float:
        """The share of the best score that a memory must have."""
        trust = min(1.0, self._ranking.coverage / _ENOUGH) ** 2
        if self._ranking.several:
            relevance *= _LIST_SHARE
        return min(relevance / trust, 1.0) if trust else float(relevance > 0)


def comparable_text(text: str) -> str:
    """The text without what does not tell memories apart: case and blanks; a long one as it is."""
    return text if len(text) > _LONG else " ".join(text.split()).casefold()


def _distinct(ranked: Iterable[Ranked], without: Collection[tuple[str, int]]) -> Iterator[Ranked]:
    """Of what was both said and recorded in the same words, only the better one.

    Messages in `without` are left out, and so is what was recorded in their words.
    """
    said: set[str] = set()
    recorded: set[str] = set()
    for one in ranked:
        words = comparable_text(one.row.content)
        is_message = one.row.memory_type == "message"
        mine, others = (said, recorded) if is_message else (recorded, said)
        if words not in others:
            mine.add(words)
            if (one.row.session, one.row.seq) not in without:
                yield one


def make_memory(found: Ranked) -> Memory:
    """A ranked row as callers get it."""
    row = found.row
    return Memory(
        text=row.content,
        role=row.role,
        speaker=row.speaker,
        session=row.session,
        seq=row.seq,
        created_at=datetime.fromtimestamp(row.created_us / 1_000_000, UTC),
        score=found.score,
        parts=found.parts,
        tokens=row.tokens,
        id=row.id,
        type=row.memory_type,
        importance=round(row.importance, 6),  # as given: the store keeps half of a float's digits
        agent=row.agent,
    )


def newest_that_hold(memories: Iterable[Memory]) -> list[Memory]:
    """Of the newest `MOST_INSTRUCTIONS`, those that hold, newest first."""
    newest = sorted(memories, key=lambda one: (one.created_at, one.sources[-1:]), reverse=True)
    del newest[MOST_INSTRUCTIONS:]
    noticed = [
        Noticed(topic_of_fact(one.id), one.text, (one.session, one.sources), _withdraws(one))
        for one in newest
    ]
    pairs = zip(newest, find_takers(noticed), strict=True)
    return [one for one, taker in pairs if taker is None and not one.superseded_by]


def _withdraws(instruction: Memory) -> str | None:
    named = instruction.metadata.get(WITHDRAWS)
    return named if isinstance(named, str) else None


def quote_memories(memories: Iterable[Memory]) -> str:
    """Turn recalled memories into text for a prompt: quotations between tags; empty for none.

    It is what `Session.load` puts into a context: what was said can forge neither another entry nor
    the end of the quotation, so it suits memories that you place yourself::

        text = remora.quote_memories(await user.recall("Where do I live?"))
    """
    lines = [memory.line for memory in memories]
    return recalled_text(lines) if lines else ""


async def sort_by_importance(
    memories: Sequence[Memory], *, in_thread_from: int = 10_000
) -> list[Memory]:
    """The most important first, of equals in their order.

    Args:
        memories: the memories.
        in_thread_from: so many are sorted in a thread; fewer take less than some 2 ms.
    """
    if len(memories) >= in_thread_from:
        return await run_in_thread(_sort_in_thread, memories)
    return sorted(memories, key=lambda memory: -memory.importance)


def _sort_in_thread(memories: Sequence[Memory]) -> list[Memory]:
    """NumPy lets other threads run while it sorts; `sorted` does not."""
    import numpy as np  # noqa: PLC0415

    keys = np.fromiter((-one.importance for one in memories), np.float64, len(memories))
    return [memories[place] for place in np.argsort(keys, kind="stable").tolist()]
