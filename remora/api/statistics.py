"""The counters of a runtime's parts."""

from __future__ import annotations

import msgspec

from remora.jobs.facts import FactStatistics
from remora.models.compression import CompressionStatistics
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.reranking import RerankStatistics
from remora.runtime.limits import RegistryStatistics
from remora.runtime.log import LogStatistics
from remora.runtime.schedule import TaskStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.services.file_erasure import ErasureStatistics

__all__ = ["RuntimeStatistics"]


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
