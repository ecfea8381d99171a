"""The journal against long-term memory.

Which rows should be there, which are, and what makes the two agree (G7).

The journal is the source of truth and long-term memory an index over it, so what should be there
follows from the journal alone:

==================
========================================================================================== rows
expected ==================
========================================================================================== messages
up to where the session has handed them over, but for those that were removed or pruned summary
entries     one for each facet that a session keeps of an entry that left its list (`ENTRY_KIND`)
memories            one for each row of what was recorded on purpose of memory blocks    none: they
are long-term memory's own, and only what no session or block can have written is amiss
==================
==========================================================================================

Jobs that wait explain what is not there yet, or still there; so do dead letters explain what is
lacking, since they are listed as such, and their own verbs bring it. Rows of messages that
retention took out of the journal stay, and nobody can tell what they said. Whoever compares must
have the directory for himself: beside a running server, work under way would look amiss.

It goes table by table and user by user, so that a user's rows, and no more, are held at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import TypeAlias

import msgspec

from remora.actors.blocks.state import block_progress, join_ranges
from remora.actors.blocks.vector import BLOCK_AGENT
from remora.errors import JournalDamaged
from remora.ids import SessionKey, UserKey, entry_id, row_id, session_key, user_key
from remora.jobs.rows import MEMORY_TYPES
from remora.runtime.log import Job
from remora.storage.lance.scan import ScannedRow, ScannedUser, TableScan
from remora.storage.ports import BLOCK_TYPE, NEIGHBOURS, Finding, Journal
from remora.storage.records import (
    ENTRY_KIND,
    BlocksSpec,
    DiscardSpec,
    EntryFlushSpec,
    FlushSpec,
    PruneSpec,
    RecordSpec,
    Spec,
    UnflushSpec,
)

__all__ = ["Backfill", "Difference", "Progress", "compare_index"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many are done, of how many."""

_READ_AT_ONCE = 1_000  # messages
_SESSIONS_AT_ONCE = 64
_REFILL_AT_ONCE = 500  # messages of one flush job
_NAMED = 8  # numbers or ids that a line names before it only counts
_LAST = (1 << 32) - 1
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


class Backfill(msgspec.Struct, frozen=True):
    """Work that writes rows which are lacking: for whom, and what; `sid` is left 0."""

    key: SessionKey | UserKey
    spec: Spec


class Difference(msgspec.Struct, frozen=True):
    """One thing in which the two differ.

    Attributes:
        finding: what a reader is told.
        table: where the surplus rows stand.
        surplus: rows that must go.
        backfills: what brings back rows that are lacking.
    """

    finding: Finding
    table: str = ""
    surplus: Sequence[ScannedRow] = ()
    backfills: Sequence[Backfill] = ()


class _PendingJobs:
    """What jobs still have to do for one session or user, and so explain."""

    def __init__(self) -> None:
        self.coming: list[tuple[int, int]] = []  # messages that a flush brings, or brings back
        self.leaving: set[int] = set()  # messages that are being taken out
        self.entries: set[int] = set()  # summary entries on their way, by their last message
        self.memories: set[str] = set()
        self.blocks = 0  # messages up to here are being shown to memory blocks
        self.pruning = False

    def take(self, job: Job) -> None:
        """What this job explains.

        A dead letter explains what is lacking, and nothing that should be gone.
        """
        match job.payload:
            case FlushSpec(first=first, through=through):
                self.coming.append((first, through))
            case UnflushSpec(seqs=seqs, flushing=flushing):
                # its neighbours' rows are taken out and written anew
                self.coming.extend(
                    (max(seq - NEIGHBOURS, 1), min(seq + NEIGHBOURS, flushing)) for seq in seqs
                )
                if not job.dead:
                    self.leaving.update(seqs)
            case EntryFlushSpec(entry=entry):
                self.entries.add(entry.through)
            case RecordSpec(ids=ids):
                self.memories.update(ids)
            case BlocksSpec(through=through):
                self.blocks = max(self.blocks, through)
            case PruneSpec() if not job.dead:
                self.pruning = True
            case DiscardSpec(seqs=seqs) if not job.dead:
                self.leaving.update(seqs)
            case _:
                pass


class _JournalUser:
    """One user in the journal."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.sessions: dict[str, int] = {}  # session -> up to where it is flushed
        self.done = False


async def compare_index(
    journal: Journal,
    scan: TableScan,
    *,
    whole: bool = True,
    journal_intact: bool = True,
    progress: Progress | None = None,
) -> AsyncIterator[Difference]:
    """Everything in which long-term memory differs from what the journal says it should hold.

    Args:
        journal: of a directory that nobody writes to meanwhile.
        scan: its long-term memory.
        whole: False while long-term memory is being made anew: what is lacking then is on its way.
        journal_intact: False where the journal is damaged: nothing is to go then for not being in
            it.
        progress: told how many rows were looked through, of how many.

    Raises:
        StorageError: the journal cannot be read. What is damaged in it is no error: rows of a
            damaged message are left alone, and a session that cannot be compared is named.
    """
    accounts: dict[str, _JournalUser] = {}
    for actor, flushed in await journal.indexed_through():
        account = accounts.setdefault(user_key(actor.user), _JournalUser(actor.user))
        if isinstance(actor, SessionKey):
            account.sessions[actor.session] = flushed
    pending: defaultdict[SessionKey | UserKey, _PendingJobs] = defaultdict(_PendingJobs)
    for dead in (False, True):
        for job in await journal.jobs(dead=dead):
            assert isinstance(job.key, (SessionKey, UserKey))
            pending[job.key].take(job)
    erasing = {(note.user_key, note.session_key) for note in await journal.erasures()}
    comparison = _Comparison(journal, pending, erasing, whole=whole, journal_intact=journal_intact)
    total = await scan.count()
    async for found in scan.users():
        owner = accounts.get(found.key)
        if not found.home:
            yield _foreign(found, f"in the table {found.table}, which is not their user's")
        elif owner is None:
            for difference in comparison.unknown(found):
                yield difference
        else:
            owner.done = True
            async for difference in comparison.compare_user(owner, found):
                yield difference
        if progress is not None:
            progress(scan.rows, total)
    for key, account in accounts.items():
        if not account.done and not scan.is_unreadable(key):
            async for difference in comparison.compare_user(
                account, ScannedUser("", key, home=True, rows=())
            ):
                yield difference


class _Comparison:
    """Users' rows against the journal."""

    def __init__(
        self,
        journal: Journal,
        pending: Mapping[SessionKey | UserKey, _PendingJobs],
        erasing: Collection[tuple[str, str]],
        *,
        whole: bool,
        journal_intact: bool,
    ) -> None:
        self._journal = journal
        self._owed = pending
        self._erasing = erasing
        self._whole = whole
        self._sound = journal_intact

    def _orphaned(self, where: str, table: str, rows: Sequence[ScannedRow], why: str) -> Difference:
        """Rows of what the journal does not have.

        They go only where the journal is to be trusted.
        """
        found = _surplus("orphan", where, table, rows, why)
        if self._sound:
            return found
        return Difference(msgspec.structs.replace(found.finding, repairable=False))

    def unknown(self, found: ScannedUser) -> Iterator[Difference]:
        """Rows of a user that the journal does not know."""
        strange = [row for row in found.rows if user_key(row.user) != found.key]
        if strange:
            yield _foreign(
                msgspec.structs.replace(found, rows=strange), "under the key of another user"
            )
        rows = [
            row
            for row in found.rows
            if user_key(row.user) == found.key and not self._being_erased(row)
        ]
        if rows:
            yield self._orphaned(
                rows[0].user, found.table, rows, "of a user that the journal does not know"
            )

    def _being_erased(self, row: ScannedRow) -> bool:
        if (row.user_key, "") in self._erasing:
            return True
        return (
            bool(self._erasing)
            and (row.user_key, session_key(row.user, row.session)) in self._erasing
        )

    async def compare_user(
        self, account: _JournalUser, found: ScannedUser
    ) -> AsyncIterator[Difference]:
        """One user's rows, none among them, against what the journal says."""
        strange = [row for row in found.rows if row.user != account.user]
        if strange:
            yield _foreign(
                msgspec.structs.replace(found, rows=strange), "under the key of another user"
            )
        once: dict[str, ScannedRow] = {}
        doubles: list[ScannedRow] = []
        for row in found.rows:
            if row.user == account.user:
                if row.id in once:
                    doubles.append(row)
                else:
                    once[row.id] = row
        if doubles:
            yield _surplus("doubled", account.user, found.table, doubles, "there more than once")
        of_sessions: defaultdict[str, list[ScannedRow]] = defaultdict(list)
        recorded: list[ScannedRow] = []
        for row in once.values():
            if row.memory_type in MEMORY_TYPES:
                recorded.append(row)
            elif not self._being_erased(row):
                of_sessions[row.session].append(row)
        try:
            async for difference in self._compare_memories(account.user, found.table, recorded):
                yield difference
        except JournalDamaged as e:
            yield Difference(Finding("journal", account.user, str(e), repairable=False))
        for session in of_sessions.keys() - account.sessions.keys():
            why = "of a session that the journal does not know"
            yield self._orphaned(
                _name(SessionKey(account.user, session)), found.table, of_sessions[session], why
            )
        sessions = list(account.sessions)
        for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
            keys = [
                SessionKey(account.user, session)
                for session in sessions[start : start + _SESSIONS_AT_ONCE]
            ]
            for key, image in zip(keys, await self._journal.hydrate(keys), strict=True):
                flushed = account.sessions[key.session]
                if not isinstance(image, Exception):
                    flushed = max(
                        flushed, image.watermarks.flushing
                    )  # what is not there yet has a job
                try:
                    async for difference in self._compare_session(
                        key, flushed, found.table, of_sessions.get(key.session, [])
                    ):
                        yield difference
                except JournalDamaged as e:
                    yield Difference(Finding("journal", _name(key), str(e), repairable=False))

    # -- what was recorded on purpose --------------------------------------------------------------

    async def _compare_memories(
        self, user: str, table: str, rows: Sequence[ScannedRow]
    ) -> AsyncIterator[Difference]:
        pending = self._owed.get(UserKey(user)) or _PendingJobs()
        items = {item.id for item in await self._journal.memories(user)}
        present = {row.id for row in rows}
        surplus = [
            row
            for row in rows
            if row.id not in items and not pending.pruning and not self._being_erased(row)
        ]
        if surplus:
            yield self._orphaned(user, table, surplus, "memories that the journal does not have")
        lacking = sorted(items - present - pending.memories) if self._whole else []
        if lacking:
            finding = Finding(
                "missing",
                user,
                f"{_count(lacking, 'memory', 'memories')} {_some(lacking)}",
                repairable=True,
            )
            chunks = [
                lacking[start : start + _REFILL_AT_ONCE]
                for start in range(0, len(lacking), _REFILL_AT_ONCE)
            ]
            yield Difference(
                finding,
                backfills=[Backfill(UserKey(user), RecordSpec(0, tuple(ids))) for ids in chunks],
            )

    # -- sessions ----------------------------------------------------------------------------------

    async def _compare_session(
        self, key: SessionKey, flushed: int, table: str, rows: Sequence[ScannedRow]
    ) -> AsyncIterator[Difference]:
        pending = self._owed.get(key) or _PendingJobs()
        pruning = (self._owed.get(UserKey(key.user)) or _PendingJobs()).pruning
        said = [row for row in rows if row.memory_type == "message"]
        async for difference in self._compare_messages(
            key, flushed, table, said, pending, pruning=pruning
        ):
            yield difference
        state_items = (
            await self._journal.state_items(key) if flushed or rows or pending.entries else ()
        )
        kept = {
            spec.entry.through: spec
            for spec in (_decode_entry(one.value) for one in state_items if one.kind == ENTRY_KIND)
        }
        async for difference in self._compare_entries(
            key,
            table,
            [row for row in rows if row.memory_type == "summary"],
            kept,
            pending,
            pruning=pruning,
        ):
            yield difference
        batches = [row for row in rows if row.memory_type == BLOCK_TYPE]
        seen = block_progress(state_items) if batches else {}
        ahead = [
            row
            for row in batches
            if (mine := seen.get(row.agent.removeprefix(BLOCK_AGENT))) is not None
            and row.seq > pending.blocks
            and not _within(row.seq, mine.seen)
        ]
        if ahead:
            yield _surplus(
                "orphan",
                _name(key),
                table,
                ahead,
                "of memory blocks, of messages that they have not seen",
            )
        known = {"message", "summary", BLOCK_TYPE}
        other = [row for row in rows if row.memory_type not in known]
        if other:
            kinds = ", ".join(sorted({repr(row.memory_type) for row in other}))
            yield _surplus(
                "orphan",
                _name(key),
                table,
                other,
                f"of the type {kinds}, which remora does not write",
            )

    async def _compare_messages(
        self,
        key: SessionKey,
        flushed: int,
        table: str,
        rows: Sequence[ScannedRow],
        pending: _PendingJobs,
        *,
        pruning: bool,
    ) -> AsyncIterator[Difference]:
        coming = join_ranges(pending.coming)
        through = max([flushed, *(row.seq for row in rows), *(last for _, last in coming)])
        if not through:
            return
        times, damaged = await self._times(key, through)
        pruned = set(await self._journal.pruned_seqs(key))
        trimmed = 0
        if any(row.seq not in times for row in rows):
            trimmed = (await self._journal.buffer_start(key, _LAST)).trimmed
        present: set[int] = set()
        wrong: list[ScannedRow] = []
        gone: list[ScannedRow] = []
        early: list[ScannedRow] = []
        for row in rows:
            seq = row.seq
            if row.id != row_id(key, seq) or (seq in times and times[seq] != row.created_us):
                wrong.append(row)  # and what should be in its place is lacking
                continue
            present.add(seq)
            if 0 < seq <= trimmed or seq in damaged:
                continue
            if seq not in times or seq in pruned:
                if seq not in pending.leaving and not (pruning and seq in pruned):
                    gone.append(row)
            elif seq > flushed and not _within(seq, coming):
                early.append(row)
        if wrong:
            yield _surplus(
                "orphan",
                _name(key),
                table,
                wrong,
                f"of another message than {_numbers(wrong)} in the journal",
            )
        if gone:
            why = f"of messages {_numbers(gone)}, which the journal does not have, or which were removed or pruned"  # noqa: E501
            yield self._orphaned(_name(key), table, gone, why)
        if early:
            why = f"of messages {_numbers(early)}, which the journal has not handed over (up to {flushed})"  # noqa: E501
            yield _surplus("orphan", _name(key), table, early, why)
        if self._whole:
            lacking = [
                seq
                for seq in times
                if seq <= flushed
                and seq not in present
                and seq not in pruned
                and not _within(seq, coming)
            ]
            if lacking:
                detail = (
                    f"{_count(lacking, 'message')} {_ranges(lacking)}, handed over up to {flushed}"
                )
                backfills = [
                    Backfill(key, FlushSpec(0, first, last)) for first, last in _batches(lacking)
                ]
                yield Difference(
                    Finding("missing", _name(key), detail, repairable=True), backfills=backfills
                )

    async def _compare_entries(
        self,
        key: SessionKey,
        table: str,
        rows: Sequence[ScannedRow],
        kept: Mapping[int, EntryFlushSpec],
        pending: _PendingJobs,
        *,
        pruning: bool,
    ) -> AsyncIterator[Difference]:
        expected = {entry_id(key, through): through for through in kept}
        present = {row.id for row in rows}
        surplus = [row for row in rows if row.id not in expected]
        if surplus and not pruning:
            # One that a rewind brought back into its list is there until it leaves it again.
            listed = {
                entry_id(key, one.through)
                for one in (await self._journal.buffer_start(key, _LAST)).summaries
            }
            leaving = {entry_id(key, seq) for seq in pending.leaving}
            surplus = [row for row in surplus if row.id not in listed and row.id not in leaving]
            if surplus:
                yield self._orphaned(
                    _name(key), table, surplus, "summary entries that the journal does not have"
                )
        lacking = (
            [t for id_, t in expected.items() if id_ not in present and t not in pending.entries]
            if self._whole
            else []
        )
        if lacking:
            detail = f"{_count(lacking, 'summary entry', 'summary entries')} up to message {_ranges(lacking)}"  # noqa: E501
            backfills = [
                Backfill(key, msgspec.structs.replace(kept[through], sid=0)) for through in lacking
            ]
            yield Difference(
                Finding("missing", _name(key), detail, repairable=True), backfills=backfills
            )

    async def _times(self, key: SessionKey, through: int) -> tuple[dict[int, int], set[int]]:
        """When each message up to `through` that is there was said, and which cannot be read."""
        times: dict[int, int] = {}
        damaged: set[int] = set()
        spans = [
            (first, min(first + _READ_AT_ONCE - 1, through))
            for first in range(1, through + 1, _READ_AT_ONCE)
        ]
        while spans:
            first, last = spans.pop()
            try:
                times.update(
                    (entry.seq, entry.at_us) for entry in await self._journal.read(key, first, last)
                )
            except JournalDamaged:
                if first == last:
                    damaged.add(first)
                else:
                    middle = (first + last) // 2
                    spans += [(first, middle), (middle + 1, last)]
        return dict(sorted(times.items())), damaged


def _foreign(found: ScannedUser, why: str) -> Difference:
    users = sorted({row.user for row in found.rows})
    return _surplus("foreign", ", ".join(users[:_NAMED]), found.table, found.rows, why)


def _surplus(kind: str, where: str, table: str, rows: Sequence[ScannedRow], why: str) -> Difference:
    detail = f"{_count(rows, 'row')} {why}: {_some([row.id for row in rows])}"
    return Difference(Finding(kind, where, detail, repairable=True), table, rows)


def _name(key: SessionKey) -> str:
    return f"{key.user} / {key.session}"


def _count(things: Collection[object], one: str, many: str = "") -> str:
    return f"{len(things):,} {one if len(things) == 1 else many or one + 's'}"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (" …" if len(ids) > _NAMED else "")


def _numbers(rows: Iterable[ScannedRow]) -> str:
    return _ranges(sorted(row.seq for row in rows))


def _ranges(seqs: Sequence[int]) -> str:
    runs = join_ranges((seq, seq) for seq in seqs)
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_NAMED]]
    return ", ".join(named) + (" …" if len(runs) > _NAMED else "")


def _within(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(ranges, (seq, _LAST)) - 1
    return place >= 0 and ranges[place][0] <= seq <= ranges[place][1]


def _batches(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Spans that hold these numbers, each small enough for one job.

    What they hold beside is merged, not doubled.
    """
    first = last = seqs[0]
    for seq in seqs[1:]:
        if seq - last > _READ_AT_ONCE // 20 or seq - first >= _REFILL_AT_ONCE:
            yield first, last
            first = seq
        last = seq
    yield first, last
