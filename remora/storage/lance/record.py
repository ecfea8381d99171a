"""The record of a table: which version is on disk, and of which files it consists.

Everything here blocks.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec

from remora.logging import get_logger
from remora.system.files import replace, sync_file, sync_path

_logger = get_logger(__name__)
_CHUNK_BYTES = 1 << 20


class FileMark(msgspec.Struct, frozen=True, array_like=True):
    """A file when it was synced: its size in bytes, and 32 hex digits of its blake2b digest."""

    size: int
    digest: str


class SyncRecord(msgspec.Struct, frozen=True):
    """The files that are known to be on disk.

    Attributes:
        format: of this record.
        version: of the table.
        manifest: the file that lists the version's other files.
        files: those others, by their paths from the table's directory.
    """

    format: int
    version: int
    manifest: FileMark
    files: dict[str, FileMark]


_decode = msgspec.json.Decoder(SyncRecord).decode


def read_record(path: Path) -> SyncRecord | None:
    """The record in a file; None if there is none, or it cannot be read."""
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as e:  # a disk that keeps nothing it was not told to sync
        _logger.warning("record_unreadable", table=path.name.partition(".")[0], error=str(e))
        return None


def mark_of(path: Path) -> FileMark:
    """A file as it is now."""
    return FileMark(path.stat().st_size, digest_of(path))


def digest_of(path: Path) -> str:
    """The digest of a file's content."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def write_synced(path: Path, data: bytes, *, sync: bool) -> None:
    """Write or replace a file in one step.

    Args:
        path: the file.
        data: its content.
        sync: have it on disk before returning.
    """
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            sync_file(file.fileno())
    replace(beside, path)
    if sync:
        sync_path(path.parent)
