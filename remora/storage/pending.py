"""Which messages journalled jobs have yet to read.

`Journal.indexed_through` is a high watermark. Flush jobs of one session end in any order, and one
may never end, so the watermark can be past messages that are not in long-term memory. A job's row
is removed in the transaction that moves the watermark (G7). So long-term memory has the messages
up to the watermark that were not pruned, except those that a job still has to read. Comparing the
two stores, rebuilding one from the other and removing originals must use both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from remora.ids import SessionKey
from remora.runtime.jobs import Job
from remora.storage.records import BlocksSpec, FactsSpec, FlushSpec, SummarizeSpec, UnflushSpec

NEIGHBOURS = 2
"""Messages on either side of one that are indexed with it: when it is removed, their rows are
rewritten.
"""


def pending_flushes(jobs: Iterable[Job]) -> dict[SessionKey, list[range]]:
    """The messages that these jobs have yet to flush, by session.

    Args:
        jobs: of `Journal.jobs`: those still to be done, the dead letters, or both.
    """
    found: dict[Any, list[range]] = {}
    for job in jobs:
        if isinstance(job.payload, FlushSpec):
            messages = range(first_row_written(job.payload), job.payload.through + 1)
            found.setdefault(job.key, []).append(messages)
    return found


def first_row_written(spec: FlushSpec) -> int:
    """The first message whose row the job writes, or removes and writes again."""
    return max(spec.first - NEIGHBOURS, 1) if spec.completes else spec.first


def first_message_needed(payload: object) -> int | None:
    """The first message that a job has yet to read, neighbours included; None for none."""
    match payload:
        case FlushSpec():
            return first_row_written(payload) - NEIGHBOURS
        case UnflushSpec(seqs=seqs):
            return min(seqs, default=1) - NEIGHBOURS
        case SummarizeSpec(first=first) | FactsSpec(first=first):
            return first
        case BlocksSpec():
            return 1  # only its blocks know which messages they have not seen
        case _:
            return None
