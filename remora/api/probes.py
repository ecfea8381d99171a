"""Probes of the runtime: branches that tests must reach."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["PROBES"]

PROBES: Mapping[str, str] = {
    "stream_interrupted": "a reply was streamed, and not to its end",
    "drain_timed_out": "closing took too long: callers are failed, jobs in the journal run after "
    "the next start",
}
