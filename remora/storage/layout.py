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
import shutil
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import msgspec

from remora.errors import DirectoryUnusable
from remora.logging import get_logger
from remora.storage.files import open_private
from remora.system.files import replace, sync_file, sync_path

SHARDS_FILE = "shards.json"
DIVISION_FILE = "reshard.json"
MOVING_FILE = "moving.json"
MOVING_SETTING = "moving"
"""Setting of a journal in PostgreSQL that does not count, because a move is not finished."""
SHARD_NAME = re.compile(r"shard-\d{2,3}(-\d+)?")
"""Of a shard's directory: its number, and the layout's from the second on."""

MAX_SHARDS = 256
_VERSION = 1
_UNDIVIDED = re.compile(r"journal\.(db|db-wal|db-shm|mark)|attachments|longterm(-\d+)?")
_logger = get_logger(__name__)


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
    def title(self) -> str:
        """The name of its journal in a database, which is opened under it."""
        return f"shard {self.number} of {self.shards} of the memory {self.instance}"

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
    """The content of ``shards.json``.

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

    def schema(self, schema: str, number: int) -> str:
        """The schema of a shard's journal in a database, for a memory in `schema`."""
        return schema if self.shards == 1 else f"{schema}_{number:02}"

    @property
    def names(self) -> list[str]:
        """The names of all shards' directories, by number."""
        return [self.name(number) for number in range(self.shards)]


def number_actors(last_sid: int, settings: Mapping[str, str]) -> Iterator[int]:
    """The numbers of the actors to come.

    A shard's are those of a residue class, so that two shards of a memory never have the same.

    Args:
        last_sid: the highest that an actor has.
        settings: the journal's; ``last_sid`` is the highest that any actor had.

    Raises:
        ValueError: a setting is not a number.
    """
    step, offset = int(settings.get("sid_step", "1")), int(settings.get("sid_offset", "0"))
    if step < 1:
        raise ValueError(f"sid_step is {step}")
    first = max(last_sid, int(settings.get("last_sid", "0"))) + 1
    return count(first + (offset - first) % step, step)


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
    """Check that no shards are left without their ``shards.json``: a new memory would hide them.

    Those of a node hold nothing: their journals are in PostgreSQL.
    """
    try:
        names = sorted(
            one.name
            for one in directory.iterdir()
            if SHARD_NAME.fullmatch(one.name)
            and any(_UNDIVIDED.fullmatch(file.name) for file in one.iterdir())
        )
    except OSError:  # there is no such directory, or it cannot be listed: opening says so
        return
    if names and not (directory / "journal.db").exists():
        raise DirectoryUnusable(
            f"{directory / SHARDS_FILE} is missing, though {names[0]} is there: restore it, or the "
            "whole directory, from a backup",
            path=directory,
        )


def explain_missing(directory: Path) -> str:
    """That a directory has no memory, and where it is if a node used the directory."""
    text = f"there is no memory in {directory}"
    if (directory / "owner.lock").exists():
        text += (
            ", though a process served one from there: with journal.dsn it is in PostgreSQL. "
            "`remora owners` with its configuration file shows who has it, and remora.connect, "
            "`remora http` and `remora mcp` use it"
        )
    return text


def write_layout(directory: Path, layout: ShardLayout) -> None:
    """Write ``shards.json`` in one step; it is on disk afterwards, for its owner alone.

    Raises:
        OSError: the disk refused; what was there before is still there.
    """
    _write(directory / SHARDS_FILE, layout)


def _write(path: Path, content: msgspec.Struct) -> None:
    staging = path.with_name(f"{path.name}.new")
    staging.unlink(missing_ok=True)
    with os.fdopen(open_private(staging, os.O_WRONLY | os.O_EXCL), "wb") as file:
        file.write(msgspec.json.encode(content) + b"\n")
        file.flush()
        sync_file(file.fileno())
    replace(staging, path)
    sync_path(path.parent)


# -- a division that was begun ---------------------------------------------------------------------


class Division(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``reshard.json``: how a memory is being divided again, and how far that came.

    Attributes:
        version: of this file's format.
        new: the layout to come; with one shard, its directory's content is moved up at the end.
        sources: how often each journal was opened by an owner: copies of one that was opened since
            are of no use.
        journals: shards whose journals are copied.
        rows: how many rows of long-term memory are copied; -1 until all are.
    """

    version: int = _VERSION
    new: ShardLayout
    sources: tuple[int, ...]
    journals: int = 0
    rows: int = -1


_decode_division = msgspec.json.Decoder(Division).decode


def read_division(directory: Path) -> Division | None:
    """The division that was begun and has not ended; None for none, or an unreadable one."""
    try:
        return _decode_division((directory / DIVISION_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_division(directory: Path, division: Division) -> None:
    """Note how far it came; it is on disk afterwards.

    Raises:
        OSError: the disk refused.
    """
    _write(directory / DIVISION_FILE, division)


def is_dividing(directory: Path) -> bool:
    """Return whether a division was begun and has not ended."""
    return (directory / DIVISION_FILE).exists()


def end_division(directory: Path) -> None:
    """Finish a division that has replaced ``shards.json``, or discard one that has not.

    Requires exclusive access to the directory: its owner calls this first. Then all of the
    data is in the layout in force, and there is no other copy of it: what is forgotten from now on
    is nowhere else.

    Raises:
        OSError: the disk refused; the next call goes on.
    """
    if not is_dividing(directory):
        return
    division, layout = read_division(directory), read_layout(directory)
    finished = division is not None and layout is not None and layout.layout == division.new.layout
    _logger.info("reshard_finished" if finished else "reshard_discarded", path=str(directory))
    if finished and layout is not None and layout.shards == 1:
        _remove_others(directory, layout, files=False)
        _move_up(directory, layout.name(0))
    else:
        _remove_others(directory, layout, files=layout is not None)
    (directory / DIVISION_FILE).unlink(missing_ok=True)
    sync_path(directory)


def _remove_others(directory: Path, layout: ShardLayout | None, *, files: bool) -> None:
    """Remove the shards that the layout does not name; with `files`, an undivided memory, too."""
    kept = set() if layout is None else set(layout.names)
    for one in sorted(directory.iterdir()):
        other = SHARD_NAME.fullmatch(one.name) and one.name not in kept
        if one.is_symlink() or not (other or (files and _UNDIVIDED.fullmatch(one.name))):
            continue
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink()
    sync_path(directory)


def _move_up(directory: Path, name: str) -> None:
    """Make the only shard's directory the memory itself; the journal comes last."""
    shard = directory / name
    if shard.is_dir():
        found = [one for one in shard.iterdir() if _UNDIVIDED.fullmatch(one.name)]
        for one in sorted(found, key=lambda one: (one.name == "journal.db", one.name)):
            one.rename(directory / one.name)
        sync_path(directory)
        shutil.rmtree(shard)
    (directory / SHARDS_FILE).unlink(missing_ok=True)
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


# -- a move into PostgreSQL, or back ---------------------------------------------------------------


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``moving.json``: the directory's journal is being moved.

    Attributes:
        version: of this file's format.
        to: ``postgresql``, or ``directory``, where no journal of the directory counts yet.
        complete: the journal in PostgreSQL counts from now on.
        schema: where it is there, when the move has ended: the file stays, so that no new memory
            begins in its place.
        tables: long-term memory was copied, too: the directory's own is to be removed.
        rows: how many of its rows were copied.
        shards: into how many shards.
        instance: what the ids of the memory's messages begin with.
    """

    version: int = _VERSION
    to: str
    complete: bool = False
    schema: str = ""
    tables: bool = False
    rows: int = 0
    shards: int = 1
    instance: str = ""


_decode_move = msgspec.json.Decoder(Move).decode


def read_move(directory: Path) -> Move | None:
    """The move that was begun and has not ended; None for none.

    Raises:
        DirectoryUnusable: the file cannot be read.
    """
    path = directory / MOVING_FILE
    try:
        return _decode_move(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise _damaged(path, str(e)) from e


def write_move(directory: Path, move: Move) -> None:
    """Note how far it came; it is on disk afterwards.

    Raises:
        OSError: the disk refused.
    """
    _write(directory / MOVING_FILE, move)


def end_move(directory: Path, *, schema: str = "", tables: bool = False) -> None:
    """Remove what a finished move has left in the directory.

    Args:
        directory: of the memory.
        schema: where the journal is now, in PostgreSQL; empty: in the directory.
        tables: remove its tables of long-term memory as well.

    Raises:
        OSError: the disk refused; the next call goes on.
    """
    for one in sorted(directory.iterdir()):
        of_tables = one.name.startswith("longterm")
        if _UNDIVIDED.fullmatch(one.name) and (tables if of_tables else bool(schema)):
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        elif schema and SHARD_NAME.fullmatch(one.name) and not one.is_symlink():
            shutil.rmtree(one)
    sync_path(directory)
    if schema:
        (directory / SHARDS_FILE).unlink(missing_ok=True)  # last: it says that these were shards
        write_move(directory, Move(to="postgresql", complete=True, schema=schema))
        return
    (directory / MOVING_FILE).unlink(missing_ok=True)
    sync_path(directory)


def check_unmoved(directory: Path) -> None:
    """Check that the journal in a directory, a memory's or one of its shards', counts.

    Raises:
        DirectoryUnusable: the one in PostgreSQL does.
    """
    if SHARD_NAME.fullmatch(directory.name) and (directory.parent / SHARDS_FILE).exists():
        directory = directory.parent
    move = read_move(directory)
    if move is not None and move.schema:
        raise DirectoryUnusable(
            f"the memory of {directory} was moved into PostgreSQL, into the schema {move.schema}: "
            "open it with journal.dsn in the configuration; or remove moving.json there, to begin "
            "another memory",
            path=directory,
        )
    if move is not None and (move.complete or move.to == "directory"):
        raise DirectoryUnusable(
            f"the memory in {directory} is being moved, and that was interrupted: run remora "
            f"reshard {directory} --to {move.to} again, with journal.dsn in the configuration",
            path=directory,
        )
