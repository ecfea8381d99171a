"""Finding what a user said before, or had recorded: embed the question, search the user's rows,
rank.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from remora.config import RecallConfig
from remora.messages import without_surrogates
from remora.models.ports import Embedder, embed_texts
from remora.recall.ranking import Ranked, fuse
from remora.recall.result_cache import RetrievalCache, RetrievalCacheStatistics
from remora.recall.user_index import UserIndexCache, UserIndexStatistics
from remora.storage.ports import BLOCK_TYPE, EVERYTHING, LongTermStore, MemoryRow, Scope, Vector

__all__ = ["Memory", "Recall"]

_SPARE = 32  # results that are held beyond those asked for, so that `without` may take some away
_LONGEST_KEPT = 4_096  # characters of a query whose result is kept
_MOST_KEPT = 65_536  # characters of a result that is kept: a thousand of them are 64 MB at most


class Memory(msgspec.Struct, frozen=True):
    """Something that was said before, or recorded, found again.

    Attributes:
        text: what was said.
        role: the chat role of who said it; ``system`` for what is no message.
        speaker: their name, where several share a role.
        session: where it was said; empty for what was recorded outside of any.
        seq: the message's number there; 0 for what is no message.
        created_at: when, aware UTC.
        score: rank score; comparable within one recall only.
        parts: what each list gave it, scaled to 0…1: ``turn``, ``window`` (full text) and
            ``vector``.
        tokens: size in a context.
        id: its own, for good.
        type: ``message``, ``summary``, or what it was recorded as: ``fact``, ``preference``,
            ``context``, ``procedural``, ``message_batch``.
        importance: 0 to 1, as its sender gave it.
        agent: whose it is; empty for all of the user's agents.
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

    @property
    def line(self) -> str:
        """One line for a context.

        "(8 May 2023) Caroline: …", or without a speaker what was recorded on purpose.
        """
        said = (
            f"{self.speaker or self.role.title()}: {self.text}"
            if self.type == "message"
            else self.text
        )
        return f"({self.created_at.day} {self.created_at:%B %Y}) {said}"


class _Found(msgspec.Struct, frozen=True):
    """What a search brought, as far as it is held.

    Attributes:
        memories: the best, best first.
        whole: there are no others.
    """

    memories: tuple[Memory, ...]
    whole: bool

    def best(self, k: int, without: Collection[tuple[str, int]]) -> list[Memory] | None:
        """The `k` best that are wanted; None if they might be among those that are not held."""
        wanted = [one for one in self.memories if (one.session, one.seq) not in without]
        if len(wanted) < k and not self.whole:
            return None
        # a dict is handed out anew each time: what a caller does to it must not come back to the
        # next
        return [msgspec.structs.replace(one, parts=dict(one.parts)) for one in wanted[:k]]


class Recall:
    """Search in one user's long-term memory.

    Results are kept until something is written about their user, and so are the rows of the users
    who recalled last: they are searched in memory (`remora.recall.user_index`).

    Args:
        store: opens long-term memory at first use.
        embedder: None for text search alone.
        config: weights, depths, and how much is kept.
        importance_weight: how much importance moves the rank: the most important gains this share,
            the least loses as much, and 0.5 moves nothing.
        admit: raises for a user of whom nothing is to be shown, because they are being forgotten.
    """

    def __init__(
        self,
        store: Callable[[], Awaitable[LongTermStore]],
        embedder: Embedder | None,
        config: RecallConfig,
        *,
        importance_weight: float = 0.0,
        admit: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._admit = admit
        self._embedder = embedder
        self._config = config
        self._gain = 1.0 + importance_weight
        self._cache: RetrievalCache[_Found] | None = (
            RetrievalCache(config.cache) if config.cache else None
        )
        self._hot: UserIndexCache | None = None
        if config.hot_mb:
            self._hot = UserIndexCache(
                self.embedded_rows, max_bytes=config.hot_mb << 20, max_rows=config.hot_rows
            )

    async def run(self) -> None:
        """Read users' rows into memory, for ever: a task of the runtime's.

        Without it, each recall does so for itself.
        """
        if self._hot is not None:
            await self._hot.run()

    async def __call__(
        self,
        user: str,
        query: str,
        *,
        k: int,
        scope: Scope = EVERYTHING,
        without: Collection[tuple[str, int]] = (),
    ) -> list[Memory]:
        """The `k` best memories, best first.

        Args:
            user: whose.
            query: what is asked.
            k: how many at most.
            scope: which of the user's rows are meant.
            without: messages, by session and number, that are not wanted.

        Raises:
            LongTermError: the store failed.
            ModelError: the embedder failed.
            ErasureInProgress: the user is being forgotten.
        """
        self._admit(user)
        query = without_surrogates(query)
        cache = self._cache if len(query) <= _LONGEST_KEPT else None
        key = (query, k, scope)
        if cache is not None:
            held = cache.get(user, key)
            if held is not None and (best := held.best(k, without)) is not None:
                return best
            version = cache.version(user)
        ranked, spare = await self._search(user, query, scope)
        found = _gathered(ranked, k, without, spare if cache is not None else 0)
        if cache is not None:
            kept = found.memories[: k + _SPARE]
            if sum(len(one.text) for one in kept) <= _MOST_KEPT:
                cache.put(
                    user,
                    key,
                    _Found(kept, whole=found.whole and len(kept) == len(found.memories)),
                    version,
                )
        return found.best(k, without) or []

    async def rows(self, user: str, scope: Scope = EVERYTHING) -> list[Memory]:
        """All that long-term memory holds of a user in `scope`, oldest first.

        Raises:
            LongTermError: the store failed.
        """
        self._admit(user)
        rows = await (await self._store()).rows(user, scope)
        return [_memory(row, 0.0, {}) for row in rows if row.memory_type != BLOCK_TYPE]

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        """The rows themselves with their vectors, shape (rows, dimension).

        None where nothing is embedded.

        Raises:
            LongTermError: the store failed.
        """
        self._admit(user)
        return await (await self._store()).embedded_rows(user, scope)

    def written(self, user: str) -> None:
        """Something of the user's was written, or may have been.

        No result from before it is served any more.
        """
        if self._cache is not None:
            self._cache.invalidate(user)
        if self._hot is not None:
            self._hot.written(user)

    def removed(self, user: str) -> None:
        """Some of the user's rows were removed, or may have been; see `written`."""
        self.written(user)
        if self._hot is not None:
            self._hot.removed(user)

    def forget(self, user: str) -> None:
        """All of the user's was erased.

        Nothing of it stays in memory, and what is being read of it now is not kept (G13).
        """
        self.removed(user)

    def statistics(self) -> RetrievalCacheStatistics:
        """What the cache saved; zeros where it is switched off."""
        return (
            self._cache.statistics()
            if self._cache is not None
            else RetrievalCacheStatistics(0, 0, 0)
        )

    def index_statistics(self) -> UserIndexStatistics:
        """What is in memory, and what that saved; zeros where it is switched off."""
        return self._hot.statistics() if self._hot is not None else UserIndexStatistics()

    async def _search(self, user: str, query: str, scope: Scope) -> tuple[Iterable[Ranked], int]:
        """What matches, best first, and how many it is worth to hold beyond those asked for."""
        store = await self._store()
        vector = None
        if self._embedder is not None and query.strip():
            vector = (await embed_texts(self._embedder, [query]))[0]
            if (
                not vector.any()
            ):  # no word that the embedder knows: it would be equally near to everything
                vector = None
        hot = await self._hot.of(user) if self._hot is not None else None
        if hot is not None:
            return await hot.ranked(query, vector, scope, self._config, gain=self._gain), 0
        found = await store.search(user, query, vector, depth=self._config.depth, scope=scope)
        candidates = [one for one in found if one.row.memory_type != BLOCK_TYPE]
        return fuse(candidates, self._config, query, gain=self._gain), _SPARE


def _gathered(
    ranked: Iterable[Ranked], k: int, without: Collection[tuple[str, int]], spare: int
) -> _Found:
    """The best of them, as many as hold `k` that are wanted and `spare` others."""
    memories: list[Memory] = []
    wanted = 0
    for memory in _once(_memory(one.row, one.score, one.parts) for one in ranked):
        if wanted >= k and len(memories) >= k + spare:
            return _Found(tuple(memories), whole=False)
        memories.append(memory)
        wanted += (memory.session, memory.seq) not in without
    return _Found(tuple(memories), whole=True)


def _once(memories: Iterable[Memory]) -> Iterator[Memory]:
    """Without what was both said and recorded in the same words: the better of the two stays."""
    said: set[str] = set()
    recorded: set[str] = set()
    for memory in memories:
        words = " ".join(memory.text.split()).casefold()
        mine, others = (said, recorded) if memory.type == "message" else (recorded, said)
        if words not in others:
            mine.add(words)
            yield memory


def _memory(row: MemoryRow, score: float, parts: dict[str, float]) -> Memory:
    return Memory(
        text=row.content,
        role=row.role,
        speaker=row.speaker,
        session=row.session,
        seq=row.seq,
        created_at=datetime.fromtimestamp(row.created_us / 1_000_000, UTC),
        score=score,
        parts=parts,
        tokens=row.tokens,
        id=row.id,
        type=row.memory_type,
        importance=round(
            row.importance, 6
        ),  # as it was given: the store keeps half of a float's digits
        agent=row.agent,
    )
