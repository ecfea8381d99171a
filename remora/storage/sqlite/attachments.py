"""The attachments next to a journal's file: copied with its rows, and compared with them.

Everything here blocks.
"""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path

from remora.ids import Digests
from remora.messages.attachments import MAGIC, find_blobs
from remora.storage.attachments import (
    ATTACHMENTS_KEY,
    DIRECTORY,
    UNSWEPT,
    copy_files,
    encode_names,
    list_names,
)
from remora.storage.journal_port import Finding
from remora.storage.rows import SEQ_BITS

_REFERRING = (
    f"SELECT s.user, m.pos, m.chat, m.meta FROM messages AS m JOIN actors AS s ON s.sid = m.pos >> "
    f"{SEQ_BITS} WHERE instr(m.chat, ?) OR instr(m.meta, ?) ORDER BY m.pos"
)
_MOST = 100  # findings


def copy_attachments(target: Path, sources: Sequence[Path]) -> None:
    """Copy the attachments of the users of a new journal.

    Args:
        target: the new journal, which has its rows already.
        sources: the journals that it was copied from.
    """
    keys = [_key(source) for source in sources]
    if not any(keys):
        return
    with closing(sqlite3.connect(target, isolation_level=None)) as database:
        new = secrets.token_hex(16)
        database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (ATTACHMENTS_KEY, new))
        users = [user for (user,) in database.execute("SELECT DISTINCT user FROM actors")]
        copied: set[str] = set()
        for source, key in zip(sources, keys, strict=True):
            if key:
                names = _names(users, key, new)
                copy_files(source.parent, target.parent, names)
                copied.update(names.values())
        # an erasure may wait: what it has not removed yet is removed here
        there = copied.intersection(list_names(target.parent))
        row = (UNSWEPT, encode_names(there))
        database.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", row)


def _key(journal: Path) -> str:
    with closing(sqlite3.connect(journal)) as database:
        found = database.execute("SELECT value FROM settings WHERE name = ?", (ATTACHMENTS_KEY,))
        return next((str(value) for (value,) in found), "")


def _names(users: Iterable[str], old: str, new: str) -> Mapping[str, str]:
    before, after = Digests(old), Digests(new)
    return {before.user(user): after.user(user) for user in users}


def read_attachments(journal: Path) -> Iterator[tuple[str, bytes, bytes]]:
    """The attachments of a journal's users: whose, their digests, and their bytes."""
    key = _key(journal)
    if not key:
        return
    with closing(sqlite3.connect(journal)) as database:
        users = [user for (user,) in database.execute("SELECT DISTINCT user FROM actors")]
    digests = Digests(key)
    for user in users:
        place = journal.parent / DIRECTORY / digests.user(user)
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if "." not in path.name:
                yield user, bytes.fromhex(path.name), path.read_bytes()


def remove_unreferred(journal: Path, directory: Path) -> None:
    """Remove the attachments in a directory that no message of a journal refers to."""
    digests = Digests(_key(journal))
    known: set[Path] = set()
    with closing(sqlite3.connect(journal)) as database:
        for user, _, *encoded in database.execute(_REFERRING, (MAGIC, MAGIC)):
            place = directory / DIRECTORY / digests.user(user)
            known.update(place / blob.digest.hex() for blob in find_blobs(*encoded))
    for name in list_names(directory):
        for path in (directory / DIRECTORY / name).iterdir():
            if path not in known:
                path.unlink()


def check_attachments(
    journal: Path, directory: Path, *, deep: bool
) -> tuple[list[Finding], list[str]]:
    """Return what is wrong with the attachments of a journal, and what is worth knowing.

    Args:
        journal: the file, or a copy of it.
        directory: that has the attachments.
        deep: read every byte of them.
    """
    findings: list[Finding] = []
    known: set[Path] = set()
    key = _key(journal)
    digests = Digests(key)
    with closing(sqlite3.connect(journal)) as database:
        for user, pos, *encoded in database.execute(_REFERRING, (MAGIC, MAGIC)):
            place = Path(DIRECTORY) / digests.user(user)
            for blob in find_blobs(*encoded):
                path = place / blob.digest.hex()
                if path in known:
                    continue
                known.add(path)
                problem = _problem(directory / path, blob.size, blob.digest if deep else b"")
                if problem and len(findings) < _MOST:
                    where = (
                        f"session number {pos >> SEQ_BITS}, message {pos & ((1 << SEQ_BITS) - 1)}"
                    )
                    told = f"{problem}; {where} refers to it"
                    findings.append(Finding("file", str(path), told, repairable=False))
    there = {
        Path(DIRECTORY) / name / path.name
        for name in list_names(directory)
        for path in (directory / DIRECTORY / name).iterdir()
    }
    notes = []
    if left := len(there - known):
        notes.append(f"{left} files in {DIRECTORY} belong to no message")
    return findings, notes


def _problem(path: Path, size: int, digest: bytes) -> str:
    if not path.exists():
        return "it is missing"
    if path.stat().st_size != size:
        return f"it has {path.stat().st_size} bytes and not {size}"
    if digest and sha256(path.read_bytes()).digest() != digest:
        return "it is not as it was written"
    return ""
