"""Reading a journal that another process may own: one moment of it, and no write."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from remora.errors import CommitFailed, StorageError
from remora.ids import SessionKey
from remora.runtime.jobs import Job
from remora.runtime.log import LogStatistics, Write
from remora.runtime.threads import run_in_thread
from remora.storage.attachments import Attachments, BlobFiles
from remora.storage.journal_port import Erased, Erasure, Retention
from remora.storage.sqlite.backup import snapshot
from remora.storage.sqlite.connection import JournalConnection
from remora.storage.sqlite.opening import open_error
from remora.storage.sqlite.outline import SessionOutline, read_outline
from remora.storage.sqlite.peek import check_current, has_log, read_only_address
from remora.storage.sqlite.reading import Parameters, SqliteReader

_BUSY_MS = 5_000
_REFUSED = "the memory was opened read-only: nothing was written"


class ReadOnlyJournal(SqliteReader):
    """Implements `remora.storage.ports.Journal` without writing. Made by `open`.

    All queries see the journal as it was at the first of them. From then until `end_moment`, the
    owner's write-ahead log is not started again (`open_copy` has it go on). Settings are as they
    were when it was opened. Every write fails with `CommitFailed`. Background work is the owner's:
    `jobs`, `erasures` and what asks for sessions to work on return nothing.

    Attributes:
        instance: of the journal.
    """

    _reader: JournalConnection

    def __init__(
        self,
        reader: JournalConnection,
        directory: Path,
        *,
        settings: Mapping[str, str],
        numbers: Iterator[int],
    ) -> None:
        super().__init__(reader, numbers=numbers)
        self.instance = settings.get("instance", "000000")
        self._settings = settings
        files = BlobFiles(directory, sync=False)
        self.attachments = Attachments(files, self, self._referring, self._all_users)
        self._begun = False
        self.epoch = self.commit_number = 0  # it owns nothing
        self._refused: list[Write] = []
        self._queued = anyio.Event()

    @classmethod
    async def open_copy(cls, path: Path) -> ReadOnlyJournal:
        """Open a journal to read it for long: a copy, where another process has it open.

        The copy is in the directory for temporary files, without a name: nothing is left of it
        when the process ends, however it ends. Without a write-ahead log, nothing is copied.

        Raises:
            JournalTooNew, JournalDamaged, DirectoryUnusable: see `open`.
        """
        if not await run_in_thread(has_log, path):
            return await cls.open(path)
        await run_in_thread(check_current, path)
        temporary = Path(await run_in_thread(partial(tempfile.mkdtemp, prefix="remora-read-")))
        try:
            copy = temporary / path.name
            await run_in_thread(snapshot, path, copy)
            return await cls.open(copy, path.parent)
        finally:
            with anyio.CancelScope(shield=True):
                await run_in_thread(partial(shutil.rmtree, temporary, ignore_errors=True))

    @classmethod
    async def open(cls, path: Path, directory: Path | None = None) -> ReadOnlyJournal:
        """Open a journal for reading. No file changes.

        Args:
            path: the ``journal.db`` of a memory directory, which a running server may own.
            directory: that has the attachments; None for the one of `path`.

        Raises:
            JournalTooNew: a newer remora wrote it.
            JournalDamaged: it is no journal, or SQLite finds it malformed.
            DirectoryUnusable: it cannot be read, or an earlier remora wrote it.
        """
        await run_in_thread(check_current, path)
        address = await run_in_thread(read_only_address, path)
        reader = JournalConnection(address)
        try:
            await reader
            await reader.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            await reader.execute("BEGIN")  # both of one moment
            settings = {
                str(name): str(value)
                for name, value in await reader.execute_fetchall("SELECT name, value FROM settings")
            }
            ((last_sid,),) = await reader.execute_fetchall(
                "SELECT coalesce(max(sid), 0) FROM actors"
            )
            await reader.execute("COMMIT")
        except BaseException as e:
            with anyio.CancelScope(shield=True):
                await reader.close()
            if isinstance(e, sqlite3.Error | UnicodeDecodeError):
                raise open_error(e, path) from e
            raise
        return cls(
            reader, directory or path.parent, settings=settings, numbers=count(int(last_sid) + 1)
        )

    async def end_moment(self) -> None:
        """Let the owner's write-ahead log go on; the next query begins another moment."""
        begun, self._begun = self._begun, False
        if begun:
            await self._reader.execute("COMMIT")

    async def _read(self, sql: str, parameters: Parameters = ()) -> list[Any]:
        if not self._begun:
            self._begun = True  # the connection does one after the other
            await super()._read("BEGIN")
        return await super()._read(sql, parameters)

    async def setting(self, name: str) -> str | None:
        return self._settings.get(name)

    async def outline(self, key: SessionKey) -> SessionOutline:
        """A session without its messages; see `read_outline`."""
        return await read_outline(self._read, key)

    # -- writing -----------------------------------------------------------------------------------

    def write(self, write: Write) -> None:
        self._refused.append(write)
        self._queued.set()

    async def run(self) -> None:
        while True:
            await self._queued.wait()
            self._queued = anyio.Event()
            refused, self._refused = self._refused, []
            for write in refused:
                write.acknowledge(CommitFailed(_REFUSED) if write.records else None)

    async def init_setting(self, name: str, value: str) -> str:
        """The setting's value; `value` if it was never set, which stays so."""
        found = await self.setting(name)
        return value if found is None else found

    async def wait_until_lost(self) -> None:
        await anyio.sleep_forever()

    def check_lease(self) -> None: ...

    async def change_settings(self, settings: Mapping[str, str]) -> None:
        raise StorageError(_REFUSED)

    async def erase(self, user: str, session: str | None = None) -> Erased:
        raise CommitFailed(_REFUSED)

    async def finish_erasure(self, number: int) -> None:
        raise CommitFailed(_REFUSED)

    # -- the owner's work --------------------------------------------------------------------------

    async def jobs(self, *, dead: bool = False) -> Sequence[Job]:
        return await super().jobs(dead=True) if dead else []

    async def erasures(self) -> Sequence[Erasure]:
        return []

    async def sessions_to_flush(self, limit: int) -> Sequence[SessionKey]:
        return []

    async def sessions_with_fallbacks(self, limit: int) -> Sequence[SessionKey]:
        return []

    async def scrub(self) -> None:
        """Nothing: no row was deleted here."""

    async def trim(self, limits: Retention, now_us: int) -> int:
        return 0

    async def checkpoint(self) -> None:
        """Nothing: no commit was made here."""

    def statistics(self) -> LogStatistics:
        return LogStatistics(0, 0, 0, 0, len(self._refused))

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._reader.close()
