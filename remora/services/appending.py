"""Appends, and how long they wait while a session is over its overdraft.

The session's actor refuses an append that must wait: it holds nothing, so summaries, loads
and an erasure go on. The append is tried again whenever the compaction that it waits for
ends. Later appends of the session wait behind it, so that they stay in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import msgspec

from remora.actors.session.messages import Append, Replace
from remora.errors import OverdraftReached
from remora.ids import SessionKey
from remora.messages import Receipt
from remora.runtime.clock import Clock
from remora.runtime.meters import HistogramMeter
from remora.runtime.probes import probe
from remora.runtime.registry import ActorRegistry, Reserved
from remora.runtime.shared_call import SharedCall
from remora.runtime.supervisor import Supervisor
from remora.services.instructions import Instructions
from remora.services.intake import UNCOUNTED, CountingThread
from remora.storage.attachments import Attachments, take_blobs

_PAUSE_S = 0.02  # a job that is not known is about to start, or a dead letter


class _Line:
    """Appends of one session that wait, in order.

    Args:
        refused: what the session last answered to one of them.
    """

    def __init__(self, refused: OverdraftReached) -> None:
        self.lock = anyio.Lock()
        self.waiting = 0
        self.refused = refused


class LocalAppends:
    """Appends to sessions whose actors are in this process.

    Args:
        actors: the sessions.
        supervisor: runs the compactions.
        clock: says how long an append has waited for the session already.
        wait_s: how long an append waits for them that has no deadline of its own.
        meter: counts how long each took that succeeded.
        counting: counts the tokens of entries that are `UNCOUNTED`.
        attachments: stores those of messages.
        begin_call: calls a function in a task of the runtime.
        note_change: told of a user whose messages may have changed.
        instructions: notices them in what users say; None to notice none.
    """

    def __init__(
        self,
        actors: ActorRegistry,
        supervisor: Supervisor,
        clock: Clock,
        wait_s: float,
        meter: HistogramMeter,
        counting: CountingThread,
        attachments: Attachments,
        begin_call: Callable[[Callable[[], Awaitable[Any]]], SharedCall[Any]],
        note_change: Callable[[str], None],
        instructions: Instructions | None = None,
    ) -> None:
        self._instructions = instructions
        self._begin_call = begin_call
        self._attachments = attachments
        self._note_change = note_change
        self._meter = meter
        self._actors = actors
        self._supervisor = supervisor
        self._clock = clock
        self._wait_s = wait_s
        self._counting = counting
        self._lines: dict[SessionKey, _Line] = {}

    async def append(self, key: SessionKey, request: Append, timeout_s: float | None) -> Receipt:
        """See `remora.Session.append`."""
        for entry in request.entries:
            if entry.blobs is not None:
                return await self.begin(key, request, timeout_s)
        began_s = perf_counter()
        begun = self._clock.monotonic()
        line = self._lines.get(key)
        # A job that waited for a compaction could hold it up.
        if line is None or self._supervisor.in_a_job():
            self._counting.in_progress += 1
            try:
                receipt = await self._ask(key, request, timeout_s)
                await self._note_stored(key, request, receipt)
            except OverdraftReached as e:
                if not e.waits or self._supervisor.in_a_job():
                    raise
                line = self._lines.setdefault(key, _Line(e))  # others may be in line
            else:
                self._meter.add(perf_counter() - began_s)
                return receipt
            finally:
                self._counting.in_progress -= 1
        waited = self._clock.monotonic() - begun
        wait_s = self._wait_s if timeout_s is None else timeout_s
        until = anyio.current_time() + wait_s - waited
        line.waiting += 1
        try:
            receipt = await self._wait(line, key, request, until, bounded=timeout_s is not None)
            await self._note_stored(key, request, receipt)
        finally:
            line.waiting -= 1
            if not line.waiting:
                del self._lines[key]
        self._meter.add(perf_counter() - began_s)
        return receipt

    def begin(
        self, key: SessionKey, request: Append, timeout_s: float | None
    ) -> Awaitable[Receipt]:
        """`append` of messages with attachments, which has its place in the session's order now.

        It is done to its end if its caller is cancelled: the attachments are kept until it is known
        whether a message refers to them.
        """
        entries, blobs = take_blobs(request.entries)
        request = msgspec.structs.replace(request, entries=entries)
        reserved = None
        if key not in self._lines and entries[0].tokens != UNCOUNTED:
            reserved = self._actors.reserve(key, request, size=request.size, timeout_s=timeout_s)
        store = partial(self._store, key, request, blobs, reserved, timeout_s)
        return self._finish(store)

    async def _finish(self, store: Callable[[], Awaitable[Receipt]]) -> Receipt:
        receipt: Receipt = await self._begin_call(store).result()
        return receipt

    async def _store(
        self,
        key: SessionKey,
        request: Append,
        blobs: dict[bytes, bytes],
        reserved: Reserved | None,
        timeout_s: float | None,
    ) -> Receipt:
        waiting = reserved
        try:
            async with self._attachments.storing(key.user, key.session, blobs):
                if reserved is None:
                    return await self.append(key, request, timeout_s)
                waiting = None
                self._actors.complete(reserved)
                try:
                    receipt: Receipt = await reserved.wait()
                except OverdraftReached as e:
                    if not e.waits:
                        raise
                    return await self.append(key, request, timeout_s)
        except Exception as e:
            if waiting is not None:
                self._actors.complete(waiting, e)
            raise
        await self._note_stored(key, request, receipt)
        return receipt

    async def _note_stored(self, key: SessionKey, request: Append, receipt: Receipt) -> None:
        if request.replace and not receipt.duplicate:
            self._note_change(key.user)
            await self._attachments.clean(key.user)
        if self._instructions is not None:
            await self._instructions.notice(key, request.entries, receipt, replaced=request.replace)

    async def replace(self, key: SessionKey, request: Replace) -> Receipt:
        """See `remora.Session.load_state_dict`."""
        entries, blobs = take_blobs(request.entries)
        request = msgspec.structs.replace(request, entries=entries)
        async with self._attachments.storing(key.user, key.session, blobs):
            receipt: Receipt = await self._actors.ask(key, request, size=request.size)
        if self._instructions is not None:
            await self._instructions.notice(key, request.entries, receipt)
        return receipt

    def _ask(self, key: SessionKey, request: Append, timeout_s: float | None) -> Awaitable[Receipt]:
        """Send it to the session; the answer is to be awaited at once."""
        if request.entries[0].tokens != UNCOUNTED:
            return self._actors.ask(key, request, size=request.size, timeout_s=timeout_s)
        reserved = self._actors.reserve(key, request, size=request.size, timeout_s=timeout_s)
        self._counting.add(request.entries, reserved)
        return reserved.wait()

    async def _wait(
        self, line: _Line, key: SessionKey, request: Append, until: float, *, bounded: bool
    ) -> Receipt:
        """Wait for the turn, and then for compactions; `bounded`: the caller gave a deadline."""
        with anyio.CancelScope(deadline=until) as scope:
            await line.lock.acquire()
        if scope.cancelled_caught:
            raise _in_vain(line)
        job = ""
        try:
            while True:
                left = max(until - anyio.current_time(), 0.0) if bounded else None
                try:  # outside of the scope: it may have written when the deadline passes
                    return await self._ask(key, request, left)
                except OverdraftReached as e:
                    line.refused = refused = e
                probe("append_waited")
                with anyio.CancelScope(deadline=until) as scope:
                    await self._supervisor.wait_for_job(refused.job)
                    await anyio.sleep(_PAUSE_S if refused.job == job else 0)
                    job = refused.job
                if scope.cancelled_caught:
                    raise _in_vain(line)
        finally:
            line.lock.release()


def _in_vain(line: _Line) -> OverdraftReached:
    """The error of an append that waited too long: that of the first in its line."""
    probe("append_waited_in_vain")
    known = line.refused
    return OverdraftReached(
        str(known), tokens=known.tokens, limit=known.limit, job=known.job, waits=True
    )
