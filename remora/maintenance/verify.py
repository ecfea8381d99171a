"""Verify a memory directory; no byte of it changes.

Opening a journal takes ownership, migrates its schema and moves its write-ahead log; opening
long-term memory quarantines damaged tables. So a mirror in a temporary directory is opened:
a copy of the journal, and links to the files of long-term memory, which LanceDB never changes. The
code that opens it is the same as for a directory in use.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec

from remora.config import Config
from remora.errors import DirectoryLocked, JournalDamaged, StorageError
from remora.maintenance.compare import compare_index
from remora.maintenance.offline import JOURNAL, Offline, find_lost_commits, offline, require_memory
from remora.runtime.concurrency import Progress
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import Place, expects_rows
from remora.storage.files import find_links
from remora.storage.lance.copy import link_tables
from remora.storage.lance.directory import shard_names
from remora.storage.lance.files import ShardFiles
from remora.storage.lock import ReadLock
from remora.storage.ports import Finding, JournalCounts
from remora.storage.sqlite.attachments import check_attachments
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.mark import accept_loss


class Verification(msgspec.Struct, frozen=True):
    """The contents of a directory, and the damage in it.

    Attributes:
        findings: what is damaged or inconsistent.
        notes: worth knowing, but no damage.
        counts: rows of the journal; None if it cannot be read.
        rows: rows of long-term memory that were compared.
    """

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    counts: JournalCounts | None
    rows: int

    @property
    def clean(self) -> bool:
        """There are no findings."""
        return not self.findings


async def verify(
    directory: Path, config: Config, *, deep: bool = False, progress: Progress | None = None
) -> Verification:
    """Verify a directory; no byte of it changes.

    A process may use it: then two looks are compared, and what only one of them found is left out
    as unfinished work. Needs room for a copy of the journal in the system's temporary directory
    (``TMPDIR``).

    Args:
        directory: a memory directory, or a backup of one.
        config: its `long_term.uri` is used if long-term memory is not in the directory.
        deep: also read every byte of long-term memory.
        progress: see `compare_index`.

    Raises:
        InvalidInput: there is no memory in it.
        StorageError: it cannot be read; `JournalTooNew` if a newer remora wrote it.
    """
    await run_in_thread(require_memory, directory)
    lock = ReadLock(directory)
    try:
        await run_in_thread(lock.acquire)
    except DirectoryLocked:
        return await _verify_in_use(directory, config, deep=deep, progress=progress)
    try:
        return await verify_owned(directory, config, deep=deep, progress=progress)
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(lock.release)


async def _verify_in_use(
    directory: Path, config: Config, *, deep: bool, progress: Progress | None
) -> Verification:
    """Look twice: unfinished work looks like damage once, and is done afterwards."""
    first = await _verify_mirror(directory, config, _mirror_in_use, deep=deep, progress=progress)
    found = first
    if first.findings:
        found = await _verify_mirror(
            directory, config, _mirror_in_use, deep=deep, progress=progress
        )
    before = {(one.kind, one.where) for one in first.findings if one.kind != "erasure"}
    return msgspec.structs.replace(
        found,
        findings=tuple(one for one in found.findings if (one.kind, one.where) in before),
        notes=("a process uses it: what is being written now was not verified", *found.notes),
    )


async def verify_owned(
    directory: Path, config: Config, *, deep: bool = False, progress: Progress | None = None
) -> Verification:
    """`verify`, for a caller that has exclusive access.

    Raises:
        StorageError: see `verify`.
    """
    return await _verify_mirror(directory, config, _mirror, deep=deep, progress=progress)


async def _verify_mirror(
    directory: Path,
    config: Config,
    make_mirror: Callable[[Path, Path], None],
    *,
    deep: bool,
    progress: Progress | None,
) -> Verification:
    links = await run_in_thread(_find_links, directory)
    async with _temporary_mirror(directory, make_mirror) as mirror:
        wal: tuple[Finding, ...] = ()
        notes: tuple[str, ...] = ()
        try:
            if lost := await run_in_thread(find_lost_commits, mirror / JOURNAL):
                # the rest can be verified
                await run_in_thread(accept_loss, mirror / JOURNAL)
                told = f"it {lost.why}: the journal lacks {lost.what}"
                if lost.promised:
                    wal = (Finding("wal", lost.where, told, repairable=False),)
                else:
                    notes = (
                        f"{lost.where}: {told}, which journal.durability did not promise to keep",
                    )
            async with offline(mirror, config) as memory:
                found = await check_opened(memory, deep=deep, progress=progress)
            check = partial(check_attachments, mirror / JOURNAL, directory, deep=deep)
            blobs, told_of = await run_in_thread(check)
            found = msgspec.structs.replace(
                found, findings=(*found.findings, *blobs), notes=(*found.notes, *told_of)
            )
        except JournalDamaged as e:
            found = Verification(
                (Finding("journal", JOURNAL, str(e), repairable=False),), (), None, 0
            )
        return _with_real_paths(
            msgspec.structs.replace(
                found, findings=(*links, *wal, *found.findings), notes=(*notes, *found.notes)
            ),
            mirror,
            directory,
        )


def _find_links(directory: Path) -> list[Finding]:
    return [
        Finding(
            "file",
            str(path.relative_to(directory)),
            "it is a symbolic link, which could lead writes to another file: remove it, and put "
            "what it leads to in its place",
            repairable=False,
        )
        for path in find_links(directory)
    ]


async def check_opened(
    memory: Offline, *, deep: bool = False, progress: Progress | None = None
) -> Verification:
    """Verify the journal, long-term memory, and whether they agree.

    Long-term memory is opened as by a runtime, which quarantines what is damaged.

    Raises:
        StorageError: it cannot be read.
    """
    journal = memory.journal
    findings = list(await journal.verify())
    journal_intact = not findings
    notes = await _notes(memory)
    for erasure in await journal.erasures():
        detail = "an erasure may have left bytes in the files: the next start finishes it"
        findings.append(Finding("erasure", f"number {erasure.number}", detail, repairable=True))
    rows = 0
    if memory.place is None:
        if memory.whole and await expects_rows(journal):
            messages = sum(indexed for _, indexed in await journal.indexed_through())
            memories = (await journal.counts()).memories
            detail = (
                f"it is not there, and {messages:,} messages and {memories:,} recorded memories "
                "were indexed in it"
            )
            findings.append(Finding("table", "long-term memory", detail, repairable=True))
    else:
        damaged = await run_in_thread(_examine_tables, memory.place)
        findings += [finding for some in damaged.values() for finding in some]
        async with memory.store(sync=False, mirrored=True) as store:
            told = await store.verify(deep=deep)
            # rows that are doubled or in the wrong place are named below, with whose they are
            findings += [one for one in told if one.kind in {"file", "table"}]
            lost = await run_in_thread(_missing_tables, memory.place, damaged)
            async with memory.scan(lost=lost) as scan:
                async for difference in compare_index(
                    journal,
                    scan,
                    whole=memory.whole,
                    journal_intact=journal_intact,
                    progress=progress,
                ):
                    findings.append(difference.finding)
                rows = scan.rows
                findings += [
                    Finding("table", table, problem, repairable=True)
                    for table, problem in scan.broken.items()
                    if not any(
                        table in one.where for one in findings if one.kind in {"file", "table"}
                    )
                ]
    return Verification(tuple(dict.fromkeys(findings)), tuple(notes), await journal.counts(), rows)


def _examine_tables(place: Place) -> dict[str, list[Finding]]:
    """The damage to each table before it is opened; empty for tables at an address."""
    if not isinstance(place, Path):
        return {}
    return {name: ShardFiles(place, name, sync=False).find_damage() for name in shard_names(place)}


def _missing_tables(place: Place, damaged: dict[str, list[Finding]]) -> dict[str, str]:
    """The damaged tables that opening the store removed, and what was wrong with each."""
    if not isinstance(place, Path):
        return {}
    return {
        name: "; ".join(one.detail for one in found)
        for name, found in damaged.items()
        if found and not (place / f"{name}.lance").is_dir()
    }


def _with_real_paths(found: Verification, mirror: Path, directory: Path) -> Verification:
    """The findings in a copy of the journal, with the paths of the original."""

    def with_real_path(text: str) -> str:
        return text.replace(f"{mirror}/", "").replace(str(mirror), str(directory))

    findings = [
        Finding(one.kind, with_real_path(one.where), with_real_path(one.detail), one.repairable)
        for one in found.findings
    ]
    return msgspec.structs.replace(
        found, findings=tuple(findings), notes=tuple(map(with_real_path, found.notes))
    )


async def _notes(memory: Offline) -> list[str]:
    notes = []
    waiting = await memory.journal.jobs()
    if waiting:
        count = f"{len(waiting):,} jobs wait" if len(waiting) > 1 else "1 job waits"
        notes.append(f"{count} for the next start")
    notes.extend(
        f"dead letter {job.id} of {' / '.join(job.key)}: {job.error or 'all attempts failed'}"  # type: ignore[arg-type]
        for job in await memory.journal.jobs(dead=True)
    )
    if not memory.whole:
        notes.append("long-term memory is being rebuilt from the journal: the next start continues")
    if memory.place is not None and memory.used is not None and not memory.used.key:
        notes.append(
            "the digests by which long-term memory finds users have no key: remora reembed gives "
            "them one"
        )
    if memory.leftovers:
        names = ", ".join(one.name for one in memory.leftovers)
        notes.append(f"left over from an earlier embedder: {names}")
    return notes


@asynccontextmanager
async def _temporary_mirror(
    directory: Path, make_mirror: Callable[[Path, Path], None]
) -> AsyncIterator[Path]:
    """A temporary directory with a copy of the journal and links to everything else."""
    temporary = await run_in_thread(lambda: tempfile.mkdtemp(prefix="remora-verify-"))
    mirror = Path(temporary)
    try:
        try:
            await run_in_thread(make_mirror, directory, mirror)
        except OSError as e:
            raise StorageError(f"{directory} cannot be read: {e}") from e
        yield mirror
    finally:
        with anyio.CancelScope(shield=True):
            await run_in_thread(lambda: shutil.rmtree(mirror, ignore_errors=True))


def _mirror(directory: Path, mirror: Path) -> None:
    directory = directory.resolve()
    for one in sorted(directory.iterdir()):
        if one.is_dir():
            _link_tree(one, mirror / one.name)
        elif one.is_file() and not one.name.endswith(("-shm", ".lock")):  # no socket, no dead link
            shutil.copyfile(one, mirror / one.name)


def _mirror_in_use(directory: Path, mirror: Path) -> None:
    snapshot(directory / JOURNAL, mirror / JOURNAL)
    for one in sorted(directory.iterdir()):
        if one.is_dir():
            link_tables(one, mirror / one.name)


def _link_tree(source: Path, target: Path) -> None:
    target.mkdir()
    for one in source.iterdir():
        if one.is_dir():
            _link_tree(one, target / one.name)
        else:
            (target / one.name).symlink_to(one)
