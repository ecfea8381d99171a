"""Deletes messages and memories one by one: for readers at once, from the files later (G13).

A note in the journal's settings names the users, by digests alone, of whom something was deleted
that files may still hold. It is written before the deletion, so that a crash loses none. Once in a
while the tables of these users are rewritten, the journal is vacuumed, and the note is removed
(`services/file_erasure.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime

import anyio
import anyio.abc
import msgspec

from remora.actors.session.messages import Remove, Removed
from remora.actors.user.messages import DeleteMemories, ExpireSynopsis, TakeInstructions
from remora.errors import InvalidInput, NotFound, RemoraError
from remora.ids import SessionKey, UserKey
from remora.jobs.facts import remove_unsupported
from remora.logging import get_logger
from remora.runtime.clock import Clock
from remora.runtime.jobs import Job
from remora.runtime.probes import probe
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.file_erasure import FileEraser, FileErasure
from remora.storage.erasure_notes import (
    DIGEST_KEYS,
    NO_SESSION,
    ErasureProgress,
    decode_digests,
    describe_failure,
)
from remora.storage.ports import Erasure, Journal
from remora.storage.records import INSTRUCTION, DiscardSpec, MemoryItem, RecordSpec, UnflushSpec
from remora.storage.standings import trace_of

_logger = get_logger(__name__)
_PAUSE_S = 60.0  # before what could not be erased is tried again
_DELETED = "deleted_of"
"""The setting that has the users of whom files may hold what was deleted: times and digests."""
_Owner = tuple[str, ...]
"""A user's digests, under each key that the journal has."""
_decode = msgspec.json.Decoder(list[tuple[int, _Owner]]).decode
_REMOVING = (UnflushSpec, DiscardSpec, RecordSpec)
"""The jobs that remove rows of what was deleted; the last ones follow from the others."""


class DeletionRequest(msgspec.Struct, frozen=True):
    """The request of a deletion.

    Attributes:
        user: whose it is.
        ids: of messages and memories, each with the session of the message; empty if unknown.
        session: only messages of this session.
        places: positions in that session's buffer.
        agent: only memories of this agent.
        memories_only: messages are not meant.
    """

    user: str
    ids: tuple[tuple[str, str], ...] = ()
    session: str | None = None
    places: tuple[int, ...] = ()
    agent: str | None = None
    memories_only: bool = False


class DeletionReceipt(msgspec.Struct, frozen=True):
    """The receipt of a deletion.

    Attributes:
        deleted: how many messages and memories.
        missing: ids that nothing had.
        erased_by: when the bytes are gone from the files at the latest, aware UTC, if the files can
            be written and the server runs then; None if nothing was deleted.
    """

    deleted: int
    missing: tuple[str, ...] = ()
    erased_by: datetime | None = None


class Deleter:
    """Deletes messages and memories.

    Args:
        journal: has the note.
        registry: of the actors.
        supervisor: runs the jobs that remove rows.
        files: rewrites them.
        clock: says when.
        within_s: how long bytes may stay in files.
    """

    def __init__(
        self,
        journal: Journal,
        registry: ActorRegistry,
        supervisor: Supervisor,
        files: FileEraser,
        *,
        clock: Clock,
        within_s: float,
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._supervisor = supervisor
        self._files = files
        self._clock = clock
        self._within_us = int(within_s * 1_000_000)
        self._pending: dict[_Owner, int] = {}
        """Since when files may hold what was deleted of these users."""
        self._active: Counter[_Owner] = Counter()
        """Of whom something is being deleted now: a rewriting could come too early."""
        self._erasing: dict[_Owner, int] = {}
        self._setting = anyio.Lock()
        self._noted, self._erased = anyio.Event(), anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None

    # -- from the journal --------------------------------------------------------------------------

    async def delete(self, request: DeletionRequest) -> DeletionReceipt:
        """See `remora.User.delete`."""
        by_session, rest = await self._find_sessions(request)
        if not (by_session or rest or request.places):
            return DeletionReceipt(0)
        digests = decode_digests(await self._journal.setting(DIGEST_KEYS))
        owner = tuple([one.user(request.user) for one in digests])
        deleted, missing = 0, list[str]()
        self._active[owner] += 1
        try:
            async with self._journal.attachments.removing([request.user]):
                await self._note(owner)
                for session, ids in by_session.items():
                    removed = await self._remove(request, session, ids)
                    deleted += len(removed.seqs)
                    missing += removed.missing
                if deleted:
                    self._registry.post(UserKey(request.user), ExpireSynopsis())
                if rest:
                    message = DeleteMemories(tuple(rest), request.agent)
                    asked_for = await self._instructions(request.user, rest)
                    gone: Sequence[str] = await self._registry.ask(UserKey(request.user), message)
                    await self._leave_traces(request.user, asked_for, gone)
                    deleted += len(gone)
                    missing += [one for one in rest if one not in gone]
        finally:
            self._active -= Counter([owner])
            self._noted.set()
        if not deleted:
            raise NotFound(
                f"there is no message and no memory with the id {missing[0]!r}"
                + (f", nor with {len(missing) - 1} others" if len(missing) > 1 else "")
                + ": nothing was deleted",
                ids=tuple(missing),
            )
        by_us = self._pending.get(owner, self._now_us()) + self._within_us
        erased_by = datetime.fromtimestamp(by_us / 1_000_000, UTC)
        return DeletionReceipt(deleted, tuple(missing), erased_by)

    async def _instructions(self, user: str, ids: Sequence[str]) -> list[MemoryItem]:
        """Return those of the memories that are instructions which a message gave."""
        items = await self._journal.memories(user, ids)
        return [item for item in items if item.type == INSTRUCTION and item.sources]

    async def _leave_traces(
        self, user: str, items: Sequence[MemoryItem], gone: Sequence[str]
    ) -> None:
        """Note that the messages of instructions that are gone hold no more."""
        now_us = self._now_us()
        traces = tuple(trace_of(item, user, now_us) for item in items if item.id in gone)
        if traces:
            await self._registry.ask_control(UserKey(user), TakeInstructions(traces))

    async def _remove(self, request: DeletionRequest, session: str, ids: Sequence[str]) -> Removed:
        key = SessionKey(request.user, session)
        removed: Removed = await self._registry.ask(key, Remove(request.places, tuple(ids)))
        if removed.seqs:  # what rests on messages that are not indexed has no job that removes it
            await remove_unsupported(self._journal, self._registry.ask, key)
        return removed

    async def _find_sessions(
        self, request: DeletionRequest
    ) -> tuple[dict[str, list[str]], list[str]]:
        """Ids of messages by session, and the ids that are no message's."""
        if request.session is not None:
            ids = [id_ for _, id_ in request.ids]
            return ({request.session: ids} if ids or request.places else {}), []
        by_session: dict[str, list[str]] = {}
        for session, id_ in request.ids:
            if session:
                by_session.setdefault(session, []).append(id_)
        rest = list(dict.fromkeys([id_ for session, id_ in request.ids if not session]))
        if request.memories_only or not rest:
            return by_session, rest
        found: dict[str, str] = {}
        for id_, session in await self._journal.sessions_of(request.user, rest):
            if found.setdefault(id_, session) != session:
                raise InvalidInput(
                    f"messages of several sessions have the id {id_!r}: delete the one that you "
                    "mean through its session"
                )
            by_session.setdefault(session, []).append(id_)
        return by_session, [id_ for id_ in rest if id_ not in found]

    # -- the note ----------------------------------------------------------------------------------

    async def _note(self, owner: _Owner) -> None:
        """Note that files may hold what is deleted of this user.

        The note stays if nothing is deleted: another deletion may rely on it by then.
        """
        async with self._setting:
            if owner not in self._pending or owner in self._erasing:
                await self._write({**self._pending, owner: self._now_us()})

    async def _remove_notes(self, is_done: Callable[[_Owner, int], bool]) -> None:
        async with self._setting:
            left = {one: at for one, at in self._pending.items() if not is_done(one, at)}
            if len(left) < len(self._pending):
                await self._write(left)

    async def _write(self, pending: dict[_Owner, int]) -> None:
        value = msgspec.json.encode([(at, one) for one, at in pending.items()]).decode()
        await self._journal.change_settings({_DELETED: value})
        self._pending = pending

    def _now_us(self) -> int:
        return int(self._clock.time() * 1_000_000)

    async def withdraw(self, users: Collection[str]) -> None:
        """Remove the notes of users, by digests, who are forgotten as a whole."""
        await self._remove_notes(lambda one, _: not set(one).isdisjoint(users))

    # -- from the files ----------------------------------------------------------------------------

    async def resume(self) -> None:
        """Go on with what an earlier run left; call it before there are requests."""
        setting = await self._journal.setting(_DELETED)
        try:
            self._pending = {one: at for at, one in _decode(setting)} if setting else {}
        except msgspec.MsgspecError:
            _logger.warning("deletions_unreadable")

    def start(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start the worker, which ends when the task group is cancelled."""
        self._tasks = tasks
        tasks.start_soon(self._run, name="remora.deletion")

    async def hurry(self) -> None:
        """Have the files rewritten now; returns when that waits for its turn."""
        if self._pending and not self._erasing:
            await self._begin()

    async def _run(self) -> None:
        while True:
            while not self._pending:
                self._noted = anyio.Event()
                await self._noted.wait()
            wait_us = min(self._pending.values()) + self._within_us - self._now_us()
            if wait_us > 0:
                await self._clock.sleep(wait_us / 1_000_000)
            elif self._erasing:
                await self._erased.wait()
            else:
                try:
                    began = await self._begin()
                except RemoraError as e:
                    _logger.warning("deletions_not_erased", error=describe_failure(e))
                    began = False
                if not began:
                    await self._clock.sleep(_PAUSE_S)

    async def _begin(self) -> bool:
        """Begin to erase what can be erased; whether there is something."""
        assert self._tasks is not None
        chosen = {one: at for one, at in self._pending.items() if not self._active[one]}
        if not chosen or not await self._wait_for_jobs(chosen):
            return False
        self._erasing, self._erased = chosen, anyio.Event()
        (user, session), *others = [(one, NO_SESSION) for owner in chosen for one in owner]
        note = Erasure(0, user, session, tuple(others))
        removed = ErasureProgress(self._now_us(), removed=True)
        case = self._files.enqueue(note, ExitStack(), removed)
        self._tasks.start_soon(self._finish, case, chosen, name="remora.deletion.end")
        return True

    async def _finish(self, case: FileErasure, chosen: dict[_Owner, int]) -> None:
        await case.done.wait()
        try:  # what was deleted since has a later note
            await self._remove_notes(lambda one, at: chosen.get(one) == at)
        except RemoraError as e:  # the files are rewritten once more
            _logger.warning("deletion_note_stays", error=describe_failure(e))
        probe("deletions_erased")
        self._erasing = {}
        self._erased.set()

    async def _wait_for_jobs(self, owners: Collection[_Owner]) -> bool:
        """Wait for the jobs that remove rows of these users; False if one has given up."""
        digests = decode_digests(await self._journal.setting(DIGEST_KEYS))
        wanted = {one for owner in owners for one in owner}

        def matches(job: Job) -> bool:
            user = getattr(job.key, "user", "")
            return isinstance(job.payload, _REMOVING) and any(
                one.user(user) in wanted for one in digests
            )

        for _ in range(2):  # a job that removes messages may have facts removed
            for job in await self._journal.jobs():
                if matches(job):
                    await self._supervisor.wait_for_job(job.id)
        if any(map(matches, await self._journal.jobs(dead=True))):
            _logger.warning("deletion_waits_for_dead_letter")
            return False
        return True
