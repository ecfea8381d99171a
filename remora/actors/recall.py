"""Finding what a user said before: embed the question, search the user's rows, rank."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import UTC, datetime

import msgspec

from remora.actors.fusion import fuse
from remora.config import RecallConfig
from remora.messages import sound_text
from remora.models.ports import Embedder, embed_texts
from remora.storage.ports import LongTermStore

__all__ = ["Memory", "Recall"]


class Memory(msgspec.Struct, frozen=True):
    """Something that was said before, found again.

    Attributes:
        text: what was said.
        role: the chat role of who said it.
        speaker: their name, where several share a role.
        session: where it was said.
        seq: the message's number there.
        created_at: when, aware UTC.
        score: rank score; comparable within one recall only.
        parts: what each list gave it, scaled to 0…1: ``turn``, ``window`` (full text) and ``vector``.
        tokens: size in a context.
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

    @property
    def line(self) -> str:
        """One line for a context: "(8 May 2023) Caroline: …"."""
        return f"({self.created_at.day} {self.created_at:%B %Y}) {self.speaker or self.role.title()}: {self.text}"


class Recall:
    """Search in one user's long-term memory.

    Args:
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        config: weights and depths.
    """

    def __init__(self, store: Callable[[], Awaitable[LongTermStore]], embedder: Embedder | None, config: RecallConfig) -> None:
        self._store = store
        self._embedder = embedder
        self._config = config

    async def __call__(self, user: str, query: str, *, k: int, without: Collection[tuple[str, int]] = ()) -> list[Memory]:
        """The `k` best memories, best first; `without` names messages, by session and number, that are not wanted.

        Raises:
            LongTermError: the store failed.
            ModelError: the embedder failed.
        """
        query = sound_text(query)
        store = await self._store()
        vector = None
        if self._embedder is not None and query.strip():
            vector = (await embed_texts(self._embedder, [query]))[0]
            if not vector.any():  # no word that the embedder knows: it would be equally near to everything
                vector = None
        candidates = await store.search(user, query, vector, depth=self._config.depth)
        ranked = fuse(candidates, self._config, query)
        return [
            Memory(
                text=one.row.content,
                role=one.row.role,
                speaker=one.row.speaker,
                session=one.row.session,
                seq=one.row.seq,
                created_at=datetime.fromtimestamp(one.row.created_us / 1_000_000, UTC),
                score=one.score,
                parts=one.parts,
                tokens=one.row.tokens,
            )
            for one in ranked
            if (one.row.session, one.row.seq) not in without
        ][:k]
