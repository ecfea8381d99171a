"""A machine in a bottle.

A runtime with its stores and models under one seed, through power cuts and restarts::

    def test_my_agent():
        for seed in range(200):
            World(seed).run(converse)

    async def converse(world):
        async with world.runtime() as runtime:
            ...

`run` calls the function again after each power cut, with what was durable; `world.life` counts. All
that the function keeps to itself is lost, as it would be; what must outlast a cut (a record of what
was acknowledged, say) stands outside of it.

What a cut leaves of the journal is what it has committed; of SQLite's files, all that was written
to them: to them it is the death of the process, not of the machine. What the disk makes of files
that were not synced is enumerated in `tests/faults`.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

import msgspec

from remora.api.runtime import Runtime
from remora.config import Config
from remora.errors import ConfigError
from remora.models.ports import as_embedder
from remora.storage.ports import Journal, LongTermStore
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing.faults import CommitFault, FaultyJournal, FaultyStore, ReadFault, StoreFault
from remora.testing.models import (
    FaultyEmbedder,
    FaultySummarizer,
    HashEmbedder,
    ModelFault,
    UnionSummarizer,
)
from remora.testing.simulation.loop import PowerCut, SeededLoop
from remora.testing.simulation.seams import HANG_S, seams
from remora.testing.simulation.stores import LaneStore, SimulatedStore

T = TypeVar("T")

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "models": {"timeout_s": 5.0},
        "buffer": {"summary_tokens": 100_000, "token_limit": 1_000_000},
        "activation": {"idle_s": 2.0},
        "supervisor": {
            "backoff_s": 0.05,
            "max_backoff_s": 2.0,
            "breaker_rest_s": 5.0,
            "summarize_concurrency": 2,
            "flush_concurrency": 2,
            "drain_s": 0.5,
        },
        "long_term": {"batch_ms": 1, "shards": 2},
    }
)
"""What a simulated runtime is configured by, unless it is told: short pauses, few workers, a token
counter without tables.
"""
_EPOCH = 1_700_000_000.0
_RESTART_S = 0.1  # less than most back-offs: what waited is found waiting
_FILES = Path("/dev/shm")  # noqa: S108 - made by mkdtemp; a simulated power cut needs no disk
KINDS: Mapping[str, Sequence[str]] = {
    "commit": get_args(CommitFault),
    "read": get_args(ReadFault),
    "store": get_args(StoreFault),
    "summarizer": get_args(ModelFault),
    "embedder": get_args(ModelFault),
}
"""How each port may fail."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong.

    Attributes:
        port: with what: ``commit``, ``read`` (of the journal in memory), ``store``, ``summarizer``,
            ``embedder``.
        nth: at which use of it while a runtime is open, over all lives, from 0. Each call to SQLite
            is one: a commit is several.
        kind: how; see `CommitFault`, `ReadFault`, `StoreFault`, `ModelFault`.
        times: at how many uses in a row.
    """

    port: str
    nth: int
    kind: str
    times: int = 1

    def __str__(self) -> str:
        often = f", {self.times} times" if self.times > 1 else ""
        return f"{self.port} {self.nth}: {self.kind}{often}"


Plan: TypeAlias = Sequence[Fault]


class WorldClock:
    """A loop's virtual time; implements `remora.runtime.clock.Clock`."""

    def __init__(self, loop: SeededLoop) -> None:
        self.monotonic = loop.time

    def time(self) -> float:
        """Seconds since the epoch."""
        return _EPOCH + self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let the loop's time pass."""
        await asyncio.sleep(seconds)


class _Luck:
    """Which of a port's uses go wrong."""

    def __init__(self, plan: Plan, port: str) -> None:
        self._kinds = {
            nth: one.kind
            for one in plan
            if one.port == port
            for nth in range(one.nth, one.nth + one.times)
        }
        self._uses = 0
        self.armed = False

    def __call__(self, *_: Any) -> Any:
        if not self.armed:
            return None
        self._uses += 1
        return self._kinds.get(self._uses - 1)


class World:
    """See the module.

    Args:
        seed: determines the whole run.
        rng: replaces the seed; hypothesis's generator can be shrunk.
        plan: what goes wrong.
        cuts: the steps at which the power is cut, in the first life, the second …; a life that ends
            earlier is not cut.
        journal: ``sqlite``, or ``memory`` for its reference, which is many times faster.
        long_term: ``lance``, or ``memory`` for its reference.
        idle, latency_s, max_steps, limit_s: see `SeededLoop`.

    Attributes:
        life: how often the power was cut so far.
        loop: this life's.
        fingerprints: of each life so far.
        steps, choices, foreign: the loops', over all lives.
    """

    def __init__(
        self,
        seed: int,
        *,
        rng: random.Random | None = None,
        plan: Plan = (),
        cuts: Sequence[int] = (),
        journal: Literal["memory", "sqlite"] = "memory",
        long_term: Literal["memory", "lance"] = "memory",
        idle: float = 0.02,
        latency_s: tuple[float, float] = (0.0001, 0.005),
        max_steps: int = 200_000,
        limit_s: float = 86_400.0,
    ) -> None:
        self.seed = seed
        self.rng = rng or random.Random(seed)
        self.life = 0
        self.loop = _loop(self.rng)
        self.fingerprints: list[int] = []
        self.steps = self.choices = self.foreign = 0
        self._cuts = list(cuts)
        self._loop_options: dict[str, Any] = {
            "idle": idle, "latency_s": latency_s, "max_steps": max_steps, "limit_s": limit_s
        }  # fmt: skip
        for one in plan:
            if one.port not in KINDS:
                raise ConfigError(f"there is no port {one.port}; there are {', '.join(KINDS)}")
            if one.kind not in KINDS[one.port]:
                raise ConfigError(
                    f"{one.port} does not fail by {one.kind!r}; it does by "
                    f"{', '.join(KINDS[one.port])}"
                )
        if journal not in {"memory", "sqlite"} or long_term not in {"memory", "lance"}:
            raise ConfigError(
                f"journal is memory or sqlite, long_term memory or lance; not {journal!r} and "
                f"{long_term!r}"
            )
        self._luck = {port: _Luck(plan, port) for port in KINDS}
        self._calm = False
        self._sqlite = journal == "sqlite"
        self._lance = long_term == "lance"
        self._directory: Path | None = None
        self._journal: FaultyJournal | None = None
        self._store: SimulatedStore | None = None
        self._lance_store: LaneStore | None = None
        self._sqlite_journal: SqliteJournal | None = None
        self._in_use = False

    # -- what a life is made of --------------------------------------------------------------------

    def luck(self, port: str) -> Callable[..., Any]:
        """Return what goes wrong with the next use of a port, by the plan; faulty ports ask."""
        return self._luck[port]

    def calm(self) -> None:
        """No more faults from now on, except power cuts.

        For the checks at the end.
        """
        self._calm = True
        for luck in self._luck.values():
            luck.armed = False

    @property
    def kept(self) -> tuple[Journal, LongTermStore] | None:
        """Return what is durable, to be looked at while no runtime is open.

        None where it is in files, or there is nothing yet.
        """
        if self._journal is None or self._store is None:
            return None
        return self._journal, self._store

    def latency(self) -> float:
        """How long something that is not this machine's takes, in seconds: mostly little."""
        return (
            self.loop.draw(0.0, 0.01)
            if self.loop.draw(0.0, 1.0) < 0.9
            else self.loop.draw(0.0, 2.0)
        )

    @asynccontextmanager
    async def runtime(self, *, config: Config = CONFIG, **options: Any) -> AsyncIterator[Runtime]:
        """A runtime over this world's stores.

        Takes the options of `Runtime`; journal, store and clock are the world's own.

        What the plan has for stores and models begins when it is open, and ends with `calm`.
        Without a summarizer or chat model of the caller's, a perfect one that fails by plan makes
        the summaries (`UnionSummarizer`); so it is with the embedder.

        Raises:
            ConfigError: there is one open already in this life, or an option is the world's own.
        """
        if own := {"journal", "store", "clock", "rng"} & set(options):
            raise ConfigError(f"{', '.join(sorted(own))}: that is the world's own")
        if self._in_use:
            raise ConfigError("one runtime at a time: two processes cannot own one memory")
        options.setdefault(
            "embedder",
            FaultyEmbedder(HashEmbedder(16), self._luck["embedder"], latency_s=self.latency),
        )
        if "summarizer" not in options and "chat_model" not in options:
            perfect = UnionSummarizer(latency_s=(0.0,))
            options["summarizer"] = FaultySummarizer(
                perfect, self._luck["summarizer"], latency_s=self.latency
            )
        for luck in self._luck.values():
            luck.armed = False
        dimension: int = as_embedder(
            options["embedder"], dimension=config.models.embedding_dimension
        ).dimension
        self._in_use = True
        try:
            async with Runtime.in_memory(
                config=config,
                journal=self._open_journal,
                store=self._open_store(config, dimension),
                clock=WorldClock(self.loop), rng=random.Random(self.seed), **options,
            ) as runtime:  # fmt: skip
                for luck in self._luck.values():
                    luck.armed = not self._calm
                yield runtime
        finally:
            self._in_use = False

    async def _open_journal(self) -> Journal:
        if self._sqlite:
            self._sqlite_journal = await SqliteJournal.open(
                self.directory / "journal.db", durability="power"
            )
            return self._sqlite_journal
        if self._journal is None:
            self._journal = FaultyJournal(
                self._luck["commit"],
                latency_s=lambda: self.loop.draw(0.0, 0.01),
                hang_s=HANG_S,
                read_fault=self._luck["read"],
            )
        else:
            self._journal = self._journal.restart()
        return self._journal

    def _open_store(self, config: Config, dimension: int) -> LongTermStore:
        inner: LongTermStore
        if self._lance:
            inner = self._lance_store = LaneStore.open(
                self.directory / "memory.lance",
                dimension=dimension,
                config=config.long_term,
                loop=self.loop,
            )
        else:
            inner = self._store = self._store or SimulatedStore(dimension)
        return FaultyStore(
            inner,
            self._luck["store"],
            latency_s=self.latency,
            hang_s=HANG_S,
            rng=random.Random(self.seed),
        )

    @property
    def directory(self) -> Path:
        """Where files are kept, in this life."""
        if self._directory is None:
            self._directory = Path(
                tempfile.mkdtemp(prefix="remora-world-", dir=_FILES if _FILES.is_dir() else None)
            )
        return self._directory

    @property
    def doubled(self) -> Sequence[str]:
        """Ids of rows that were added to long-term memory as new although they existed."""
        return self._store.doubled if self._store is not None else ()

    # -- its course --------------------------------------------------------------------------------

    def run(
        self,
        main: Callable[[Self], Coroutine[Any, Any, T]],
        *,
        on_cut: Callable[[], object] = lambda: None,
    ) -> T:
        """Call `main` in each life until it returns; what it returns.

        Args:
            main: what happens in each life.
            on_cut: called when the power goes: what is noted down from then on is a dead world's.

        Raises:
            Deadlock, Stuck: it never returns.
        """
        try:
            while True:
                cut_at = self._cuts[self.life] if self.life < len(self._cuts) else None
                started_s = self.loop.time() + (_RESTART_S if self.life else 0.0)
                self.loop = _loop(
                    self.rng, cut_at=cut_at, started_s=started_s, **self._loop_options
                )
                with seams(self.loop, self._luck["commit"]):
                    try:
                        result: T = self.loop.run_until_complete(main(self))
                    except PowerCut:
                        on_cut()
                        self._cut()
                    else:
                        return result
                    finally:
                        self.fingerprints.append(self.loop.fingerprint)
                        self.steps += self.loop.steps
                        self.choices += self.loop.choices
                        self.foreign += self.loop.foreign
                        self.loop.close()
                        self._let_go()
                self.life += 1
        finally:
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _cut(self) -> None:
        """Keep what is durable. Files are copied: the dead world still has its own open."""
        if self._lance_store is not None:
            self._lance_store.drop()
        if self._directory is not None:
            dead, self._directory = self._directory, None
            try:
                shutil.copytree(dead, self.directory, dirs_exist_ok=True)
            finally:
                shutil.rmtree(dead, ignore_errors=True)

    def _let_go(self) -> None:
        """Give the descriptors back that this life has not closed itself."""
        self._in_use = False
        if self._lance_store is not None:
            self._lance_store.drop()
        if self._sqlite_journal is not None:
            self._sqlite_journal.abandon()
        self._lance_store = self._sqlite_journal = None


def _loop(rng: random.Random, **options: Any) -> SeededLoop:
    return SeededLoop(rng, **options)  # type: ignore[abstract]  # what it does not do, it refuses
