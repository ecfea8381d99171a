"""Dividing a memory that is not in use into another number of shards.

1. Everything is checked, by `remora verify`: what is damaged is not copied.
2. Each new shard gets a journal with the rows of its users as they are, numbers and checksums
   included; every row is compared with the one that it was copied from.
3. One pass over long-term memory gives each new shard its rows with their vectors: no model is
   called.
4. Each new shard is verified, then synced.
5. ``shards.json`` is replaced in one step. Until then the memory is what it was; from then on it is
   the new one, and the old is removed.

``reshard.json`` says how far it came. A crash is followed by the same command, which goes on, or by
a start of the application, which discards the copy before 5 and removes the old data after it
(`remora.storage.layout.end_division`).
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from remora.api.shards import divide_config
from remora.api.status import add_figures
from remora.cluster.sharding import shard_of
from remora.config import Config
from remora.errors import InvalidInput, StorageError
from remora.logging import get_logger
from remora.maintenance.offline import JOURNAL, migrate_journal, offline, require_memory
from remora.maintenance.verify import check_opened, verify_owned
from remora.runtime.concurrency import Progress, map_concurrently
from remora.runtime.threads import run_in_thread
from remora.services.index_directory import (
    FIRST_DIRECTORY,
    TableDirectory,
    choose_directory,
    list_directories,
)
from remora.storage.copying import compare_rows
from remora.storage.files import make_empty, sync_tree
from remora.storage.journal_port import running
from remora.storage.lance.rows import OwnerFilter
from remora.storage.lance.store import LanceStore
from remora.storage.lance.versions import versions_setting
from remora.storage.layout import (
    MAX_SHARDS,
    Division,
    ShardLayout,
    end_division,
    read_division,
    read_layout,
    write_division,
    write_layout,
)
from remora.storage.lock import own_directories
from remora.storage.ports import Finding, JournalCounts, MemoryRow, Vector
from remora.storage.sqlite.attachments import copy_attachments
from remora.storage.sqlite.copying import (
    JournalRows,
    copy_settings,
    find_actors,
    read_notes,
    read_settings,
)
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.read_only import ReadOnlyJournal
from remora.system.files import sync_path

_logger = get_logger(__name__)
_SPARE_BYTES = 64 << 20


class NothingToDivide(InvalidInput):
    """The memory has as many shards already, or is where it is to be moved."""


class ReshardReport(msgspec.Struct, frozen=True):
    """The result of a division.

    Attributes:
        before: how many shards there were.
        shards: how many there are.
        counts: what their journals hold.
        rows: rows of long-term memory.
        resumed: an earlier division, which was interrupted, went on.
    """

    before: int
    shards: int
    counts: JournalCounts
    rows: int
    resumed: bool


class Watcher:
    """Tells what is done of a division or a move.

    Args:
        progress: called with the number of rows done, and of all.
        on_step: called with the name of each step when it is done.

    Attributes:
        total: the number of all rows; a journal's count twice, because they are compared, too.
    """

    def __init__(self, progress: Progress | None, on_step: Callable[[str], None]) -> None:
        self._progress = progress
        self.step = on_step
        self._done = self.total = 0

    def tell(self, rows: int) -> None:
        """So many more are done."""
        self._done += rows
        if self._progress is not None:
            self._progress(min(self._done, self.total), self.total)

    def end(self) -> None:
        """All are done."""
        self.tell(self.total - self._done)


async def reshard(
    directory: Path,
    shards: int,
    config: Config,
    *,
    progress: Progress | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> ReshardReport:
    """Divide the memory in a directory into `shards` shards; into one, which any release opens.

    Everything is as it was for every verb: ids, idempotency keys, state, memories, jobs, dead
    letters, erasures that wait, access counts.

    Args:
        directory: of a memory that no process has open.
        shards: from 1 to `MAX_SHARDS`.
        config: of the application that uses the directory.
        progress: called with the number of rows done, and of all.
        on_step: called with the name of each step when it is done; for tests.

    Raises:
        NothingToDivide: it has as many shards.
        InvalidInput: there is no memory, `shards` is out of range, or long-term memory is elsewhere
            or being rebuilt; nothing was changed.
        DirectoryLocked: a process uses the directory.
        StorageError: the memory is damaged, there is not enough room, or the disk failed; the
            memory is what it was, unless the text says that the new one is complete.
    """
    if not 1 <= shards <= MAX_SHARDS:
        raise InvalidInput(f"a memory has 1 to {MAX_SHARDS} shards, not {shards}")
    await run_in_thread(_require_directory, directory)
    try:
        layout = await run_in_thread(read_layout, directory)
        names = [] if layout is None else layout.names
        # a repair of one shard owns that shard alone
        async with own_directories(directory, *(directory / name for name in names)):
            watcher = Watcher(progress, on_step)
            return await _Resharding(directory, shards, config, watcher).run()
    except OSError as e:
        raise StorageError(f"{directory} cannot be divided: {e.strerror or e}") from e


def _require_directory(directory: Path) -> None:
    if read_layout(directory) is None:
        require_memory(directory)


class _Resharding:
    """One run of it."""

    def __init__(self, directory: Path, shards: int, config: Config, watcher: Watcher) -> None:
        self._directory = directory
        self._config = config
        self._shards = shards
        self._watcher = watcher
        self._sources: list[Path] = []

    async def run(self) -> ReshardReport:
        old, division = await run_in_thread(self._find_unfinished)
        before = 1 if old is None else old.shards
        if division is None and before == self._shards:
            raise NothingToDivide(
                f"the memory in {self._directory} has {before} shard{'s'[: before - 1]} already"
            )
        names = [""] if old is None else old.names
        self._sources = [self._directory / name for name in names]
        await self._check_sources()
        journals = [source / JOURNAL for source in self._sources]
        settings = [await run_in_thread(read_settings, journal) for journal in journals]
        epochs = tuple(int(one.get("epoch", "0")) for one in settings)
        resumed = division is not None and division.sources == epochs
        if division is None or not resumed:
            division = await run_in_thread(self._begin, old, epochs, settings[0]["instance"])
        self._watcher.step("begun")
        division = await self._copy_journals(division)
        division = await self._copy_rows(division)
        counts, rows = await self._verify(division)
        await self._replace(division.new)
        _logger.info(
            "reshard_complete", path=str(self._directory), before=before, shards=self._shards
        )
        return ReshardReport(before, self._shards, counts, rows, resumed)

    def _find_unfinished(self) -> tuple[ShardLayout | None, Division | None]:
        """The layout in force, and the division to go on with, if it is for as many shards."""
        division, layout = read_division(self._directory), read_layout(self._directory)
        if division is not None and layout != division.new and division.new.shards == self._shards:
            return layout, division
        end_division(self._directory)
        return read_layout(self._directory), None

    # -- what there is -----------------------------------------------------------------------------

    async def _check_sources(self) -> None:
        if self._config.long_term.uri:
            raise InvalidInput(
                "long-term memory is at an address (long_term.uri), and only what is in the "
                "directory can be divided: export the memory, and import it into a new one"
            )
        for source in self._sources:
            await run_in_thread(require_tables, source)
            await check_source(
                source, self._config, self._watcher, done="divided", unready=("reembed",)
            )
        await run_in_thread(self._check_room)

    def _check_room(self) -> None:
        needed = _SPARE_BYTES + sum(
            one.stat().st_size
            for source in self._sources
            for name in (f"{JOURNAL}*", "longterm*/**/*", "attachments/*/*")
            for one in source.glob(name)
            if one.is_file()
        )
        free = shutil.disk_usage(self._directory).free
        if free < needed:
            raise StorageError(
                f"{self._directory} needs {needed >> 20:,} MB of free space for the copy, and has "
                f"{free >> 20:,} MB; nothing was changed"
            )

    def _begin(self, old: ShardLayout | None, epochs: tuple[int, ...], instance: str) -> Division:
        end_division(self._directory)
        if old is None:
            layout = ShardLayout(shards=self._shards, instance=instance)
        else:
            layout = msgspec.structs.replace(old, shards=self._shards, layout=old.layout + 1)
        division = Division(new=layout, sources=epochs)
        write_division(self._directory, division)
        return division

    # -- copying -----------------------------------------------------------------------------------

    async def _copy_journals(self, division: Division) -> Division:
        for number in range(division.journals, self._shards):
            await self._copy_journal(division.new, number)
            division = msgspec.structs.replace(division, journals=number + 1)
            await run_in_thread(write_division, self._directory, division)
            self._watcher.step(f"journal {number}")
        return division

    async def _copy_journal(self, layout: ShardLayout, number: int) -> None:
        target = self._directory / layout.name(number)
        await run_in_thread(make_empty, target)
        journal = await SqliteJournal.open(
            target / JOURNAL, durability="power", first_settings=layout.places[number].settings
        )
        await journal.aclose()
        self._watcher.step(f"journal {number} made")
        journals = [source / JOURNAL for source in self._sources]
        copied: list[int] = []

        def wanted(user: str) -> bool:
            return shard_of(user, layout.shards) == number

        for source in journals:
            sids = await run_in_thread(find_actors, source, wanted)
            async with (
                JournalRows.open(source, sids) as rows,
                JournalRows.open(target / JOURNAL, sids) as copy,
            ):
                await copy.fill(source, self._watcher.tell)
                await compare_rows(rows, copy, self._watcher.tell)
            copied += sids

        def finish() -> None:
            if sorted(copied) != find_actors(target / JOURNAL, wanted):
                raise StorageError(
                    f"{target} has users that were not copied; the memory is what it was"
                )
            copy_settings(target / JOURNAL, journals, with_notes=number == 0)
            copy_attachments(target / JOURNAL, journals)

        await run_in_thread(finish)

    async def _copy_rows(self, division: Division) -> Division:
        """Long-term memory of all new shards, in one pass over that of the old."""
        if division.rows >= 0:
            return division
        used = [await _find_tables(source) for source in self._sources]
        async with AsyncExitStack() as stack:
            stores = await self._open_targets(stack, division.new, used)
            copied = 0
            for source, tables in zip(self._sources, used, strict=True):
                if tables is not None and (source / tables.name).is_dir():
                    copied += await self._copy_rows_of(source, tables, stores)
            self._watcher.step("rows added")
        division = msgspec.structs.replace(division, rows=copied)
        await run_in_thread(write_division, self._directory, division)
        self._watcher.step("rows")
        return division

    async def _open_targets(
        self,
        stack: AsyncExitStack,
        layout: ShardLayout,
        used: Sequence[TableDirectory | None],
    ) -> list[LanceStore]:
        """The new shards' stores, which write what is added; none without long-term memory."""
        made_by = {one.embedder for one in used if one is not None}
        if len(made_by) > 1:
            raise InvalidInput(
                f"the shards' vectors are of several embedders, {', '.join(sorted(made_by))}: "
                "rebuild long-term memory with one of them (remora reembed), then divide it"
            )
        config = divide_config(self._config, self._shards)
        stores = []
        for name in layout.names if made_by else ():
            target = self._directory / name
            await run_in_thread(make_empty, target / FIRST_DIRECTORY)
            opened = _open_target(target, config, next(iter(made_by)))
            stores.append(await stack.enter_async_context(opened))
        return stores

    async def _copy_rows_of(
        self, source: Path, tables: TableDirectory, stores: Sequence[LanceStore]
    ) -> int:
        """Add a shard's rows to the new ones, but for those that are being erased."""
        notes = await run_in_thread(read_notes, source / JOURNAL)
        digests, copied = tables.digests, 0
        leaving = OwnerFilter([owner for one in notes for owner in one.owners], digests)
        config = msgspec.structs.replace(self._config.long_term, shards=tables.shards)
        store = await LanceStore.open(
            source / tables.name, dimension=tables.dimension, config=config, digests=digests
        )
        try:
            async for rows, vectors in store.all_rows():
                columns = {
                    "user_key": [digests.user(row.user) for row in rows],
                    "user_id": [row.user for row in rows],
                    "session_id": [row.session for row in rows],
                }
                parts: list[list[int]] = [[] for _ in stores]
                for place, gone in enumerate(leaving(columns)):
                    if not gone:
                        parts[shard_of(rows[place].user, len(stores))].append(place)
                await _add(stores, parts, rows, vectors)
                copied += sum(map(len, parts))
                self._watcher.tell(len(rows))
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()
        return copied

    # -- the end -----------------------------------------------------------------------------------

    async def _verify(self, division: Division) -> tuple[JournalCounts, int]:
        counts, rows = [], 0
        for name in division.new.names:
            async with offline(self._directory / name, self._config) as memory:
                found = await check_opened(memory, deep=True)
            if damage := find_damage(found.findings):
                raise StorageError(
                    f"the new shard {name} is not as the old data ({damage}); the memory is what "
                    "it was"
                )
            assert found.counts is not None
            counts.append(found.counts)
            rows += found.rows
        if rows != division.rows:
            raise StorageError(
                f"the new shards have {rows:,} rows of long-term memory, and {division.rows:,} "
                "were copied; the memory is what it was"
            )
        self._watcher.end()
        self._watcher.step("verified")
        return add_figures(counts), rows

    async def _replace(self, layout: ShardLayout) -> None:
        for name in layout.names:
            await run_in_thread(sync_tree, self._directory / name)
        await run_in_thread(sync_path, self._directory)
        self._watcher.step("synced")
        await run_in_thread(write_layout, self._directory, layout)
        self._watcher.step("replaced")
        try:
            await run_in_thread(end_division, self._directory)
        except OSError as e:
            raise StorageError(
                f"the new shards are complete and in use, but the old data could not be removed "
                f"({e.strerror or e}): remove the cause; the next start removes it"
            ) from e
        self._watcher.step("removed")


def require_tables(source: Path) -> None:
    """Check that long-term memory is not at an object store, where nothing divides it. Blocks.

    Raises:
        InvalidInput: it is, though `long_term.uri` may not say so.
    """
    settings = read_settings(source / JOURNAL)
    name = settings.get("longterm", FIRST_DIRECTORY)
    if settings.get(versions_setting(name)) and not (source / name).is_dir():
        raise InvalidInput(
            f"long-term memory of {source} is at an object store, and only what is in the "
            "directory can be divided: export the memory, with its address in long_term.uri, and "
            "import it into a new one"
        )


async def check_source(
    directory: Path, config: Config, watcher: Watcher, *, done: str, unready: Collection[str]
) -> None:
    """Check that what a directory holds can be copied, and bring its journal up to date.

    Raises:
        InvalidInput: one of the settings `unready` says that long-term memory is being rebuilt.
        StorageError: it is damaged, and was not `done`.
    """
    found = await verify_owned(directory, config)
    if damage := find_damage(found.findings):
        raise StorageError(
            f"{directory} is damaged ({damage}), and was not {done}: remora verify --dir "
            f"{directory} says more, remora repair mends it"
        )
    await migrate_journal(directory)
    settings = await run_in_thread(read_settings, directory / JOURNAL)
    if any(settings.get(one) for one in unready):
        raise InvalidInput(
            f"long-term memory in {directory} is being rebuilt and cannot be {done}: open the "
            "memory until that is complete (remora reembed), then give the command again"
        )
    watcher.total += 2 * (0 if found.counts is None else found.counts.messages) + found.rows


def find_damage(findings: Collection[Finding]) -> str:
    """The first damage, in words; empty for none. An erasure that waits is no damage."""
    damage = (one for one in findings if one.kind != "erasure")
    return next((f"{one.kind}: {one.detail}" for one in damage), "")


async def _find_tables(source: Path) -> TableDirectory | None:
    """The directory of long-term memory in use; None if there never was one."""
    journal = await ReadOnlyJournal.open(source / JOURNAL)
    try:
        return next(iter(await list_directories(journal)), None)
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()


@asynccontextmanager
async def _open_target(target: Path, config: Config, embedder: str) -> AsyncIterator[LanceStore]:
    """The empty store of a new shard, noted in its journal, with a task that writes."""
    async with offline(target, config) as memory:
        await choose_directory(
            memory.journal,
            target,
            embedder=embedder,
            shards=config.long_term.shards,
            reembed=False,
            directory=target,
            rng=random.SystemRandom(),
        )
    # not synced at each commit: all of it is, once it is verified
    async with offline(target, config) as memory, memory.store(sync=False) as store:
        async with running(store.run):
            yield store
            await store.index_written()
        await store.compact()


async def _add(
    stores: Sequence[LanceStore],
    parts: Sequence[Sequence[int]],
    rows: Sequence[MemoryRow],
    vectors: Vector | None,
) -> None:
    async def add(part: tuple[LanceStore, Sequence[int]]) -> None:
        store, places = part
        some = None if vectors is None else vectors[list(places)]
        chosen = [rows[place] for place in places]
        await store.add(chosen, some, may_exist=False)

    work = list(zip(stores, parts, strict=True))
    await map_concurrently(add, work)
