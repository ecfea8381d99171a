"""Batches of messages, found again by similarity to the newest messages.

Each batch that leaves the buffer is one row: its text and one vector. Every row has the user, the
session and the block that it belongs to; every search asks for these three, and results are checked
against them, so a store that many sessions share leaks nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol, TypeAlias

import msgspec

from remora.actors.blocks.base import BaseMemoryBlock, BlockServices, ChatMessage
from remora.errors import ConfigError
from remora.messages import escape_tags, without_surrogates
from remora.models.ports import Embedder, EmbedderLike, as_embedder, embed_texts
from remora.storage.ports import BLOCK_TYPE, LongTermStore, MemoryRow, Scope, Vector

BLOCK_AGENT = "\x1fblock:"
"""Prefix of the agent of a block's row in long-term memory; the block's name follows."""


class VectorHit(msgspec.Struct, frozen=True):
    """A row that a search found.

    Attributes:
        id: the row's.
        text: the batch, as ``<message role='user'>…</message>`` lines.
        score: similarity to the query; more is nearer.
        metadata: ``user_id``, ``session_id``, ``block``, and the batch's ``first`` and ``last``
            message.
    """

    id: str
    text: str
    score: float
    metadata: Mapping[str, Any]


class VectorStore(Protocol):
    """Stores batches: an adapter of a few lines over any vector database."""

    async def add(self, id: str, text: str, vector: Vector, metadata: Mapping[str, Any]) -> None:  # noqa: A002
        """Store a row, or replace the one with the same id: a batch may come twice."""
        ...

    async def query(self, vector: Vector, k: int, where: Mapping[str, str]) -> Sequence[VectorHit]:
        """The `k` nearest rows whose metadata hold all of `where`, nearest first."""
        ...


PostProcessor: TypeAlias = Callable[
    [list[VectorHit]], "list[VectorHit] | Awaitable[list[VectorHit]]"
]
"""Filters, re-ranks or rewrites hits."""


class VectorMemoryBlock(BaseMemoryBlock[str], kw_only=True):
    """Stores messages in batches, and brings back those nearest to the newest messages.

    Attributes:
        vector_store: the store; the runtime's long-term memory by default.
        embed_model: the embedder; the runtime's by default.
        embed_dimension: numbers in a vector, if `embed_model` is a plain callable.
        similarity_top_k: batches that are brought back.
        retrieval_context_window: how many of the newest messages are the query.
        node_postprocessors: applied to the hits, in order.

    Raises:
        ConfigError: a number that is not positive; when bound: there is no embedder or no store.
    """

    name: str = "retrieval_based_memory"
    vector_store: VectorStore | None = None
    embed_model: EmbedderLike | None = None
    embed_dimension: int = 1536
    similarity_top_k: int = 2
    retrieval_context_window: int = 5
    node_postprocessors: Sequence[PostProcessor] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("embed_dimension", "similarity_top_k", "retrieval_context_window"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field} must be positive, not {getattr(self, field)}")
        if self.embed_model is not None:
            as_embedder(self.embed_model, dimension=self.embed_dimension)

    def bind(self, services: BlockServices) -> None:
        """Keep what the runtime offers.

        Raises:
            ConfigError: no embedder, no store, or vectors of two models would be compared.
        """
        super().bind(services)
        if self.embed_model is None and services.embedder is None:
            raise ConfigError(
                f"the memory block {self.name} needs an embed_model: the runtime has no embedder"
            )
        if self.vector_store is None:
            if services.long_term is None:
                raise ConfigError(
                    f"the memory block {self.name} needs a vector_store: long-term memory is "
                    "switched off"
                )
            if self.embed_model is not None:
                raise ConfigError(
                    f"the memory block {self.name} has an embed_model of its own and needs a "
                    "vector_store of its own: the rows "
                    "of long-term memory are embedded by the runtime's embedder"
                )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the rows are in the store."""
        return {}

    async def _aput(self, messages: list[ChatMessage]) -> None:
        where = self._where()
        text = "\n".join(
            f"<message role='{one.role}'>{escape_tags(one.content, ('message',))}</message>"
            for one in messages
        )
        said = "\n".join(f"{one.name or one.role.title()}: {one.content}" for one in messages)
        first, last = messages[0].seq or 0, messages[-1].seq or 0
        at = messages[-1].created_at
        created_us = int(at.timestamp() * 1_000_000) if at else 0
        metadata = {**where, "first": first, "last": last, "created_us": created_us}
        (vector,) = await embed_texts(self._embedder(), [without_surrogates(said)])
        await self._store().add(_batch_id(where, first), without_surrogates(text), vector, metadata)

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:  # noqa: ARG002
        newest = (messages or [])[-self.retrieval_context_window :]
        query = without_surrogates("\n".join(one.content for one in newest)).strip()
        if not query:
            return ""
        (vector,) = await embed_texts(self._embedder(), [query])
        if not vector.any():  # the embedder knows no word of it
            return ""
        where = self._where()
        found = await self._store().query(vector, self.similarity_top_k, where)
        hits = [hit for hit in found if _matches(hit.metadata, where)]
        for process in self.node_postprocessors:
            result = process(hits)
            hits = list(await result if inspect.isawaitable(result) else result)
        return "\n".join(hit.text for hit in hits)

    def _where(self) -> dict[str, str]:
        bound = self.services
        if bound is None:
            raise RuntimeError(f"the memory block {self.name} is not bound: call bind first")
        return {"user_id": bound.user_id, "session_id": bound.session_id, "block": self.name}

    def _embedder(self) -> Embedder:
        if self.embed_model is not None:
            return as_embedder(self.embed_model, dimension=self.embed_dimension)
        assert self.services is not None
        assert self.services.embedder is not None
        return self.services.embedder

    def _store(self) -> VectorStore:
        if self.vector_store is not None:
            return self.vector_store
        assert self.services is not None
        assert self.services.long_term is not None
        return LongTermVectorStore(self.services.long_term, self.services.counter.count)


def _matches(metadata: Mapping[str, Any], where: Mapping[str, str]) -> bool:
    return all(metadata.get(name) == value for name, value in where.items())


def _batch_id(where: Mapping[str, str], first: int) -> str:
    """Deterministic (32 hex characters), by the first message: a batch replaces itself."""
    parts = [part.encode() for part in (where["user_id"], where["session_id"], where["block"])]
    text = b"%d:" % first + b"".join(b"%d:%b" % (len(part), part) for part in parts)
    return blake2b(text, digest_size=16, person=b"remora.batch").hexdigest()


class InMemoryVectorStore:
    """A `VectorStore` in memory; nothing is persistent."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, Vector, dict[str, Any]]] = {}

    def __len__(self) -> int:
        """Rows."""
        return len(self._rows)

    async def add(self, id: str, text: str, vector: Vector, metadata: Mapping[str, Any]) -> None:  # noqa: A002
        """Store a row, or replace the one with the same id."""
        self._rows[id] = (text, vector, dict(metadata))

    async def query(self, vector: Vector, k: int, where: Mapping[str, str]) -> list[VectorHit]:
        """The `k` nearest rows whose metadata hold all of `where`, nearest first."""
        hits = [
            VectorHit(id_, text, float(other @ vector), dict(metadata))
            for id_, (text, other, metadata) in self._rows.items()
            if _matches(metadata, where)
        ]
        return sorted(hits, key=lambda hit: -hit.score)[:k]


class LongTermVectorStore:
    """A `VectorStore` in the runtime's long-term memory: a row of type ``block`` for each batch.

    Its full-text columns are empty: messages are indexed one by one already.

    Args:
        store: opens long-term memory at first use.
        count: tokens in a text.
    """

    def __init__(
        self, store: Callable[[], Awaitable[LongTermStore]], count: Callable[[str], int]
    ) -> None:
        self._store = store
        self._count = count

    async def add(self, id: str, text: str, vector: Vector, metadata: Mapping[str, Any]) -> None:  # noqa: A002
        """Store a row, or replace the one with the same id.

        Raises:
            LongTermError: it may not be stored; try again.
        """
        row = MemoryRow(
            id,
            metadata["user_id"],
            metadata["session_id"],
            metadata["first"],
            role="system",
            speaker="",
            content=text,
            turn="",
            window="",
            memory_type=BLOCK_TYPE,
            importance=0.5,
            created_us=metadata["created_us"],
            tokens=self._count(text),
            agent=BLOCK_AGENT + metadata["block"],
        )
        store = await self._store()
        await store.delete(row.user, [id])
        await store.add([row], vector.reshape(1, -1), may_exist=True)

    async def query(self, vector: Vector, k: int, where: Mapping[str, str]) -> list[VectorHit]:
        """The `k` nearest of the session's batches that this block stored, nearest first.

        Raises:
            LongTermError: the search failed.
        """
        user, session, block = where["user_id"], where["session_id"], where["block"]
        scope = Scope(session=session, agent=BLOCK_AGENT + block, types=(BLOCK_TYPE,))
        found = await (await self._store()).search(user, "", vector, depth=k, scope=scope)
        hits = []
        for one in found:
            if "vector" in one.scores:
                row, name = one.row, one.row.agent.removeprefix(BLOCK_AGENT)
                ids = {"user_id": row.user, "session_id": row.session, "block": name}
                score = one.scores["vector"]
                hits.append(VectorHit(row.id, row.content, score, {**ids, "first": row.seq}))
        return sorted(hits, key=lambda hit: -hit.score)[:k]
