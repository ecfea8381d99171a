"""Conversation memory, embedded in your agent server.

Each session is one actor; writes are durable before they return, and never wait for a model::

    async with remora.Runtime("memory/") as runtime:
        chat = runtime.session("alice", "chat-42")
        await chat.append({"role": "user", "content": "I moved to Lisbon."})
        context = await chat.load(query="where do I live?")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from remora import errors
from remora.faces import publish

if TYPE_CHECKING:
    from remora.client.client import Client
    from remora.http_statuses import http_status
    from remora.public import *  # noqa: F403

__all__ = [
    "Agent",
    "BufferPolicy",
    "BufferPreset",
    "ChatModel",
    "Client",
    "Config",
    "Context",
    "ContextEntry",
    "DeletionReceipt",
    "Embedder",
    "ErasureReceipt",
    "Exclusive",
    "FoundSession",
    "KeyedState",
    "Line",
    "Memory",
    "Message",
    "MessageDict",
    "MessageLike",
    "Receipt",
    "Reranker",
    "Runtime",
    "Session",
    "SharedMember",
    "SharedScope",
    "Source",
    "Sources",
    "StateValue",
    "Summarizer",
    "Synopsis",
    "Turn",
    "User",
    "WorkingHit",
    "connect",
    "errors",
    "http_status",
    "quote_memories",
]

__version__ = "0.1.0"

_LATER = {"Client": "remora.client", "http_status": "remora.http_statuses"}
"""What most programs do not need."""
_MODULES = frozenset({"metrics", "observe"})
"""Modules that are attributes without an import of their own."""


def __getattr__(name: str) -> Any:
    """Import what is imported when it is first used: the first public name brings all others."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = vars(importlib.import_module(_LATER.get(name, "remora.public")))
    names = [name] if name in _LATER else found["__all__"]
    publish(__name__, names, found)
    globals().update({one: found[one] for one in names})
    return found[name]


def __dir__() -> list[str]:
    return [*globals(), *__all__]
