"""What handles need of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from remora.config import Config
from remora.ids import SessionKey
from remora.messages import ChatDict
from remora.models.cache import CachingEmbedder
from remora.recall.planner import Planner
from remora.recall.recall import Recall
from remora.runtime.clock import Clock
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.erasure import Eraser
from remora.storage.ports import Journal
from remora.tokens import TokenCounter

__all__ = ["Services"]


class Services(Protocol):
    """What handles need of the runtime.

    Each attribute raises `RuntimeClosed` while it is not open.
    """

    @property
    def config(self) -> Config:
        """The configuration in force."""
        ...

    @property
    def directory(self) -> ActorRegistry:
        """Live sessions."""
        ...

    @property
    def supervisor(self) -> Supervisor:
        """Background jobs."""
        ...

    @property
    def journal(self) -> Journal:
        """The write-ahead journal."""
        ...

    @property
    def planner(self) -> Planner:
        """Context assembly."""
        ...

    @property
    def recall(self) -> Recall | None:
        """Search in long-term memory."""
        ...

    @property
    def eraser(self) -> Eraser:
        """What forgets users and sessions."""
        ...

    def indexed_blocks(self, key: SessionKey) -> Collection[str]:
        """Names of the session's memory blocks whose rows are in long-term memory, so that they can
        be made again.
        """
        ...

    @property
    def counter(self) -> TokenCounter:
        """The token counter."""
        ...

    @property
    def embedder(self) -> CachingEmbedder | None:
        """The embedder, which keeps the vectors of the texts last asked for.

        None where there is none.
        """
        ...

    @property
    def clock(self) -> Clock:
        """What the time is."""
        ...

    @property
    def redact(self) -> Callable[[str], str] | None:
        """The redaction hook in front of the journal."""
        ...

    @property
    def scorer(self) -> Callable[[ChatDict], float] | None:
        """What weighs messages at the door."""
        ...
