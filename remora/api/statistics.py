"""The counters of a runtime's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from remora.api.build import Internals
from remora.jobs.facts import FactStatistics
from remora.models.compression import CompressionStatistics
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.reranking import RerankStatistics
from remora.runtime.log import LogStatistics
from remora.runtime.meters import Histogram, add_histograms
from remora.runtime.passivation import RegistryStatistics
from remora.runtime.schedule import TaskStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.services.file_erasure import ErasureStatistics
from remora.services.meters import VerbStatistics

Figures = TypeVar("Figures", bound=msgspec.Struct)
_LARGEST = frozenset({"last_s", "oldest_s", "wal_held_s"})


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """Every part's own counters.

    Attributes:
        registry: of the actors in memory.
        log: of the journal.
        supervisor: of background jobs.
        schedule: of periodic tasks.
        compression: of summaries, by the name of the strategy that made them.
        user_index: of the users whose rows of long-term memory are held in memory.
        erasures: of what `forget` erases.
        reranking: of what the reranker did; zeros without one.
        facts: of the facts that are extracted; zeros where none are.
        verbs: how long appends, loads and recalls took.
    """

    registry: RegistryStatistics
    log: LogStatistics
    supervisor: SupervisorStatistics
    schedule: dict[str, TaskStatistics]
    compression: dict[str, CompressionStatistics]
    user_index: UserIndexStatistics = UserIndexStatistics()
    erasures: ErasureStatistics = ErasureStatistics()
    reranking: RerankStatistics = RerankStatistics()
    facts: FactStatistics = FactStatistics()
    verbs: VerbStatistics = VerbStatistics()


def statistics_of(parts: Internals) -> RuntimeStatistics:
    """Return those of an open runtime, without I/O; any thread may ask."""
    recall = parts.recall
    return RuntimeStatistics(
        parts.registry.statistics(),
        parts.journal.statistics(),
        parts.supervisor.statistics(),
        parts.schedule.statistics(),
        {meter.name: meter.statistics() for meter in parts.meters},
        UserIndexStatistics() if recall is None else recall.index_statistics(),
        parts.eraser.files.statistics(),
        RerankStatistics() if recall is None else recall.rerank_statistics(),
        FactStatistics() if parts.facts is None else parts.facts.statistics(),
        parts.verbs.figures(Histogram() if recall is None else recall.seconds()),
    )


def add_figures(figures: Sequence[Figures]) -> Figures:
    """Figures of the same kind, added: numbers are, texts stand one after another."""
    names = figures[0].__struct_fields__
    values = [_add(name, [getattr(one, name) for one in figures]) for name in names]
    return type(figures[0])(*values)


def _add(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Histogram):
        return add_histograms(values)
    if isinstance(first, msgspec.Struct):
        return add_figures(values)
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for one in values for key in one)
        return {key: _add(key, [one[key] for one in values if key in one]) for key in keys}
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, str):
        return "; ".join(dict.fromkeys(one for one in values if one))
    if isinstance(first, tuple):
        return tuple(item for one in values for item in one)
    return max(values) if name in _LARGEST else sum(values)
