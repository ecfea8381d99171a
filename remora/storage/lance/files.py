"""A table's directory as files: what is on disk for certain, what is damaged, and what has to go.

LanceDB never syncs a file. So after every commit the files that are new in it are synced here, and
then a small *record* beside the table says which version that was, and of which files it consists,
with their sizes and digests. A write counts as done when its record is on disk; the journal counts
messages as flushed from then on. At the next opening

* versions newer than the record are put aside, whole or torn: who wrote them was never told that
  they were there, and does it again;
* a table whose recorded files are missing, or of another size, is put aside whole, and
  `refill_needed` says so until somebody has noted durably that it has to be filled again;
* an index that is damaged is named, to be made again: nothing of it is in no other place;
* what LanceDB forgot is removed: files called ``.tmp…``, which hold rows in plain text.

A directory without a record was made before there were any: the newest version whose files are
there is taken, and recorded.

Everything here blocks. Nobody else may write to the directory, and only one thread at a time calls
a method of one `ShardFiles`.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.storage.atomic import sync_path
from remora.storage.lance.manifest import Manifest, manifest_name, parse_manifest, version_of
from remora.storage.lance.naming import TABLE_PREFIX
from remora.storage.ports import Finding

__all__ = [
    "DurableFiles",
    "Opened",
    "ShardFiles",
    "clear_refill",
    "refill_needed",
    "remove_store",
    "shard_names",
]

_logger = get_logger("remora.longterm")
_TABLE, _RECORD, _QUARANTINE_DIR, _REFILL = ".lance", ".synced.json", "quarantine", "refill-needed"
_MOST_PUT_ASIDE = 8  # of one table, the newest ones
_CHUNK_BYTES = 1 << 20


class FileMark(msgspec.Struct, frozen=True, array_like=True):
    """A file as it was when it was synced: its size in bytes, and 32 hex digits of its blake2b
    digest.
    """

    size: int
    digest: str


class SyncRecord(msgspec.Struct, frozen=True):
    """What is on disk for certain.

    Attributes:
        format: of this record.
        version: of the table.
        manifest: the file that says of which others the version consists.
        files: those others, by their paths from the table's directory.
    """

    format: int
    version: int
    manifest: FileMark
    files: dict[str, FileMark]


class Opened(msgspec.Struct, frozen=True):
    """What was found at opening.

    Attributes:
        usable: there is a table that can be opened.
        recorded: it has a record; otherwise it wants one.
        indices: names of its indices that have to be made again.
    """

    usable: bool
    recorded: bool
    indices: tuple[str, ...] = ()


class DurableFiles(msgspec.Struct, frozen=True):
    """What a copy of a table has to hold.

    Attributes:
        files: paths from the store's directory, of data, deletions, indices and the manifest.
        name: of the record.
        record: its bytes; empty if there is none.
    """

    files: tuple[str, ...]
    name: str
    record: bytes


_decode_record = msgspec.json.Decoder(SyncRecord).decode


def shard_names(base: Path) -> list[str]:
    """The tables that are in a store's directory, or should be."""
    found = set()
    for one in base.iterdir() if base.is_dir() else ():
        for suffix in (_TABLE, _RECORD):
            if one.name.startswith(TABLE_PREFIX) and one.name.endswith(suffix):
                found.add(one.name.removesuffix(suffix))
    return sorted(found)


def remove_store(base: Path) -> None:
    """Remove all that a store has in a directory, and nothing else of what is there."""
    for one in (*base.glob(f"{TABLE_PREFIX}*"), base / _QUARANTINE_DIR, base / _REFILL):
        if one.is_dir():
            shutil.rmtree(one)
        else:
            one.unlink(missing_ok=True)


def refill_needed(base: Path) -> bool:
    """Whether something of the store has to be filled again."""
    return (base / _REFILL).exists()


def clear_refill(base: Path) -> None:
    """Forget that; whoever calls has noted it."""
    (base / _REFILL).unlink(missing_ok=True)


class ShardFiles:
    """The files of one table.

    Args:
        base: the store's directory.
        name: the table's.
        sync: write through to the disk; without it the record is written and nothing is synced.
    """

    def __init__(self, base: Path, name: str, *, sync: bool) -> None:
        self.name = name
        self.directory = base / f"{name}{_TABLE}"
        self._base = base
        self._record_path = base / f"{name}{_RECORD}"
        self._suspect_path = base / f"{name}.suspect"
        self._sync = sync
        self._record: SyncRecord | None = None
        self._synced_directories: set[Path] = set()
        self.settled: list[Finding] = []
        """What was not as it should be at opening, and was mended or put aside."""

    @property
    def version(self) -> int | None:
        """The newest version that is on disk for certain."""
        return None if self._record is None else self._record.version

    # -- opening -----------------------------------------------------------------------------------

    def settle(self) -> Opened:
        """Make the directory one that can be opened, or put it aside.

        Raises:
            OSError: it can neither be read nor moved.
        """
        for orphan in self._orphans():
            _logger.info("temporary_file_removed", table=self.name, file=orphan.name)
            orphan.unlink()
        self._record = self._read_record()
        if not self.directory.is_dir():
            if self._record is not None:
                self.put_aside("its directory is missing")
            return Opened(usable=False, recorded=False)
        versions = self._versions()
        if self._record is None:
            return self._open_unrecorded(versions)
        self._quarantine_versions(
            [one for one in versions if one > self._record.version], "not known to be on disk"
        )
        problems = dict(self._problems(self._record, deep=self._suspect_path.exists()))
        try:
            manifest = self._manifest(self._record.version)
        except (OSError, ValueError) as e:
            self.put_aside(f"version {self._record.version}: {e}")
            return Opened(usable=False, recorded=False)
        damaged = _damaged_indices(manifest, problems)
        self.settled += [
            Finding("file", str(self.directory / path), problem, repairable=True)
            for path, problem in problems.items()
        ]
        if damaged is None:
            self.put_aside(
                "; ".join(f"{path} {problem}" for path, problem in sorted(problems.items())[:5])
            )
            return Opened(usable=False, recorded=False)
        # an older version that is torn would make LanceDB's clean-up fail for ever
        self._quarantine_versions(
            [one for one in versions if one < manifest.version and not self._is_complete(one)],
            "torn",
        )
        self._suspect_path.unlink(missing_ok=True)
        return Opened(usable=True, recorded=True, indices=damaged)

    def _open_unrecorded(self, versions: Sequence[int]) -> Opened:
        rejected: list[int] = []
        for version in versions:
            try:
                manifest = self._manifest(version)
                problems = {
                    path: problem
                    for path, size in manifest.files.items()
                    if (problem := self._problem(path, size))
                }
            except (OSError, ValueError):
                rejected.append(version)
                continue
            damaged = _damaged_indices(manifest, problems)
            if damaged is None:
                rejected.append(version)
                continue
            if rejected:
                self.settled += [
                    Finding("file", str(self._path(one)), "is damaged", repairable=True)
                    for one in rejected
                ]
                self._mark_refill()
                self._quarantine_versions(rejected, "damaged")
            return Opened(usable=True, recorded=False, indices=damaged)
        holds_rows = any((self.directory / "data").glob("*"))
        self.put_aside("none of its versions can be read", lost=holds_rows)
        return Opened(usable=False, recorded=False)

    def put_aside(self, reason: str, *, lost: bool = True) -> None:
        """Move the table out of the way, so that an empty one can take its place.

        What it held has to be filled again.

        Args:
            reason: for the log.
            lost: it held what the journal counts as flushed.
        """
        if lost:
            self._mark_refill()  # first: whatever happens between the two, it is filled again
        probe("table_put_aside")
        _logger.error("table_put_aside", table=self.name, reason=reason)
        self.settled.append(
            Finding("table", str(self.directory), f"{reason}; it was put aside", repairable=True)
        )
        place = self._new_quarantine()
        if self.directory.exists():
            self.directory.rename(place / self.directory.name)
        if self._record_path.exists():
            self._record_path.rename(place / self._record_path.name)
        self._suspect_path.unlink(missing_ok=True)
        self._record = None
        self._synced_directories.clear()
        self._fsync(place, self._base)

    def _quarantine_versions(self, versions: Sequence[int], reason: str) -> None:
        if not versions:
            return
        _logger.warning(
            "versions_put_aside", table=self.name, versions=sorted(versions), reason=reason
        )
        place = self._new_quarantine()
        for version in sorted(
            versions, reverse=True
        ):  # the newest first: a crash leaves no gap below one that stays
            self._path(version).rename(place / manifest_name(version))
        (self.directory / "_versions" / "latest_version_hint.json").unlink(missing_ok=True)
        self._fsync(self.directory / "_versions", place)

    def _new_quarantine(self) -> Path:
        quarantine = self._base / _QUARANTINE_DIR
        quarantine.mkdir(exist_ok=True)
        before = sorted(quarantine.glob(f"{self.name}.*"), key=lambda one: one.stat().st_mtime_ns)
        for one in before[: -_MOST_PUT_ASIDE + 1]:
            shutil.rmtree(one, ignore_errors=True)
        place = quarantine / f"{self.name}.{secrets.token_hex(4)}"
        place.mkdir()
        self._fsync(quarantine, self._base)
        return place

    def _mark_refill(self) -> None:
        _write(self._base / _REFILL, self.name.encode(), sync=self._sync)

    # -- syncing -----------------------------------------------------------------------------------

    def record(self, version: int) -> int:
        """Have a version on disk, and say so; earlier ones that were never recorded, too.

        Returns the bytes that are new in it.

        Raises:
            OSError: it is not known to be on disk; the record says what it said before.
        """
        try:
            manifest = self._manifest(version)
        except ValueError as e:
            raise OSError(f"version {version} of {self.name}: {e}") from e
        before = self._record
        known = {} if before is None else before.files
        marks: dict[str, FileMark] = {}
        fresh: list[Path] = []
        for path, size in manifest.files.items():
            problem = self._problem(path, known[path].size if path in known else size)
            if problem:
                raise OSError(f"{self.name}: {path} {problem}")
            if path in known:
                marks[path] = known[path]
            else:
                file = self.directory / path
                marks[path] = FileMark(file.stat().st_size, _digest(file))
                fresh.append(file)
        if self._sync:
            self._sync_files(fresh, manifest, since=0 if before is None else before.version)
        own = self._path(version)
        record = SyncRecord(1, version, FileMark(own.stat().st_size, _digest(own)), marks)
        _write(self._record_path, msgspec.json.encode(record), sync=self._sync)
        self._record = record
        return sum(marks[str(file.relative_to(self.directory))].size for file in fresh)

    def adopt(self, version: int) -> None:
        """Record a version that somebody else has written, who owns the directory as well.

        Raises:
            OSError: it is not known to be on disk.
        """
        self._record = self._read_record()
        self.record(version)

    def _sync_files(self, fresh: Sequence[Path], manifest: Manifest, *, since: int) -> None:
        older = [
            path
            for number in range(since + 1, manifest.version)
            if (path := self._path(number)).exists()
        ]
        transaction = self.directory / manifest.transaction
        told = [transaction] if manifest.transaction and transaction.exists() else []
        files = [*fresh, *told, *older, self._path(manifest.version)]
        directories = {file.parent for file in files}
        for directory in tuple(directories):
            if directory not in self._synced_directories:  # its own name is new
                directories.update(
                    parent for parent in directory.parents if parent.is_relative_to(self._base)
                )
        self._fsync(*files, *sorted(directories, reverse=True))
        self._synced_directories.update(directories)

    def _fsync(self, *paths: Path) -> None:
        if self._sync:
            for path in paths:
                sync_path(path)

    def mark_suspect(self) -> None:
        """Something in the table could not be read: the next opening looks at every byte of it."""
        with contextlib.suppress(OSError):  # it may be the disk
            self._suspect_path.touch()

    # -- looking -----------------------------------------------------------------------------------

    def findings(self, *, deep: bool) -> list[Finding]:
        """Files that are not as they were recorded.

        With `deep`, by their contents and not just their sizes.
        """
        if self._record is None:
            return [
                Finding(
                    "file",
                    str(self._record_path),
                    "there is no record of what was synced",
                    repairable=True,
                )
            ]
        found = [
            Finding("file", str(self.directory / path), problem, repairable=True)
            for path, problem in self._problems(self._record, deep=deep)
        ]
        found += [
            Finding("file", str(path), "was left by a write that failed", repairable=True)
            for path in self._orphans()
        ]
        return found

    def _problems(self, record: SyncRecord, *, deep: bool) -> Iterator[tuple[str, str]]:
        manifest = f"_versions/{manifest_name(record.version)}"
        for path, mark in {**record.files, manifest: record.manifest}.items():
            if problem := self._problem(path, mark.size):
                yield path, problem
            elif (deep or path == manifest) and _digest(self.directory / path) != mark.digest:
                yield path, "is not what was written"

    def _problem(self, path: str, size: int | None) -> str:
        try:
            found = (self.directory / path).stat().st_size
        except OSError as e:
            return f"cannot be read: {e.strerror}"
        return f"has {found} bytes instead of {size}" if size is not None and found != size else ""

    def find_damage(self) -> list[Finding]:
        """What `settle` would put aside or make again because it is damaged; nothing changes."""
        record = self._read_record()
        if not self.directory.is_dir():
            missing = Finding("table", str(self.directory), "it is missing", repairable=True)
            return [] if record is None else [missing]
        if record is not None:
            return [
                Finding("file", str(self.directory / path), problem, repairable=True)
                for path, problem in self._problems(record, deep=False)
            ]
        try:
            manifest = self._manifest(self._versions()[0])
        except (OSError, ValueError, IndexError) as e:
            return [
                Finding(
                    "table",
                    str(self.directory),
                    f"its newest version cannot be read: {e}",
                    repairable=True,
                )
            ]
        return [
            Finding("file", str(self.directory / path), problem, repairable=True)
            for path, size in manifest.files.items()
            if (problem := self._problem(path, size))
        ]

    def damaged_indices(self) -> tuple[str, ...] | None:
        """Names of indices of which a byte is not as it was recorded.

        None where something else is damaged as well.
        """
        if self._record is None:
            return ()
        problems = dict(self._problems(self._record, deep=True))
        try:
            return _damaged_indices(self._manifest(self._record.version), problems)
        except (OSError, ValueError):
            return None

    def durable_files(self) -> DurableFiles:
        """What the version that is on disk for certain consists of.

        Somebody else may be writing newer ones.

        Raises:
            OSError, ValueError: there is none that can be read, or it has just been replaced: look
                again.
        """
        name = self._record_path.name
        record = self._record_path.read_bytes() if self._record_path.exists() else b""
        manifest = self._manifest(_decode_record(record).version if record else self._versions()[0])
        paths = (*manifest.files, f"_versions/{manifest_name(manifest.version)}")
        return DurableFiles(tuple(f"{self.directory.name}/{path}" for path in paths), name, record)

    def traces(self, needles: Sequence[bytes]) -> list[str]:
        """Files of the table, aside or in use, in which one of these stands."""
        return [str(path) for path in self._files() if _contains(path, needles)]

    def manifest(self) -> Manifest | None:
        """The recorded version; None if there is none."""
        return None if self._record is None else self._manifest(self._record.version)

    def _files(self) -> Iterator[Path]:
        roots = [
            self.directory,
            *(self._base / _QUARANTINE_DIR).glob(f"{self.name}.*"),
            *self._base.glob(f"{self.name}{_RECORD}*"),
        ]
        for root in roots:
            yield from (root.rglob("*") if root.is_dir() else (root,))

    # -- removing ----------------------------------------------------------------------------------

    def purge(self) -> None:
        """Remove what was put aside of this table, and what failed writes have left (G13)."""
        for aside in (self._base / _QUARANTINE_DIR).glob(f"{self.name}.*"):
            shutil.rmtree(aside)
        for orphan in self._orphans():
            orphan.unlink()

    def _orphans(self) -> list[Path]:
        return [*self._base.glob(f"{self.name}{_RECORD}.new"), *_temporary_files(self.directory)]

    # -- versions ----------------------------------------------------------------------------------

    def _versions(self) -> list[int]:
        """Numbers of the versions that are there, the newest first."""
        place = self.directory / "_versions"
        names = [path.name for path in place.iterdir()] if place.is_dir() else []
        return sorted(
            (version for name in names if (version := version_of(name)) is not None), reverse=True
        )

    def _path(self, version: int) -> Path:
        return self.directory / "_versions" / manifest_name(version)

    def _manifest(self, version: int) -> Manifest:
        manifest = parse_manifest(self._path(version).read_bytes())
        if manifest.version != version:
            raise ValueError(f"it is version {manifest.version} under the name of {version}")
        return manifest

    def _is_complete(self, version: int) -> bool:
        with self._path(version).open("rb") as file:
            return file.read()[-4:] == b"LANC"

    def _read_record(self) -> SyncRecord | None:
        try:
            return _decode_record(self._record_path.read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as e:  # a disk that keeps nothing it was not told to sync
            _logger.warning("record_unreadable", table=self.name, error=str(e))
            return None


def _damaged_indices(manifest: Manifest, problems: Iterable[str]) -> tuple[str, ...] | None:
    """Names of the indices that these files belong to; None if one belongs to anything else."""
    places = {path.rpartition("/")[0] for path in problems}
    return (
        tuple(sorted(manifest.indices[place] for place in places))
        if places <= manifest.indices.keys()
        else None
    )


def _temporary_files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob(".tmp*") if path.is_file()]


def _write(path: Path, data: bytes, *, sync: bool) -> None:
    """Put a file in a file's place in one step."""
    beside = path.with_name(f"{path.name}.new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    beside.replace(path)
    if sync:
        sync_path(path.parent)


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _contains(path: Path, needles: Sequence[bytes]) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        return any(mapped.find(needle) >= 0 for needle in needles)
