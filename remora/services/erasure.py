"""Forgetting a user, or one session, down to the bytes (G13).

Two steps, with a note in the journal between them, so that whatever dies when, nothing comes back
and nothing is left half done:

1. *From the journal, at once.* The user's actors leave memory, their jobs are withdrawn, and one
   transaction deletes every row of theirs and leaves a note that names them by digests alone.
   Whoever asks for them until the end is told `ErasureInProgress`: what they would write now could
   not be told from what is to go.
2. *From the files.* Long-term memory rewrites the shard that held their rows, older versions and
   index files included; the journal is vacuumed and its write-ahead log truncated; then the note
   goes. What fails is tried again until it succeeds, and a start that finds a note goes on with it.
   Several that wait are erased by one rewriting of the files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager

import anyio
import anyio.abc
import msgspec

from remora.errors import (
    CommitFailed,
    ErasureInProgress,
    OutcomeUnknown,
    ReentrantAsk,
    RuntimeClosed,
)
from remora.ids import SessionKey, UserKey, session_key, user_key
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.guard import guarded_call
from remora.runtime.locks import KeyedLocks
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import RetryPolicy, Supervisor
from remora.storage.ports import Erased, Erasure, Journal, LongTermStore

__all__ = ["Eraser", "ErasureReceipt"]

_logger = get_logger("remora.erasure")


class ErasureReceipt(msgspec.Struct, frozen=True):
    """What was removed, and from where.

    Attributes:
        journal: rows by table: ``actors``, ``messages``, ``folds``, ``state_items``, ``memories``,
            ``jobs``.
        long_term: rows of long-term memory, those of memory blocks included.
        actors: actors that left memory, with what they and the caches held.
        jobs: pieces of background work that were withdrawn.
    """

    journal: dict[str, int]
    long_term: int
    actors: int
    jobs: int


class _FileErasure:
    """One erasure whose files are still to be rewritten."""

    def __init__(self, note: Erasure) -> None:
        self.note = note
        self.rows = 0
        self.done = anyio.Event()
        self.asked: Promise | None = None
        """Whoever waits for it."""


class Eraser:
    """Forgets; its worker is `run`.

    Args:
        journal: what holds the rows and the notes.
        directory: of live actors.
        supervisor: of background work.
        stores: every store that may hold rows of anybody, those that are about to be removed
            included.
        alone: keeps everybody else from writing a user's rows of long-term memory.
        forget_cached: told the user, so that no cache holds anything of theirs.
        withdraw_rebuild: stops what makes rows of these actors anew, for another embedder, say.
        clock: for back-off.
        retry: when what failed is tried again.
        rng: for jitter.
    """

    def __init__(
        self,
        journal: Journal,
        directory: ActorRegistry,
        supervisor: Supervisor,
        *,
        stores: Callable[[], AbstractAsyncContextManager[Sequence[LongTermStore]]],
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        forget_cached: Callable[[str], None],
        withdraw_rebuild: Callable[[Callable[[Hashable], bool]], None],
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
        self._withdraw_rebuild = withdraw_rebuild
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self._user_locks = KeyedLocks()
        self._waiting: list[_FileErasure] = []
        self._event = anyio.Event()
        self._asked: dict[Promise, _FileErasure | None] = {}
        self._refused: Counter[str] = Counter()
        self._resumed: dict[int, ExitStack] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    # -- asking ------------------------------------------------------------------------------------

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """Erase a user, or one session; returns when no byte is left.

        Who stops waiting does not stop it.

        Raises:
            ReentrantAsk: called from within background work, which it would wait for.
            CommitFailed: nothing was erased.
            LongTermError, StorageError: the journal has forgotten, but files cannot be rewritten;
                it is tried again and again.
            RuntimeClosed: the runtime closed before; the error says whether the next start goes on,
                or nothing was erased.
        """
        if self._supervisor.in_a_job():
            raise ReentrantAsk(
                "a background job forgets what background jobs may be working on, and waits for "
                "them"
            )
        assert self._tasks is not None
        asked = new_promise()
        self._asked[asked] = None
        self._tasks.start_soon(self._forget, user, session, asked, name="remora.erasure.one")
        receipt: ErasureReceipt = await asked.wait()
        return receipt

    def admit(self, user: str) -> None:
        """Refuse a user of whom anything is being erased.

        Their rows in long-term memory are not to be shown any more.

        Raises:
            ErasureInProgress: it is.
        """
        if self._refused and user_key(user) in self._refused:
            raise _erasure_in_progress()

    # -- from the journal --------------------------------------------------------------------------

    async def _forget(self, user: str, session: str | None, asked: Promise) -> None:
        of_user, of_session = UserKey(user), None if session is None else SessionKey(user, session)

        def matches(key: Hashable) -> bool:
            # With a session goes the user's own actor: it holds words of the session, in its
            # synopsis for instance.
            if of_session is not None:
                return key in (of_session, of_user)
            return isinstance(key, (UserKey, SessionKey)) and key.user == user

        try:
            async with self._user_locks(user):
                with self._refusing(matches, user_key(user)):
                    actors = sum(map(matches, self._directory.live_keys()))
                    await self._directory.evict(matches)
                    jobs = await self._supervisor.cancel_matching(matches)
                    self._withdraw_rebuild(matches)
                    async with self._alone(user):
                        erased = await self._delete_rows(user, session)
                        case = _FileErasure(erased.erasure)
                        case.asked, self._asked[asked] = asked, case
                        self._enqueue(case)
                        await case.done.wait()
                    # before anybody is let in again: what was read meanwhile is not served
                    self._forget_cached(user)
                # those of the user's own actor that a forgotten session does not concern
                self._supervisor.submit(
                    [job for job in await self._journal.jobs() if job.key == of_user]
                )
            asked.resolve(ErasureReceipt(erased.removed, case.rows, actors, jobs))
        except Exception as e:
            asked.reject(e)
        finally:
            self._asked.pop(asked, None)

    @contextmanager
    def _refusing(self, matches: Callable[[Hashable], bool], key: str) -> Iterator[None]:
        """Refuse actors that match, and the user of this key everything that is long-term
        memory's.
        """
        self._refused[key] += 1
        try:
            with self._directory.bar(matches, _erasure_in_progress):
                yield
        finally:
            self._refused[key] -= 1
            if not self._refused[key]:
                del self._refused[key]

    async def _delete_rows(self, user: str, session: str | None) -> Erased:
        """Delete, and leave a note.

        Once it is uncertain whether that was done, nothing will do but to know that it was.
        """
        attempts = 0
        while True:
            try:
                return await guarded_call(self._journal.erase, user, session)
            except (CommitFailed, OutcomeUnknown) as e:
                if not attempts and isinstance(e, CommitFailed):
                    raise
                attempts += 1
                wait_s = self._retry.delay_s(attempts, self._rng)
                probe("erasure_uncertain")
                _logger.warning(
                    "erasure_uncertain", attempts=attempts, retry_s=wait_s, error=str(e)
                )
                await self._clock.sleep(wait_s)

    # -- from the files ----------------------------------------------------------------------------

    def resume(self, notes: Sequence[Erasure]) -> None:
        """Take up what an earlier run left; before anybody can ask for these users."""
        for note in notes:
            probe("erasure_resumed")
            bars = ExitStack()
            bars.enter_context(self._refusing(_match_note(note), note.user_key))
            self._resumed[note.number] = bars
            self._enqueue(_FileErasure(note))

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker.

        It ends when the task group is cancelled, and its notes stay in the journal.
        """
        self._tasks = tasks
        tasks.start_soon(self._run, name="remora.erasure")

    def abandon(self) -> None:
        """Fail whoever waits, as the runtime closes; the notes stay."""
        for asked, case in list(self._asked.items()):
            goes_on = (
                "the next start goes on with it"
                if case is not None
                else "nothing was erased: ask again"
            )
            asked.reject(RuntimeClosed(f"the runtime closed before all was erased; {goes_on}"))

    def _enqueue(self, case: _FileErasure) -> None:
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
                await guarded_call(self._erase_files, cases)
            except Exception as e:
                attempts += 1
                wait_s = self._retry.delay_s(attempts, self._rng)
                probe("erasure_retried")
                _logger.warning(
                    "erasure_failed",
                    notes=len(cases),
                    attempts=attempts,
                    retry_s=wait_s,
                    error=str(e),
                )
                if not getattr(e, "retryable", False):
                    self._reject_callers(
                        cases, e
                    )  # it may be long before somebody mends that: they have waited enough
                await self._clock.sleep(wait_s)
            else:
                attempts = 0

    async def _erase_files(self, cases: Sequence[_FileErasure]) -> None:
        async with self._stores() as stores:
            for case in cases:
                for store in stores:
                    case.rows += await store.erase(case.note.user_key, case.note.session_key)
        await self._journal.scrub()
        notes = await self._journal.erasures()
        for case in cases:
            # Where the journal was asked again, it may have noted it twice. A note that stayed
            # would have the next start erase what the same user has in long-term memory by then.
            for note in notes:
                if (
                    msgspec.structs.replace(note, number=case.note.number) == case.note
                    and note.number < case.note.number
                ):
                    await self._journal.finish_erasure(note.number)
            await self._journal.finish_erasure(case.note.number)
            self._waiting.remove(case)
            if (bars := self._resumed.pop(case.note.number, None)) is not None:
                bars.close()
            case.done.set()
        _logger.info("erased", notes=len(cases), rows=sum(case.rows for case in cases))

    @staticmethod
    def _reject_callers(cases: Sequence[_FileErasure], error: Exception) -> None:
        for case in cases:
            if case.asked is not None:
                case.asked.reject(error)


def _erasure_in_progress() -> Exception:
    return ErasureInProgress(
        "this user, or something of theirs, is being forgotten; nothing ran, ask again when that "
        "is done"
    )


def _match_note(note: Erasure) -> Callable[[Hashable], bool]:
    def matches(key: Hashable) -> bool:
        if note.session_key and isinstance(key, SessionKey):
            return session_key(key.user, key.session) == note.session_key
        return isinstance(key, (UserKey, SessionKey)) and user_key(key.user) == note.user_key

    return matches
