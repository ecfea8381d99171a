"""Copy LanceDB tables, or link to them, while they are written to. Everything here blocks.

A table is a directory of files that never change once they exist. Its record lists those of the
version that is known to be on disk (`storage/lance/files.py`); they are copied, with the record.
Compaction may remove files of a version that is no longer the newest, and erasing replaces whole
tables: then the table is copied again, from the version that is recorded by then.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, TypeAlias

from remora.errors import LongTermError
from remora.storage.lance.directory import shard_names
from remora.storage.lance.files import ShardFiles

_ATTEMPTS = 60
_CHUNK_BYTES = 1 << 20
_LONGEST_PAUSE_S = 1.0
_MOST_HELD = 256  # files of a table that are open at once
_Take: TypeAlias = Callable[[Path, BinaryIO, Path], None]


def copy_tables(source: Path, target: Path) -> None:
    """Copy each table in the directory `source` into `target`, which is made.

    Raises:
        LongTermError: a table is damaged, or changes faster than it can be copied.
        OSError: the disk refused.
    """
    _take_tables(source, target, _copy_file)


def link_tables(source: Path, target: Path) -> None:
    """The same with symbolic links to the files, which the owner of the tables may remove.

    Raises:
        LongTermError, OSError: see `copy_tables`.
    """
    _take_tables(source.resolve(), target, _link_file)


def _take_tables(source: Path, target: Path, take: _Take) -> None:
    target.mkdir()
    for name in shard_names(source):
        _take_persistently(source, target, name, take)


def _copy_file(_: Path, file: BinaryIO, copy: Path) -> None:
    with copy.open("wb") as written:
        shutil.copyfileobj(file, written, _CHUNK_BYTES)


def _link_file(original: Path, _: BinaryIO, link: Path) -> None:
    link.symlink_to(original)


def _take_persistently(source: Path, target: Path, name: str, take: _Take) -> None:
    files = ShardFiles(source, name, sync=False)
    for attempt in range(_ATTEMPTS):
        try:
            return _take(source, target, files, take)
        except FileNotFoundError:  # of a version that is the newest no longer
            problem = "changes faster than it can be copied"
        except (ValueError, IndexError) as e:
            problem = f"has no version that can be read ({e}), see remora verify"
        shutil.rmtree(target / files.directory.name, ignore_errors=True)
        if not files.directory.is_dir():
            return None  # dropped, or lost before: it is rebuilt when the copy is opened
        # old files go a moment before the record names the new ones
        time.sleep(min(0.01 * (attempt + 1), _LONGEST_PAUSE_S))
    raise LongTermError(f"the table {name} {problem}", retryable=True)


def _take(source: Path, target: Path, files: ShardFiles, take: _Take) -> None:
    durable_files = files.durable_files()
    for start in range(0, len(durable_files.files), _MOST_HELD):
        with ExitStack() as stack:  # one that is open can be read although its name is gone
            held = [
                (path, stack.enter_context((source / path).open("rb")))
                for path in durable_files.files[start : start + _MOST_HELD]
            ]
            for path, file in held:
                copy = target / path
                copy.parent.mkdir(parents=True, exist_ok=True)
                take(source / path, file, copy)
    if durable_files.record:
        (target / durable_files.name).write_bytes(durable_files.record)
