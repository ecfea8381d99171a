"""Erasing a user, or one session, down to the bytes (G13).

It has two steps, with a note in the journal between them, so that a crash at any point neither
brings anything back nor leaves the erasure half done:

1. *From the journal, at once.* The user's actors are evicted, their jobs are cancelled, and one
   transaction deletes all their rows and writes a note that names them by digests alone. Until the
   end, requests for them raise `ErasureInProgress`, because what they wrote now would look like
   what must be erased.
2. *From the files* (`services/file_erasure.py`). Their rows leave long-term memory, and requests
   are accepted again. Then long-term memory rewrites the shard that held the rows, with older
   versions and index files; the journal is vacuumed and its write-ahead log truncated; the note is
   removed. Erasures that follow each other share this. A start that finds a note continues it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from datetime import datetime

import anyio
import anyio.abc
import msgspec

from remora.config import RetentionConfig
from remora.errors import (
    CommitFailed,
    ErasureInProgress,
    OutcomeUnknown,
    ReentrantAsk,
    RemoraError,
    RuntimeClosed,
)
from remora.ids import UNKEYED, Digests, SessionKey, UserKey
from remora.logging import get_logger
from remora.models.ports import in_an_embedder
from remora.runtime.clock import Clock
from remora.runtime.concurrency import is_open
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import RetryPolicy
from remora.runtime.locks import KeyedLocks
from remora.runtime.probes import probe
from remora.runtime.promise import Promise, new_promise
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.deleting import Deleter
from remora.services.file_erasure import FileEraser, FileErasure
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    PROGRESS_SETTING,
    WaitingErasure,
    decode_digest_keys,
    decode_digests,
    decode_progress,
    describe_failure,
    of_user,
)
from remora.storage.ports import Erased, Erasure, Journal, LongTermStore

_logger = get_logger(__name__)


class ErasureReceipt(msgspec.Struct, frozen=True):
    """The receipt of an erasure: what was removed, and from where.

    Attributes:
        journal: rows by table: ``actors``, ``messages``, ``summaries``, ``state_items``,
            ``memories``, ``jobs``.
        long_term: rows of long-term memory, with those of memory blocks.
        actors: actors that were evicted.
        jobs: background jobs that were cancelled.
        erased_by: when the bytes are gone from the files at the latest, aware UTC, if the files can
            be written and the server runs then. None if they are gone: so it is unless the files
            were rewritten for another erasure a moment ago (`retention.forgotten_s`).
    """

    journal: dict[str, int]
    long_term: int
    actors: int
    jobs: int
    erased_by: datetime | None = None


class Eraser:
    """Erases users and sessions.

    Args:
        journal: has the rows and the notes.
        registry: of the actors in memory.
        supervisor: of background jobs.
        stores: opens every store that may hold rows, old ones included.
        alone: locks a user's rows in long-term memory against other writers.
        forget_cached: removes what caches hold of a user.
        withdraw_rebuild: stops rebuilding the rows of these actors.
        clock: for back-off.
        retry: for back-off.
        rng: for jitter.
        retention: how long files may hold what was deleted or forgotten.
    """

    def __init__(
        self,
        journal: Journal,
        registry: ActorRegistry,
        supervisor: Supervisor,
        *,
        stores: Callable[[], AbstractAsyncContextManager[Sequence[LongTermStore]]],
        alone: Callable[[str], AbstractAsyncContextManager[None]],
        forget_cached: Callable[[str], None],
        withdraw_rebuild: Callable[[Callable[[Hashable], bool]], None],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
        retention: RetentionConfig,
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._supervisor = supervisor
        self._alone = alone
        self._forget_cached = forget_cached
        self._withdraw_rebuild = withdraw_rebuild
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self.files = FileEraser(
            journal,
            stores=stores,
            clock=clock,
            retry=retry,
            rng=rng,
            within_s=retention.forgotten_s,
        )
        """Does the second step."""
        self.deletions = Deleter(
            journal, registry, supervisor, self.files, clock=clock, within_s=retention.deleted_s
        )
        self.files.when_removed = self.deletions.withdraw
        self._user_locks = KeyedLocks()
        self._callers: dict[Promise, FileErasure | None] = {}
        self._digests: Sequence[Digests] = (UNKEYED,)
        self.digest_keys: Sequence[str] = ()
        """The keys of the digests that name users and sessions in notes, as of the start."""
        self._refused: Counter[str] = Counter()
        self._tasks: anyio.abc.TaskGroup | None = None

    # -- asking ------------------------------------------------------------------------------------

    async def forget(self, user: str, session: str | None = None) -> ErasureReceipt:
        """See `remora.User.forget` and `remora.Session.forget`."""
        if self._supervisor.in_a_job():
            raise ReentrantAsk(
                "a background job cannot erase: an erasure waits for the background jobs to end"
            )
        if in_an_embedder():
            raise ReentrantAsk(
                "an embedder cannot erase: an erasure waits for those that it embeds for"
            )
        if not is_open(self._tasks):
            raise RuntimeClosed("the runtime is closing; nothing was erased")
        caller = new_promise()
        self._callers[caller] = None
        self._tasks.start_soon(self._forget, user, session, caller, name="remora.erasure.one")
        receipt: ErasureReceipt = await caller.answer
        return receipt

    def admit(self, user: str) -> None:
        """Check that nothing of the user's is being erased.

        Raises:
            ErasureInProgress: something is.
        """
        if self._refused and any(one.user(user) in self._refused for one in self._digests):
            raise _erasure_in_progress()

    def waiting(self, user: str | None = None) -> list[WaitingErasure]:
        """Erasures whose files are not rewritten yet, oldest first; of one user, or all."""
        found = self.files.waiting()
        return found if user is None else of_user(found, user, self._digests)

    # -- from the journal --------------------------------------------------------------------------

    async def _forget(self, user: str, session: str | None, caller: Promise) -> None:
        of_user, of_session = UserKey(user), None if session is None else SessionKey(user, session)

        def matches(key: Hashable) -> bool:
            # A session's erasure covers the user's actor, which holds words of the session, in its
            # synopsis for instance.
            if of_session is not None:
                return key in (of_session, of_user)
            return isinstance(key, (UserKey, SessionKey)) and key.user == user

        try:
            async with self._user_locks(user):
                with self.files.beginning(), ExitStack() as bars:
                    bars.enter_context(self._refusing(matches, {UNKEYED.user(user)}))
                    # before requests are accepted again: caches may have been filled since
                    bars.callback(self._forget_cached, user)
                    actors = sum(map(matches, self._registry.live_keys()))
                    await self._registry.eviction.evict(matches)
                    jobs = await self._supervisor.cancel_matching(matches)
                    self._withdraw_rebuild(matches)
                    async with self._alone(user):
                        erased = await self._delete_rows(user, session)
                        case = self.files.enqueue(erased.erasure, bars.pop_all())
                        case.caller, self._callers[caller] = caller, case
                        await case.released.wait()
                if case.progress.removed:
                    await self._submit_jobs(of_user)
            latest = self.files.latest() if case.gathered else None
            if latest is None:
                await case.settled.wait()
            caller.resolve(ErasureReceipt(erased.removed, case.rows, actors, jobs, latest))
            if not case.progress.removed:
                await case.done.wait()
                async with self._user_locks(user):
                    await self._submit_jobs(of_user)
        except Exception as e:
            caller.reject(e)
        finally:
            self._callers.pop(caller, None)

    async def _submit_jobs(self, of_user: UserKey) -> None:
        """Jobs of the user's actor that have nothing to do with an erased session."""
        self._supervisor.submit([job for job in await self._journal.jobs() if job.key == of_user])

    @contextmanager
    def _refusing(
        self, matches: Callable[[Hashable], bool], user_keys: Collection[str]
    ) -> Iterator[None]:
        """Refuse requests to these actors, and access to the user's long-term memory."""
        self._refused.update(user_keys)
        try:
            with self._registry.eviction.bar(matches, _erasure_in_progress):
                yield
        finally:
            self._refused.subtract(user_keys)
            self._refused = +self._refused  # without those that are not refused any more

    async def _delete_rows(self, user: str, session: str | None) -> Erased:
        """Delete from the journal, and leave a note; retry until the outcome is known."""
        attempts = 0
        while True:
            try:
                return await call_guarded(self._journal.erase, user, session)
            except (CommitFailed, OutcomeUnknown) as e:
                if not attempts and isinstance(e, CommitFailed):
                    raise
                attempts += 1
                wait_s = self._retry.delay_s(attempts, self._rng)
                probe("erasure_uncertain")
                _logger.warning(
                    "erasure_uncertain",
                    attempts=attempts,
                    retry_s=wait_s,
                    error=describe_failure(e),
                )
                await self._clock.sleep(wait_s)

    # -- from the files ----------------------------------------------------------------------------

    async def resume(self) -> None:
        """Go on with what an earlier run left; call it before there are requests."""
        progress = decode_progress(await self._journal.setting(PROGRESS_SETTING))
        setting = await self._journal.setting(DIGEST_KEYS)
        self.digest_keys = decode_digest_keys(setting)
        keyed = decode_digests(setting)
        self._digests = [UNKEYED, *(one for one in keyed if one is not UNKEYED)]
        for note in await self._journal.erasures():
            probe("erasure_resumed")
            bars, known = ExitStack(), progress.get(note.number)
            if known is None or not known.removed:
                matches = _match_note(note, self._digests)
                bars.enter_context(self._refusing(matches, _users_of(note)))
            self.files.enqueue(note, bars, known)
        await self.deletions.resume()
        try:
            await self._journal.attachments.sweep()
        except RemoraError:
            _logger.exception("attachments_not_swept")

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker, which ends when the task group is cancelled."""
        self._tasks = tasks
        self.files.start(tasks)
        self.deletions.start(tasks)

    async def retry(self) -> list[WaitingErasure]:
        """See `remora.Runtime.retry_erasures`."""
        await self.deletions.hurry()
        return await self.files.retry()

    def abandon(self) -> None:
        """Fail the callers, as the runtime closes; the notes stay in the journal."""
        self.files.abandon()
        for caller, case in list(self._callers.items()):
            outcome = (
                "the next start continues it"
                if case is not None
                else "nothing was erased: ask again"
            )
            caller.reject(RuntimeClosed(f"the runtime closed before all was erased; {outcome}"))


def _erasure_in_progress() -> Exception:
    return ErasureInProgress(
        "this user, or one of their sessions, is being erased; nothing ran, retry when that is done"
    )


def _users_of(note: Erasure) -> set[str]:
    return {user for user, _ in note.owners}


def _match_note(note: Erasure, digests: Sequence[Digests]) -> Callable[[Hashable], bool]:
    users, sessions = ({owner[place] for owner in note.owners} for place in (0, 1))

    def matches(key: Hashable) -> bool:
        if note.session_key and isinstance(key, SessionKey):
            return any(one.session(key.user, key.session) in sessions for one in digests)
        return isinstance(key, (UserKey, SessionKey)) and any(
            one.user(key.user) in users for one in digests
        )

    return matches
