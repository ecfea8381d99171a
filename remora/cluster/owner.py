"""The process that owns a memory, and serves workers.

A worker starts it (`remora.cluster.spawn`), or a person does (``remora serve``). It takes requests
before tokenizer and embedder are loaded: workers count and check their messages themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

import remora
from remora.api.runtime import Runtime
from remora.api.shards import change_options, made_for_owner
from remora.cluster.control import Control, Leave, ShardFigures
from remora.cluster.loading import load_ahead, load_rest
from remora.cluster.machines import Machines, read_machines
from remora.cluster.place import NextOwner, OwnerInfo, Place
from remora.cluster.serving import Served
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import WHOLE
from remora.cluster.sharing import NodeServer, find_loss
from remora.cluster.spawn import COMMAND, Report, StartOrder, start_process
from remora.cluster.target import Target, read_target
from remora.errors import DirectoryLocked, RemoraError
from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.services.answering import AnswerThread, Workers
from remora.storage.files import open_private, unusable_directory
from remora.storage.lock import ReadLock, keep_owner_file, lock_error
from remora.system.clock import boot_time
from remora.system.forks import give_up_in_children, keep_in_children
from remora.system.locks import lock_file, unlock_file
from remora.system.processes import on_end_signals

# -- the owner's possessions from its start to its end: the lock, its sockets, and its reports -----
#
# Everything here blocks.

_TRIES_S = 1.0
_TAKEN_PAUSE_S = 0.02
_NEXT_OWNER_S = 10.0


class Seat:
    """Of the owner of a memory; one process at a time has it.

    Args:
        place: the directory, and which seat.
        owners: how many processes own the memory.
        target: what this owner was started with.
        stays: it was started by hand; see `Answer`.
        logs: it writes to ``owner.log``.

    Attributes:
        control: answers pings, once the owner is announced.
    """

    control: Control

    def __init__(
        self, place: Place, target: str, *, owners: int = 1, stays: bool, logs: bool
    ) -> None:
        self.place = place
        self._stays = stays
        self._logs = logs
        self._held = ExitStack()
        self._next: NextOwner | None = None
        self._files: dict[Path, int] = {}
        self.info = OwnerInfo(
            pid=os.getpid(),
            since="",
            socket="",
            target=target,
            release=remora.__version__,
            digest="",
            began=0.0,
            owners=owners,
        )

    def take(self, *, wait: bool = False) -> bool:
        """Become the owner; whether it did. With `wait`, as soon as there is no other."""
        descriptor = open_private(self.place.owner_lock, os.O_RDWR)
        give_up_in_children(descriptor)
        end = time.monotonic() + _TRIES_S
        while True:
            try:
                lock_file(descriptor, wait=wait)
            except BlockingIOError:
                if time.monotonic() > end:  # those who look whether it is free hold it, too
                    keep_in_children(descriptor)
                    os.close(descriptor)
                    return False
                time.sleep(_TAKEN_PAUSE_S)
            else:
                self._held.callback(_unlock, descriptor)
                return True

    def announce(self, on_leave: Callable[[Leave], None]) -> AnswerThread:
        """Say who owns the memory, and answer pings; returns the thread that does.

        Args:
            on_leave: called in the thread of the event loop, see `Control.attach`.

        Raises:
            DirectoryLocked: another process that lives answers in the directory.
            OSError: the directory takes no sockets.
        """
        path = self.place.socket
        self.control = Control(on_leave, stays=self._stays)
        tick = self.place.bound_log if self._logs else _do_nothing
        try:
            thread = AnswerThread(path, self.control.answer, tick)
        except OSError as e:
            if e.errno != errno.EADDRINUSE:
                raise
            raise lock_error(self.place.directory) from e
        self._held.callback(thread.stop)
        thread.start()
        self.info = msgspec.structs.replace(
            self.info,
            socket=str(path),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            began=boot_time(),
        )
        self._held.callback(self.place.remove_owner, self.info.pid)
        self.place.write_owner(self.info)
        self._held.enter_context(keep_owner_file(self.place.directory))
        self._files = {one: one.stat().st_ino for one in (path, self.place.owner_lock)}
        return thread

    def find_missing(self) -> str | None:
        """The path of a file without which no new worker finds this owner, and which has gone."""
        for path, number in self._files.items():
            if _number_of(path) != number:
                return str(path)
        found = self.place.read_owner()
        return None if found is not None and found.pid == self.info.pid else str(self.place.info)

    def serve(self, digest: str) -> None:
        """Say that requests are served from now on, with a configuration of this digest."""
        self.info = msgspec.structs.replace(self.info, digest=digest)
        self.place.write_owner(self.info)
        self.control.phase = "serving"

    def leave(self, message: Leave | None = None) -> None:
        """Say that no more requests are accepted; `message` says who comes next."""
        self.control.phase = "leaving"
        if message is not None and message.release:
            until = boot_time() + _NEXT_OWNER_S
            self._next = NextOwner(message.release, message.digest, until)

    def release(self) -> None:
        """Let another process become the owner."""
        if self._next is not None:
            self.place.write_next(self._next)
        self._held.close()


def _number_of(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _unlock(descriptor: int) -> None:
    unlock_file(descriptor)  # a forked process may have the file open
    keep_in_children(descriptor)
    os.close(descriptor)


def _do_nothing() -> None: ...


_logger = get_logger(__name__)
_LOOK_S = 1.0
_PAUSE_S = 0.05
_STANDBY_PAUSE_S = 10.0
_HAND_OVER_S = 2.0
_FIRST_S = 0.5


class Owner:
    """One life of an owner.

    Args:
        order: what to serve. One that stays ends when it is told to, not when the last worker has
            left.
        report: told when it serves, or why it does not.
    """

    def __init__(self, order: StartOrder, report: Callable[[Report], None]) -> None:
        self._order = order
        self._report = report
        self._stays = stays = order.stays
        self._place = order.place
        self._seat = Seat(
            self._place, order.target, owners=order.owners, stays=stays, logs=not stays
        )
        self._standby = _Standby(order, self._place)
        self._leave: Leave | None = None
        self._stop = asyncio.Event()
        self._code = 0
        self._thread: AnswerThread

    def run(self) -> int:
        """Own the memory and serve it until the end; returns the exit code."""
        target = None
        if self._order.standby:
            target = load_ahead(self._read_target())
        if not self.take():
            self._report(Report(taken=True))
            return 0
        try:
            return self.serve(target)
        finally:
            self._seat.release()

    def take(self) -> bool:
        """Become the owner; whether it did. A standby waits for it."""
        return self._seat.take(wait=self._order.standby)

    def serve(self, target: Target | None = None) -> int:
        """Serve until the end, as the owner; returns the exit code."""
        try:
            target = self._announce(target)
            if target is None:
                target = self._read_target()
            machines = read_machines(target.config)
            with asyncio.Runner() as runner:
                if machines is None:
                    return runner.run(self._serve(target))
                return runner.run(self._share(target, machines))
        except RemoraError as e:
            _logger.error("owner_failed", error=str(e), kind=type(e).__name__)
            self._report(Report(failed=f"{type(e).__name__}: {e}"))
            if self._stays:
                raise
            return 1

    def _announce(self, target: Target | None) -> Target | None:
        """Say who owns the memory, once no other program has the directory open.

        Until then its ``owner.json`` and its socket stay. None opens it while they are replaced.

        Returns the target, if it had to be read for that.

        Raises:
            DirectoryLocked: one has it open for longer than `lock_wait_s`.
            DirectoryUnusable: the directory takes no sockets.
        """
        end = None
        while True:
            reading = ReadLock(self._place.directory, shared=self._order.share != WHOLE)
            try:
                reading.acquire()
                try:
                    self._thread = self._seat.announce(self._asked_to_leave)
                finally:
                    reading.release()
            except DirectoryLocked:
                target = target or self._read_target()
                now = time.monotonic()
                end = now + target.config.lock_wait_s if end is None else end
                if now >= end:
                    raise
                time.sleep(_PAUSE_S)
            except OSError as e:
                raise unusable_directory(self._place.directory, e) from e
            else:
                return target

    def release(self) -> None:
        """Let another process become the owner."""
        self._seat.release()

    def _read_target(self) -> Target:
        target = read_target(self._order.target)
        if target.directory != self._place.directory:
            raise RemoraError(
                f"{self._order.target} is the memory in {target.directory} here, and in "
                f"{self._place.directory} in the worker: name the directory by an absolute path"
            )
        return msgspec.structs.replace(target, runtime=made_for_owner(target.runtime))

    def _asked_to_leave(self, message: Leave) -> None:
        if not self._stays:
            self._leave = message
            self._stop.set()

    # -- serving -----------------------------------------------------------------------------------

    def _watch_signals(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        self._seat.control.attach(loop)
        on_end_signals(loop, self._stop.set)
        return loop

    async def _share(self, target: Target, machines: Machines) -> int:
        """Serve some of the memory's shards, where other machines serve the others."""
        self._watch_signals()
        await run_in_thread(self._seat.serve, target.digest)
        change_options(target.runtime, control=self._seat.control)
        await NodeServer(target, machines, self._stop).run()
        self._seat.leave()
        _logger.info("owner_left")
        return 0

    async def _serve(self, target: Target) -> int:
        loop = self._watch_signals()
        limits = target.config.cluster
        share = self._order.share
        runtime = change_options(target.runtime, control=self._seat.control)
        opened = ShardedRuntime.of(runtime, shards=limits.shards, share=share)
        async with opened as memory:
            runtimes = cast("Sequence[Runtime]", memory.shards)
            served = Served(
                [(one.internals, one) for one in runtimes],
                whole=memory,
                share=share,
                of=memory.count,
            )
            workers = Workers(self._thread, loop, lambda: served)
            await workers.start()
            warming = loop.create_task(_warm_up(target, memory), name="remora.warm_up")
            await run_in_thread(self._seat.serve, target.digest)
            _logger.info(
                "owner_serves",
                shards=len(memory.shards),
                number=share.number,
                owners=share.owners,
                target=target.text,
                seconds=boot_time() - self._seat.info.began,
                cpu_s=time.process_time(),
            )
            self._seat.control.figures = partial(_look, memory, served)
            self._report(Report(serving=True))
            if limits.standby:
                await run_in_thread(self._standby.start)
            await self._wait_for_end(memory, served, limits.linger_s)
            self._seat.leave(self._leave)
            await run_in_thread(self._standby.stop)
            warming.cancel()
            await asyncio.gather(warming, return_exceptions=True)
            drain_s = target.config.supervisor.drain_s
            await workers.drain(min(drain_s, _HAND_OVER_S) if self._leave else drain_s)
        _logger.info("owner_left")
        return self._code

    async def _wait_for_end(self, memory: ShardedRuntime, served: Served, linger_s: float) -> None:
        """Return when the owner is to end: told to, or not needed, or not the owner any more."""
        loop = asyncio.get_running_loop()
        needed_at = loop.time()
        pause_s = min(_LOOK_S, max(linger_s / 4, 0.05))
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
            if served.links:
                needed_at = loop.time()
            elif not self._stays and loop.time() - needed_at >= linger_s:
                _logger.info("owner_not_needed", linger_s=linger_s)
                return
            if (problem := _find_loss(memory)) is not None:
                _logger.error("owner_lost_memory", error=problem)
                self._code = 1
                return
            if (missing := await run_in_thread(self._seat.find_missing)) is not None:
                _logger.error("owner_file_missing", path=missing)
                self._code = 1
                return
            self._standby.look()


def _look(memory: ShardedRuntime, served: Served) -> tuple[int, tuple[ShardFigures, ...]]:
    """How many workers are connected, and what each shard does; from any thread."""
    try:
        registries = [shard.statistics().registry for shard in memory.shards]
    except RemoraError:  # it closes
        return served.links, ()
    epochs = [shard.info.epoch for shard in served.shards]
    return served.links, tuple(
        ShardFigures(epoch, one.live, one.queued)
        for epoch, one in zip(epochs, registries, strict=True)
    )


def _find_loss(memory: ShardedRuntime) -> str | None:
    """Why a shard has ended by itself; None if none has."""
    found = (find_loss(cast("Runtime", shard)) for shard in memory.shards)
    return next((problem for problem in found if problem is not None), None)


async def _warm_up(target: Target, memory: ShardedRuntime) -> None:
    """Load what requests with a query need; they wait for it, others do not.

    Loading takes much of the interpreter, so what waited for an owner is answered before.
    """
    await asyncio.sleep(_FIRST_S)
    await run_in_thread(load_rest, target, abandon_on_cancel=True)
    with contextlib.suppress(RemoraError):  # who asks gets the error
        await memory.ready()
    gc.freeze()  # a hundred thousand objects of libraries, which live as long as the process


class _Standby:
    """The process that waits for its owner's death, with everything loaded; it is kept running."""

    def __init__(self, order: StartOrder, place: Place) -> None:
        self._order = msgspec.structs.replace(order, standby=True, stays=False)
        self._place = place
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def start(self) -> None:
        """Start it. Blocks."""
        self._began = time.monotonic()
        self._process = start_process(COMMAND, self._order, self._place)
        assert self._process.stdout is not None
        self._process.stdout.close()  # nobody waits for its report

    def look(self) -> None:
        """Start it again if it has ended."""
        process = self._process
        if process is None or process.poll() is None:
            return
        if time.monotonic() - self._began > _STANDBY_PAUSE_S:
            _logger.warning("standby_ended", code=process.returncode)
            self.start()

    def stop(self) -> None:
        """End it: another owner comes, or none. Blocks."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()  # it holds nothing
            process.wait()
