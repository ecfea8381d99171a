"""Compare long-term memory with the journal (G7), and make it agree.

Long-term memory is an index over the journal, so the journal says which rows must exist:

==============  ================================================================================
rows            expected
==============  ================================================================================
messages        up to where the session is indexed, except those removed or pruned
summaries       one for each entry that left the session's list
memories        one for each that was recorded; none for a standing instruction
memory blocks   unknown, because the journal does not have these rows; only those are surplus
                that no block can have written yet
==============  ================================================================================

Rows that a waiting job will write or remove are no differences, nor are rows that a dead letter
would write: dead letters are listed and retried separately. Rows of messages that retention removed
from the journal stay.

`align_index`, for repairs and for the copy that a backup makes, removes rows that the journal does
not have. For missing rows it requests a rebuild: the next start writes them
(`services/rebuild.py`).

Requires exclusive access: jobs in flight would be reported as damage. The
rows of one user are in memory at a time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import msgspec

from remora.actors.blocks.state import block_progress, join_ranges
from remora.actors.blocks.vector import BLOCK_AGENT
from remora.errors import JournalDamaged
from remora.ids import Digests, SessionKey, UserKey, entry_id, memory_of_row, row_id
from remora.jobs.rows import MEMORY_TYPES
from remora.maintenance.offline import Offline
from remora.runtime.concurrency import Progress
from remora.runtime.jobs import Job
from remora.runtime.log import commit_records
from remora.services.index_directory import request_rebuild
from remora.storage.journal_port import read_undamaged
from remora.storage.lance.scan import ScannedRow, ScannedUser, TableScan
from remora.storage.lance.store import LanceStore
from remora.storage.pending import first_row_written
from remora.storage.ports import BLOCK_TYPE, NEIGHBOURS, Finding, Journal
from remora.storage.records import (
    ENTRY_KIND,
    INSTRUCTION,
    BlocksSpec,
    DiscardSpec,
    EntryFlushSpec,
    Flushed,
    FlushSpec,
    PruneSpec,
    RecordSpec,
    UnflushSpec,
)

_READ_AT_ONCE = 1_000  # messages
_SESSIONS_AT_ONCE = 64
_NAMED = 8  # numbers or ids that a line names before it only counts
_LAST = (1 << 32) - 1
_decode_entry = msgspec.msgpack.Decoder(EntryFlushSpec).decode


class Difference(msgspec.Struct, frozen=True):
    """A difference.

    Attributes:
        finding: the line of the report.
        table: where the surplus rows are.
        surplus: rows to remove.
        missing: how many rows a rebuild has to write.
        indexed: what to write to the journal first, if the session's mark is behind the rows
            that are missing: a rebuild goes up to the mark.
    """

    finding: Finding
    table: str = ""
    surplus: Sequence[ScannedRow] = ()
    missing: int = 0
    indexed: Flushed | None = None


class _PendingJobs:
    """The rows of one session or user that jobs will still write or remove."""

    def __init__(self) -> None:
        self.coming: list[tuple[int, int]] = []  # messages
        self.leaving: set[int] = set()  # messages
        self.entries: set[int] = set()  # summary entries to be written, by their last message
        self.memories: set[str] = set()
        self.blocks = 0  # messages up to here are being shown to memory blocks
        self.pruning = False

    def take(self, job: Job) -> None:
        """Add a job; a dead letter counts only for the rows that it would write."""
        match job.payload:
            case FlushSpec() as spec:
                self.coming.append((first_row_written(spec), spec.through))
            case UnflushSpec(seqs=seqs, flushing=flushing, changed=changed):
                # the rows of its neighbours are removed and written again
                self.coming.extend(
                    (max(seq - NEIGHBOURS, 1), min(seq + NEIGHBOURS, flushing)) for seq in seqs
                )
                if not job.dead:
                    self.leaving.update(set(seqs) - set(changed))
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


class _Expected:
    """The rows of one session by the journal: which may exist, and which must."""

    def __init__(self, key: SessionKey, flushed: int, jobs: _PendingJobs, *, pruning: bool) -> None:
        self.key = key
        self._flushed = flushed
        self._jobs = jobs
        self._pruning = pruning
        self._coming = join_ranges(jobs.coming)
        self._times: dict[int, int] = {}
        self._damaged: set[int] = set()
        self._pruned: set[int] = set()
        self._trimmed = 0
        self._entries: dict[str, int] = {}
        self._listed: set[str] = set()
        self._blocks: Mapping[str, Sequence[tuple[int, int]]] = {}

    async def load(self, journal: Journal, rows: Sequence[ScannedRow]) -> None:
        """Read the journal; what only some rows need is read only if they are among `rows`.

        Raises:
            JournalDamaged: it cannot be read.
        """
        key = self.key
        seqs = [row.seq for row in rows if row.memory_type == "message"]
        through = max([self._flushed, *seqs, *(last for _, last in self._coming)])
        if through:
            self._times, self._damaged = await _message_times(journal, key, through)
            self._pruned = set(await journal.pruned_seqs(key))
        if self._flushed or rows or self._jobs.entries:
            items = await journal.state_items(key)
            entries = [_decode_entry(one.value).entry for one in items if one.kind == ENTRY_KIND]
            self._entries = {entry_id(key, one.through): one.through for one in entries}
            self._blocks = {name: one.seen for name, one in block_progress(items).items()}
        if not self._times.keys() >= set(seqs) or any(
            row.memory_type == "summary" and row.id not in self._entries for row in rows
        ):
            past = await journal.buffer_start(key, _LAST)
            self._trimmed = past.trimmed
            # An entry that a rewind brought back into its list stays until it leaves it again.
            self._listed = {entry_id(key, one.through) for one in past.summaries}
            self._listed |= {entry_id(key, seq) for seq in self._jobs.leaving}

    def is_surplus(self, row: ScannedRow) -> bool:
        """Return whether the journal says that this row must not exist."""
        match row.memory_type:
            case "message":
                return self._is_surplus_message(row)
            case "summary":
                known = row.id in self._entries or row.id in self._listed
                return not known and not self._pruning
            case kind if kind == BLOCK_TYPE:
                seen = self._blocks.get(row.agent.removeprefix(BLOCK_AGENT))
                return seen is not None and row.seq > self._jobs.blocks and not _in(row.seq, seen)
            case _:  # a type that remora does not write
                return True

    def _is_surplus_message(self, row: ScannedRow) -> bool:
        seq = row.seq
        time = self._times.get(seq, row.created_us)
        if row.id != row_id(self.key, seq) or row.created_us != time:
            return True  # the row of another message than the one that has its number now
        if 0 < seq <= self._trimmed or seq in self._damaged:
            return False
        if seq not in self._times or seq in self._pruned:
            return seq not in self._jobs.leaving and not (self._pruning and seq in self._pruned)
        return seq > self._flushed and not _in(seq, self._coming)

    def missing_messages(self, present: Collection[str]) -> list[int]:
        """Numbers of messages that must have a row."""
        return [
            seq
            for seq in self._times
            if seq <= self._flushed
            and seq not in self._pruned
            and not _in(seq, self._coming)
            and row_id(self.key, seq) not in present
        ]

    def missing_entries(self, present: Collection[str]) -> list[int]:
        """Last messages of the summary entries that must have a row."""
        return sorted(
            through
            for id_, through in self._entries.items()
            if id_ not in present and through not in self._jobs.entries
        )


async def compare_index(
    journal: Journal,
    scan: TableScan,
    *,
    whole: bool = True,
    journal_intact: bool = True,
    progress: Progress | None = None,
) -> AsyncIterator[Difference]:
    """The differences between long-term memory and the journal.

    Args:
        journal: of a directory with exclusive access.
        scan: its long-term memory.
        whole: False during a rebuild, which writes what is missing.
        journal_intact: False if the journal is damaged: then a row is not surplus because the
            journal does not have it.
        progress: called with the number of rows that were compared, and of all.

    Raises:
        StorageError: the journal cannot be read. If only a part is damaged, the rows of damaged
            messages are kept, and a session that cannot be compared is named.
    """
    users: dict[str, str] = {}
    sessions: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for actor, flushed in await journal.indexed_through():
        users[scan.digests.user(actor.user)] = actor.user
        if isinstance(actor, SessionKey):
            sessions[actor.user][actor.session] = flushed
    comparison = await _Comparison.of(
        journal, scan.digests, whole=whole, journal_intact=journal_intact
    )
    total = await scan.count()
    for_later = dict(users)
    async for found in scan.users():
        if not found.home:
            yield _foreign(found, found.rows, f"in the table {found.table}, not their user's")
        else:
            for_later.pop(found.key, None)
            user = users.get(found.key)
            for difference in await comparison.compare(user, sessions[user or ""], found):
                yield difference
        if progress is not None:
            progress(scan.rows, total)
    for key, user in for_later.items():
        if not scan.is_unreadable(key):
            none = ScannedUser("", key, home=True, rows=())
            for difference in await comparison.compare(user, sessions[user], none):
                yield difference


class _Comparison:
    """Compares users' rows with the journal."""

    def __init__(
        self,
        journal: Journal,
        digests: Digests,
        jobs: Mapping[SessionKey | UserKey, _PendingJobs],
        erasing: Collection[tuple[str, str]],
        *,
        whole: bool,
        journal_intact: bool,
    ) -> None:
        self._journal = journal
        self._digests = digests
        self._jobs = jobs
        self._erasing = erasing
        self._whole = whole
        self._journal_intact = journal_intact

    @classmethod
    async def of(
        cls, journal: Journal, digests: Digests, *, whole: bool, journal_intact: bool
    ) -> _Comparison:
        """One that knows the jobs and the erasures of the journal."""
        jobs: defaultdict[SessionKey | UserKey, _PendingJobs] = defaultdict(_PendingJobs)
        for dead in (False, True):
            for job in await journal.jobs(dead=dead):
                assert isinstance(job.key, (SessionKey, UserKey))
                jobs[job.key].take(job)
        erasing = {owner for note in await journal.erasures() for owner in note.owners}
        return cls(journal, digests, jobs, erasing, whole=whole, journal_intact=journal_intact)

    async def compare(
        self, user: str | None, sessions: Mapping[str, int], found: ScannedUser
    ) -> list[Difference]:
        """The rows under one key, which may be none.

        Args:
            user: whose key it is; None where the journal does not know.
            sessions: the user's sessions, and up to where each is indexed.
            found: the rows.
        """
        differences: list[Difference] = []
        own = {name: self._digests.user(name) for name in {row.user for row in found.rows}}
        mine = [row for row in found.rows if own[row.user] == found.key]
        if len(mine) < len(found.rows):
            strange = [row for row in found.rows if own[row.user] != found.key]
            differences.append(_foreign(found, strange, "under the key of another user"))
        once: dict[str, ScannedRow] = {}
        doubled = [row for row in mine if once.setdefault(row.id, row) is not row]
        if doubled:
            where = doubled[0].user
            differences.append(_surplus("doubled", where, found.table, doubled, "more than once"))
        by_session: defaultdict[str, list[ScannedRow]] = defaultdict(list)
        memories: list[ScannedRow] = []
        for row in once.values():
            if row.memory_type in MEMORY_TYPES:
                memories.append(row)
            else:
                by_session[row.session].append(row)
        if user is None:
            rows = list(once.values())
            why = "of a user that the journal does not know"
            return [*differences, *self._orphans(rows[0].user if rows else "", found, rows, why)]
        differences += await self._compare_memories(user, found, memories)
        for session in sorted(by_session.keys() - sessions.keys()):
            where, why = _name(user, session), "of a session that the journal does not know"
            differences += self._orphans(where, found, by_session[session], why)
        keys = [SessionKey(user, session) for session in sessions]
        for start in range(0, len(keys), _SESSIONS_AT_ONCE):
            some = keys[start : start + _SESSIONS_AT_ONCE]
            for key, image in zip(some, await self._journal.hydrate(some), strict=True):
                flushed, mark = sessions[key.session], None
                # What is not indexed yet has a job; a job that was lost leaves the mark behind.
                if not isinstance(image, Exception) and image.watermarks.indexing_through > flushed:
                    flushed = image.watermarks.indexing_through
                    mark = Flushed(image.sid, flushed)
                rows = by_session.get(key.session, [])
                differences += await self._compare_session(key, flushed, found, rows, mark)
        return differences

    async def _compare_memories(
        self, user: str, found: ScannedUser, rows: Sequence[ScannedRow]
    ) -> list[Difference]:
        jobs = self._jobs.get(UserKey(user)) or _PendingJobs()
        try:
            items = {
                item.row_id: item.id
                for item in await self._journal.memories(user)
                if item.type != INSTRUCTION
            }
        except JournalDamaged as e:
            return [Difference(Finding("journal", user, str(e), repairable=False))]
        surplus = [
            row
            for row in rows
            if row.id not in items
            and memory_of_row(row.id) not in jobs.memories
            and not jobs.pruning
        ]
        why = "of memories that the journal does not have"
        differences = self._orphans(user, found, surplus, why)
        present = {row.id for row in rows}
        missing = sorted(
            id_ for row, id_ in items.items() if row not in present and id_ not in jobs.memories
        )
        if missing and self._whole:
            detail = f"{_count(missing, 'memory', 'memories')} {_some(missing)}"
            differences.append(_missing(user, detail, len(missing)))
        return differences

    async def _compare_session(
        self,
        key: SessionKey,
        flushed: int,
        found: ScannedUser,
        rows: Sequence[ScannedRow],
        mark: Flushed | None,
    ) -> list[Difference]:
        where = _name(*key)
        pruning = (self._jobs.get(UserKey(key.user)) or _PendingJobs()).pruning
        expected = _Expected(key, flushed, self._jobs.get(key) or _PendingJobs(), pruning=pruning)
        try:
            await expected.load(self._journal, rows)
        except JournalDamaged as e:
            return [Difference(Finding("journal", where, str(e), repairable=False))]
        surplus = [row for row in rows if expected.is_surplus(row)]
        differences = self._orphans(where, found, surplus, "that the journal does not have")
        if not self._whole:
            return differences
        present = {row.id for row in rows}.difference(row.id for row in surplus)
        if messages := expected.missing_messages(present):
            detail = f"{_count(messages, 'message')} {_ranges(messages)}, indexed up to {flushed}"
            differences.append(_missing(where, detail, len(messages), mark))
        if entries := expected.missing_entries(present):
            count = _count(entries, "summary entry", "summary entries")
            detail = f"{count} up to message {_ranges(entries)}"
            differences.append(_missing(where, detail, len(entries)))
        return differences

    def _orphans(
        self, where: str, found: ScannedUser, rows: Sequence[ScannedRow], why: str
    ) -> list[Difference]:
        """Rows that the journal does not have, but for those that are being erased.

        They are removed only where the journal is intact.
        """
        rows = [row for row in rows if not self._is_being_erased(row)]
        if not rows:
            return []
        difference = _surplus("orphan", where, found.table, rows, why)
        if self._journal_intact:
            return [difference]
        return [Difference(msgspec.structs.replace(difference.finding, repairable=False))]

    def _is_being_erased(self, row: ScannedRow) -> bool:
        if not self._erasing:
            return False
        of_session = (row.user_key, self._digests.session(row.user, row.session))
        return (row.user_key, "") in self._erasing or of_session in self._erasing


async def _message_times(
    journal: Journal, key: SessionKey, through: int
) -> tuple[dict[int, int], set[int]]:
    """When each message up to `through` was said, and which messages cannot be read."""
    times: dict[int, int] = {}
    damaged: set[int] = set()
    for first in range(1, through + 1, _READ_AT_ONCE):
        last = min(first + _READ_AT_ONCE - 1, through)
        entries, unreadable = await read_undamaged(journal, key, first, last)
        times.update((entry.seq, entry.at_us) for entry in entries)
        damaged.update(unreadable)
    return times, damaged


def _foreign(found: ScannedUser, rows: Sequence[ScannedRow], why: str) -> Difference:
    users = sorted({row.user for row in rows})
    return _surplus("foreign", ", ".join(users[:_NAMED]), found.table, rows, why)


def _surplus(kind: str, where: str, table: str, rows: Sequence[ScannedRow], why: str) -> Difference:
    seqs = sorted({row.seq for row in rows if row.memory_type == "message"})
    numbers = f" (messages {_ranges(seqs)})" if seqs else ""
    detail = f"{_count(rows, 'row')} {why}{numbers}: {_some([row.id for row in rows])}"
    return Difference(Finding(kind, where, detail, repairable=True), table, rows)


def _missing(where: str, detail: str, count: int, mark: Flushed | None = None) -> Difference:
    finding = Finding("missing", where, detail, repairable=True)
    return Difference(finding, missing=count, indexed=mark)


def _name(user: str, session: str) -> str:
    return f"{user} / {session}"


def _count(things: Collection[object], one: str, many: str = "") -> str:
    return f"{len(things):,} {one if len(things) == 1 else many or one + 's'}"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:_NAMED]) + (" …" if len(ids) > _NAMED else "")


def _ranges(seqs: Sequence[int]) -> str:
    runs = join_ranges((seq, seq) for seq in seqs)
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:_NAMED]]
    return ", ".join(named) + (" …" if len(runs) > _NAMED else "")


def _in(seq: int, ranges: Sequence[tuple[int, int]]) -> bool:
    place = bisect_right(ranges, (seq, _LAST)) - 1
    return place >= 0 and ranges[place][0] <= seq <= ranges[place][1]


class Alignment(msgspec.Struct, frozen=True):
    """The result of an alignment.

    Attributes:
        rows: rows that long-term memory holds.
        removed: rows that were removed, by the kind of their finding.
        missing: rows that the next start writes.
        details: the missing rows, a line each.
    """

    rows: int
    removed: Counter[str]
    missing: int
    details: tuple[str, ...]


async def align_index(
    memory: Offline,
    store: LanceStore,
    *,
    journal_intact: bool = True,
    progress: Progress | None = None,
) -> Alignment:
    """Remove surplus rows, and request a rebuild if rows are missing; idempotent.

    Args:
        memory: a directory with exclusive access.
        store: its long-term memory.
        journal_intact: see `compare_index`.
        progress: see `compare_index`.

    Raises:
        StorageError, LongTermError: some of it may be done; call again.
    """
    journal = memory.journal
    removed: Counter[str] = Counter()
    missing = 0
    details: list[str] = []
    async with memory.scan() as scan:
        async for difference in compare_index(
            journal, scan, whole=memory.whole, journal_intact=journal_intact, progress=progress
        ):
            finding = difference.finding
            if difference.surplus:
                places = [row.place for row in difference.surplus]
                removed[finding.kind] += await store.delete_row_ids(difference.table, places)
            if difference.missing:
                missing += difference.missing
                details.append(f"{finding.where}: {finding.detail}")
            if difference.indexed is not None:
                await commit_records(journal, [difference.indexed])
        rows = scan.rows - removed.total()
    if missing or not memory.whole:  # a rebuild in progress may have passed the rows that are lost
        await request_rebuild(journal)
    return Alignment(rows, removed, missing, tuple(details))
