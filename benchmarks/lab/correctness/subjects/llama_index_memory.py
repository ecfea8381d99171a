"""LlamaIndex: `Memory.from_defaults`, one object per session, in its default database.

The default is SQLite in memory. `FactExtractionMemoryBlock` makes summaries; `VectorMemoryBlock`
over one vector store is the long-term memory of all sessions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import Field
from llama_index.core.llms import CustomLLM
from llama_index.core.memory import FactExtractionMemoryBlock, Memory, VectorMemoryBlock
from llama_index.core.storage.chat_store.base_db import MessageStatus
from llama_index.core.vector_stores.types import BasePydanticVectorStore, VectorStoreQueryResult

from benchmarks.lab.correctness.protocol import Embedding, Setting

SHARES_BLOCKS = True
LACKS: Mapping[str, str] = {"left_on_disk": "in memory: nothing on disk"}
_ROLES = ("user", "assistant")


class _Model(CustomLLM):
    """Writes the benchmark's summary down as the one fact."""

    summarize: Any

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, *_: Any, **__: Any) -> CompletionResponse:
        raise RuntimeError("asked from a thread")

    def stream_complete(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("asked from a thread")

    async def achat(self, messages: Sequence[ChatMessage], **_: Any) -> ChatResponse:
        summary = await self.summarize("\n".join(message.content or "" for message in messages))
        return ChatResponse(
            message=ChatMessage("<facts><fact>" + summary + "</fact></facts>", role="assistant")
        )


class _Embedder(BaseEmbedding):
    embed: Any

    def _get_text_embedding(self, text: str) -> list[float]:
        vector: list[float] = self.embed(text)
        return vector

    def _get_query_embedding(self, query: str) -> list[float]:
        return Embedding.of(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return Embedding.of(query)


class _Store(BasePydanticVectorStore):
    """A vector store in a list, with the filters that a real one has: all of them must hold."""

    stores_text: bool = True
    rows: list[Any] = Field(default_factory=list)

    @property
    def client(self) -> Any:
        return None

    def add(self, nodes: Sequence[Any], **_: Any) -> list[str]:
        self.rows.extend(nodes)
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **_: Any) -> None:
        self.rows[:] = [node for node in self.rows if node.node_id != ref_doc_id]

    def query(self, query: Any, **_: Any) -> VectorStoreQueryResult:
        filters = query.filters.filters if query.filters else []
        rows = [
            node
            for node in self.rows
            if all(node.metadata.get(one.key) == one.value for one in filters)
        ]
        scored = [
            (sum(a * b for a, b in zip(node.embedding, query.query_embedding, strict=True)), node)
            for node in rows
        ]
        best = sorted(scored, key=lambda one: -one[0])[: query.similarity_top_k]
        return VectorStoreQueryResult(
            nodes=[node for _, node in best],
            similarities=[score for score, _ in best],
            ids=[node.node_id for _, node in best],
        )


class LlamaIndexMemory:
    def __init__(self, directory: Path, setting: Setting, *, on_file: bool = False) -> None:
        self._uri = f"sqlite+aiosqlite:///{directory / 'memory.db'}" if on_file else None
        self._setting = setting
        self._store = _Store()
        self._block = (
            self._vector_block() if setting.embed is not None and setting.one_block else None
        )
        self._sessions: dict[str, Memory] = {}

    def _vector_block(self) -> VectorMemoryBlock:
        return VectorMemoryBlock(
            vector_store=self._store, embed_model=_Embedder(embed=self._setting.embed)
        )

    def _session(self, session: str) -> Memory:
        if session not in self._sessions:
            blocks: list[Any] = []
            if self._setting.summarize is not None:
                blocks.append(
                    FactExtractionMemoryBlock(llm=_Model(summarize=self._setting.summarize))
                )
            if self._setting.embed is not None:
                blocks.append(self._block or self._vector_block())
            limit = self._setting.limit_tokens
            self._sessions[session] = Memory.from_defaults(
                session_id=session,
                token_limit=int(limit / 0.7),
                token_flush_size=limit // 10,
                memory_blocks=blocks,
                async_database_uri=self._uri,
            )
        return self._sessions[session]

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:  # noqa: ARG002 -- it has none
        messages = [ChatMessage(text, role=_ROLES[n % 2]) for n, text in enumerate(texts)]
        if len(messages) == 1:
            await self._session(session).aput(messages[0])
        else:
            await self._session(session).aput_messages(messages)

    async def load(self, session: str, query: str = "") -> list[str]:
        return [
            message.content or ""
            for message in await self._session(session).aget(input=query or None)
        ]

    async def buffered(self, session: str) -> list[str]:
        return [
            message.content or ""
            for message in await self._session(session).aget_all(status=MessageStatus.ACTIVE)
        ]

    async def kept(self, session: str) -> list[str]:
        return [message.content or "" for message in await self._session(session).aget_all()]

    async def delivered(self) -> list[str]:
        return [node.text for node in self._store.rows]

    async def delete(self, user: str, sessions: Sequence[str]) -> None:  # noqa: ARG002
        for session in sessions:
            await self._session(session).areset()

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        for memory in self._sessions.values():
            engine = memory.sql_store._async_engine  # noqa: SLF001 -- there is no public way to close it
            if engine is not None:
                await engine.dispose()


async def opened(directory: Path, setting: Setting) -> LlamaIndexMemory:
    """Open it."""
    return LlamaIndexMemory(directory, setting)
