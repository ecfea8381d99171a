"""The public names of `remora`, which loads them when the first of them is asked for."""

from __future__ import annotations

from remora.actors.blocks.source import Source
from remora.actors.policies.buffer import BufferPolicy, BufferPreset
from remora.actors.user.messages import Synopsis
from remora.api.keyed_state import KeyedState, StateValue
from remora.api.memories import Agent
from remora.api.runtime import Runtime
from remora.api.session import Exclusive, Session
from remora.api.shared import SharedMember, SharedScope
from remora.api.turn import Turn
from remora.api.user import User, WorkingHit
from remora.cluster.connect import connect
from remora.config import Config
from remora.messages import Message, MessageDict, MessageLike, Receipt
from remora.models.ports import ChatModel, Embedder, Line, Reranker, Summarizer
from remora.recall.context import Context, ContextEntry, Sources
from remora.recall.found_sessions import FoundSession
from remora.recall.memory import Memory, quote_memories
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt

__all__ = [
    "Agent",
    "BufferPolicy",
    "BufferPreset",
    "ChatModel",
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
    "quote_memories",
]
