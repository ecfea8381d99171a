"""The flush queue: indexes a session's messages in long-term memory, and removes deleted ones.

A job may run more than once: rows have deterministic ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec

from remora.actors.policies.units import batches
from remora.errors import JournalDamaged, LongTermError, RedactionFailed
from remora.ids import SessionKey, entry_id, row_id
from remora.jobs.facts import Tell, remove_unsupported
from remora.jobs.rows import (
    IndexAccess,
    KnownVectors,
    entry_row,
    finish_message_rows,
    make_message_rows,
    message_rows,
    rows_of_sessions,
)
from remora.logging import get_logger
from remora.messages import Entry
from remora.models.ports import function_of
from remora.runtime.concurrency import map_concurrently, run_in_thread_if
from remora.runtime.jobs import Job, JobAttempt, JobResult
from remora.runtime.locks import SharedLocks
from remora.runtime.probes import probe
from remora.runtime.threads import compute_apart
from remora.storage.journal_port import read_undamaged
from remora.storage.pending import pending_flushes
from remora.storage.ports import NEIGHBOURS, MemoryRow, Scope, Vector
from remora.storage.records import (
    ENTRY_KIND,
    DiscardSpec,
    EntryFlushSpec,
    Flushed,
    FlushSpec,
    UnflushSpec,
)
from remora.storage.windows import makes_windows
from remora.tokens import INLINE_CHARACTERS, TokenCounter

_logger = get_logger(__name__)

_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode
_BATCH_ENTRIES = 64
_IN_THREAD = 500  # rows whose ids or batches are a thread's work
_MESSAGES_AT_ONCE = 2_000  # of one job: 10 MB
_PARTS_AT_ONCE = 2  # while the rows of one are written, those of the next are made
_BYTES_TOGETHER = 4 << 20  # of messages that are indexed as one
_BATCHES_AT_ONCE = 16  # of one part: enough for a large commit of long-term memory


def count_new_messages(job: Job) -> int:
    """How many messages a job indexes for the first time; 0 of another job."""
    spec = job.payload
    return spec.through - spec.first + 1 if isinstance(spec, FlushSpec) else 0


class _Made(msgspec.Struct, frozen=True):
    """Rows that were made of messages.

    Attributes:
        rows: redacted, as long-term memory has them.
        vectors: theirs, shape (rows, dimension); None if they were not embedded.
        failed: why others could not be redacted, by number.
    """

    rows: list[MemoryRow]
    vectors: Vector | None
    failed: dict[int, RedactionFailed]

    def check(self) -> None:
        """Raise the first of the failures, if there are any.

        Raises:
            RedactionFailed: the hook raised or returned no text.
        """
        for error in self.failed.values():
            raise error

    def without(self, pruned: Collection[int], among: Collection[int] | None) -> _Made:
        """Return those among these messages that were not pruned."""
        if among is None and not pruned:
            return self
        gone = set(pruned)

        def wanted(seq: int) -> bool:
            return seq not in gone and (among is None or seq in among)

        places = [place for place, row in enumerate(self.rows) if wanted(row.seq)]
        return _Made(
            [self.rows[place] for place in places],
            None if self.vectors is None else self.vectors[places],
            {seq: error for seq, error in self.failed.items() if wanted(seq)},
        )


class FlushHandler:
    """Runs the jobs of the flush queue.

    Args:
        access: to the journal and long-term memory.
        counter: for a row's size in a context.
        window_chars: how much of each neighbour a row's window holds.
        batch_tokens: most tokens that are embedded and written at once; a larger unit is a batch of
            its own.
        tell: deletes the facts of deleted messages; None to leave them.
    """

    def __init__(
        self,
        access: IndexAccess,
        counter: TokenCounter,
        *,
        window_chars: int,
        batch_tokens: int,
        tell: Tell | None = None,
    ) -> None:
        self._access = access
        self._counter = counter
        self._window_chars = window_chars
        self._batch_tokens = batch_tokens
        self._tell = tell
        self._sessions = SharedLocks()
        self.merging = False
        """Treat every row as one that may exist: long-term memory is being rebuilt."""

    @property
    def known(self) -> KnownVectors:
        """Vectors that are not made again."""
        return self._access.known

    async def __call__(self, attempt: JobAttempt) -> JobResult:
        """Run one attempt; from the second on, or after a restart, rows may exist."""
        spec, key = attempt.job.payload, attempt.job.key
        assert isinstance(key, SessionKey)
        may_exist = attempt.job.resumed or attempt.job.attempts > 0
        began = time.monotonic()
        shared = isinstance(spec, FlushSpec) and not may_exist
        shared = shared and not (spec.completes and await self._stores_windows())
        # A flush must not write back what was removed after it was read, and a job that is run
        # again must not write while its first run does: each would take the rows for new. Jobs that
        # write new rows only share a commit.
        async with self._sessions.shared(key) if shared else self._sessions.exclusive(key):
            try:
                match spec:
                    case FlushSpec():
                        await self._index(key, spec, may_exist=may_exist)
                    case UnflushSpec():
                        async with self._access.users.shared(key.user):
                            await self._remove(key, spec)
                        if self._tell is not None:
                            await remove_unsupported(self._access.journal, self._tell, key)
                    case DiscardSpec(seqs=seqs):
                        ids = await run_in_thread_if(
                            len(seqs) > _IN_THREAD, lambda: [row_id(key, seq) for seq in seqs]
                        )
                        await self._access.delete(key.user, ids)
                    case EntryFlushSpec():
                        await self._flush_entry(key, spec)
                    case _:
                        raise TypeError(f"the flush queue cannot run {type(spec).__name__}")
            finally:
                self._access.changed(key.user)
        if not isinstance(spec, FlushSpec):
            return JobResult()
        _logger.debug(
            "messages_indexed",
            session=key,
            messages=spec.through - spec.first + 1,
            seconds=time.monotonic() - began,
        )
        return JobResult(records=(Flushed(spec.sid, spec.through),))

    async def index_together(
        self, attempts: Sequence[JobAttempt], begin: Callable[[], None]
    ) -> Sequence[JobResult] | None:
        """Index the new messages of many short sessions as one: one read, one write.

        All attempts are of jobs that are new, or all of jobs that were found in the log. No text is
        redacted.

        Returns:
            A result for each; None where each session is to be indexed by itself: the store keeps
            windows, or messages are large.

        Raises:
            JournalDamaged, ModelError, LongTermError: see `__call__`; of one session, perhaps.
        """
        access = self._access
        if await self._stores_windows():
            return None
        may_exist = attempts[0].job.resumed
        parts: list[tuple[SessionKey, int, int]] = []
        for one in attempts:
            assert isinstance(one.job.key, SessionKey)
            parts.append((one.job.key, one.job.payload.first, one.job.payload.through))
        keys = sorted({key for key, _, _ in parts})
        users = sorted({key.user for key in keys})
        async with AsyncExitStack() as locks:  # in one order everywhere, or two would wait forever
            lock = self._sessions.exclusive if may_exist else self._sessions.shared
            for key in keys:
                await locks.enter_async_context(lock(key))
            for user in users if may_exist else ():
                await locks.enter_async_context(access.users.shared(user))
            found = await access.journal.read_ranges(parts, max_bytes=_BYTES_TOGETHER)
            if found is None:
                return None
            probe("sessions_indexed_together")
            make = partial(rows_of_sessions, found, self._counter, access.language)
            rows, vectors = await access.prepare(await compute_apart(make), redacted=True)
            begin()
            try:
                await self._store(rows, vectors, may_exist=may_exist)
            finally:
                for user in users:
                    access.changed(user)
        specs = [one.job.payload for one in attempts]
        return [JobResult(records=(Flushed(spec.sid, spec.through),)) for spec in specs]

    async def rebuild(self, key: SessionKey, through: int) -> None:
        """Write the missing rows of messages up to `through`, and of summary entries.

        Messages of dead letters are left out: one that cannot be written must not block the others.
        So are messages that cannot be read.

        Raises:
            JournalDamaged: some messages cannot be read; the rows of the others are written.
        """
        async with self._sessions.exclusive(key), self._access.users.shared(key.user):
            # The session may have been forgotten, and started again, since `through` was read.
            through = min(through, await self._access.journal.session_indexed_through(key))
            scope = Scope(session=key.session, types=("message", "summary"))
            store = await self._access.store()
            present = {row.id for row in await store.rows(key.user, scope)}
            wanted = await run_in_thread_if(
                through > _IN_THREAD, _missing_rows, key, through, present
            )
            dead = pending_flushes(await self._access.journal.jobs(dead=True))
            wanted.difference_update(*dead.get(key, ()))
            items = await self._access.journal.state_items(key)
            specs = [_decode_entry(one.value) for one in items if one.kind == ENTRY_KIND]
            rows = [entry_row(key, one.entry, one.at_us) for one in specs]
            rows = [row for row in rows if row.id not in present]
            if not (wanted or rows):
                return
            damage: JournalDamaged | None = None
            try:
                if wanted:
                    damage = await self._write_readable(key, wanted)
                for start in range(0, len(rows), _BATCH_ENTRIES):
                    await self._add(rows[start : start + _BATCH_ENTRIES])
            finally:
                self._access.changed(key.user)
        if damage is not None:
            raise damage

    async def _write_readable(
        self, key: SessionKey, wanted: Collection[int]
    ) -> JournalDamaged | None:
        """Write these messages' rows except those that cannot be read; returns why not."""
        first, through = min(wanted), max(wanted)
        entries, damaged = await read_undamaged(
            self._access.journal, key, max(first - NEIGHBOURS, 1), through + NEIGHBOURS
        )
        made = await self._made_among(key, entries, wanted)
        await self._write_made(entries, made, may_exist=True)
        return next(iter(damaged.values()), None)

    async def _stores_windows(self) -> bool:
        return not makes_windows(await self._access.store())

    async def _index(self, key: SessionKey, spec: FlushSpec, *, may_exist: bool) -> None:
        """Run a flush job."""
        first, through = spec.first, spec.through
        if may_exist:
            probe("doubtful_flush")
            async with self._access.users.shared(key.user):
                await self._flush(key, first, through, may_exist=True)
        else:
            await self._flush(key, first, through, may_exist=False)
        if spec.completes and await self._stores_windows():
            async with self._access.users.shared(key.user):
                await self._complete_windows(key, first)

    async def _complete_windows(self, key: SessionKey, first: int) -> None:
        """Write the rows before `first` again: their windows lack the messages from `first` on."""
        near = set(range(max(first - NEIGHBOURS, 1), first))
        dead = pending_flushes(await self._access.journal.jobs(dead=True))
        near.difference_update(*dead.get(key, ()))
        if not near:
            return
        probe("windows_completed")
        entries = await self._read_around(key, min(near), max(near))
        made = await self._made_among(key, entries, near)
        made.check()
        prepared, vectors = await self._access.prepare(made.rows, redacted=True)
        # last, because a failure up to here must not cost the rows that are there
        await self._access.delete(key.user, [row.id for row in prepared])
        await (await self._access.store()).add(prepared, vectors, may_exist=True)

    async def _flush(
        self,
        key: SessionKey,
        first: int,
        through: int,
        *,
        may_exist: bool,
        among: Collection[int] | None = None,
    ) -> None:
        """Write the rows of messages `first`…`through`, except pruned ones.

        Args:
            key: the session.
            first: number of the first.
            through: number of the last.
            may_exist: some rows may exist.
            among: only these messages.
        """
        # An imported session may have pruned messages before its first flush.
        may_be_pruned = may_exist or first == 1

        async def flush_some(start: int) -> None:
            end = min(start + _MESSAGES_AT_ONCE - 1, through)
            entries = await self._read_around(key, start, end)
            made = await self._made(key, entries, start, end, embedded=True)
            pruned = await self._access.journal.pruned_seqs(key) if may_be_pruned else ()
            made = made.without(pruned, among)
            await self._write_made(entries, made, may_exist=may_exist)

        # A job may have all of a long conversation, whose rows would fill memory.
        starts = range(first, through + 1, _MESSAGES_AT_ONCE)
        await map_concurrently(flush_some, starts, concurrency=_PARTS_AT_ONCE)

    async def _read_around(self, key: SessionKey, first: int, through: int) -> Sequence[Entry]:
        """Messages `first`…`through` with their neighbours."""
        return await self._access.journal.read(key, first - NEIGHBOURS, through + NEIGHBOURS)

    async def _made_among(
        self, key: SessionKey, entries: Sequence[Entry], among: Collection[int]
    ) -> _Made:
        """The rows of these messages, except pruned ones; `entries` has neighbours."""
        made = await self._made(key, entries, min(among), max(among), embedded=False)
        return made.without(await self._access.journal.pruned_seqs(key), among)

    async def _write_made(self, entries: Sequence[Entry], made: _Made, *, may_exist: bool) -> None:
        """Write rows; those that never can be do not keep the others out."""
        if made.vectors is None:
            await self._add_in_batches(entries, made.rows, may_exist=may_exist)
        else:
            try:
                await self._store(made.rows, made.vectors, may_exist=may_exist)
            except LongTermError as e:
                if e.retryable:
                    raise
                await self._add_in_batches(entries, made.rows, may_exist=True)
        made.check()

    async def _made(
        self,
        key: SessionKey,
        entries: Sequence[Entry],
        first: int,
        through: int,
        *,
        embedded: bool,
    ) -> _Made:
        """The rows of messages `first`…`through`; `entries` has neighbours.

        Of many messages they have vectors, if they are to be embedded and the embedder computes
        here.
        """
        access = self._access
        large = sum(len(entry.chat) for entry in entries) > INLINE_CHARACTERS
        embed = function_of(access.embedder) if embedded and large else None
        how: Any = {
            "language": access.language,
            "window_chars": self._window_chars if await self._stores_windows() else None,
            "embed": embed,
        }
        messages = (key, entries, first, through, self._counter)
        if access.redact is None:
            make = partial(make_message_rows, *messages, **how)
            return _Made(*(await compute_apart(make) if large else make()), {})
        rows = await run_in_thread_if(large, partial(message_rows, *messages, whole=True))
        rows, failed = access.redacted(rows, self._counter)
        finish = partial(finish_message_rows, rows, first, through, **how)
        rows, vectors = await compute_apart(finish) if large else finish()
        there = {seq: error for seq, error in failed.items() if first <= seq <= through}
        return _Made(rows, vectors, there)

    async def _add_in_batches(
        self, entries: Sequence[Entry], rows: Sequence[MemoryRow], *, may_exist: bool = True
    ) -> None:
        failed: list[Exception] = []

        async def add(batch: Sequence[MemoryRow]) -> None:
            # A batch that can never be written must not keep the others out; a store or a model
            # that is away need not be asked for each.
            if not any(getattr(e, "retryable", False) for e in failed):
                try:
                    prepared = await self._access.prepare(batch, redacted=True)
                    await self._store(*prepared, may_exist=may_exist)
                except Exception as e:
                    failed.append(e)

        large = len(rows) > _IN_THREAD
        found = await run_in_thread_if(large, _batch_rows, entries, rows, self._batch_tokens)
        # while one batch waits for its commit, the next is embedded and joins it
        await map_concurrently(add, found, concurrency=_BATCHES_AT_ONCE)
        if failed:
            raise failed[0]

    async def _flush_entry(self, key: SessionKey, spec: EntryFlushSpec) -> None:
        """Write the row of a summary entry, unless the session was rewound to before it."""
        items = await self._access.journal.state_items(key)
        if any(one.kind == ENTRY_KIND and one.name == str(spec.entry.through) for one in items):
            # An entry that returned to its list and left it again has a row.
            await self._add([entry_row(key, spec.entry, spec.at_us)])

    async def _remove(self, key: SessionKey, spec: UnflushSpec) -> None:
        """Remove messages' rows; write those again that changed, or hold their text."""
        touched = partial(_touched_rows, key, spec, windowed=await self._stores_windows())
        ids, near = await run_in_thread_if(len(spec.seqs) > _IN_THREAD, touched)
        await self._access.delete(key.user, ids)
        if near:
            await self._flush(key, min(near), max(near), may_exist=True, among=near)

    async def _add(self, rows: Sequence[MemoryRow]) -> None:
        """Write rows that are not of messages; some may exist."""
        await self._store(*await self._access.prepare(rows), may_exist=True)

    async def _store(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        await (await self._access.store()).add(rows, vectors, may_exist=may_exist or self.merging)


def _batch_rows(
    entries: Sequence[Entry], rows: Sequence[MemoryRow], most_tokens: int
) -> list[list[MemoryRow]]:
    """The rows in batches that keep tool-call groups together."""
    by_seq = {row.seq: row for row in rows}
    mine = [entry for entry in entries if entry.seq in by_seq]
    return [[by_seq[entry.seq] for entry in batch] for batch in batches(mine, most_tokens)]


def _touched_rows(
    key: SessionKey, spec: UnflushSpec, *, windowed: bool
) -> tuple[list[str], set[int]]:
    """The ids of rows that hold the text of removed messages, and of those that are written again.

    The latter also by their numbers: messages that were changed, and neighbours, if rows have
    windows.
    """
    removed = set(spec.seqs)
    reach = range(-NEIGHBOURS, NEIGHBOURS + 1) if windowed else ()
    near = {seq + step for seq in removed for step in reach} - removed | set(spec.changed)
    near = {seq for seq in near if 0 < seq <= spec.flushing}
    entries = [entry_id(key, seq) for seq in {*removed, *spec.entries}]  # by their last messages
    rows = [row_id(key, seq) for seq in (*removed, *near)]
    return [*rows, *entries], near


def _missing_rows(key: SessionKey, through: int, present: Collection[str]) -> set[int]:
    return {seq for seq in range(1, through + 1) if row_id(key, seq) not in present}
