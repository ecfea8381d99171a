"""LlamaIndex's `Memory` over a remora session: the document's names, and nothing of its own."""

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
    """A memory that agents `put` into and `get` from; make one by `from_defaults`.

    One that was made with a runtime is ready at once; one without opens a runtime of its own:
    ``async with memory: …``.

    Attributes:
        session_id: names the conversation; given again, the conversation carries on.
        runtime: what keeps it.
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
        """The factory of the document.

        Args:
            session_id: a new uuid if None.
            token_limit: of short-term and long-term memory together; 30 000.
            chat_history_token_ratio: the share of it above which the oldest messages leave the
                buffer; 0.7.
            token_flush_size: how many tokens leave for the blocks at once; 3 000.
            memory_blocks: see `remora.blocks`.
            insert_method: into which message they speak.
            user: whose conversation it is.
            directory: where it is kept; in memory if None, as in LlamaIndex.
            config: what the arguments do not say.
            runtime: use this one, which then decides all but the session and the budget.
            options: of a `Runtime` of its own: ``chat_model``, ``embedder``, ``counter`` …

        Raises:
            ConfigError: a value that means nothing, or one that a given `runtime` decides.
            InvalidId: the id cannot name a session.
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
                raise ConfigError(
                    f"the runtime that was given decides {', '.join(given)}; pass them to it"
                )
            limit = runtime.config.buffer.token_limit if token_limit is None else token_limit
            return cls(runtime, session_id=session_id, user=user, token_limit=limit, owned=False)
        config = config if config is not None else Config.from_environment()
        buffer = _replace(
            config.buffer,
            token_limit=token_limit,
            fold_ratio=chat_history_token_ratio,
            token_flush_size=token_flush_size,
        )
        context = _replace(config.context, insert_method=insert_method)
        config = _replace(config, buffer=buffer, context=context)
        # what leaves goes to the blocks and the journal; no summary is made of it
        policy = options.pop("policy", None) or BufferPolicy.token_window(buffer.fold_above_tokens)
        options = {"config": config, "policy": policy, "blocks": memory_blocks, **options}
        new_runtime = (
            Runtime.in_memory(**options) if directory is None else Runtime(directory, **options)
        )
        return cls(
            new_runtime,
            session_id=session_id,
            user=user,
            token_limit=buffer.token_limit,
            owned=True,
        )

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
            input: what the user says now: recalls what was said before that bears on it.
            messages: what the memory blocks are asked about, instead of the conversation.
        """
        context = await self.session.load(input, messages=messages, max_tokens=self.token_limit)
        return context.messages

    async def get_all(self) -> list[ChatDict]:
        """Every message in the buffer, without a budget."""
        return [message.to_chat() for message in await self.session.get_messages()]

    async def set(self, messages: Sequence[MessageLike]) -> None:
        """Let these messages be the conversation, instead of what it is.

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


def _replace(config: Any, **values: Any) -> Any:
    return msgspec.structs.replace(
        config, **{name: value for name, value in values.items() if value is not None}
    )
