"""Two owners that share a memory, started again whenever they end, and a worker that talks."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import remora
from remora.storage.postgres.cluster import read_owner
from tests.failures.netns import OtherMachine
from tests.failures.talk import Talk, Verdict, add_verdicts
from tests.machines import Machine, ServingOwner, running_owner, write_certificate
from tests.patience import until
from tests.postgres import Cluster

__all__ = [
    "FAULTY",
    "LEASE_S",
    "Found",
    "KeptOwner",
    "Pair",
    "add_found",
    "running_pair",
]

LEASE_S = 2.0
FAULTY = (sys.executable, "-m", "tests.failures.owner")
_schemas = itertools.count(1)


class Found(NamedTuple):
    """What a failure did.

    Attributes:
        verdict: of all that sessions saw.
        seconds: until an append was acknowledged again, in each try.
        moved: how often another process owned the memory afterwards.
        told: how many commits an owner said that it had lost.
    """

    verdict: Verdict
    seconds: list[float]
    moved: int = 0
    told: int = 0


class KeptOwner:
    """An owner that is started again whenever it ends, as a service manager does."""

    owner: ServingOwner

    def __init__(self, machine: Machine, prefix: Sequence[str], skew_s: float) -> None:
        self.machine = machine
        self.release = 0
        """Which it is the next time: see `tests.failures.owner`."""
        self._prefix, self._skew_s = prefix, skew_s
        self._started = asyncio.Event()
        self._begins = 0
        """Where the log of the process that runs now begins."""

    async def keep(self) -> None:
        log = self.machine.log
        while True:
            self._begins = log.stat().st_size if log.exists() else 0
            async with running_owner(
                self.machine,
                (*self._prefix, *FAULTY, "serve"),
                SKEW_S=str(self._skew_s),
                RELEASE=str(self.release),
            ) as self.owner:
                self._started.set()
                await self.owner.process.wait()

    async def serves(self) -> None:
        """Return when its log says that it serves."""
        await self._started.wait()
        await self.owner.said("shard_served")

    async def joins_again(self) -> None:
        """Return when the next process waits; the one that runs now ends."""
        ended = self.owner
        await until(lambda: self.owner is not ended and self.waits(), "the next one waits")

    def waits(self) -> bool:
        """Whether the process that runs now said that it is a node, and has not the shard."""
        said = self.machine.log.read_bytes()[self._begins :]
        return b"node_joined" in said and said.count(b"shard_served") == said.count(b"shard_left")


class Pair:
    """Two owners and a worker that talks.

    Args:
        cluster: with the journal.
        schema: of it.
        owners: the one that serves first, and the one that waits.
        memory: the worker's.
        talk: what the sessions of the worker say.
    """

    def __init__(
        self, cluster: Cluster, schema: str, owners: Sequence[KeptOwner], memory: Any, talk: Talk
    ) -> None:
        self.cluster, self.schema, self.owners = cluster, schema, owners
        self.memory, self.talk = memory, talk
        self.seconds: list[float] = []
        self.moved = 0

    async def epoch(self) -> int:
        found = await read_owner(self.cluster.dsn(), self.schema)
        assert found is not None
        return found.epoch

    async def keeper(self) -> KeptOwner:
        """That of the process that owns the memory now."""
        found = await read_owner(self.cluster.dsn(), self.schema)
        assert found is not None
        pid = int(found.owner.rpartition(":")[2])
        (kept,) = [one for one in self.owners if one.owner.pid == pid]
        return kept

    async def serving(self) -> ServingOwner:
        """The process that owns the memory now."""
        return (await self.keeper()).owner

    async def a_moment(self) -> None:
        """Talk for a time that differs, until one owner serves and the other waits."""
        await until(lambda: any(one.waits() for one in self.owners), "an owner waits")
        await self.talk.first_after(time.monotonic())
        await asyncio.sleep(random.random() * LEASE_S / 3)

    async def note(self, epoch: int, moment: float) -> None:
        """Note how long it took until the sessions could go on."""
        self.seconds.append(await self.talk.first_after(moment))
        self.moved += await self.epoch() > epoch

    async def found(self) -> Found:
        verdict = await self.talk.judge(self.memory)
        logs = "".join(one.machine.log.read_text() for one in self.owners)
        told = [
            int(one.partition("lost=")[2].split()[0].strip("\"',"))
            for one in logs.splitlines()
            if "journal_lost_commits" in one
        ]
        return Found(verdict, self.seconds, self.moved, sum(told))


@asynccontextmanager
async def running_pair(
    cluster: Cluster,
    path: Path,
    seed: int,
    *,
    dsn: str = "",
    other: OtherMachine | None = None,
    skews_s: tuple[float, float] = (0, 0),
    lease_s: float = LEASE_S,
    long_term: str = "{enabled: false}",
) -> AsyncIterator[tuple[Pair, Callable[[], Awaitable[Found]]]]:
    """The owners and the worker, and what ends them with a judgement."""
    schema = f"failure_{next(_schemas)}"
    more = await write_certificate(path) if other is not None else ""
    listens = ["127.0.0.1:0", "127.0.0.1:0"]
    if other is not None:
        listens = [f"{other.workers.there}:0", f"{other.workers.here}:0"]
    kept = [
        KeptOwner(
            Machine(
                path / name,
                dsn or cluster.dsn(),
                schema,
                lease_s=lease_s,
                listen=listen,
                more=more,
                long_term=long_term,
            ),
            other.prefix if other is not None and name == "one" else (),
            skew_s,
        )
        for name, listen, skew_s in zip(("one", "two"), listens, skews_s, strict=True)
    ]
    tasks = []
    try:
        async with AsyncExitStack() as stack:
            for one in kept:
                tasks.append(asyncio.ensure_future(one.keep()))
                if one is kept[0]:
                    await one.serves()
            memory = await stack.enter_async_context(remora.connect(kept[1].machine.file))
            talk = Talk(memory, seed)
            pair = Pair(cluster, schema, kept, memory, talk)
            talking = asyncio.ensure_future(talk.run())
            tasks.append(talking)

            async def end() -> Found:
                talk.ended.set()
                await talking
                return await pair.found()

            yield pair, end
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def add_found(found: Sequence[Found]) -> Found:
    return Found(
        add_verdicts(one.verdict for one in found),
        [one for each in found for one in each.seconds],
        sum(one.moved for one in found),
        sum(one.told for one in found),
    )
