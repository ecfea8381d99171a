"""Long-term memory made anew from the journal, in the background, while the runtime serves.

Vectors of two embedders cannot be compared, so another embedder means another directory for
long-term memory. The settings say which one is in use, which embedder made it, whether it is being
made anew and how far that came; they change in one transaction of the journal. So whatever dies
when, the next start finds either the old memory whole and in use, or the new one in use and how to
go on; what is written twice is merged (G7).

============  =====================================================================
setting       value
============  =====================================================================
``embedder``  name and dimension of what makes the vectors
``longterm``  the name of the directory in use
``reembed``   ``begin``, or a digest of the last actor that was done; empty: complete
``leftover``  directories of before, which are of no use once it is complete
============  =====================================================================

Rows come from the journal alone, but for those of memory blocks, which are long-term memory's own,
and those of messages that retention has removed from the journal: they are copied from the
directory before, which is why it stays until the end.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

import anyio
import anyio.to_thread
import msgspec

from remora.actors.blocks.vector import BLOCK_AGENT
from remora.actors.user.messages import Learn
from remora.actors.user.working import WorkingItem
from remora.errors import (
    EmbedderChanged,
    ErasureInProgress,
    JournalDamaged,
    LongTermError,
    RuntimeClosed,
)
from remora.ids import SessionKey, UserKey, row_id
from remora.jobs.flush import FlushHandler
from remora.jobs.memories import RecordHandler
from remora.jobs.rows import embed_items
from remora.logging import get_logger
from remora.models.ports import Embedder, embedder_name
from remora.runtime.clock import Clock
from remora.runtime.concurrency import map_concurrently
from remora.runtime.guard import guarded_call
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import RetryPolicy
from remora.storage.ports import BLOCK_TYPE, Journal, LongTermStore, MemoryRow, Scope

__all__ = [
    "IndexDirectory",
    "OldDirectory",
    "Place",
    "Rebuild",
    "ReembedProgress",
    "RowRebuilder",
    "choose_directory",
    "kept",
    "location_of",
    "remove_old",
    "request_rebuild",
]

_logger = get_logger("remora.reembed")
_AT_ONCE = 16  # actors between two notes of how far it came
_FIRST = "longterm"
_BEGIN = "begin"
_LAST = (1 << 32) - 1

Place: TypeAlias = Path | str
"""Where a store is: a directory, or an address that LanceDB understands."""


class ReembedProgress(msgspec.Struct, frozen=True):
    """How far it came.

    Attributes:
        done: messages whose rows were made anew, or need none.
        total: messages that long-term memory had when this run of it began.
        error: why it rests until the next start; empty while it goes on.
    """

    done: int
    total: int
    error: str = ""


class OldDirectory(msgspec.Struct, frozen=True):
    """A directory that was in use before: its name, what made its vectors, and over how many tables
    users are spread.
    """

    name: str
    embedder: str
    shards: int

    @property
    def dimension(self) -> int | None:
        """Of the vectors; None where there are none."""
        return int(self.embedder.rpartition("/")[2]) or None


class IndexDirectory(msgspec.Struct, frozen=True):
    """Which directory long-term memory is in.

    Attributes:
        name: the directory, in the memory directory or beside what `long_term.uri` names.
        shards: tables in it.
        whole: it holds all that it should; otherwise it is being filled.
        leftovers: directories of before, the newest first; of no use once it is whole.
    """

    name: str
    shards: int
    whole: bool
    leftovers: tuple[OldDirectory, ...]


_decode_item = msgspec.msgpack.Decoder(WorkingItem).decode
_decode_old = msgspec.json.Decoder(tuple[OldDirectory, ...]).decode


async def choose_directory(
    journal: Journal,
    base: Place | None,
    *,
    embedder: str,
    shards: int,
    reembed: bool,
    directory: Path | None,
) -> IndexDirectory:
    """Which directory to use for vectors of `embedder`.

    A new one is put in use if need be, in one transaction.

    Args:
        journal: whose settings say so.
        base: the memory directory, or `long_term.uri`; None for a store that is neither.
        embedder: what makes vectors now.
        shards: tables in a directory that is yet to be made.
        reembed: whether another embedder than before is meant.
        directory: the memory directory, for the error's text.

    Raises:
        EmbedderChanged: another embedder made what is there, and `reembed` is not set.
    """
    name = await journal.init_setting("longterm", _FIRST) or _FIRST
    found = await journal.init_setting("embedder", embedder) or embedder
    kept = int(await journal.init_setting("shards", str(shards)) or shards)
    old = await _old_directories(journal)
    if found != embedder:
        if not reembed:
            raise EmbedderChanged(
                f"long-term memory was embedded by {found}, and {embedder} is configured: vectors "
                "of two models cannot be "
                f"compared. Either run `remora reembed --dir {directory or 'DIR'}` (or open it "
                "with Runtime(…, reembed=True)), "
                "which makes it anew from the journal, or set models.embedder back to what it was"
            )
        old = (OldDirectory(name, found, kept), *old)
        number = int(name.removeprefix(_FIRST).removeprefix("-") or 1)
        name, kept = f"{_FIRST}-{number + 1}", shards
        described = msgspec.json.encode(old).decode()
        await journal.change_settings(
            {
                "embedder": embedder,
                "longterm": name,
                "shards": str(kept),
                "reembed": _BEGIN,
                "leftover": described,
            }
        )
        _logger.info("reembedding_begun", embedder=embedder, before=found, directory=name)
    elif isinstance(base, Path) and await _is_lost(journal, base / name):
        _logger.warning("long_term_lost", directory=name)
        await journal.change_settings({"reembed": _BEGIN})
    return IndexDirectory(name, kept, not await journal.setting("reembed"), old)


async def _is_lost(journal: Journal, place: Path) -> bool:
    """Somebody moved it away: it is filled again."""
    if await anyio.to_thread.run_sync(place.exists):
        return False
    return any(flushed for _, flushed in await journal.indexed_through())


async def kept(journal: Journal) -> tuple[OldDirectory, ...]:
    """Every directory that long-term memory is or was in: the one in use, and those of before, as
    far as they are there.
    """
    name, embedder, shards = [
        await journal.setting(one) for one in ("longterm", "embedder", "shards")
    ]
    if embedder is None or shards is None:
        return ()
    return (OldDirectory(name or _FIRST, embedder, int(shards)), *await _old_directories(journal))


async def request_rebuild(journal: Journal) -> None:
    """Have long-term memory filled again from the journal, as it is, by the next start."""
    await journal.change_settings({"reembed": _BEGIN})


async def _old_directories(journal: Journal) -> tuple[OldDirectory, ...]:
    kept = await journal.setting("leftover")
    return _decode_old(kept) if kept else ()


def location_of(base: Place, name: str) -> Place:
    """Where the directory called `name` is."""
    if isinstance(base, Path):
        return base / name
    if name == _FIRST:
        return base
    parts = urlsplit(base)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


async def remove_old(
    journal: Journal, base: Place | None, erase: Callable[[str], Awaitable[None]]
) -> None:
    """Remove directories that were in use before.

    What cannot be removed stays noted, for the next start.

    Args:
        journal: whose settings name them.
        base: see `choose_directory`.
        erase: empties a store at an address.
    """
    old = await _old_directories(journal)
    if base is None or not old:
        return
    for one in old:
        place = location_of(base, one.name)
        if isinstance(place, Path):
            await anyio.to_thread.run_sync(_remove, place)
        else:
            await erase(place)
    await journal.change_settings({"leftover": ""})


def _remove(place: Path) -> None:
    # it loads every compressor; this runs in a thread, and hardly ever
    import shutil  # noqa: PLC0415

    if place.is_dir():
        shutil.rmtree(place)


def _digest(key: SessionKey | UserKey) -> str:
    """What is kept of an actor's name.

    The settings outlive the actor, and must not keep what was forgotten (G13).
    """
    return row_id(key if isinstance(key, SessionKey) else SessionKey(key.user, ""), 0)


class Rebuild:
    """One run of it.

    Args:
        journal: what there is, and how far it came.
        session: makes a session's rows anew, up to a message.
        user: makes anew what a user has beside sessions.
        complete: called when all are done, and it is noted that they are.
        clock: for back-off.
        retry: when what failed is tried again. What is merely away is tried for ever.
        rng: for jitter.
        concurrency: actors at once.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        session: Callable[[SessionKey, int], Awaitable[None]],
        user: Callable[[UserKey], Awaitable[None]],
        complete: Callable[[], Awaitable[None]],
        clock: Clock,
        retry: RetryPolicy,
        rng: random.Random,
        concurrency: int,
    ) -> None:
        self._journal = journal
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

    async def wait(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Return when it is complete.

        Args:
            progress: told of `done` and `total` as it goes on.

        Raises:
            RuntimeClosed: the runtime closed before; the next start goes on.
            Exception: why it rests until the next start.
        """
        while not self._ended:
            if progress is not None:
                progress(self._done, self._total)
            await self._progressed.wait()
        if self._error is not None:
            raise self._error
        if not self.over:
            raise RuntimeClosed(
                "the runtime closed while long-term memory was being made anew; the next start "
                "goes on"
            )
        if progress is not None:
            progress(self._total, self._total)

    def _notify(self) -> None:
        self._progressed.set()
        self._progressed = anyio.Event()

    async def run(self) -> None:
        """Go on from where an earlier run was cut off, to the end."""
        try:
            cursor = await self._journal.setting("reembed") or _BEGIN
            while not await self._rebuild_from(cursor):
                cursor = _BEGIN
            if self._damaged is not None:
                raise self._damaged
            await self._journal.change_settings({"reembed": ""})
            self.over = True
            await self._complete()
            _logger.info("reembedding_complete", messages=self._total)
        except Exception as e:
            self._error = e
            _logger.exception("reembedding_rests")
        finally:
            self._ended = True
            self._notify()

    @property
    def ended(self) -> bool:
        """It is complete, or rests."""
        return self._ended

    async def again(self) -> None:
        """More is lacking than was known: whatever is done already, begin anew."""
        self._restart = True  # first: no note of how far it came may be written after this one
        await request_rebuild(self._journal)

    async def _rebuild_from(self, cursor: str) -> bool:
        """Make anew what is behind the cursor; whether nothing came between."""
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
                await self._journal.change_settings({"reembed": _digest(chunk[-1][0])})
        return not self._restart

    def _index_after(self, actors: Sequence[tuple[SessionKey | UserKey, int]], cursor: str) -> int:
        """The place behind the last actor that was done; if that one is no more, the beginning."""
        if cursor == _BEGIN:
            return 0
        return next(
            (place + 1 for place, (key, _) in enumerate(actors) if _digest(key) == cursor), 0
        )

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
        """Give up what is being made of these actors, who are about to be forgotten.

        What is left of them is made later.
        """
        for key, scope in self._scopes.items():
            if matches(key):
                scope.cancel()

    async def _rebuild_one(self, actor: tuple[SessionKey | UserKey, int]) -> None:
        key, flushed = actor
        with anyio.CancelScope() as scope:
            self._scopes[key] = scope
            try:
                if isinstance(key, SessionKey):
                    await guarded_call(self._session, key, flushed)
                else:
                    await guarded_call(self._user, key)
            except JournalDamaged as e:  # the other actors are rebuilt all the same
                self._damaged = e
                _logger.error("reembedding_left_out", error=str(e))
            finally:
                del self._scopes[key]
        if scope.cancelled_caught:
            raise ErasureInProgress("something of this user's is being forgotten")
        self._done += flushed
        self._notify()


class RowRebuilder:
    """Makes rows of the store in use.

    Args:
        journal: where most of it is.
        directory: of live actors.
        flush: writes messages and summary entries.
        record: writes what was recorded on purpose.
        embedder: what makes vectors now; None for text search alone.
        leftovers: directories of before, the newest first, for what the journal has not.
        open_store: opens one of them.
    """

    def __init__(
        self,
        journal: Journal,
        directory: ActorRegistry,
        flush: FlushHandler,
        record: RecordHandler,
        embedder: Embedder | None,
        leftovers: Sequence[OldDirectory],
        open_store: Callable[[OldDirectory], Awaitable[LongTermStore]],
    ) -> None:
        self._journal = journal
        self._directory = directory
        self._flush = flush
        self._record = record
        self._embedder = embedder
        self._unopened = list(leftovers)
        self._open_store = open_store
        self._old: list[LongTermStore] = []
        self._opening = anyio.Lock()

    async def of_session(self, key: SessionKey, through: int) -> None:
        """Messages up to `through`, summary entries, and what memory blocks stored."""
        await self._flush.rebuild(key, through)
        if through:
            await self._record.adopt(key.user, partial(self._rows_of_old, key))

    async def of_user(self, key: UserKey) -> None:
        """What was recorded on purpose; working memory, too, is embedded anew."""
        await self._record.rebuild(key.user)
        if self._embedder is None:
            return
        state_items = await self._journal.state_items(key)
        made_by = [
            msgspec.msgpack.decode(one.value) for one in state_items if one.kind == "embedder"
        ]
        items = [_decode_item(one.value) for one in state_items if one.kind == "working"]
        if items and made_by != [embedder_name(self._embedder)]:
            await self._directory.tell(
                key, Learn(await embed_items(self._embedder, items)), keeps_alive=False
            )

    async def before(self) -> Sequence[LongTermStore]:
        """The stores of before, opened.

        Raises:
            LongTermError: one of them cannot be opened now.
        """
        async with self._opening:
            while self._unopened:
                try:
                    self._old.append(await self._open_store(self._unopened[0]))
                except LongTermError as e:
                    if e.retryable:
                        raise
                    _logger.exception("leftover_unreadable", directory=self._unopened[0].name)
                del self._unopened[0]
        return self._old

    async def _rows_of_old(self, key: SessionKey) -> list[MemoryRow]:
        """What the journal has not.

        Rows of memory blocks, and of messages that retention has removed.
        """
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
        """Close the directories of before."""
        for store in self._old:
            await store.aclose()
