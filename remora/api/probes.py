"""Probes of the runtime: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

PROBES: Mapping[str, str] = {
    "stream_interrupted": "a reply was streamed, and not to its end",
    "drain_timed_out": "closing took too long: callers are failed, jobs in the journal run after "
    "the next start",
    "drain_cut_short": "the task that closes the runtime was cancelled: it waits no longer for "
    "accepted requests",
    "opening_cancelled": "the task that opened the runtime was cancelled before it was open",
    "closed_while_opening": "another task closed the runtime before it was open",
    "loop_ended_before_the_runtime": "the event loop cancelled all tasks, and an open runtime's",
}
"""The runtime's probes, and when each is reached."""
