"""Forgetting a user, or one session, down to the bytes (G13).

Two steps, with a note in the journal between them, so that whatever dies when, nothing comes back and nothing is left half done:

1. *From the journal, at once.* The user's actors leave memory, their jobs are withdrawn, and one transaction deletes every
   row of theirs and leaves a note that names them by digests alone. Whoever asks for them until the end is told
   `ErasureInProgress`: what they would write now could not be told from what is to go.
2. *From the files.* Long-term memory rewrites the shard that held their rows, older versions and index files included; the
   journal is vacuumed and its write-ahead log truncated; then the note goes. What fails is tried again until it succeeds, and
   a start that finds a note goes on with it. Several that wait are erased by one rewriting of the files.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack

import anyio
import anyio.abc
import msgspec

from remora.errors import CommitFailed, ErasureInProgress, OutcomeUnknown, ReentrantAsk
from remora.identity import SessionKey, UserKey, session_key, user_key
from remora.logs import get_logger
from remora.runtime.clock import Clock
from remora.runtime.containment import contained
from remora.runtime.directory import Directory
from remora.runtime.locks import KeyedLocks
from remora.runtime.log import Job
from remora.runtime.promise import Promise, new_promise
from remora.runtime.supervisor import RetryPolicy, Supervisor
from remora.storage.ports import Erased, Erasure, Journal, LongTermStore

__all__ = ["Eraser", "ErasureReceipt"]

_logger = get_logger("remora.erasure")


class ErasureReceipt(msgspec.Struct, frozen=True):
    """What was removed, and from where.

    Attributes:
        journal: rows by table: ``actors``, ``messages``, ``folds``, ``facets``, ``memories``, ``jobs``.
        long_term: rows of long-term memory, those of memory blocks included.
        actors: actors that left memory, with what they and the caches held.
        jobs: pieces of background work that were withdrawn.
    """

    journal: dict[str, int]
    long_term: int
    actors: int
    jobs: int


class _Case:
    """One erasure whose files are still to be rewritten."""

    def __init__(self, note: Erasure, bars: ExitStack, left: Sequence[Job] = ()) -> None:
        self.note = note
        self.bars = bars
        self.left = left
        """Work of the user's own actor that a forgotten session does not concern."""
        self.rows = 0
        self.promise: Promise | None = None


class Eraser:
    """Forgets; its worker is `run`.

    Args:
        journal: what holds the rows and the notes.
        directory: of live actors.
        supervisor: of background work.
        stores: every store that may hold rows of anybody, those that are about to be removed included.
        alone: keeps everybody else from writing a user's rows of long-term memory.
        forget_cached: told the user, so that no cache holds anything of theirs.
        clock: for back-off.
        retry: when what failed is tried again.
        rng: for jitter.
    """

    def __init__(
        self,
        journal: Journal,
        directory: Directory,
        supervisor: Supervisor,
        *,
        stores: Callable[[], AbstractAsyncContextManager[Sequence[LongTermStore]]],
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        forget_cached: Callable[[str], None],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
    ) -> None:
        self._journal = journal
        self._directory = directory
        self._supervisor = supervisor
        self._stores = stores
        self._alone = alone
        self._forget_cached = forget_cached
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self._turns = KeyedLocks()
        self._waiting: list[_Case] = []
        self._event = anyio.Event()
        self._promises: set[Promise] = set()
        self._tasks: anyio.abc.TaskGroup | None = None

    # -- asking -----------------------------------------------------------------------------------------------------

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """Erase a user, or one session; returns when no byte is left. Who stops waiting does not stop it.

        Raises:
            ReentrantAsk: called from within background work, which it would wait for.
            CommitFailed: nothing was erased.
            LongTermError, StorageError: the journal has forgotten, but files cannot be rewritten; the next start goes on.
            RuntimeClosed: the runtime closed before; the next start goes on.
        """
        if self._supervisor.in_a_job():
            raise ReentrantAsk("a background job forgets what background jobs may be working on, and waits for them")
        assert self._tasks is not None
        promise = new_promise()
        self._promises.add(promise)
        self._tasks.start_soon(self._begin, user, session, promise, name="remora.erasure.one")
        receipt: ErasureReceipt = await promise.wait()
        return receipt

    def admit(self, user: str) -> None:
        """Refuse a user of whom anything is being erased: their rows in long-term memory are not to be shown any more.

        Raises:
            ErasureInProgress: it is.
        """
        if self._waiting:
            key = user_key(user)
            if any(case.note.user_key == key for case in self._waiting):
                raise _refusal()

    # -- from the journal -------------------------------------------------------------------------------------------

    async def _begin(self, user: str, session: str | None, promise: Promise) -> None:
        try:
            async with self._turns(user):
                case, receipt = await self._from_journal(user, session)
            case.promise = new_promise()
            self._enqueue(case)
            rows = await case.promise.wait()
        except Exception as e:
            promise.reject(e)
        else:
            promise.resolve(msgspec.structs.replace(receipt, long_term=rows))
        finally:
            self._promises.discard(promise)

    async def _from_journal(self, user: str, session: str | None) -> tuple[_Case, ErasureReceipt]:
        of_user, of_session = UserKey(user), None if session is None else SessionKey(user, session)

        def matches(key: Hashable) -> bool:
            # With a session goes the user's own actor: it holds words of the session, in its synopsis for instance.
            if of_session is not None:
                return key in (of_session, of_user)
            return isinstance(key, (UserKey, SessionKey)) and key.user == user

        with ExitStack() as bars:
            bars.enter_context(self._directory.barred(matches, _refusal))
            actors = sum(map(matches, self._directory.live_keys()))
            await self._directory.expel(matches)
            jobs = await self._supervisor.withdraw(matches)
            async with self._alone(user):
                erased = await self._deleted(user, session)
            self._forget_cached(user)
            left = [job for job in await self._journal.jobs() if job.key == of_user]
            return _Case(erased.erasure, bars.pop_all(), left), ErasureReceipt(erased.removed, 0, actors, jobs)

    async def _deleted(self, user: str, session: str | None) -> Erased:
        """Delete, and leave a note. Once it is uncertain whether that was done, nothing will do but to know that it was."""
        attempts = 0
        while True:
            try:
                return await contained(self._journal.erase, user, session)
            except (CommitFailed, OutcomeUnknown) as e:
                if not attempts and isinstance(e, CommitFailed):
                    raise
                attempts += 1
                wait_s = self._retry.delay_s(min(attempts, 16), self._rng)
                _logger.warning("erasure_uncertain", attempts=attempts, retry_s=wait_s, error=str(e))
                await self._clock.sleep(wait_s)

    # -- from the files ---------------------------------------------------------------------------------------------

    def resume(self, notes: Sequence[Erasure]) -> None:
        """Take up what an earlier run left; before anybody can ask for these users."""
        for note in notes:
            bars = ExitStack()
            bars.enter_context(self._directory.barred(_named(note), _refusal))
            self._enqueue(_Case(note, bars))

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker; it ends when the task group is cancelled, and its notes stay in the journal."""
        self._tasks = tasks
        tasks.start_soon(self._run, name="remora.erasure")

    def abandon(self, error: Exception) -> None:
        """Fail whoever waits; the notes stay."""
        for promise in list(self._promises):
            promise.reject(error)

    def _enqueue(self, case: _Case) -> None:
        self._waiting.append(case)
        self._event.set()

    async def _run(self) -> None:
        attempts = 0
        while True:
            if not self._waiting:
                self._event = anyio.Event()
                await self._event.wait()
            cases = list(self._waiting)
            try:
                await contained(self._rewrite, cases)
            except Exception as e:
                attempts += 1
                wait_s = self._retry.delay_s(min(attempts, 16), self._rng)
                _logger.warning("erasure_failed", notes=len(cases), attempts=attempts, retry_s=wait_s, error=str(e))
                if not getattr(e, "retryable", False):
                    self._tell(cases, e)  # it may be long before somebody mends that: they have waited enough
                await self._clock.sleep(wait_s)
            else:
                attempts = 0

    async def _rewrite(self, cases: Sequence[_Case]) -> None:
        async with self._stores() as stores:
            for case in cases:
                for store in stores:
                    case.rows += await store.erase(case.note.user_key, case.note.session_key)
        await self._journal.scrub()
        for case in cases:
            await self._journal.erased(case.note.number)
            self._waiting.remove(case)
            case.bars.close()
            self._supervisor.submit(case.left)
            if case.promise is not None:
                case.promise.resolve(case.rows)
        _logger.info("erased", notes=len(cases), rows=sum(case.rows for case in cases))

    @staticmethod
    def _tell(cases: Sequence[_Case], error: Exception) -> None:
        for case in cases:
            if case.promise is not None:
                case.promise.reject(error)


def _refusal() -> Exception:
    return ErasureInProgress("this user, or something of theirs, is being forgotten; nothing ran, ask again when that is done")


def _named(note: Erasure) -> Callable[[Hashable], bool]:
    def matches(key: Hashable) -> bool:
        if note.session_key and isinstance(key, SessionKey):
            return session_key(key.user, key.session) == note.session_key
        return isinstance(key, (UserKey, SessionKey)) and user_key(key.user) == note.user_key

    return matches
