"""What remora's tests and its users' tests share: scripted models, virtual time, a journal that fails on demand."""

from __future__ import annotations

from remora.testing.clock import VirtualClock
from remora.testing.faults import FaultyJournal
from remora.testing.linearizability import Operation, linearizable
from remora.testing.models import ChatResponse, HashEmbedder, ScriptedChatModel

__all__ = ["ChatResponse", "FaultyJournal", "HashEmbedder", "Operation", "ScriptedChatModel", "VirtualClock", "linearizable"]
