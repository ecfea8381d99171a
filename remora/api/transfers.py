"""Exporting and importing sessions of a runtime in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from remora.ids import SessionKey
from remora.runtime.concurrency import run_to_end
from remora.services.parts import TransferParts
from remora.storage.export.transfer import SessionExport, TransferReport

if TYPE_CHECKING:
    from remora.maintenance.export import Progress

__all__ = ["LocalTransfers"]


class LocalTransfers:
    """Sessions and users as plain data: single sessions, or everything in files."""

    def __init__(self, parts: TransferParts) -> None:
        self.parts = parts
        """For what exports and imports several runtimes together."""

    # The modules that are imported below were preloaded when the runtime was opened.

    async def export_session(self, key: SessionKey) -> SessionExport | None:
        """See `remora.Session.export`."""
        from remora.maintenance.export import export_session  # noqa: PLC0415

        return await export_session(self.parts, key)

    async def import_session(self, export: SessionExport, key: SessionKey) -> None:
        """See `remora.User.import_session`."""
        from remora.maintenance.import_ import import_session  # noqa: PLC0415

        await import_session(self.parts, export, key)

    async def export_to(
        self, path: Path, *, overwrite: bool, progress: Progress | None
    ) -> TransferReport:
        """See `remora.Runtime.export`."""
        from remora.maintenance.export import export_to  # noqa: PLC0415
        from remora.storage.export.targets import check_target  # noqa: PLC0415

        target = check_target(path)
        return await run_to_end(
            export_to, [self.parts], target, overwrite=overwrite, progress=progress
        )

    async def import_from(
        self, path: Path, *, skip_existing: bool, progress: Progress | None
    ) -> TransferReport:
        """See `remora.Runtime.import_`."""
        from remora.maintenance.import_ import import_from  # noqa: PLC0415

        return await run_to_end(
            import_from, [self.parts], path, skip_existing=skip_existing, progress=progress
        )
