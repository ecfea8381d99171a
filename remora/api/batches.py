"""What a runtime does with many sessions at once.

Write them to a file, take them over from one, append to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from remora.api.session import Session
from remora.errors import InvalidInput, RemoraError
from remora.ids import SessionKey
from remora.messages import MessageLike, Receipt
from remora.runtime.concurrency import map_concurrently
from remora.services.parts import Services
from remora.storage.export.transfer import TransferReport

if TYPE_CHECKING:
    from remora.maintenance.export import Progress

__all__ = ["TransferVerbs"]


class TransferVerbs:
    """Part of `remora.Runtime`."""

    async def export(
        self, path: str | Path, *, overwrite: bool = False, progress: Progress | None = None
    ) -> TransferReport:  # fmt: skip
        """Write all sessions, and what users have beside them, to a file or a directory
        (docs/export-format.md).

        Appends go on meanwhile: each session is written as it stands when its turn comes. What
        there is at `path` in the end is whole, and on the disk; until then nothing is.

        Args:
            path: a file that ends in ``.jsonl``; any other name becomes a directory of Parquet
                files.
            overwrite: replace what is there.
            progress: told how many messages are done, of how many.

        Raises:
            InvalidInput: `path` exists, or looks like a file and does not end in ``.jsonl``.
            StorageError: the journal cannot be read, or the disk refused.
        """
        # `remora.services.preload` has loaded both
        from remora.maintenance.export import export_to  # noqa: PLC0415
        from remora.storage.export.targets import check_target  # noqa: PLC0415

        return await export_to(
            cast("Services", self), check_target(Path(path)), overwrite=overwrite, progress=progress
        )

    async def import_(
        self, path: str | Path, *, skip_existing: bool = False, progress: Progress | None = None
    ) -> TransferReport:
        """Take over what `export` wrote, here or elsewhere.

        The export is looked through to its end before anything is written. Sizes are counted, and
        long-term memory is embedded, by this runtime's own models, in the background: `settle`
        waits for that. Idempotency keys do not come along. A crash in the middle leaves whole
        sessions; do it again with `skip_existing`.

        Args:
            path: a file or a directory.
            skip_existing: leave sessions that are there as they are; otherwise nothing is imported
                where any is.
            progress: told how many messages are done, of how many.

        Raises:
            InvalidExport: it is no whole export, `line` says where; nothing was written.
            InvalidInput: sessions are there already, or there is nothing to read at `path`; nothing
                was written.
            RedactionFailed: the redaction hook failed on a session; those before it are there.
        """
        # `remora.services.preload` has loaded it
        from remora.maintenance.import_ import import_from  # noqa: PLC0415

        return await import_from(
            cast("Services", self), Path(path), skip_existing=skip_existing, progress=progress
        )

    async def append_many(
        self,
        batches: Iterable[tuple[Session, MessageLike | Iterable[MessageLike], str | None]],
        *,
        concurrency: int = 64,
    ) -> list[Receipt | RemoraError]:
        """Append to many sessions, of any users, many at once.

        Each batch is all or none, as by `Session.append`.

        A batch that is refused keeps no other from being written, so nothing is raised: what became
        of each batch stands in its place, a `Receipt` or the exception. Batches for one session
        keep their order.

        Args:
            batches: a session, one message or many, and an idempotency key or None.
            concurrency: sessions at once.

        Raises:
            InvalidInput: `concurrency` is not positive.
        """
        if concurrency < 1:
            raise InvalidInput(f"concurrency must be positive, not {concurrency}")
        taken = list(batches)
        by_session: dict[SessionKey, list[int]] = {}
        for place, (session, _, _) in enumerate(taken):
            by_session.setdefault(session.key, []).append(place)
        results: dict[int, Receipt | RemoraError] = {}

        async def append(places: list[int]) -> None:
            for place in places:
                session, messages, key = taken[place]
                try:
                    results[place] = await session.append(messages, key=key)
                except RemoraError as e:
                    results[place] = e

        await map_concurrently(append, list(by_session.values()), concurrency=concurrency)
        return [results[place] for place in range(len(taken))]
