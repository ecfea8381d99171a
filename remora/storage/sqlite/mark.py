"""The commit mark: how a journal notices that acknowledged commits are gone.

SQLite opens a write-ahead log that was truncated or lost as a shorter log, without an error. So a
file of a few bytes, next to the journal, names the last acknowledged commit. It is written after
each commit, and not synced: a commit is on the disk before the mark that names it. After a power
cut or a kill the mark is therefore correct or too old, never too new.

The mark names a place in the order of commits. A commit of messages alone is one statement, which
must not grow; the mark has the position of one of its messages. All other commits count themselves
in the journal. A truncated log loses its newest commits and no others. So nothing is lost if the
journal has more counted commits than the mark, or as many and the message that the mark names.
Erasing and trimming are counted commits: while the counts agree, neither has removed that message.

The mark is written in place and not mapped into memory: truncating a mapped file kills the process,
and so does a full disk on file systems that never write in place. Two slots, each with a checksum,
are written in turn: if one is torn, the other is read. A mark that is missing, stale or torn says
nothing, and is no error. One of another journal says that the journal was replaced, and that
long-term memory may be of the other.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path
from typing import Literal
from zlib import crc32

import msgspec

from remora.config import Durability
from remora.ids import actor_key
from remora.logging import get_logger
from remora.storage.files import open_private
from remora.storage.rows import SEQ_BITS
from remora.system.files import write_at

_logger = get_logger(__name__)
_MAGIC = b"remoraM1"
_LEVELS: tuple[Durability, ...] = ("power", "process", "none")
_SLOT = 512  # what a disk writes whole
_BODY = struct.Struct("<8s16sBQQQ")
_SUM = struct.Struct("<I")


class MarkContent(msgspec.Struct, frozen=True):
    """The content of a mark.

    Attributes:
        lineage: which journal it belongs to.
        durability: what its writer promised.
        commits: how many counted commits the journal holds.
        newest: position of a message that came with the last of them, or after it; 0 for none.
    """

    lineage: str
    durability: Durability
    commits: int
    newest: int


def mark_path(journal: Path) -> Path:
    """Where the mark of this journal is: ``journal.mark`` next to ``journal.db``."""
    return journal.with_suffix(".mark")


class CommitMark:
    """A mark that is kept up to date.

    Made by `open`; where the file cannot be written it does nothing, and has said so.
    """

    __slots__ = ("_descriptor", "_level", "_lineage", "_number", "path")

    def __init__(self, path: Path, descriptor: int, lineage: str, durability: Durability) -> None:
        self.path = path
        self._descriptor = descriptor
        self._lineage = bytes.fromhex(lineage)
        self._level = _LEVELS.index(durability)
        self._number = 0

    @classmethod
    def open(cls, path: Path, lineage: str, durability: Durability, commits: int) -> CommitMark:
        """Start a mark, and replace what was there. Blocks on the file system."""
        try:
            descriptor = open_private(path, os.O_RDWR)
        except OSError as e:
            _logger.warning("journal_without_mark", path=str(path), error=str(e))
            descriptor = -1
        mark = cls(path, descriptor, lineage, durability)
        mark.put(commits, 0)
        mark.put(commits, 0)
        return mark

    def put(self, commits: int, newest: int) -> None:
        """Write what was acknowledged last; never synced, so it takes a microsecond."""
        if self._descriptor < 0:
            return
        self._number += 1
        body = _BODY.pack(_MAGIC, self._lineage, self._level, commits, newest, self._number)
        try:
            slot = self._number % 2 * _SLOT
            write_at(self._descriptor, body + _SUM.pack(crc32(body)), slot)
        except OSError as e:
            _logger.warning("journal_without_mark", path=str(self.path), error=str(e))
            self.close()

    def close(self) -> None:
        """Release the file; what it says stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def read_mark(path: Path) -> MarkContent | None:
    """Return what the mark says; None if it says nothing. Blocks on the file system."""
    try:
        found = path.read_bytes()
    except OSError:
        return None
    newest: tuple[int, MarkContent | None] = (-1, None)
    for at in (0, _SLOT):
        body = found[at : at + _BODY.size]
        if len(body) < _BODY.size or found[
            at + _BODY.size : at + _BODY.size + _SUM.size
        ] != _SUM.pack(crc32(body)):
            continue
        magic, lineage, level, commits, position, number = _BODY.unpack(body)
        if magic == _MAGIC and level < len(_LEVELS) and number > newest[0]:
            newest = (number, MarkContent(lineage.hex(), _LEVELS[level], commits, position))
    return newest[1]


def is_of_another_journal(mark: MarkContent, journal: sqlite3.Connection) -> bool:
    """Return whether this journal was put in the place of the one that the mark is of. Blocks."""
    found = journal.execute("SELECT value FROM settings WHERE name = 'lineage'").fetchone()
    return found is None or found[0] != mark.lineage


def missing_commits(mark: MarkContent, journal: sqlite3.Connection) -> str:
    """Return what the mark names and the journal lacks, as text; empty for nothing. Blocks."""
    settings = dict(
        journal.execute(
            "SELECT name, value FROM settings WHERE name IN ('commits', 'lineage')"
        ).fetchall()
    )
    if mark.lineage != settings.get("lineage"):
        return ""
    counted = str(settings.get("commits"))
    commits = int(counted) if counted.isdecimal() else 0
    if commits < mark.commits:
        return (
            f"{mark.commits - commits:,} or more acknowledged commits "
            f"(it counts {commits:,} of {mark.commits:,})"
        )
    if commits > mark.commits or not mark.newest:
        return ""
    if journal.execute("SELECT 1 FROM messages WHERE pos = ?", (mark.newest,)).fetchone():
        return ""
    sid, seq = mark.newest >> SEQ_BITS, mark.newest & (1 << SEQ_BITS) - 1
    key = journal.execute("SELECT user, session FROM actors WHERE sid = ?", (sid,)).fetchone()
    owner = actor_key(*key).words if key else f"the actor {sid}"
    return f"message {seq} of {owner}, which was acknowledged, and perhaps others written with it"


def accept_loss(journal: Path) -> Literal["nothing", "accepted"]:
    """Remove the mark, to open a journal that lacks commits. Blocks on the file system.

    The caller owns the directory, and no process has the journal open.

    Returns:
        ``accepted`` if there was a mark; ``nothing`` if there was none.
    """
    path = mark_path(journal)
    try:
        path.unlink()
    except FileNotFoundError:
        return "nothing"
    return "accepted"
