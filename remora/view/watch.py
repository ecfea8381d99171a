"""When a memory changes, and which pages are told.

A file's size and time are looked at, and the bytes of the commit mark: so the owner is not asked,
and no lock of its journal is taken.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

from remora.cluster.reading import find_journals
from remora.errors import RemoraError
from remora.runtime.threads import run_in_thread
from remora.storage.sqlite.mark import mark_path

MAX_PAGES = 64
_INTERVAL_S = 0.5
_HEARTBEAT_S = 15.0
_STATE = tuple[object, ...]


class TooManyPages(Exception):
    """So many pages are open that no more are told of changes."""


class Watch:
    """Tells open pages that a memory has changed, twice a second at most.

    One look serves all of them, and nobody looks while no page is open.

    Args:
        directory: of the memory.
        interval_s: seconds between two looks.
    """

    def __init__(self, directory: Path, *, interval_s: float = _INTERVAL_S) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._pages = 0
        self._version = 0
        self._seen: _STATE = ()
        self._changed = anyio.Event()
        self._opened = anyio.Event()
        self._closed = False

    @property
    def pages(self) -> int:
        """How many pages are open."""
        return self._pages

    async def wait_until_open(self) -> None:
        """Return when a page is open."""
        await self._opened.wait()

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await self.wait_until_open()
            await self.look()
            await anyio.sleep(self._interval_s)

    async def look(self) -> None:
        """Look once, and tell the pages if something has changed."""
        seen = await run_in_thread(_look, self._directory)
        if seen != self._seen:
            self._seen = seen
            self._version += 1
            self._tell()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events for one page: ``change`` at once, and at each change.

        Raises:
            TooManyPages: before the first event.
        """
        if self._pages >= MAX_PAGES:
            raise TooManyPages
        self._pages += 1
        told = -1
        try:
            if not self._opened.is_set():  # nobody looked for a while
                await self.look()
                self._opened.set()
            while not self._closed:
                changed = self._changed
                if told != self._version:
                    told = self._version
                    yield f"event: change\ndata: {told}\n\n".encode()
                    continue
                with anyio.move_on_after(_HEARTBEAT_S) as waiting:
                    await changed.wait()
                if waiting.cancelled_caught:
                    yield b": still here\n\n"  # a closed page is noticed by writing to it
        finally:
            self._pages -= 1
            if not self._pages and self._opened.is_set():  # else `wait_until_open` waits for it
                self._opened = anyio.Event()


def _look(directory: Path) -> _STATE:
    try:
        journals: Sequence[Path] = find_journals(directory)
    except (RemoraError, OSError) as e:
        return (str(e),)
    seen: list[object] = []
    for journal in journals:
        mark = mark_path(journal)
        for path in (journal, journal.with_name(f"{journal.name}-wal"), mark):
            with suppress(OSError):
                stat = path.stat()
                seen.append((path.name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
        with suppress(OSError):
            seen.append(mark.read_bytes())
    return tuple(seen)
