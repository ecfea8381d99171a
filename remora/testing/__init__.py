"""What remora's tests and its users' tests share: scripted models, virtual time, a journal that fails, checks of stores."""

from __future__ import annotations

from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal
from remora.testing.linearizability import Operation, linearizable
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel
from remora.testing.stores import LONG_TERM_CHECKS

__all__ = [
    "LONG_TERM_CHECKS",
    "ChatResponse",
    "FaultyJournal",
    "HashEmbedder",
    "Operation",
    "ScriptedChatModel",
    "VirtualClock",
    "linearizable",
]
