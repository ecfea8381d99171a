"""The rebuild of long-term memory: what the journal has and the index has not is written.

It runs in the background while the runtime serves, and has five causes: another embedder, whose
vectors need a new directory; digests that get a key; a directory that is gone; a table that was
quarantined at opening; and a repair, or a backup, that found rows missing
(`maintenance/compare.py`). It goes actor by actor, and notes in the settings how far it came, so
that the next start continues after a crash. Rows that exist are left alone; what is written twice
is merged (G7).

Rows come from the journal, except for those of memory blocks, which are long-term memory's own, and
those of messages that retention removed from the journal: they are copied from the old directory,
which therefore stays until the rebuild is complete. If its vectors are of the embedder in use, they
are taken from it as well, and no model is called.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial

import anyio
import msgspec

from remora.actors.blocks.vector import BLOCK_AGENT
from remora.actors.user.messages import Learn
from remora.actors.user.working import WorkingItem
from remora.errors import (
    ErasureInProgress,
    JournalDamaged,
    LongTermError,
    RuntimeClosed,
)
from remora.ids import Digests, SessionKey, UserKey
from remora.jobs.flush import FlushHandler
from remora.jobs.memories import RecordHandler
from remora.jobs.rows import MEMORY_TYPES, embed_items, vectors_by_text
from remora.logging import get_logger
from remora.models.ports import Embedder, embedder_name
from remora.runtime.clock import Clock
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.guard import call_guarded
from remora.runtime.jobs import RetryPolicy
from remora.runtime.registry import ActorRegistry
from remora.runtime.threads import compute_in_thread, in_background
from remora.services.index_directory import BEGIN, TableDirectory, request_rebuild
from remora.storage.ports import (
    BLOCK_TYPE,
    Journal,
    LongTermStore,
    MemoryRow,
    Scope,
    Vector,
)

_logger = get_logger(__name__)
_AT_ONCE = 16  # actors between two notes of how far it came
_LAST = (1 << 32) - 1


class ReembedProgress(msgspec.Struct, frozen=True):
    """How far a rebuild came.

    Attributes:
        done: messages that were rebuilt, or needed no row.
        total: messages that were indexed when it began.
        error: why it stopped until the next start; empty while it runs.
    """

    done: int
    total: int
    error: str = ""


_decode_item = msgspec.msgpack.Decoder(WorkingItem).decode


class Rebuild:
    """One run of it.

    Args:
        journal: names the actors, and keeps how far it came.
        digests: name actors in the settings, which outlive them and must not keep a name (G13).
        session: rebuilds a session's rows up to a message.
        user: rebuilds what a user has outside of sessions.
        complete: called when all is done, and noted.
        clock: for back-off.
        retry: when a failed call is tried again. Retryable errors are retried without end.
        rng: for jitter.
        concurrency: actors at once.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        digests: Digests,
        session: Callable[[SessionKey, int], Awaitable[None]],
        user: Callable[[UserKey], Awaitable[None]],
        complete: Callable[[], Awaitable[None]],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
        concurrency: int,
    ) -> None:
        self._journal = journal
        self._digests = digests
        self._session = session
        self._user = user
        self._complete = complete
        self._clock = clock
        self._retry = retry
        self._rng = rng
        self._concurrency = concurrency
        self._done = self._total = 0
        self._error: Exception | None = None
        self._progressed = anyio.Event()
        self._ended = self._restart = False
        self._damaged: JournalDamaged | None = None
        self._scopes: dict[Hashable, anyio.CancelScope] = {}
        self.over = False
        """It is complete."""

    @property
    def progress(self) -> ReembedProgress:
        """How far it came."""
        error = "" if self._error is None else f"{type(self._error).__name__}: {self._error}"
        return ReembedProgress(self._done, self._total, error)

    async def wait(self, progress: Progress | None = None) -> None:
        """Return when it is complete.

        Args:
            progress: called with `done` and `total`.

        Raises:
            RuntimeClosed: the runtime closed before; the next start continues.
            Exception: why it stopped until the next start.
        """
        while not self._ended:
            if progress is not None:
                progress(self._done, self._total)
            await self._progressed.wait()
        if self._error is not None:
            raise self._error
        if not self.over:
            raise RuntimeClosed(
                "the runtime closed while long-term memory was being rebuilt; "
                "the next start continues"
            )
        if progress is not None:
            progress(self._total, self._total)

    def _notify(self) -> None:
        self._progressed.set()
        self._progressed = anyio.Event()

    async def run(self) -> None:
        """Run to the end, from where an earlier run stopped."""
        try:
            cursor = await self._journal.setting("reembed") or BEGIN
            with in_background():
                while not await self._rebuild_from(cursor):
                    cursor = BEGIN
            if self._damaged is not None:
                raise self._damaged
            await self._journal.change_settings({"reembed": ""})
            self.over = True
            await self._complete()
            _logger.info("reembedding_complete", messages=self._total)
        except Exception as e:
            self._error = e
            _logger.exception("reembedding_paused")
        finally:
            self._ended = True
            self._notify()

    @property
    def ended(self) -> bool:
        """It is complete, or stopped until the next start."""
        return self._ended

    async def again(self) -> None:
        """Start from the beginning: more is missing than was known."""
        self._restart = True  # first: no later note may say how far it came
        await request_rebuild(self._journal)

    async def _rebuild_from(self, cursor: str) -> bool:
        """Rebuild the actors after the cursor; False if it has to start again."""
        self._restart, self._damaged = False, None
        actors = await self._journal.indexed_through()
        self._total = sum(flushed for _, flushed in actors)
        start = self._index_after(actors, cursor)
        self._done = sum(flushed for _, flushed in actors[:start])
        for first in range(start, len(actors), _AT_ONCE):
            chunk = actors[first : first + _AT_ONCE]
            await self._with_retries(chunk)
            if self._restart:
                return False
            if self._damaged is None:
                await self._journal.change_settings({"reembed": self._digest(chunk[-1][0])})
        return not self._restart

    def _index_after(self, actors: Sequence[tuple[SessionKey | UserKey, int]], cursor: str) -> int:
        """The index after the last actor that was done; 0 if that actor no longer exists."""
        if cursor == BEGIN:
            return 0
        return next(
            (place + 1 for place, (key, _) in enumerate(actors) if self._digest(key) == cursor), 0
        )

    def _digest(self, key: SessionKey | UserKey) -> str:
        if isinstance(key, SessionKey):
            return self._digests.session(key.user, key.session)
        return self._digests.user(key.user)

    async def _with_retries(self, chunk: Sequence[tuple[SessionKey | UserKey, int]]) -> None:
        attempts = 0
        before = self._done
        while True:
            try:
                await map_concurrently(self._rebuild_one, chunk, concurrency=self._concurrency)
            except Exception as e:
                attempts += 1
                if attempts >= self._retry.max_attempts and not getattr(e, "retryable", False):
                    raise
                wait_s = self._retry.delay_s(attempts, self._rng)
                _logger.warning(
                    "reembedding_failed",
                    attempts=attempts,
                    retry_s=wait_s,
                    error=f"{type(e).__name__}: {e}",
                )
                self._done = before
                await self._clock.sleep(wait_s)
            else:
                return

    def withdraw(self, matches: Callable[[Hashable], bool]) -> None:
        """Stop the rebuild of actors that are about to be forgotten; it is tried again later."""
        for key, scope in self._scopes.items():
            if matches(key):
                scope.cancel()

    async def _rebuild_one(self, actor: tuple[SessionKey | UserKey, int]) -> None:
        key, flushed = actor
        with anyio.CancelScope() as scope:
            self._scopes[key] = scope
            try:
                if isinstance(key, SessionKey):
                    await call_guarded(self._session, key, flushed)
                else:
                    await call_guarded(self._user, key)
            except JournalDamaged as e:  # the other actors are rebuilt
                self._damaged = e
                _logger.error("reembedding_left_out", error=str(e))
            finally:
                del self._scopes[key]
        if scope.cancelled_caught:
            raise ErasureInProgress("something of this user's is being forgotten")
        self._done += flushed
        self._notify()


class RowRebuilder:
    """Writes rows into the store in use.

    Args:
        journal: holds most of what is needed.
        directory: of live actors.
        flush: writes messages and summary entries.
        record: writes recorded memories.
        embedder: makes the vectors; None for text search alone.
        leftovers: old directories, the newest first, for what the journal does not have.
        open_store: opens one of them.
    """

    def __init__(
        self,
        journal: Journal,
        directory: ActorRegistry,
        flush: FlushHandler,
        record: RecordHandler,
        embedder: Embedder | None,
        leftovers: Sequence[TableDirectory],
        open_store: Callable[[TableDirectory], Awaitable[LongTermStore]],
    ) -> None:
        self._journal = journal
        self._directory = directory
        self._flush = flush
        self._record = record
        self._embedder = embedder
        self._unopened = list(leftovers)
        self._open_store = open_store
        self._old: list[LongTermStore] = []
        self._alike: list[LongTermStore] = []
        self._opening = anyio.Lock()

    async def of_session(self, key: SessionKey, through: int) -> None:
        """Messages up to `through`, summary entries, and what memory blocks stored."""
        with self._flush.known.holding(await self._old_vectors(key.user, Scope(key.session))):
            await self._flush.rebuild(key, through)
            if through:
                await self._record.adopt(key.user, partial(self._rows_of_old, key))

    async def of_user(self, key: UserKey) -> None:
        """Recorded memories; working memory is embedded again, too."""
        vectors = await self._old_vectors(key.user, Scope(types=MEMORY_TYPES))
        with self._flush.known.holding(vectors):
            await self._record.rebuild(key.user)
        if self._embedder is None:
            return
        state_items = await self._journal.state_items(key)
        made_by = [
            msgspec.msgpack.decode(one.value) for one in state_items if one.kind == "embedder"
        ]
        items = [_decode_item(one.value) for one in state_items if one.kind == "working"]
        if items and made_by != [embedder_name(self._embedder)]:
            await self._directory.ask_control(
                key, Learn(await embed_items(self._embedder, items)), keeps_alive=False
            )

    async def before(self) -> Sequence[LongTermStore]:
        """The stores of the old directories, opened.

        Raises:
            LongTermError: one of them cannot be opened now.
        """
        async with self._opening:
            while self._unopened:
                try:
                    store = await self._open_store(self._unopened[0])
                except LongTermError as e:
                    if e.retryable:
                        raise
                    _logger.exception("leftover_unreadable", directory=self._unopened[0].name)
                else:
                    self._old.append(store)
                    if self._unopened[0].embedder == embedder_name(self._embedder):
                        self._alike.append(store)
                del self._unopened[0]
        return self._old

    async def _old_vectors(self, user: str, scope: Scope) -> dict[str, Vector]:
        """Vectors of the embedder in use that old directories have, by the text of each."""
        await self.before()
        found: dict[str, Vector] = {}
        for store in self._alike:
            rows, vectors = await store.embedded_rows(user, scope)
            if vectors is not None:
                found |= await compute_in_thread(vectors_by_text, rows, vectors)
        return found

    async def _rows_of_old(self, key: SessionKey) -> list[MemoryRow]:
        """Rows of memory blocks, and of messages that retention removed from the journal."""
        old = await self.before()
        if not old:
            return []
        trimmed = (await self._journal.buffer_start(key, _LAST)).trimmed
        found = [
            row for store in old for row in await store.rows(key.user, Scope(session=key.session))
        ]
        return [
            row
            for row in found
            if (row.memory_type == BLOCK_TYPE and row.agent.startswith(BLOCK_AGENT))
            or (row.memory_type == "message" and 0 < row.seq <= trimmed)
        ]

    async def aclose(self) -> None:
        """Close the stores of the old directories."""
        for store in self._old:
            await store.aclose()
