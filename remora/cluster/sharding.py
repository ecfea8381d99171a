"""Which shard a user is in, and the directory of a memory in shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

import anyio
import msgspec

from remora.config import ClusterConfig
from remora.errors import ConfigError, DirectoryLocked, DirectoryUnusable, InvalidInput
from remora.runtime.clock import Clock
from remora.runtime.threads import run_in_thread
from remora.storage.files import unusable_directory
from remora.storage.layout import (
    MAX_SHARDS,
    ShardLayout,
    check_unmoved,
    end_division,
    is_dividing,
    read_layout,
    write_layout,
)
from remora.storage.lock import DirectoryLock, wait_for_lock
from remora.system.locks import CAN_SHARE

DEFAULT_SHARDS = 8
"""Of a new memory that several processes are to use."""
_CORES_OF_AN_OWNER = 4
_PAUSE_S = 0.05


class Share(msgspec.Struct, frozen=True):
    """Which of the processes that own a memory one is, and which shards are its own.

    Attributes:
        number: from 0; also of its seat.
        owners: how many there are.
    """

    number: int = 0
    owners: int = 1

    def of(self, shards: int) -> Sequence[int]:
        """The numbers of its shards, where the memory has so many."""
        return range(self.number, shards, self.owners)


WHOLE = Share()
"""Of the only process that owns a memory."""


def shard_of(user: str, shards: int) -> int:
    """The number of the shard that has everything of a user: sessions, memories, jobs.

    A shared scope is in the shard of its actor's key (`remora.ids.SHARED_PREFIX` and its name), and
    so are all of its members' memories. The answer is part of the format: it never changes.
    """
    if shards == 1:
        return 0
    digest = blake2b(user.encode(), digest_size=8, person=b"remora.shard").digest()
    return int.from_bytes(digest) % shards


def choose_layout(directory: Path, shards: int | None) -> ShardLayout | None:
    """How a directory is divided, or is to be if there is no memory yet. Blocks.

    Args:
        directory: of the memory; it need not exist.
        shards: how many the caller wants; None for what is there, `DEFAULT_SHARDS` if nothing is.

    Returns:
        None for a memory that is not divided: the directory is its only shard.

    Raises:
        InvalidInput: `shards` is out of range, or the memory has another number of them.
        DirectoryUnusable: see `read_layout`.
    """
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise InvalidInput(f"a memory has 1 to {MAX_SHARDS} shards, not {shards}")
    found = read_layout(directory)
    if found is not None and found.shards == 1 and is_dividing(directory):
        found = None  # opening it moves the only shard's content to its place
    elif found is None and not (directory / "journal.db").exists():
        check_unmoved(directory)
        wanted = DEFAULT_SHARDS if shards is None else shards
        return None if wanted == 1 else ShardLayout.new(wanted)
    there = 1 if found is None else found.shards
    if shards is not None and shards != there:
        raise InvalidInput(
            f"the memory in {directory} has {there} shard{'s'[: there - 1]}, not {shards}: "
            f"configure {there}, or stop every process that uses it and run `remora reshard "
            f"{directory} --shards {shards}`"
        )
    return found


def count_owners(limits: ClusterConfig, layout: ShardLayout | None) -> int:
    """How many processes own a memory in a directory.

    Args:
        limits: `owners` is how many there are to be, see there.
        layout: how the memory is divided; None if it is in one piece.

    Raises:
        ConfigError: there are to be several, and the system has no lock that they could share.
    """
    if not CAN_SHARE:
        if limits.owners not in {None, 1}:
            raise ConfigError(
                f"cluster.owners is {limits.owners}, and on this system one process owns a memory: "
                "set it to 1",
                key="cluster.owners",
            )
        return 1
    wanted = limits.owners or (os.cpu_count() or 1) // _CORES_OF_AN_OWNER or 1
    return min(wanted, 1 if layout is None else layout.shards)


def another_count(there: int, here: int) -> ConfigError:
    """The error for a worker that expects another number of owners than there are."""
    said = f"{there} processes own" if there > 1 else "one process owns"
    return ConfigError(
        f"{said} the memory, and cluster.owners says {here} here: give all processes the same "
        "configuration, and restart the older ones",
        key="cluster.owners",
    )


def another_division(there: int, here: int) -> ConfigError:
    """The error for a worker that expects another number of shards than there are."""
    return ConfigError(
        f"the memory has {there} shard{'s'[: there != 1]}, and this process expects {here}: give "
        "both the same configuration, and restart the older one",
        key="cluster.shards",
    )


def find_shards(directory: Path) -> list[Path]:
    """The directories of a memory's shards, by number: the directory itself if it is not divided.

    Blocks on the file system. An owner may have the memory open.

    Raises:
        DirectoryUnusable: see `read_layout`.
    """
    layout = read_layout(directory)
    if layout is None or (layout.shards == 1 and not (directory / layout.name(0)).is_dir()):
        return [directory]
    return [directory / name for name in layout.names]


class ShardedDirectory:
    """The directory of a memory in shards, while it is open.

    Args:
        path: the directory.
        layout: how it is, or is to be, divided; see `choose_layout`.
        wait_s: how long to wait for the process that owns it.
        clock: measures that.
        shared: other processes own other shards of it at the same time.
    """

    def __init__(
        self,
        path: Path,
        layout: ShardLayout,
        *,
        wait_s: float,
        clock: Clock,
        shared: bool = False,
    ) -> None:
        self.path = path
        self._layout = layout
        self._shared = shared
        self._wait_s = wait_s
        self._clock = clock
        self._lock: DirectoryLock | None = None

    async def open(self) -> None:
        """Own it; ``shards.json`` is written if there was no memory.

        Raises:
            DirectoryLocked, DirectoryUnusable: see `wait_for_lock`.
            DirectoryUnusable: the memory was divided again since the layout was read, or is
                being moved into PostgreSQL.
        """
        try:
            if self._shared:
                await self._wait_until_settled()
            self._lock = DirectoryLock(self.path, shared=self._shared)
            await wait_for_lock(self._lock, self._wait_s, self._clock)
            await run_in_thread(self._check_layout if self._shared else self._settle_layout)
        except BaseException:
            await self.close()
            raise

    async def _wait_until_settled(self) -> None:
        """Settle the layout, or wait until another owner of the memory has done so."""
        end = self._clock.monotonic() + self._wait_s
        while True:
            with suppress(DirectoryLocked):
                await run_in_thread(self._settle_alone)
            if await run_in_thread(self._is_settled) or self._clock.monotonic() >= end:
                return
            await self._clock.sleep(_PAUSE_S)

    def _is_settled(self) -> bool:
        return not is_dividing(self.path) and read_layout(self.path) is not None

    def _settle_alone(self) -> None:
        lock = DirectoryLock(self.path)
        try:
            lock.acquire()
            self._settle_layout()
        finally:
            lock.release()

    def _check_layout(self) -> None:
        if is_dividing(self.path) or read_layout(self.path) != self._layout:
            raise self._changed()

    def _settle_layout(self) -> None:
        try:
            check_unmoved(self.path)
            end_division(self.path)
            found = read_layout(self.path)
            if found is None and not (self.path / "journal.db").exists():
                write_layout(self.path, self._layout)
                return
        except OSError as e:
            raise unusable_directory(self.path, e) from e
        if found != self._layout:
            raise self._changed()

    def _changed(self) -> DirectoryUnusable:
        return DirectoryUnusable(
            f"the memory in {self.path} was made or divided by another process in the meantime: "
            "open it again",
            path=self.path,
        )

    async def close(self) -> None:
        """Release it."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with anyio.CancelScope(shield=True):
                await run_in_thread(lock.release)
