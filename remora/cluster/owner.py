"""The process that owns a memory, and serves workers.

A worker starts it (`remora.cluster.spawn`), or a person does (``remora serve``). It takes requests
before tokenizer and embedder are loaded: workers count and check their messages themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import msgspec

from remora.api.runtime import Runtime
from remora.api.shards import made_for_owner, tell_status
from remora.cluster.control import Leave, ShardFigures
from remora.cluster.loading import load_ahead, load_rest
from remora.cluster.machines import Machines, read_machines
from remora.cluster.place import Place, boot_time
from remora.cluster.seat import Seat
from remora.cluster.serving import Served
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import WHOLE
from remora.cluster.sharing import NodeServer
from remora.cluster.spawn import COMMAND, Report, StartOrder, start_process
from remora.cluster.target import Target, read_target
from remora.cluster.term import find_loss
from remora.errors import DirectoryLocked, RemoraError
from remora.logging import get_logger
from remora.runtime.threads import run_in_thread
from remora.services.answering import AnswerThread, Workers
from remora.storage.lock import ReadLock
from remora.storage.private import unusable_directory

_logger = get_logger(__name__)
_LOOK_S = 1.0
_PAUSE_S = 0.05
_STANDBY_PAUSE_S = 10.0
_HAND_OVER_S = 2.0
_FIRST_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
            target = self._wait_for_lock(target)
            self._thread = self._announce()
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

    def _wait_for_lock(self, target: Target | None) -> Target | None:
        """Wait until no other program has the directory open; its ``owner.json`` stays till then.

        Returns the target, if it had to be read for that.

        Raises:
            DirectoryLocked: one has it open for longer than `lock_wait_s`.
        """
        end = None
        while True:
            lock = ReadLock(self._place.directory, shared=self._order.share != WHOLE)
            try:
                lock.acquire()
                lock.release()
            except DirectoryLocked:
                target = target or self._read_target()
                now = time.monotonic()
                end = now + target.config.lock_wait_s if end is None else end
                if now >= end:
                    raise
                time.sleep(_PAUSE_S)
            else:
                return target

    def _announce(self) -> AnswerThread:
        try:
            return self._seat.announce(self._asked_to_leave)
        except OSError as e:
            raise unusable_directory(self._place.directory, e) from e

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
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._stop.set)
        os.register_at_fork(
            before=_hold_signals, after_in_parent=_let_signals, after_in_child=_forget_signals
        )
        return loop

    async def _share(self, target: Target, machines: Machines) -> int:
        """Serve some of the memory's shards, where other machines serve the others."""
        self._watch_signals()
        await run_in_thread(self._seat.serve, target.digest)
        tell_status(target.runtime, self._seat.control)
        await NodeServer(target, machines, self._stop).run()
        self._seat.leave()
        _logger.info("owner_left")
        return 0

    async def _serve(self, target: Target) -> int:
        loop = self._watch_signals()
        limits = target.config.cluster
        share = self._order.share
        runtime = tell_status(target.runtime, self._seat.control)
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


_masks = threading.local()


def _hold_signals() -> None:
    """While a process is forked: until it has handlers of its own, one to it would be lost."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _let_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _forget_signals() -> None:
    """In a process that this one forked: a signal to it ends it, and does not tell the owner."""
    signal.set_wakeup_fd(-1)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    _let_signals()


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
