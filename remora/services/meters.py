"""Counts of the calls that applications wait for."""

from __future__ import annotations

import msgspec

from remora.recall.context import Sources
from remora.runtime.meters import Histogram, HistogramMeter

_TIERS = ("long_term", "working", "synopsis")


class VerbStatistics(msgspec.Struct, frozen=True):
    """How long appends, loads and recalls took that succeeded, in seconds, in the process itself.

    Attributes:
        append_s: appends, from when the process had the messages until they were durable.
        load_s: contexts without a query.
        query_s: contexts with a query.
        recall_s: searches in long-term memory: those of contexts, and `recall`.
        sources: of contexts with a query, how often each source had which status: ``late``, for
            instance; see `remora.Source`.
    """

    append_s: Histogram = Histogram()
    load_s: Histogram = Histogram()
    query_s: Histogram = Histogram()
    recall_s: Histogram = Histogram()
    sources: dict[str, dict[str, int]] = {}


class VerbMeters:
    """Counts them.

    Attributes:
        append_s, load_s, query_s: see `VerbStatistics`.
    """

    def __init__(self) -> None:
        self.append_s, self.load_s, self.query_s = (HistogramMeter() for _ in range(3))
        self._sources: dict[str, dict[str, int]] = {tier: {} for tier in _TIERS}

    def count_sources(self, sources: Sources) -> None:
        """Count what became of each source of a context."""
        for tier, counts in self._sources.items():
            status = sources[tier].status
            if status != "off":
                counts[status] = counts.get(status, 0) + 1

    def figures(self, recall_s: Histogram) -> VerbStatistics:
        """Return what was counted; any thread may ask."""
        return VerbStatistics(
            self.append_s.figures(),
            self.load_s.figures(),
            self.query_s.figures(),
            recall_s,
            {tier: dict(counts) for tier, counts in self._sources.items()},
        )
