"""A user's own actor without a runtime: driven as a cell would drive it."""

from __future__ import annotations

from typing import Any

import numpy as np

from remora import Synopsis
from remora.actors.user.behavior import UserBehavior
from remora.actors.user.messages import Learn, ReadSynopsis, SynopsisReady
from remora.actors.user.state import UserState
from remora.actors.user.working import WorkingItem, pack_vector
from remora.results import Job
from remora.runtime.actor import Decision
from remora.runtime.jobs import JobDone
from remora.storage.ports import UserKey
from remora.storage.records import SavedUser

KEY = UserKey("alice")
DIMENSION = 4
NOW = 1_700_000_000.0
HOUR, DAY = 3_600.0, 86_400.0


def item(
    id_: str, text: str = "", *, axis: int = 0, scope: str = "", dimension: int = DIMENSION
) -> WorkingItem:
    vector = np.eye(dimension, dtype="<f4")[axis]
    return WorkingItem(
        id_,
        text or f"text of {id_}",
        "tool:search",
        scope,
        int(NOW * 1_000_000),
        12,
        vector.tobytes(),
    )


def axis(number: int = 0) -> bytes:
    return pack_vector(np.eye(DIMENSION, dtype=np.float32)[number])


class UserModel:
    """One actor, with what it wrote and the jobs that it started."""

    def __init__(self, **options: Any) -> None:
        self.options: dict[str, Any] = {"dimension": DIMENSION, "max_bytes": 10 << 20, **options}
        self.actor = UserBehavior(self.options.pop("dimension"), **self.options)
        self.state: UserState = self.actor.restore(KEY, SavedUser(1, opened=False))
        self.records: list[Any] = []
        self.writes = 0
        self.jobs: dict[str, Job] = {}
        self.started: list[str] = []

    def ask(self, message: Any) -> Any:
        turn = self.actor.handle(self.state, message)
        assert isinstance(turn, Decision)
        for record in (*turn.volatile, *turn.records):
            self.actor.apply(self.state, record)
        self.records.extend(turn.records)
        self.writes += bool(turn.records)
        for job in turn.jobs:
            assert job.id not in self.started, "an id of a job is never used again"
            self.started.append(job.id)
            self.jobs[job.id] = job
        for record in turn.records:
            if isinstance(record, JobDone):
                self.jobs.pop(record.id, None)
        return turn.reply

    def learn(self, *items: WorkingItem) -> int:
        count: int = self.ask(Learn(items))
        return count

    def synopsis(self, after_s: float, *, refresh: bool = False) -> Synopsis:
        """Read it so long after `NOW`."""
        found: Synopsis = self.ask(ReadSynopsis(NOW + after_s, refresh=refresh))
        return found

    def write_synopsis(
        self,
        after_s: float = 0.0,
        *,
        degraded: bool = False,
        identity: str = "Ada.",
        context: str = "Bees.",
    ) -> None:
        """Have it asked for, and written at once."""
        pending = self.synopsis(after_s, refresh=True)
        tokens = (len(identity) // 4, len(context) // 4)
        assert (
            self.ask(
                SynopsisReady(
                    pending.job, identity, context, NOW + after_s, degraded, "scripted", tokens
                )
            )
            is True
        )

    def rest(self) -> None:
        """What the directory does before it lets the actor go."""
        while (farewell := self.actor.on_idle(self.state)) is not None:
            self.ask(farewell)

    @property
    def held(self) -> list[str]:
        """Ids of working memory, oldest first."""
        assert self.state.working is not None
        return [one.id for one in self.state.working.items]
