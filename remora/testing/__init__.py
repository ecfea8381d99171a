"""For tests of remora and of its users: scripted models, virtual time, faulty ports, suites."""

from __future__ import annotations

from remora.faces import publish
from remora.runtime.probes import count_probes
from remora.testing.clock import VirtualClock
from remora.testing.faults import CommitFault, FaultyJournal, FaultyStore, during
from remora.testing.journals import AccessCheck, JournalAccess, journal_checks, journal_suite
from remora.testing.linearizability import Explanation, Operation, explain, linearizable
from remora.testing.memories import MEMORY_CHECKS
from remora.testing.models import (
    ChatResponse,
    FaultyChatModel,
    FaultyEmbedder,
    FaultyReranker,
    FaultySummarizer,
    HashEmbedder,
    ScriptedChatModel,
    UnionSummarizer,
    covered_by,
)
from remora.testing.stores import long_term_row, long_term_suite

__all__ = [
    "MEMORY_CHECKS",
    "AccessCheck",
    "ChatResponse",
    "CommitFault",
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
    "count_probes",
    "covered_by",
    "during",
    "explain",
    "journal_checks",
    "journal_suite",
    "linearizable",
    "long_term_row",
    "long_term_suite",
]

publish(__name__, __all__, globals())
