"""What tests of remora and of its users share: scripted models, virtual time, faulty ports, suites of checks."""

from __future__ import annotations

from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal, during
from remora.testing.faulty_models import FaultyChatModel, FaultyEmbedder, FaultySummarizer
from remora.testing.faulty_store import FaultyStore
from remora.testing.journals import journal_suite
from remora.testing.linearizability import Operation, linearizable
from remora.testing.memories import MEMORY_CHECKS
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel
from remora.testing.stores import long_term_suite

__all__ = [
    "MEMORY_CHECKS",
    "ChatResponse",
    "FaultyChatModel",
    "FaultyEmbedder",
    "FaultyJournal",
    "FaultyStore",
    "FaultySummarizer",
    "HashEmbedder",
    "Operation",
    "ScriptedChatModel",
    "VirtualClock",
    "during",
    "journal_suite",
    "linearizable",
    "long_term_suite",
]
