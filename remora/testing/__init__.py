"""What tests of remora and of its users share: scripted models, virtual time, failing journals, suites of checks."""

from __future__ import annotations

from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal
from remora.testing.journals import journal_suite
from remora.testing.linearizability import Operation, linearizable
from remora.testing.memories import MEMORY_CHECKS
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel
from remora.testing.stores import long_term_suite

__all__ = [
    "MEMORY_CHECKS",
    "ChatResponse",
    "FaultyJournal",
    "HashEmbedder",
    "Operation",
    "ScriptedChatModel",
    "VirtualClock",
    "journal_suite",
    "linearizable",
    "long_term_suite",
]
