"""The second step of an erasure: rows leave long-term memory, and files are rewritten.

Rows leave long-term memory at once. From then on nothing finds them, and the user may write new
ones. The bytes leave later: tables that held the rows are rewritten, the journal is vacuumed, and
the note is removed. All that costs what everybody has stored, so erasures that come one after
another share it: after each rewriting there is a pause, ten times as long as that took.

Each erasure ends or fails alone: after a failure those that failed are tried one by one, and
together again after a success. A failed one is retried until it ends, with growing pauses; its
caller is told after a few attempts, because the cause may last.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from datetime import UTC, datetime
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
    NO_SESSION,
    PROGRESS_SETTING,
    ErasureProgress,
    WaitingErasure,
    describe_failure,
    encode_progress,
    list_waiting,
)
from remora.storage.ports import Erasure, Journal, LongTermStore

_logger = get_logger(__name__)
_AT_ONCE = 64
_MOST_UNTOLD = 6  # attempts until the caller is told
_PAUSE = 10.0  # after files were rewritten, in times of what that took
_JOIN_S = 1.0  # how long a rewriting waits for erasures that have begun


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
        bars: closed when no row is left; they refuse the user's requests until then.
        rows: rows of long-term memory that were removed.
        progress: how far it is, how often it failed, and why.
        gathered: files were rewritten a moment ago, and are rewritten again by the time that
            `FileEraser.latest` gives; nobody need wait.
        released: the user's requests are accepted, or the caller was told that it takes longer.
        settled: no byte is left, or the caller was told that it takes longer.
        done: no byte is left.
        next_try: the attempt that begins next has ended.
        begins: rows leave long-term memory for the first time. Nothing else may remove them: the
            user may write new ones as soon as that has ended.
        due: it is to be tried now.
        caller: who waits for it.
    """

    def __init__(self, note: Erasure, bars: ExitStack, progress: ErasureProgress) -> None:
        self.note = note
        self.bars = bars
        self.rows = 0
        self.progress = progress
        self.gathered = False
        self.released, self.settled, self.done = anyio.Event(), anyio.Event(), anyio.Event()
        self.next_try = anyio.Event()
        self.begins = self.due = False
        self.caller: Promise | None = None

    @property
    def fresh(self) -> bool:
        """Return whether it has not failed."""
        return not self.progress.attempts


class FileEraser:
    """Rewrites files.

    Args:
        journal: has the notes.
        stores: opens every store that may hold rows, old ones included.
        clock: for back-off.
        retry: for back-off.
        rng: for jitter.
        within_s: how long bytes may stay in files when erasures follow each other; 0: each caller
            waits until no byte is left.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        stores: Callable[[], AbstractAsyncContextManager[Sequence[LongTermStore]]],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
        within_s: float,
    ) -> None:
        self._journal = journal
        self._stores = stores
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self._within_s = within_s
        self._waiting: list[FileErasure] = []
        self._beginning = 0  # erasures whose rows are being deleted
        self._resting = 0  # rewritings that run, or ended a moment ago
        self._event = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._one_by_one = self._closed = False
        self._kept_progress = ""
        self._keeping = anyio.Lock()
        self._finished = self._failures = 0
        self.when_removed: Callable[[Collection[str]], Awaitable[None]] = _do_nothing
        """Given a user, by digests, of whom no row is left."""

    # -- asking ------------------------------------------------------------------------------------

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker, which ends when the task group is cancelled."""
        self._tasks = tasks
        tasks.start_soon(self._run, name="remora.erasure")

    def enqueue(
        self, note: Erasure, bars: ExitStack, progress: ErasureProgress | None = None
    ) -> FileErasure:
        """Have what a note names erased from the files."""
        case = FileErasure(note, bars, progress or ErasureProgress(self._now_us()))
        self._waiting.append(case)
        if case.progress.removed or self._tasks is None:
            self._set_due(case)
        else:
            case.begins = True
            self._tasks.start_soon(self._begin, case, name="remora.erasure.begin")
        return case

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """An erasure has begun, and is enqueued soon: files that wait for it are rewritten once."""
        self._beginning += 1
        try:
            yield
        finally:
            self._beginning -= 1
            self._event.set()

    def latest(self) -> datetime:
        """When the bytes of an erasure that is gathered now are gone at the latest, in UTC."""
        return datetime.fromtimestamp(self._clock.time() + self._within_s, UTC)

    def _set_due(self, case: FileErasure) -> None:
        case.due = True
        self._event.set()

    def _now_us(self) -> int:
        return int(self._clock.time() * 1_000_000)

    def waiting(self) -> list[WaitingErasure]:
        """Return those that are not done, oldest first."""
        cases = sorted(self._waiting, key=lambda case: case.note.number)
        return list_waiting(
            [case.note for case in cases], {case.note.number: case.progress for case in cases}
        )

    def statistics(self) -> ErasureStatistics:
        """Counters."""
        delayed = sum(not case.fresh for case in list(self._waiting))
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

    async def _begin(self, case: FileErasure) -> None:
        """Have rows leave long-term memory, and the files rewritten soon; what fails is retried."""
        errors: dict[FileErasure, Exception] = {}
        try:
            await call_guarded(self._remove_rows, [case], errors)
            if errors:
                raise errors[case]
        except Exception as e:
            case.begins = case.due = False
            await self._fail({case: e})
            case.next_try.set()
            case.next_try = anyio.Event()
        else:
            case.begins = False
            case.gathered = bool(self._resting and self._within_s) and not case.due
            if case.gathered:  # others may fail again and again, and each attempt has its pause
                assert self._tasks is not None
                wait_s = self._within_s / 2
                self._tasks.start_soon(self._wake, case, wait_s, name="remora.erasure.pause")
            else:
                self._set_due(case)
            case.released.set()

    async def _run(self) -> None:
        while True:
            self._event = anyio.Event()
            if not any(case.due and not case.begins for case in self._waiting):
                await self._event.wait()
                continue
            if not self._resting:
                with anyio.move_on_after(_JOIN_S):
                    while self._beginning:
                        await self._event.wait()
                        self._event = anyio.Event()
            await self._try(self._choose())

    def _choose(self) -> list[FileErasure]:
        """New ones together, without those that have failed."""
        due = [case for case in self._waiting if case.due and not case.begins]
        if any(case.fresh for case in due):
            gathered = [case for case in self._waiting if case.gathered]
            return [*(case for case in due if case.fresh), *gathered]
        return due[:1] if self._one_by_one else due

    async def _try(self, cases: Sequence[FileErasure]) -> None:
        tried = [case.next_try for case in cases]
        for case in cases:
            case.due, case.gathered, case.next_try = False, False, anyio.Event()
        self._resting += 1
        began_s = self._clock.monotonic()
        try:
            errors = await self._erase(cases)
            self._one_by_one = bool(errors)
            await self._fail(errors)
        finally:
            for event in tried:
                event.set()
            assert self._tasks is not None
            pause_s = min(_PAUSE * (self._clock.monotonic() - began_s), self._within_s / 2)
            self._tasks.start_soon(self._rest, pause_s, name="remora.erasure.pause")

    async def _rest(self, pause_s: float) -> None:
        """Gather what comes in the meantime."""
        await self._clock.sleep(pause_s)
        self._resting -= 1
        if not self._resting:
            for case in self._waiting:
                case.due |= case.gathered
            self._event.set()

    async def _erase(self, cases: Sequence[FileErasure]) -> dict[FileErasure, Exception]:
        """Erase what can be erased; returns why the others failed."""
        errors: dict[FileErasure, Exception] = {}
        try:
            left = [case for case in cases if not case.progress.removed]
            if left:
                await call_guarded(self._remove_rows, left, errors)
            for case in left:
                if case not in errors:
                    case.released.set()
            await call_guarded(self._rewrite, [one for one in cases if one not in errors], errors)
            sound = [case for case in cases if case not in errors]
            if sound:
                await call_guarded(self._journal.scrub)
                await call_guarded(self._finish, sound, errors)
        except Exception as e:
            errors |= dict.fromkeys([case for case in cases if case not in errors], e)
        return {case: error for case, error in errors.items() if not case.done.is_set()}

    async def _remove_rows(
        self, cases: Sequence[FileErasure], errors: dict[FileErasure, Exception]
    ) -> None:
        """Leave no row that a search finds, note that durably, and let the users in again."""

        async def remove(case: FileErasure, store: LongTermStore, owner: tuple[str, str]) -> None:
            case.rows += await store.remove(*owner)

        await self._in_stores(cases, errors, remove)
        removed = [case for case in cases if case not in errors]
        whole = [case.note for case in removed if not case.note.session_key]
        if whole:
            await self.when_removed({user for note in whole for user, _ in note.owners})
        for case in removed:
            case.progress = msgspec.structs.replace(case.progress, removed=True)
        try:
            await self._write_progress()
        except BaseException:
            for case in removed:
                case.progress = msgspec.structs.replace(case.progress, removed=False)
            raise
        for case in removed:
            case.bars.close()

    async def _rewrite(
        self, cases: Sequence[FileErasure], errors: dict[FileErasure, Exception]
    ) -> None:
        """Leave no byte in files of long-term memory of what was removed from it."""

        async def rewrite(_: FileErasure, store: LongTermStore, owner: tuple[str, str]) -> None:
            await store.erase(owner[0], NO_SESSION)

        await self._in_stores(cases, errors, rewrite)

    async def _in_stores(
        self,
        cases: Sequence[FileErasure],
        errors: dict[FileErasure, Exception],
        do: Callable[[FileErasure, LongTermStore, tuple[str, str]], Awaitable[None]],
    ) -> None:
        """Do it for each owner that a note names, in each store that may hold rows."""
        async with self._stores() as stores:

            async def do_one(case: FileErasure) -> None:
                try:
                    for store, owner in product(stores, case.note.owners):
                        await call_guarded(do, case, store, owner)
                except Exception as e:
                    errors[case] = e

            await map_concurrently(do_one, cases, concurrency=_AT_ONCE)

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
            for event in (case.released, case.settled, case.done, case.next_try):
                event.set()

    # -- failing -----------------------------------------------------------------------------------

    async def _fail(self, errors: dict[FileErasure, Exception]) -> None:
        """Note the failures, and have them tried again after a pause."""
        if errors:
            self._note_failures(errors)
        try:
            await self._write_progress()
        except RemoraError as e:  # it only informs, but for `removed`
            _logger.warning("erasure_progress_not_kept", error=describe_failure(e))
        for case, error in errors.items():  # now an operator finds what the caller is told
            self._tell_caller(case, error)

    def _note_failures(self, errors: dict[FileErasure, Exception]) -> None:
        assert self._tasks is not None
        probe("erasure_retried")
        waits = []
        for case, error in errors.items():
            attempts = case.progress.attempts + 1
            case.progress = msgspec.structs.replace(
                case.progress, attempts=attempts, error=describe_failure(error)
            )
            waits.append(self._retry.delay_s(attempts, self._rng))
            self._tasks.start_soon(self._wake, case, waits[-1], name="remora.erasure.pause")
        self._failures += len(errors)
        _logger.warning(
            "erasure_failed",
            notes=len(errors),
            attempts=max(case.progress.attempts for case in errors),
            retry_s=min(waits),
            errors=sorted({case.progress.error for case in errors})[:3],
        )

    async def _wake(self, case: FileErasure, wait_s: float) -> None:
        await self._clock.sleep(wait_s)
        self._set_due(case)

    @staticmethod
    def _tell_caller(case: FileErasure, error: Exception) -> None:
        """Tell who waits if the cause lasts, by its own account or by the number of attempts."""
        attempts, passes = case.progress.attempts, bool(getattr(error, "retryable", False))
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
        case.released.set()
        case.settled.set()

    async def _write_progress(self) -> None:
        """Write down how far the erasures have come, if that has changed."""
        async with self._keeping:
            progress = encode_progress(
                {
                    case.note.number: case.progress
                    for case in self._waiting
                    if case.note.number and (case.progress.removed or case.progress.attempts)
                }
            )
            if progress != self._kept_progress:
                await call_guarded(self._journal.change_settings, {PROGRESS_SETTING: progress})
                self._kept_progress = progress


async def _do_nothing(_: Collection[str]) -> None: ...


def _is_covered(note: Erasure, by: Erasure) -> bool:
    """An older note of the same user or session."""
    return note.number < by.number and not set(note.owners).isdisjoint(by.owners)
