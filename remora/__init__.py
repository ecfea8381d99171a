"""Conversation memory that rides inside an agent server: every session an actor, every acknowledgement durable.

async with remora.Runtime("memory/") as runtime:
    chat = runtime.session("alice", "chat-42")
    await chat.append({"role": "user", "content": "I moved to Lisbon."})
    context = await chat.load(query="where do I live?")
"""

from __future__ import annotations

from remora import errors
from remora.actors.planner import Context
from remora.actors.policies import BufferPolicy, BufferPreset
from remora.actors.recall import Memory
from remora.actors.sources import Source
from remora.actors.user_protocol import Synopsis
from remora.config import Config
from remora.messages import Message, Receipt
from remora.runtime.erasure import ErasureReceipt
from remora.runtime.handles import Session
from remora.runtime.long_term_handle import Agent
from remora.runtime.shared import SharedMember, SharedScope
from remora.runtime.system import Runtime
from remora.runtime.user_handle import User, WorkingHit

__all__ = [
    "Agent",
    "BufferPolicy",
    "BufferPreset",
    "Config",
    "Context",
    "ErasureReceipt",
    "Memory",
    "Message",
    "Receipt",
    "Runtime",
    "Session",
    "SharedMember",
    "SharedScope",
    "Source",
    "Synopsis",
    "User",
    "WorkingHit",
    "errors",
]

__version__ = "0.1.0"
