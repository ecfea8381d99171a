"""The types that methods of `Runtime`, `User` and `Session` return, for annotations.

`JournalCounts`, `LongTermStatistics` and `SessionListing` are in `remora.storage.ports`, what an
export holds is in `remora.transfer`.
"""

from __future__ import annotations

from remora.actors.session.messages import SessionView
from remora.actors.user.messages import UserView
from remora.api.health import Health, HealthProblem
from remora.api.session import BufferHit
from remora.api.status import RuntimeStatistics
from remora.api.tools import MemoryTools
from remora.faces import publish
from remora.maintenance.backup import BackupReport
from remora.messages import ToolCall, ToolFunction
from remora.models.compression import CompressionStatistics
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.reranking import RerankStatistics
from remora.runtime.jobs import Job, QueueStatistics
from remora.runtime.log import LogStatistics
from remora.runtime.meters import Histogram
from remora.runtime.passivation import RegistryStatistics
from remora.runtime.schedule import TaskStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.services.archive import SessionStatistics, UserStatistics
from remora.services.file_erasure import ErasureStatistics
from remora.services.meters import VerbStatistics
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure

__all__ = [
    "BackupReport",
    "BufferHit",
    "CompressionStatistics",
    "ErasureStatistics",
    "Health",
    "HealthProblem",
    "Histogram",
    "Job",
    "LogStatistics",
    "MemoryTools",
    "QueueStatistics",
    "ReembedProgress",
    "RegistryStatistics",
    "RerankStatistics",
    "RuntimeStatistics",
    "SessionStatistics",
    "SessionView",
    "SupervisorStatistics",
    "TaskStatistics",
    "ToolCall",
    "ToolFunction",
    "UserIndexStatistics",
    "UserStatistics",
    "UserView",
    "VerbStatistics",
    "WaitingErasure",
]

publish(__name__, __all__, globals())
