"""Appends, and how long they wait while a session is over its overdraft.

The session's actor refuses an append that must wait: it holds nothing, so summaries, loads
and an erasure go on. The append is tried again whenever the compaction that it waits for
ends. Later appends of the session wait behind it, so that they stay in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import msgspec

from remora.actors.policies.importance import DEFAULT_IMPORTANCE
from remora.actors.policies.redaction import redact_text
from remora.actors.session.messages import Append, Replace
from remora.actors.user.messages import DeleteMemories, TakeInstructions
from remora.errors import OverdraftReached, RedactionFailed, RemoraError
from remora.ids import SessionKey, UserKey, fact_id, topic_id
from remora.languages.instructions import find_instructions, may_instruct
from remora.logging import get_logger
from remora.messages import Entry, Receipt, dated_line, decode_chat, said_text
from remora.runtime.clock import Clock
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.meters import HistogramMeter
from remora.runtime.probes import probe
from remora.runtime.registry import ActorRegistry, Reserved
from remora.runtime.shared_call import SharedCall
from remora.runtime.supervisor import Supervisor
from remora.services.intake import UNCOUNTED, CountingThread
from remora.storage.attachments import Attachments, take_blobs
from remora.storage.ports import Journal
from remora.storage.records import INSTRUCTION, MemoryItem
from remora.storage.standings import (
    WITHDRAWS,
    InstructionStanding,
    as_noticed,
    find_instructions_standing,
)
from remora.tokens import TokenCounter

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
                noticing = self._instructions is not None
                if request.replace or (noticing and any(map(_may_instruct, request.entries))):
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
                    receipt: Receipt = await reserved.answer
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
        return reserved.answer

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


# -- standing instructions of users: noticed when they are said, and shown in their contexts -------
#
# An instruction is a memory of the journal that rests on its message, as an extracted fact does
# (`remora.storage.standings`): it goes with its message, and of instructions about one matter the
# newest holds.

_logger = get_logger(__name__)
_MOST_AT_ONCE = 500  # instructions: an actor's 10 ms
_READ_ON_LOOP = 16  # messages that may instruct: 4 ms
_MOST_KNOWN = 100_000  # users of whom it is known that they gave none: 10 MB


def _may_instruct(entry: Entry) -> bool:
    return entry.role == "user" and may_instruct(entry.chat)


class Instructions:
    """Notices and reads the instructions of users.

    Args:
        journal: has them.
        tell: sends a message to a user's own actor, and returns its durable reply.
        counter: for their sizes in a context.
        redact: applied to them before the journal has them; None for none.
    """

    def __init__(
        self,
        journal: Journal,
        tell: Callable[[UserKey, Any], Awaitable[Any]],
        counter: TokenCounter,
        redact: Callable[[str], str] | None,
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._counter = counter
        self._redact = redact
        self._without: set[str] = set()
        self._changes = 0

    async def notice(
        self,
        key: SessionKey,
        entries: Sequence[Entry],
        receipt: Receipt,
        *,
        replaced: bool = False,
    ) -> None:
        """Record what messages that are stored ask for, or take back.

        If that fails, the messages are stored all the same; an append that is repeated under its
        key records it then.

        Args:
            key: the session.
            entries: the messages.
            receipt: theirs.
            replaced: they may have taken the place of others, whose instructions go.
        """
        items: Sequence[MemoryItem]
        said = [
            (entry, seq)
            for entry, seq in zip(entries, receipt.seqs, strict=False)
            if _may_instruct(entry)
        ]
        items = await run_in_thread_if(len(said) > _READ_ON_LOOP, self.find, key, said)
        if not items and not replaced:
            return
        try:
            if replaced:
                await self._withdraw(key, set(receipt.seqs), {item.id for item in items})
            if receipt.duplicate:
                items = await self._not_recorded(key, receipt, items)
            await self.record(key.user, items)
        except RemoraError as e:
            self._warn(key, e)
        self.note_change(key.user)

    def find(self, key: SessionKey, messages: Iterable[tuple[Entry, int]]) -> list[MemoryItem]:
        """Return what messages, each with its number, ask for, or take back."""
        return [
            item
            for entry, seq in messages
            if _may_instruct(entry)
            for item in self._find(key, entry, seq)
        ]

    async def record_imported(self, key: SessionKey, items: Sequence[MemoryItem]) -> None:
        """Record what messages that were imported ask for, or take back.

        If that fails, the messages are stored all the same.
        """
        try:
            await self.record(key.user, items)
        except RemoraError as e:
            self._warn(key, e)

    async def record(self, user: str, items: Sequence[MemoryItem]) -> None:
        """Record instructions; those that are recorded already stay as they are.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`.
        """
        for start in range(0, len(items), _MOST_AT_ONCE):
            some = tuple(items[start : start + _MOST_AT_ONCE])
            await self._tell(UserKey(user), TakeInstructions(some))
        self.note_change(user)

    async def copy(self, key: SessionKey, copy: SessionKey, seqs: Mapping[int, int]) -> None:
        """Record for the copy of a session what is recorded for the session's messages.

        Args:
            key: the session.
            copy: the copy, of the same user.
            seqs: the numbers that the messages have in the copy, by those of the session.
        """
        items = [
            msgspec.structs.replace(
                item,
                id=fact_id(item.topic, copy.user, copy.session, seqs[item.sources[-1]], item.id),
                session=copy.session,
                sources=tuple(seqs[seq] for seq in item.sources),
            )
            for item in await self._journal.facts(key.user, session=key.session)
            if item.type == INSTRUCTION and item.sources and seqs.keys() >= set(item.sources)
        ]
        await self.record(key.user, items)

    async def _not_recorded(
        self, key: SessionKey, receipt: Receipt, items: Sequence[MemoryItem]
    ) -> Sequence[MemoryItem]:
        """The items of messages that are there, and of which nothing was recorded."""
        places = {(key.session, seq) for seq in receipt.seqs}
        if await self._journal.removed_messages(key.user, places):
            return ()
        there = await self._journal.facts(key.user, session=key.session)
        recorded = {seq for one in there if one.type == INSTRUCTION for seq in one.sources}
        return [item for item in items if recorded.isdisjoint(item.sources)]

    async def _withdraw(self, key: SessionKey, seqs: set[int], kept: set[str]) -> None:
        """Delete instructions that these messages gave before they were changed."""
        if key.user in self._without:
            return
        gone = [
            item.id
            for item in await self._journal.facts(key.user, session=key.session)
            if item.type == INSTRUCTION and seqs.issuperset(item.sources) and item.id not in kept
        ]
        if gone:
            await self._tell(UserKey(key.user), DeleteMemories(tuple(gone), None))

    async def get(self, user: str) -> Sequence[MemoryItem]:
        """Of a user's newest instructions, `MOST_INSTRUCTIONS`, those that hold, newest first.

        A user without any is asked for once.

        Raises:
            StorageError: the journal cannot be read.
        """
        return [one.item for one in await self._read(user) if not one.withdrawn_by]

    async def withdrawn(self, user: str) -> Mapping[tuple[str, int], str]:
        """Messages of which no instruction holds any more, and the id of what took it back.

        Raises:
            StorageError: the journal cannot be read.
        """
        holding: set[tuple[str, int]] = set()
        takers: dict[tuple[str, int], str] = {}
        for one in await self._read(user):
            if not as_noticed(one.item).withdraws:
                places = [(one.item.session, seq) for seq in one.item.sources]
                if one.withdrawn_by:
                    takers.update(dict.fromkeys(places, one.withdrawn_by))
                else:
                    holding.update(places)
        return {place: taker for place, taker in takers.items() if place not in holding}

    async def _read(self, user: str) -> Sequence[InstructionStanding]:
        if user in self._without:
            return ()
        changes = self._changes
        found = await find_instructions_standing(self._journal, user)
        if not found and changes == self._changes:
            if len(self._without) == _MOST_KNOWN:
                self._without.clear()
            self._without.add(user)
        return found

    def _warn(self, key: SessionKey, error: RemoraError) -> None:
        probe("instructions_not_noticed")
        _logger.warning("instructions_not_noticed", session=key, error=type(error).__name__)

    def note_change(self, user: str) -> None:
        """The user's memories changed, or may have."""
        self._changes += 1
        self._without.discard(user)

    def _find(self, key: SessionKey, entry: Entry, seq: int) -> list[MemoryItem]:
        chat = decode_chat(entry.chat)
        name = str(chat.get("name") or "")
        if name and name.casefold() != key.user.casefold():
            return []  # one of several people speaks
        items = []
        for one in find_instructions(said_text(entry, chat)):
            text, metadata = self._redacted(one.text), ""
            if one.withdraws and (subject := self._redacted(one.withdraws)):
                metadata = msgspec.json.encode({WITHDRAWS: subject}).decode()
            if text and bool(metadata) == bool(one.withdraws):
                topic = topic_id(key.user, "", 0, one.about)
                items.append(
                    MemoryItem(
                        id=fact_id(topic, key.user, key.session, seq, text),
                        session=key.session,
                        agent="",
                        content=text,
                        type=INSTRUCTION,
                        importance=DEFAULT_IMPORTANCE,
                        created_us=entry.at_us,
                        tokens=self._counter.count(dated_line(entry.at_us, text)),
                        metadata=metadata,
                        sources=(seq,),
                        topic=topic,
                    )
                )
        return items

    def _redacted(self, text: str) -> str:
        """The text as the journal may have it; empty if the hook fails."""
        if self._redact is None:
            return text
        try:
            return redact_text(text, self._redact).strip()
        except RedactionFailed:
            return ""
