"""What tests of remora and of its users share: scripted models, virtual time, faulty ports, suites
of checks.
"""

from __future__ import annotations

from remora.faces import publish
from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal, during
from remora.testing.faulty_models import FaultyChatModel, FaultyEmbedder, FaultySummarizer
from remora.testing.faulty_store import FaultyStore
from remora.testing.history import History, Shown, Violation, check, shown_of
from remora.testing.journals import journal_suite
from remora.testing.linearizability import Explanation, Operation, explain, linearizable
from remora.testing.memories import MEMORY_CHECKS
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel
from remora.testing.players import Player
from remora.testing.programs import Call, Caller, Program, draw_program
from remora.testing.rest import check_at_rest, check_watermark
from remora.testing.shrinking import Case, Shrunk, counterexample, shrink
from remora.testing.stores import long_term_suite
from remora.testing.summaries import UnionSummarizer, covered_by

__all__ = [
    "MEMORY_CHECKS",
    "Call",
    "Caller",
    "Case",
    "ChatResponse",
    "Explanation",
    "FaultyChatModel",
    "FaultyEmbedder",
    "FaultyJournal",
    "FaultyStore",
    "FaultySummarizer",
    "HashEmbedder",
    "History",
    "Operation",
    "Player",
    "Program",
    "ScriptedChatModel",
    "Shown",
    "Shrunk",
    "UnionSummarizer",
    "Violation",
    "VirtualClock",
    "check",
    "check_at_rest",
    "check_watermark",
    "counterexample",
    "covered_by",
    "draw_program",
    "during",
    "explain",
    "journal_suite",
    "linearizable",
    "long_term_suite",
    "shown_of",
    "shrink",
]

publish(__name__, __all__, globals())
