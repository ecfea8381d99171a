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
from remora.actors.blocks.source import Source
from remora.actors.policies.buffer import BufferPolicy, BufferPreset
from remora.actors.user.messages import Synopsis
from remora.api.exclusive import Exclusive
from remora.api.keyed_state import KeyedState, StateValue
from remora.api.memories import Agent
from remora.api.runtime import Runtime
from remora.api.session import Session
from remora.api.shared import SharedMember, SharedScope
from remora.api.turn import Turn
from remora.api.user import User, WorkingHit
from remora.cluster.connect import connect
from remora.config import Config
from remora.faces import publish
from remora.messages import Message, MessageDict, MessageLike, Receipt
from remora.models.ports import ChatModel, Embedder, Line, Reranker, Summarizer
from remora.recall.context import Context, ContextEntry
from remora.recall.found_sessions import FoundSession
from remora.recall.memory import Memory, quote_memories
from remora.recall.sources import Sources
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt

if TYPE_CHECKING:
    from remora.client.client import Client

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

publish(__name__, [name for name in __all__ if name not in _LATER], globals())


def __getattr__(name: str) -> Any:
    """Import what is imported when it is first used."""
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_LATER[name]), name)
    publish(__name__, [name], {name: found})
    return globals().setdefault(name, found)
