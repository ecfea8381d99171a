"""For tests of remora and of its users: scripted models, virtual time, faulty ports, suites."""

from __future__ import annotations

from remora.faces import publish
from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal, during
from remora.testing.faulty_models import (
    FaultyChatModel,
    FaultyEmbedder,
    FaultyReranker,
    FaultySummarizer,
)
from remora.testing.faulty_store import FaultyStore
from remora.testing.journals import JournalAccess, journal_checks, journal_suite
from remora.testing.linearizability import Explanation, Operation, explain, linearizable
from remora.testing.memories import MEMORY_CHECKS
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel
from remora.testing.stores import long_term_suite
from remora.testing.summaries import UnionSummarizer, covered_by

__all__ = [
    "MEMORY_CHECKS",
    "ChatResponse",
    "Explanation",
    "FaultyChatModel",
    "FaultyEmbedder",
    "FaultyJournal",
    "FaultyReranker",
    "FaultyStore",
    "FaultySummarizer",
    "HashEmbedder",
    "JournalAccess",
    "Operation",
    "ScriptedChatModel",
    "UnionSummarizer",
    "VirtualClock",
    "covered_by",
    "during",
    "explain",
    "journal_checks",
    "journal_suite",
    "linearizable",
    "long_term_suite",
]

publish(__name__, __all__, globals())
