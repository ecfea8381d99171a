"""The port of an operator's work on a memory, and the work itself on one that this process owns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import anyio

from remora.api.health import Health
from remora.api.status import RuntimeStatistics, statistics_of
from remora.errors import InvalidInput, NotReady
from remora.runtime.concurrency import Progress, run_to_end
from remora.runtime.jobs import Job
from remora.services.parts import long_term_is_off
from remora.services.rebuild import ReembedProgress
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.export.transfer import TransferReport
from remora.storage.ports import LongTermStatistics

if TYPE_CHECKING:
    from remora.api.lifetime import Lifetime
    from remora.maintenance.backup import BackupReport


class Operator(Protocol):
    """The work of an operator on a memory; `remora.Runtime` describes the methods.

    They are also the calls ``runtime.…`` between processes (`remora.cluster.calls`). Each raises
    `RuntimeClosed` if the memory is not open.
    """

    @property
    def reembedding(self) -> ReembedProgress | None: ...  # noqa: D102

    def statistics(self) -> RuntimeStatistics: ...  # noqa: D102

    def health(self) -> Health: ...  # noqa: D102

    def reschedule(self, task: str, seconds: float) -> None: ...  # noqa: D102

    def erasures(self, user: str | None = None) -> list[WaitingErasure]: ...  # noqa: D102

    async def ready(self, *, timeout_s: float | None = None) -> None: ...  # noqa: D102

    async def settle(self) -> None: ...  # noqa: D102

    async def long_term_statistics(self) -> LongTermStatistics: ...  # noqa: D102

    async def reembedded(self, progress: Progress | None = None) -> None: ...  # noqa: D102

    async def dead_letters(self) -> list[Job]: ...  # noqa: D102

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int: ...  # noqa: D102

    async def drop_dead_letters(self, ids: Sequence[str]) -> int: ...  # noqa: D102

    async def retry_erasures(self) -> list[WaitingErasure]: ...  # noqa: D102

    async def backup(  # noqa: D102
        self, dest: Path, *, progress: Progress | None = None
    ) -> BackupReport: ...

    async def export(  # noqa: D102
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport: ...

    async def import_(  # noqa: D102
        self, path: Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport: ...


class LocalOperator:
    """`Operator` of a runtime that is open in this process, on its event loop.

    `statistics`, `health` and `erasures` are for any thread.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime

    @property
    def reembedding(self) -> ReembedProgress | None:
        """See `remora.Runtime`, as for all that follows."""
        built = self._lifetime.built
        rebuild = None if built is None else built.index.reembedding
        return None if rebuild is None or rebuild.over else rebuild.progress

    def statistics(self) -> RuntimeStatistics:  # noqa: D102
        return statistics_of(self._lifetime.internals_anywhere)

    def health(self) -> Health:  # noqa: D102
        return self._lifetime.health()

    def reschedule(self, task: str, seconds: float) -> None:  # noqa: D102
        self._lifetime.internals.schedule.change(task, seconds)

    def erasures(self, user: str | None = None) -> list[WaitingErasure]:  # noqa: D102
        return self._lifetime.internals_anywhere.eraser.waiting(user)

    async def ready(self, *, timeout_s: float | None = None) -> None:  # noqa: D102
        warm_up = self._lifetime.internals.warm_up
        with anyio.move_on_after(timeout_s):
            return await warm_up.result()
        raise NotReady(f"models and tables were not loaded within {timeout_s:g} s; call it again")

    async def settle(self) -> None:  # noqa: D102
        internals = self._lifetime.internals
        await internals.supervisor.drain_all()
        await internals.index.index_written()

    async def long_term_statistics(self) -> LongTermStatistics:  # noqa: D102
        internals = self._lifetime.internals
        if internals.recall is None:
            raise long_term_is_off()
        return await (await internals.long_term()).statistics()

    async def reembedded(self, progress: Progress | None = None) -> None:  # noqa: D102
        await self._lifetime.internals.index.wait_until_rebuilt(progress)

    async def dead_letters(self) -> list[Job]:  # noqa: D102
        return await self._lifetime.internals.dead_letters.jobs()

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:  # noqa: D102
        return await self._lifetime.internals.dead_letters.retry(ids)

    async def drop_dead_letters(self, ids: Sequence[str]) -> int:  # noqa: D102
        return await self._lifetime.internals.dead_letters.drop(ids)

    async def retry_erasures(self) -> list[WaitingErasure]:  # noqa: D102
        return await self._lifetime.internals.eraser.retry()

    async def backup(  # noqa: D102
        self, dest: Path, *, progress: Progress | None = None
    ) -> BackupReport:
        # preloaded
        from remora.maintenance.backup import backup  # noqa: PLC0415
        from remora.storage.sqlite.journal import SqliteJournal  # noqa: PLC0415

        journal, options = self._lifetime.internals.journal, self._lifetime.options
        if options.path is None or not isinstance(journal, SqliteJournal):
            raise InvalidInput(
                "there is nothing to copy: this runtime's journal is not in a memory directory. "
                "One in a database is copied with the database's tools: of PostgreSQL, "
                "pg_basebackup or pg_dump"
            )
        return await run_to_end(
            backup,
            options.path,
            dest,
            options.config,
            take=journal.backup,
            progress=progress,
        )

    async def export(  # noqa: D102
        self, path: Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        transfers = self._lifetime.internals.transfers
        return await transfers.export_to(path, overwrite=overwrite, progress=progress)

    async def import_(  # noqa: D102
        self, path: Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        transfers = self._lifetime.internals.transfers
        return await transfers.import_from(path, skip_existing=skip_existing, progress=progress)
