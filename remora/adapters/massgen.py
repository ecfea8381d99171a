"""MassGen's `ConversationMemory` and `PersistentMemory` over remora: only the names are their own.

They replace agentscope's `InMemoryMemory` and `Mem0LongTermMemory` as well, with
``record_to_memory`` and ``retrieve_from_memory`` as other names of the tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.tools import MemoryTools
from remora.config import Config
from remora.errors import ConfigError, IdConflict, InvalidInput
from remora.ids import validate_id
from remora.messages import Message, MessageLike, Role
from remora.models.ports import ChatModelLike, EmbedderLike
from remora.recall.memory import quote_memories
from remora.services.intake import as_batch

__all__ = ["ConversationMemory", "PersistentMemory"]


class ConversationMemory:
    """Short-term memory: one conversation.

    Messages are returned as dicts with their ``id``, a new copy each time.

    Args:
        session: the conversation.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    async def add(
        self, messages: MessageLike | Iterable[MessageLike] | None, allow_duplicates: bool = False
    ) -> None:
        """Store one message or many, all or none; None stores nothing.

        Args:
            messages: dicts in the chat format, or `Message` objects.
            allow_duplicates: store a message even if its id is already there.

        Raises:
            InvalidMessage: one of them is not a chat message (a `TypeError`); nothing was written.
        """
        if messages is None:
            return
        batch: Any = (
            messages
            if isinstance(messages, (Message, Mapping, str)) or not isinstance(messages, list)
            else list(messages)
        )
        if batch == []:
            return
        try:
            await self.session.append(batch, allow_duplicates=allow_duplicates)
        except IdConflict as e:  # MassGen keeps what it has
            rest = [one for one in as_batch(batch) if _id_of(one) not in e.ids]
            await self.add(rest)

    async def delete(self, index: int | Iterable[int]) -> None:
        """Remove messages by their index, from 0.

        Raises:
            IndexOutOfRange: an index is out of range (an `IndexError`); nothing was removed.
        """
        await self.session.delete(positions=index)

    async def retrieve(self, query: str, limit: int = 5) -> list[dict[str, Any]]:
        """The messages of the conversation that are relevant to `query`, best first.

        See `remora.Session.search`. MassGen's own refuses, and agentscope's returns everything.
        """
        return [_with_id(hit.message) for hit in await self.session.search(query, limit)]

    async def size(self) -> int:
        """The number of messages."""
        return await self.session.size()

    async def clear(self) -> None:
        """Remove all messages; see `remora.Session.clear`."""
        await self.session.clear()

    async def get_messages(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All messages, or the newest `limit` of them."""
        return [_with_id(message) for message in await self.session.get_messages(limit=limit)]

    async def get_messages_by_role(self, role: Role) -> list[dict[str, Any]]:
        """The messages of one role."""
        return [_with_id(message) for message in await self.session.get_messages(role)]

    async def get_last_message(self) -> dict[str, Any] | None:
        """The newest message."""
        newest = await self.get_messages(1)
        return newest[0] if newest else None

    async def truncate_to_size(self, max_messages: int) -> None:
        """Keep the newest messages, none for 0, and never a part of a tool-call group.

        See `remora.Session.truncate_to_size`.
        """
        await self.session.truncate_to_size(max_messages)

    async def state_dict(self) -> dict[str, Any]:
        """The conversation as plain data; see `remora.Session.state_dict`."""
        return await self.session.state_dict()

    async def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Replace the conversation by a stored state; see `remora.Session.load_state_dict`.

        Raises:
            InvalidInput: it has no ``messages``, and `strict` is set (a `ValueError`).
        """
        await self.session.load_state_dict(state_dict, strict=strict)


class PersistentMemory:
    """Long-term memory across conversations.

    `record` and `retrieve` are for the application, two tools for the agent.

    Created from models, ``PersistentMemory("agent", llm_backend=…, embedding_backend=…)``, or from
    a configuration, ``PersistentMemory("agent", config=…)``, it opens a runtime of its own:
    ``async with memory: …``. Created with a ``runtime=…`` it is ready at once, and shares that
    runtime with its sessions.

    Args:
        agent_name: the agent, which finds only its own memories; None for all agents'.
        user_name: the user; "default" if None.
        session_name: the conversation; None for all.
        llm_backend: any chat model that `Runtime` takes.
        embedding_backend: any embedder that `Runtime` takes; the embedded one if None.
        config: a whole configuration, models included.
        directory: stores the memories; the configuration's by default.
        runtime: an open runtime.

    Raises:
        InvalidInput: neither agent, user nor session is given.
        ConfigError: neither models, nor a configuration, nor a runtime is given; or a runtime
            and settings that it already has.
    """

    def __init__(
        self,
        agent_name: str | None = None,
        user_name: str | None = None,
        session_name: str | None = None,
        *,
        llm_backend: ChatModelLike | None = None,
        embedding_backend: EmbedderLike | None = None,
        config: Config | None = None,
        directory: str | Path | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if agent_name is None and user_name is None and session_name is None:
            raise InvalidInput(
                "a memory needs an owner: pass agent_name, user_name or session_name"
            )
        given = {
            "llm_backend": llm_backend,
            "embedding_backend": embedding_backend,
            "config": config,
            "directory": directory,
        }
        named = [name for name, value in given.items() if value is not None]
        if runtime is not None and named:
            raise ConfigError(f"pass {', '.join(named)} to the given runtime instead")
        if runtime is None and llm_backend is None and embedding_backend is None and config is None:
            raise ConfigError(
                "PersistentMemory is made from llm_backend and embedding_backend, or from config, "
                "or from runtime; "
                "llm_backend is missing, embedding_backend is missing, and neither config nor "
                "runtime was given"
            )
        self._owned = runtime is None
        self._stack = AsyncExitStack()
        self.runtime = runtime or Runtime(
            directory, config=config, chat_model=llm_backend, embedder=embedding_backend
        )
        user = self.runtime.user("default" if user_name is None else user_name)
        self._memory = user if agent_name is None else user.agent(agent_name)
        self._session = None if session_name is None else validate_id(session_name, "a session id")
        self._tools: MemoryTools = self._memory.tools(session=self._session)

    async def __aenter__(self) -> Self:
        if self._owned:
            await self._stack.enter_async_context(self.runtime)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    # -- for the developer -------------------------------------------------------------------------

    async def record(self, messages: MessageLike | Iterable[MessageLike]) -> list[str]:
        """Record messages; returns the ids of the memories. See `remora.User.record`.

        Raises:
            InvalidMessage: one of them is not a chat message (a `TypeError`); nothing was written.
            RecordingFailed: the journal failed (a `RuntimeError`); all of it is recorded, or
                nothing.
        """
        return await self._memory.record(messages, session=self._session)

    async def retrieve(self, query: str, limit: int = 5) -> str:
        """Memories relevant to `query`, as text for a prompt; empty if there are none.

        See `remora.User.recall` and `remora.quote_memories`.

        Raises:
            LongTermError: long-term memory failed (a `RuntimeError`).
        """
        return quote_memories(await self._memory.recall(query, limit=limit, session=self._session))

    # -- for the agent -----------------------------------------------------------------------------

    async def save_to_memory(self, thinking: str, content: list[str]) -> dict[str, Any]:
        """The tool that saves a memory; never raises. See `remora.api.tools.MemoryTools`."""
        return await self._tools.save_to_memory(thinking, content)

    async def recall_from_memory(self, keywords: list[str], limit: int = 5) -> dict[str, Any]:
        """The tool that searches memory; never raises. See `remora.api.tools.MemoryTools`."""
        return await self._tools.recall_from_memory(keywords, limit)

    record_to_memory = save_to_memory
    retrieve_from_memory = recall_from_memory

    @property
    def tools(self) -> MemoryTools:
        """Both tools, with their specifications."""
        return self._tools

    async def settle(self) -> None:
        """Wait until everything recorded can be retrieved: for tests, scripts and shutdown."""
        await self._memory.settle()


def _id_of(message: Any) -> Any:
    return message.get("id") if isinstance(message, Mapping) else message.id


def _with_id(message: Message) -> dict[str, Any]:
    chat = {**message.to_chat(), "id": message.id}
    return {**chat, "metadata": message.metadata} if message.metadata else chat
