"""Names that `remora`'s classes had before; docs/versions.md has the rule by which they go.

They warn and do what they did. A type checker reports them, and `dir` leaves them out.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from remora.actors.session.messages import SessionView
from remora.api.plain import decode_state, encode_state, format_messages, list_chats
from remora.messages import ChatDict, Message, Receipt
from remora.recall.memory import quote_memories

_P = ParamSpec("_P")
_R = TypeVar("_R")

if TYPE_CHECKING:
    from typing_extensions import deprecated
else:

    def deprecated(message: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """What PEP 702 has, whose first implementation imports asyncio."""

        def mark(function: Callable[_P, _R]) -> Callable[_P, _R]:
            @wraps(function)
            def call(*args: _P.args, **options: _P.kwargs) -> _R:
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return function(*args, **options)

            call.__deprecated__ = message
            return call

        return mark


__all__ = ["OldMemoryNames", "OldSessionNames", "OldToolNames", "renamed_arguments"]


def renamed_arguments(
    **names: str,
) -> Callable[[Callable[_P, Awaitable[_R]]], Callable[_P, Coroutine[Any, Any, _R]]]:
    """Let a coroutine function still take keyword arguments by their earlier names.

    Args:
        names: for each earlier name, the current one.
    """

    def rename(
        function: Callable[_P, Awaitable[_R]],
    ) -> Callable[_P, Coroutine[Any, Any, _R]]:
        @wraps(function)
        async def call(*args: _P.args, **options: _P.kwargs) -> _R:
            for old in names.keys() & options.keys():
                new = names[old]
                if new in options:
                    raise TypeError(f"{function.__name__}() got both {old}= and {new}=")
                message = f"{function.__name__}({old}=…) is now {function.__name__}({new}=…)"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                options[new] = options.pop(old)
            return await function(*args, **options)

        return call

    return rename


class _Listed:
    """Leaves deprecated names out of what `dir` lists, and so of what a console completes."""

    __slots__ = ()

    def __dir__(self) -> Iterator[str]:
        return (
            name
            for name in super().__dir__()
            if not hasattr(getattr(type(self), name, None), "__deprecated__")
        )


class OldSessionNames(_Listed):
    """Names of `remora.Session` that other libraries' interfaces ask for: see `remora.adapters`."""

    __slots__ = ()

    @deprecated("get_recent(n) is now get_messages(limit=n)")
    async def get_recent(self: Any, count: int) -> list[Message]:
        """Use `get_messages` with a limit; deprecated."""
        return list(await self.get_messages(limit=count))

    @deprecated("get_last_message() is now get_messages(limit=1)")
    async def get_last_message(self: Any) -> Message | None:
        """Use `get_messages` with a limit of 1; deprecated."""
        newest = await self.get_messages(limit=1)
        return newest[0] if newest else None

    @deprecated("use load() for a model, or get_context() of remora.adapters.muxi.BufferMemory")
    async def get_context(self: Any) -> list[ChatDict]:
        """Use `load` for a model, or `contents` for everything; deprecated."""
        return list_chats(*await self.contents())

    @deprecated(
        "use load() for a model, or get_formatted_messages() of remora.adapters.muxi.BufferMemory"
    )
    async def get_formatted_messages(
        self: Any, *, summary_prefix: str = "Previous conversation summary: "
    ) -> list[ChatDict]:
        """Use `load` for a model, or `contents` for everything; deprecated."""
        return format_messages(*await self.contents(summary_prefix=summary_prefix))

    @deprecated("use state_dict(), or to_json() of remora.adapters.muxi.BufferMemory")
    async def to_json(self: Any) -> str:
        """Use `state_dict`; deprecated."""
        view: SessionView = await self.inspect()
        return await encode_state(await self.state_dict(), view.policy.above_messages)

    @deprecated("use load_state_dict(), or from_json() of remora.adapters.muxi.BufferMemory")
    async def from_json(self: Any, text: str | bytes) -> Receipt:
        """Use `load_state_dict`; deprecated."""
        receipt: Receipt = await self.load_state_dict(await decode_state(text))
        return receipt


class OldMemoryNames(_Listed):
    """Names of `remora.User` and `remora.Agent`."""

    __slots__ = ()

    @deprecated("remember_many() is now remember(), which takes one memory or many")
    async def remember_many(self: Any, contents: Iterable[Any]) -> list[str]:
        """Use `remember`, which takes one memory or many; deprecated."""
        return list(await self.remember(contents))

    @deprecated("retrieve(query) is now remora.quote_memories(await recall(query))")
    async def retrieve(
        self: Any,
        query: str,
        limit: int = 5,
        *,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> str:
        """Use `recall` and `remora.quote_memories`; deprecated."""
        return quote_memories(
            await self.recall(query, limit=limit, types=types, session=session, agent=agent)
        )

    @deprecated("use recall_many(), and remora.quote_memories() on each of its results")
    async def retrieve_many(
        self: Any,
        queries: Iterable[str],
        limit: int = 5,
        *,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Use `recall_many` and `remora.quote_memories`; deprecated."""
        found = await self.recall_many(
            queries, limit=limit, types=types, session=session, agent=agent
        )
        return [quote_memories(one) for one in found]


class OldToolNames(_Listed):
    """Names of `remora.api.tools.MemoryTools`."""

    __slots__ = ()

    @deprecated("record_to_memory() is now save_to_memory()")
    async def record_to_memory(self: Any, thinking: str, content: list[str]) -> dict[str, Any]:
        """Use `save_to_memory`; deprecated."""
        saved: dict[str, Any] = await self.save_to_memory(thinking, content)
        return saved

    @deprecated("retrieve_from_memory() is now recall_from_memory()")
    async def retrieve_from_memory(
        self: Any, keywords: list[str], limit: int = 5
    ) -> dict[str, Any]:
        """Use `recall_from_memory`; deprecated."""
        found: dict[str, Any] = await self.recall_from_memory(keywords, limit)
        return found

    @deprecated("openai_specs() is now openai()")
    def openai_specs(self: Any) -> list[Any]:
        """Use `openai`; deprecated."""
        specs: list[Any] = self.openai()
        return specs
