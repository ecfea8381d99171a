"""The counters of a runtime's parts."""

from __future__ import annotations

import msgspec

from remora.api.build import Internals
from remora.jobs.facts import FactStatistics
from remora.models.compression import CompressionStatistics
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.reranking import RerankStatistics
from remora.runtime.histogram import Histogram
from remora.runtime.limits import RegistryStatistics
from remora.runtime.log import LogStatistics
from remora.runtime.schedule import TaskStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.services.file_erasure import ErasureStatistics
from remora.services.meters import VerbStatistics

__all__ = ["RuntimeStatistics", "statistics_of"]


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
    """Those of an open runtime, without I/O; any thread may ask."""
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
