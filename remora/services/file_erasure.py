"""The second step of an erasure: files are rewritten, the journal is vacuumed, the note removed.

Erasures that wait share one rewriting of each table and one vacuum of the journal. Each ends or
fails alone: after a failure those that failed are tried one by one, and together again after a
success. A failed one is retried until it ends, with growing pauses; its caller is told after a few
attempts, because the cause may last.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from itertools import product

import anyio
import anyio.abc
import msgspec

from remora.errors import ErasureDelayed, RemoraError, RuntimeClosed
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.concurrency import map_concurrently
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import RetryPolicy
from remora.runtime.probes import probe
from remora.runtime.promise import Promise
from remora.storage.erasure_notes import (
    FAILURES_SETTING,
    ErasureFailures,
    WaitingErasure,
    describe_failure,
    encode_failures,
    list_waiting,
)
from remora.storage.ports import Erasure, Journal, LongTermStore

__all__ = ["ErasureStatistics", "FileEraser", "FileErasure"]

_logger = get_logger(__name__)
_AT_ONCE = 64
_MOST_UNTOLD = 6  # attempts until the caller is told


class ErasureStatistics(msgspec.Struct, frozen=True):
    """Erasures since start, and those that wait now.

    Attributes:
        waiting: their files are not rewritten yet.
        delayed: those of them that have failed at least once.
        finished: nothing is left of what was to be erased.
        failures: attempts that failed.
    """

    waiting: int = 0
    delayed: int = 0
    finished: int = 0
    failures: int = 0


class FileErasure:
    """An erasure whose files are not rewritten yet.

    Attributes:
        note: what is erased.
        bars: closed when it has ended; they refuse the user's requests until then.
        rows: rows of long-term memory that were removed.
        failed: how often, and why.
        done: no byte is left.
        settled: it is done, or the caller was told that it takes longer.
        next_try: the attempt that begins next has ended.
        due: it is to be tried now.
        caller: who waits for it.
    """

    def __init__(self, note: Erasure, bars: ExitStack, failed: ErasureFailures) -> None:
        self.note = note
        self.bars = bars
        self.rows = 0
        self.failed = failed
        self.done = anyio.Event()
        self.settled = anyio.Event()
        self.next_try = anyio.Event()
        self.due = True
        self.caller: Promise | None = None


class FileEraser:
    """Rewrites files.

    Args:
        journal: has the notes.
        stores: opens every store that may hold rows, old ones included.
        clock: for back-off.
        retry: for back-off.
        rng: for jitter.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        stores: Callable[[], AbstractAsyncContextManager[Sequence[LongTermStore]]],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
    ) -> None:
        self._journal = journal
        self._stores = stores
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self._waiting: list[FileErasure] = []
        self._event = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._one_by_one = self._closed = False
        self._kept_failures = ""
        self._finished = self._failures = 0
        self.before_scrub: Callable[[Collection[str]], Awaitable[None]] = _do_nothing
        """Given the users, by digests, of whom nothing is left in tables."""

    # -- asking ------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker, which ends when the task group is cancelled."""
        self._tasks = tasks
        tasks.start_soon(self._run, name="remora.erasure")

    def enqueue(
        self, note: Erasure, bars: ExitStack, failed: ErasureFailures | None = None
    ) -> FileErasure:
        """Have what a note names erased from the files."""
        now_us = int(self._clock.time() * 1_000_000)
        case = FileErasure(note, bars, failed or ErasureFailures(now_us, 0, ""))
        self._waiting.append(case)
        self._event.set()
        return case

    def waiting(self) -> list[WaitingErasure]:
        """Those that are not done, oldest first."""
        cases = sorted(self._waiting, key=lambda case: case.note.number)
        return list_waiting(
            [case.note for case in cases], {case.note.number: case.failed for case in cases}
        )

    def statistics(self) -> ErasureStatistics:
        """Counters."""
        delayed = sum(case.failed.attempts > 0 for case in list(self._waiting))
        return ErasureStatistics(len(self._waiting), delayed, self._finished, self._failures)

    async def retry(self) -> list[WaitingErasure]:
        """Try all that wait once more, now; returns those that still wait.

        Raises:
            RuntimeClosed: the runtime closed before.
        """
        tries = [case.next_try for case in self._waiting]
        for case in self._waiting:
            case.due = True
        self._event.set()
        for tried in tries:
            await tried.wait()
        if self._closed:
            raise RuntimeClosed("the runtime closed before all was erased; the next start goes on")
        return self.waiting()

    def abandon(self) -> None:
        """Wake those who wait in `retry`, as the runtime closes; the notes stay in the journal."""
        self._closed = True
        for case in self._waiting:
            case.next_try.set()

    # -- working -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            cases = self._choose()
            if cases:
                await self._try(cases)
            else:
                self._event = anyio.Event()
                await self._event.wait()

    def _choose(self) -> list[FileErasure]:
        """New ones together, without those that have failed."""
        due = [case for case in self._waiting if case.due]
        new = [case for case in due if not case.failed.attempts]
        return new or (due[:1] if self._one_by_one else due)

    async def _try(self, cases: Sequence[FileErasure]) -> None:
        tried = [case.next_try for case in cases]
        for case in cases:
            case.due, case.next_try = False, anyio.Event()
        try:
            errors = await self._erase(cases)
            self._one_by_one = bool(errors)
            if errors:
                self._note_failures(errors)
            await self._keep_failures()
            for case, error in errors.items():  # now an operator finds what the caller is told
                self._tell_caller(case, error)
        finally:
            for event in tried:
                event.set()

    async def _erase(self, cases: Sequence[FileErasure]) -> dict[FileErasure, Exception]:
        """Erase what can be erased; returns why the others failed."""
        errors: dict[FileErasure, Exception] = {}
        try:
            await call_guarded(self._rewrite, cases, errors)
            sound = [case for case in cases if case not in errors]
            if sound:
                whole = [case.note for case in sound if not case.note.session_key]
                users = {user for note in whole for user, _ in note.owners}
                await call_guarded(self.before_scrub, users)
                await call_guarded(self._journal.scrub)
                await call_guarded(self._finish, sound, errors)
        except Exception as e:
            errors |= dict.fromkeys([case for case in cases if case not in errors], e)
        return {case: error for case, error in errors.items() if not case.done.is_set()}

    async def _rewrite(
        self, cases: Sequence[FileErasure], errors: dict[FileErasure, Exception]
    ) -> None:
        async with self._stores() as stores:

            async def rewrite_one(case: FileErasure) -> None:
                try:
                    for store, owner in product(stores, case.note.owners):
                        case.rows += await call_guarded(store.erase, *owner)
                except Exception as e:
                    errors[case] = e

            await map_concurrently(rewrite_one, cases, concurrency=_AT_ONCE)

    async def _finish(
        self, cases: Sequence[FileErasure], errors: dict[FileErasure, Exception]
    ) -> None:
        notes = await self._journal.erasures()
        ended: list[FileErasure] = []
        for case in cases:
            # A retried deletion, or a caller that asked again, may have left several notes. One
            # that stayed would have the next start erase what the user has written in the meantime.
            same = [note.number for note in notes if _is_covered(note, case.note)]
            try:
                for number in (*same, case.note.number):
                    if number:  # what was deleted one by one has no row (`services/deleting.py`)
                        await self._journal.finish_erasure(number)
            except Exception as e:
                errors[case] = e
                continue
            ended += [one for one in self._waiting if one is case or one.note.number in same]
            for one in ended:
                self._end(one)
        _logger.info("erasures_completed", notes=len(ended), rows=sum(case.rows for case in ended))

    def _end(self, case: FileErasure) -> None:
        if not case.done.is_set():
            self._waiting.remove(case)
            self._finished += 1
            case.bars.close()
            for event in (case.done, case.settled, case.next_try):
                event.set()

    # -- failing -----------------------------------------------------------------------------------

    def _note_failures(self, errors: dict[FileErasure, Exception]) -> None:
        assert self._tasks is not None
        probe("erasure_retried")
        waits = []
        for case, error in errors.items():
            attempts = case.failed.attempts + 1
            case.failed = ErasureFailures(case.failed.since_us, attempts, describe_failure(error))
            waits.append(self._retry.delay_s(attempts, self._rng))
            self._tasks.start_soon(self._wake, case, waits[-1], name="remora.erasure.pause")
        self._failures += len(errors)
        _logger.warning(
            "erasure_failed",
            notes=len(errors),
            attempts=max(case.failed.attempts for case in errors),
            retry_s=min(waits),
            errors=sorted({case.failed.error for case in errors})[:3],
        )

    async def _wake(self, case: FileErasure, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        case.due = True
        self._event.set()

    @staticmethod
    def _tell_caller(case: FileErasure, error: Exception) -> None:
        """Tell who waits if the cause lasts, by its own account or by the number of attempts."""
        attempts, passes = case.failed.attempts, bool(getattr(error, "retryable", False))
        if passes and attempts < _MOST_UNTOLD:
            return
        if case.caller is not None:
            delayed = ErasureDelayed(
                f"the journal has erased it, but its files could not be rewritten ({attempts} "
                f"attempt{'s' if attempts != 1 else ''}, at last {type(error).__name__}: {error}). "
                "It is tried again in the background and at the next start, until it is done. "
                "Remove the cause; to try at once, call Runtime.retry_erasures(), or without a "
                "server `remora jobs retry --all`",
                attempts=attempts,
                retryable=passes,
            )
            delayed.__cause__ = error
            case.caller.reject(delayed)
        case.settled.set()

    async def _keep_failures(self) -> None:
        """Keep the failures where an operator finds them, if they have changed."""
        failures = encode_failures(
            {case.note.number: case.failed for case in self._waiting if case.failed.attempts}
        )
        if failures == self._kept_failures:
            return
        try:
            await call_guarded(self._journal.change_settings, {FAILURES_SETTING: failures})
        except RemoraError as e:  # it only informs
            _logger.warning("erasure_failures_not_kept", error=describe_failure(e))
        else:
            self._kept_failures = failures


async def _do_nothing(_: Collection[str]) -> None: ...


def _is_covered(note: Erasure, by: Erasure) -> bool:
    """An older note of the same user or session."""
    return note.number < by.number and not set(note.owners).isdisjoint(by.owners)
