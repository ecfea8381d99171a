"""A memory directory in shards: ``shards.json`` and the shards' own directories.

``shards.json`` says how many shards there are and which directories they are in. It is replaced in
one step, so that a memory is in the old shards or in the new ones after a crash. A memory directory
without it is not in shards: journal and long-term memory are in the directory itself.

Everything here blocks.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from remora.errors import DirectoryUnusable
from remora.storage.atomic import sync_path
from remora.storage.private import open_private

__all__ = [
    "MAX_SHARDS",
    "SHARDS_FILE",
    "SHARD_NAME",
    "ShardLayout",
    "ShardPlace",
    "check_unsharded",
    "read_layout",
    "write_layout",
]

SHARDS_FILE = "shards.json"
SHARD_NAME = re.compile(r"shard-\d{2,3}(-\d+)?")
"""Of a shard's directory: its number, and the layout's from the second on."""

MAX_SHARDS = 256
_VERSION = 1


class ShardPlace(msgspec.Struct, frozen=True):
    """Which shard of a memory a runtime is.

    Attributes:
        number: from 0.
        shards: how many there are.
        instance: what the ids of the memory's messages begin with: the same for all its shards.
    """

    number: int
    shards: int
    instance: str

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that the shard's journal begins with.

        Shards hand out different numbers to their sessions. So rows keep their numbers, and
        messages their ids, when a memory is divided again.
        """
        return {
            "instance": self.instance,
            "sid_step": str(self.shards),
            "sid_offset": str(self.number),
        }


class ShardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What ``shards.json`` holds.

    Attributes:
        version: of this file's format.
        shards: how many there are.
        instance: see `ShardPlace`.
        layout: how often the memory was divided; names of directories from 2 on end with it.
    """

    version: int = _VERSION
    shards: int
    instance: str
    layout: int = 1

    @classmethod
    def new(cls, shards: int) -> ShardLayout:
        """Of a memory that does not exist yet."""
        return cls(shards=shards, instance=secrets.token_hex(3))

    @property
    def places(self) -> list[ShardPlace]:
        """The shards, by number."""
        return [ShardPlace(one, self.shards, self.instance) for one in range(self.shards)]

    def name(self, number: int) -> str:
        """The name of a shard's directory."""
        return f"shard-{number:02}" if self.layout == 1 else f"shard-{number:02}-{self.layout}"

    @property
    def names(self) -> list[str]:
        """The names of all shards' directories, by number."""
        return [self.name(number) for number in range(self.shards)]


_decode = msgspec.json.Decoder(ShardLayout).decode
_INSTANCE = re.compile("[0-9a-f]{6}")


def read_layout(directory: Path) -> ShardLayout | None:
    """How a directory is divided; None if it is not.

    Raises:
        DirectoryUnusable: ``shards.json`` cannot be read, a newer remora wrote it, or it is missing
            though there are shards.
    """
    path = directory / SHARDS_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        _refuse_orphans(directory)
        return None
    except OSError as e:
        raise DirectoryUnusable(f"{path} cannot be read: {e.strerror or e}", path=directory) from e
    return _check(path, data)


def _check(path: Path, data: bytes) -> ShardLayout:
    try:
        version = msgspec.json.decode(data, type=dict).get("version")
        if isinstance(version, int) and version > _VERSION:
            raise DirectoryUnusable(
                f"{path} has the version {version}, this remora reads up to {_VERSION}: upgrade "
                "remora",
                path=path.parent,
            )
        layout = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise _damaged(path, str(e)) from e
    if not (1 <= layout.shards <= MAX_SHARDS and layout.layout >= 1 and layout.version == _VERSION):
        raise _damaged(path, "a number is out of range")
    if not _INSTANCE.fullmatch(layout.instance):
        raise _damaged(path, "its instance is not six hex digits")
    return layout


def _damaged(path: Path, problem: str) -> DirectoryUnusable:
    return DirectoryUnusable(
        f"{path} is damaged ({problem}): restore it, or the whole directory, from a backup",
        path=path.parent,
    )


def _refuse_orphans(directory: Path) -> None:
    """Check that no shards are left without their ``shards.json``: a new memory would hide them."""
    try:
        names = sorted(one.name for one in directory.iterdir() if SHARD_NAME.fullmatch(one.name))
    except OSError:  # there is no such directory, or it cannot be listed: opening says so
        return
    if names and not (directory / "journal.db").exists():
        raise DirectoryUnusable(
            f"{directory / SHARDS_FILE} is missing, though {names[0]} is there: restore it, or the "
            "whole directory, from a backup",
            path=directory,
        )


def write_layout(directory: Path, layout: ShardLayout) -> None:
    """Write ``shards.json`` in one step; it is on disk afterwards, for its owner alone.

    Raises:
        OSError: the disk refused; what was there before is still there.
    """
    path = directory / SHARDS_FILE
    staging = directory / f"{SHARDS_FILE}.new"
    staging.unlink(missing_ok=True)
    with os.fdopen(open_private(staging, os.O_WRONLY | os.O_EXCL), "wb") as file:
        file.write(msgspec.json.encode(layout) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    sync_path(directory)


def check_unsharded(directory: Path) -> None:
    """Check that a directory is a whole memory: neither divided into shards, nor one of them.

    Raises:
        DirectoryUnusable: it is one of these.
    """
    layout = read_layout(directory)
    if layout is not None:
        raise DirectoryUnusable(
            f"{directory} holds a memory in {layout.shards} shards, which one Runtime cannot open: "
            f"use remora.connect({str(directory)!r}), or bring it into one piece with `remora "
            f"reshard {directory} --shards 1`",
            path=directory,
        )
    whole = directory.parent
    if SHARD_NAME.fullmatch(directory.name) and (whole / SHARDS_FILE).exists():
        raise DirectoryUnusable(
            f"{directory} is one shard of the memory in {whole}: use "
            f"remora.connect({str(whole)!r})",
            path=directory,
        )
