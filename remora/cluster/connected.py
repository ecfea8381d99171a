"""A worker's side of a memory that another process owns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Self, cast

from remora.api.shards import make_shards
from remora.cluster.machines import read_machines
from remora.cluster.place import Place
from remora.cluster.remote import RemoteMemory
from remora.cluster.seeking import OwnerSeeker
from remora.cluster.sharded import Shard, ShardedRuntime
from remora.cluster.sharding import choose_layout
from remora.cluster.spawn import OwnerFinder
from remora.cluster.target import Target
from remora.cluster.watch import OwnerWatch
from remora.runtime.threads import run_in_thread
from remora.services.parts import PartsHolder

__all__ = ["ConnectedRuntime"]


class ConnectedRuntime(ShardedRuntime):
    """A memory that another process owns, with the methods of `Runtime`; see `remora.connect`.

    Entering it raises `OwnerUnreachable` if no owner answers in time, `OwnerFailed` if none can be
    started, and `ProtocolMismatch` if it and this process are of releases that do not understand
    each other. A memory that was connected before its process was forked is closed in the child:
    connect in each worker.
    """

    def __init__(self, target: Target) -> None:
        machines = read_machines(target.config)
        layout = None
        if machines is None:
            layout = choose_layout(target.directory, target.config.cluster.shards)
        like = [target.runtime] if layout is None else make_shards(target.runtime, layout)
        self._target = target
        self._finder = OwnerFinder(target, Place(target.directory))
        self._watch: OwnerWatch | None = None
        self._seeker = None
        if machines is not None:
            self._seeker = OwnerSeeker(machines, target.config.cluster.wait_s, self._drop)
        dial = self._dial if self._seeker is None else self._seeker.find
        shares_files = machines is None
        self._remote = RemoteMemory(like, dial, digest=target.digest, shares_files=shares_files)
        shards = cast("Sequence[Shard]", self._remote.shards)
        super().__init__(shards, transfers=self._remote.transfers)
        self._lifetime = _Lifetime(self._remote.shards[0].holder)
        _connected.add(self._remote)

    def __repr__(self) -> str:
        return f"connect({self._target.text!r})"

    @property
    def path(self) -> Path:
        """The memory directory."""
        return self._target.directory

    async def start(self) -> Self:
        """Connect. See `remora.Runtime.start`."""
        try:
            return await super().start()
        except BaseException:
            if self._seeker is not None:
                self._seeker.close()
            raise

    async def aclose(self) -> None:
        """Finish what was begun, and disconnect. The owner goes on."""
        try:
            await super().aclose()
        finally:
            self._stop_watching()
            if self._seeker is not None:
                self._seeker.close()

    def _drop(self) -> None:
        self._remote.drop()

    async def _dial(self) -> str:
        """The socket of an owner that serves, which is watched from now on."""
        info = await run_in_thread(self._finder.find, abandon_on_cancel=True)
        self._stop_watching()
        self._watch = OwnerWatch(info, self._target.config.cluster)
        self._watch.start()
        return info.socket

    def _stop_watching(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()


class _Lifetime:
    """What `remora.blocking` asks of a runtime."""

    def __init__(self, holder: PartsHolder) -> None:
        self.holder = holder

    @property
    def home(self) -> object:
        """The event loop of the open runtime."""
        return self.holder.home


_connected: weakref.WeakSet[RemoteMemory] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked process shares the sockets of its parent, whose requests it would garble."""
    for memory in list(_connected):
        for shard in memory.shards:
            if shard.holder.phase == "open":
                shard.holder.close(
                    why="this process was forked from one that had connected to the memory: "
                    "connect in each worker, after the fork (in its lifespan, for instance)"
                )


os.register_at_fork(after_in_child=_close_in_child)
