"""The journal's vocabulary: what a session actor writes, and what it is restored from.

Records say what is true after them (marks are absolute), so a batch of them can be stored kind by kind, and replaying
one twice changes nothing.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from remora.messages import Entry
from remora.runtime.log import Job

__all__ = [
    "HOT_KEYS",
    "Appended",
    "Cleared",
    "FlushSpec",
    "FlushStarted",
    "Flushed",
    "FoldStarted",
    "KeyLookup",
    "Marks",
    "Opened",
    "OriginalAppend",
    "SessionImage",
    "SessionRecord",
    "SummarizeSpec",
    "Summarized",
    "Summary",
]


HOT_KEYS = 1_024
"""Idempotency keys of a session that are held in memory at most; older ones are looked up in the journal."""


class Marks(msgspec.Struct, frozen=True, gc=False):
    """How far a session has come; sequence numbers, 0 for not yet.

    Attributes:
        generation: how often it was cleared.
        summarized: messages up to here are out of the buffer: summarized, or cleared.
        folding: messages up to here are frozen and wait for their summary; equal to `summarized` when none do.
        flushing: messages up to here are in long-term memory, or in a journalled flush job.
    """

    generation: int = 0
    summarized: int = 0
    folding: int = 0
    flushing: int = 0


class Summary(msgspec.Struct, frozen=True):
    """A running summary.

    Attributes:
        through: the last message that it covers.
        prefix: what its system message begins with (S1.13).
        text: what it says.
        tokens: size of the system message that carries it.
        degraded: the configured model failed, and an extract stands in for its summary (G6).
        model: what wrote it.
    """

    through: int
    prefix: str
    text: str
    tokens: int
    degraded: bool
    model: str


class SummarizeSpec(msgspec.Struct, frozen=True, tag="summarize"):
    """Summarize the frozen prefix `first`…`through`."""

    sid: int
    generation: int
    first: int
    through: int


class FlushSpec(msgspec.Struct, frozen=True, tag="flush"):
    """Hand messages `first`…`through` over to long-term memory."""

    sid: int
    first: int
    through: int


class Opened(msgspec.Struct, frozen=True):
    """A session's first write."""

    sid: int
    user: str
    session: str
    at_us: int


class Appended(msgspec.Struct, frozen=True):
    """Messages, and the digest of the idempotency key under which they came."""

    sid: int
    entries: tuple[Entry, ...]
    key: bytes | None


class FoldStarted(msgspec.Struct, frozen=True):
    """The prefix up to `marks.folding` is frozen; its jobs are part of the same commit (G7)."""

    sid: int
    marks: Marks
    jobs: tuple[Job, ...]


class FlushStarted(msgspec.Struct, frozen=True):
    """Messages up to `marks.flushing` are handed over, without leaving the buffer."""

    sid: int
    marks: Marks
    jobs: tuple[Job, ...]


class Summarized(msgspec.Struct, frozen=True):
    """A summary came in; the job that made it ends with it."""

    sid: int
    marks: Marks
    summary: Summary
    job: str


class Cleared(msgspec.Struct, frozen=True):
    """Buffer and summary are empty again; jobs that worked for the old summary end."""

    sid: int
    marks: Marks
    cancelled: tuple[str, ...]


class Flushed(msgspec.Struct, frozen=True):
    """Messages up to `through` are in long-term memory."""

    sid: int
    through: int


SessionRecord: TypeAlias = Opened | Appended | FoldStarted | FlushStarted | Summarized | Cleared


class KeyLookup(msgspec.Struct, frozen=True):
    """Was there an append under this key?"""

    digest: bytes


class OriginalAppend(msgspec.Struct, frozen=True):
    """The append that a key belongs to; `ids` has None where the session's own id applies."""

    seqs: tuple[int, ...]
    ids: tuple[str | None, ...]


class SessionImage(msgspec.Struct, frozen=True):
    """All that a session actor is restored from.

    Attributes:
        sid: the session's number in this journal; new ones are given theirs here.
        opened: False for a session that has never written.
        marks: how far it has come.
        next_seq: number of the next message.
        entries: messages after `marks.summarized`, in order.
        summary: the newest of this generation.
        keys: digests of idempotency keys.
        keys_complete: whether `keys` holds all of them.
        jobs: its job rows, dead letters left out.
    """

    sid: int
    opened: bool
    marks: Marks
    next_seq: int
    entries: tuple[Entry, ...]
    summary: Summary | None
    keys: frozenset[bytes]
    keys_complete: bool
    jobs: tuple[Job, ...] = ()
