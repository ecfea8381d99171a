"""LlamaIndex's `Memory` over a remora session: only the names are its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from remora.actors.blocks.base import BlocksLike
from remora.actors.policies.buffer import BufferPolicy
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.config import Config
from remora.errors import ConfigError
from remora.messages import ChatDict, MessageLike, Receipt

__all__ = ["ChatMemory"]


class ChatMemory:
    """A memory that agents `put` into and `get` from, created by `from_defaults`.

    A memory on a given runtime is ready at once; otherwise it opens a runtime of its own:
    ``async with memory: …``.

    Attributes:
        session_id: names the conversation; a known id continues its conversation.
        runtime: stores it.
        session: the conversation.
        token_limit: the budget of `get`.
    """

    def __init__(
        self, runtime: Runtime, *, session_id: str, user: str, token_limit: int, owned: bool
    ) -> None:
        self.runtime = runtime
        self.session_id = session_id
        self.session: Session = runtime.session(user, session_id)
        self.token_limit = token_limit
        self._owned = owned
        self._stack = AsyncExitStack()

    @classmethod
    def from_defaults(
        cls,
        session_id: str | None = None,
        token_limit: int | None = None,
        chat_history_token_ratio: float | None = None,
        token_flush_size: int | None = None,
        *,
        memory_blocks: BlocksLike | None = None,
        insert_method: Literal["system", "user"] | None = None,
        user: str = "default",
        directory: str | Path | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
        **options: Any,
    ) -> Self:
        """Create a memory, as LlamaIndex's `Memory.from_defaults` does.

        Args:
            session_id: a new uuid if None.
            token_limit: of short-term and long-term memory together; 30 000.
            chat_history_token_ratio: the share of it that the buffer may fill; 0.7.
            token_flush_size: most tokens in one batch for the blocks; 3 000.
            memory_blocks: see `remora.blocks`.
            insert_method: the message that blocks are inserted into.
            user: the user of the conversation.
            directory: stores it; in memory if None.
            config: other settings.
            runtime: an open runtime; its settings apply, except for the session and the budget.
            options: of a new `Runtime`: ``chat_model``, ``embedder``, ``counter`` …

        Raises:
            ConfigError: an invalid value, or one that conflicts with the given `runtime`.
        """
        session_id = uuid.uuid4().hex if session_id is None else session_id
        fixed = {
            "chat_history_token_ratio": chat_history_token_ratio,
            "token_flush_size": token_flush_size,
            "memory_blocks": memory_blocks,
            "insert_method": insert_method,
            "directory": directory,
            "config": config,
            **options,
        }
        if runtime is not None:
            if given := [name for name, value in fixed.items() if value is not None]:
                raise ConfigError(f"pass {', '.join(given)} to the given runtime instead")
            limit = runtime.config.buffer.token_limit if token_limit is None else token_limit
            return cls(runtime, session_id=session_id, user=user, token_limit=limit, owned=False)
        base = config if config is not None else Config.from_environment()
        buffer = _replace(
            base.buffer,
            token_limit=token_limit,
            fold_ratio=chat_history_token_ratio,
            token_flush_size=token_flush_size,
        )
        context = _replace(base.context, insert_method=insert_method)
        options["config"] = _replace(base, buffer=buffer, context=context)
        new_runtime = _open_runtime(directory, {"blocks": memory_blocks, **options})
        limit = buffer.token_limit
        return cls(new_runtime, session_id=session_id, user=user, token_limit=limit, owned=True)

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

    async def put(self, message: MessageLike) -> Receipt:
        """Store one message; see `remora.Session.append`."""
        return await self.session.append(message)

    async def put_messages(self, messages: Iterable[MessageLike]) -> Receipt:
        """Store many messages, all or none, in order."""
        return await self.session.append(messages)

    async def get(
        self,
        input: str | None = None,  # noqa: A002
        *,
        messages: Sequence[MessageLike] | None = None,
    ) -> list[ChatDict]:
        """Short-term and long-term memory together, within the token limit.

        See `remora.Session.load`.

        Args:
            input: the user's new message: recalls what is relevant to it.
            messages: shown to the memory blocks instead of the conversation.
        """
        context = await self.session.load(input, messages=messages, max_tokens=self.token_limit)
        return [*context.messages]

    async def get_all(self) -> list[ChatDict]:
        """Every message in the buffer, without a budget."""
        return [message.to_chat() for message in await self.session.get_messages()]

    async def set(self, messages: Sequence[MessageLike]) -> None:
        """Replace the conversation by these messages.

        See `remora.Session.load_state_dict`.
        """
        await self.session.load_state_dict({"messages": list(messages)})

    async def reset(self) -> None:
        """Empty the buffer; see `remora.Session.clear`."""
        await self.session.clear()

    aput = put
    aput_messages = put_messages
    aget = get
    aget_all = get_all
    aset = set  # noqa: A003
    areset = reset


def _open_runtime(directory: str | Path | None, options: dict[str, Any]) -> Runtime:
    """A runtime in which messages that leave go to the blocks and the journal, unsummarized."""
    if options.get("policy") is None:
        above = options["config"].buffer.fold_above_tokens
        options["policy"] = BufferPolicy.token_window(above)
    return Runtime.in_memory(**options) if directory is None else Runtime(directory, **options)


def _replace(config: Any, **values: Any) -> Any:
    return msgspec.structs.replace(
        config, **{name: value for name, value in values.items() if value is not None}
    )
