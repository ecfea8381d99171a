"""What long-term memory is still owed: messages whose flush jobs wait, run, or are dead letters.

`Journal.flushed` is a high-water mark. Flush jobs of one session end in any order, and one may
never end, so the mark can be past messages that are not there. What is there is known all the same:
of the messages up to the mark that were not pruned, all but those that a job still owes, since a
job's row goes in the transaction in which the mark moves (G7). Whoever compares the two stores,
rebuilds one from the other, or removes originals, goes by both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from remora.ids import SessionKey
from remora.runtime.log import Job
from remora.storage.records import FlushSpec

__all__ = ["owed"]


def owed(jobs: Iterable[Job]) -> dict[SessionKey, list[range]]:
    """The messages that these jobs have yet to hand over, by session.

    Args:
        jobs: of `Journal.jobs`: those still to be done, the dead letters, or both.
    """
    found: dict[Any, list[range]] = {}
    for job in jobs:
        if isinstance(job.payload, FlushSpec):
            found.setdefault(job.key, []).append(range(job.payload.first, job.payload.through + 1))
    return found
