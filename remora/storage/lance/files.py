"""The files of one table: which are synced, damaged, or to be removed.

LanceDB never syncs a file. So after each commit this module syncs the new files, and then writes a
small *record* of the version with the sizes and digests of its files. A write is done when its
record is on disk; then the journal counts the messages as indexed. At the next opening

* versions newer than the record are quarantined: they were never acknowledged, and their rows are
  written again;
* a table whose recorded files are missing, or have another size, is quarantined, and
  `refill_needed` is true until a rebuild is noted in the journal;
* a damaged index is reported, and rebuilt from the rows;
* temporary files of LanceDB (``.tmp…``) are removed: they hold rows in plain text.

A directory of an older remora has no record: the newest version whose files exist is used, and
recorded.

Everything here blocks. Requires exclusive access to the directory; one thread at a time calls a
method of one `ShardFiles`.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from remora.logging import get_logger
from remora.runtime.probes import probe
from remora.storage.lance.directory import QUARANTINE, RECORD_SUFFIX, TABLE_SUFFIX, mark_refill
from remora.storage.lance.manifest import (
    Manifest,
    damaged_indices,
    manifest_name,
    parse_manifest,
    version_of,
)
from remora.storage.lance.record import (
    FileMark,
    SyncRecord,
    digest_of,
    mark_of,
    read_record,
    write_synced,
)
from remora.storage.ports import Finding
from remora.system.files import sync_path

_logger = get_logger(__name__)
_OF_OTHER_KEY = ".other-key"
_MOST_QUARANTINED = 8  # of one table, the newest ones


class TableState(msgspec.Struct, frozen=True):
    """How a table was found at opening.

    Attributes:
        usable: it can be opened.
        recorded: it has a record; if not, one must be written.
        indices: names of its damaged indices.
    """

    usable: bool
    recorded: bool
    indices: tuple[str, ...] = ()


class DurableFiles(msgspec.Struct, frozen=True):
    """The files that a copy of a table must have.

    Attributes:
        files: paths from the store's directory, of data, deletions, indices and the manifest.
        name: the file name of the record.
        record: its content; empty if there is none.
    """

    files: tuple[str, ...]
    name: str
    record: bytes


class ShardFiles:
    """The files of one table.

    Args:
        base: the store's directory.
        name: the table's name.
        sync: sync every file; otherwise the record is written and nothing is synced.
    """

    def __init__(self, base: Path, name: str, *, sync: bool) -> None:
        self.name = name
        self.directory = base / f"{name}{TABLE_SUFFIX}"
        self._base = base
        self._record_path = base / f"{name}{RECORD_SUFFIX}"
        self._suspect_path = base / f"{name}.suspect"
        self._sync = sync
        self._record: SyncRecord | None = None
        self._synced_directories: set[Path] = set()
        self.opening_findings: list[Finding] = []
        """The damage found at opening, which was repaired or quarantined."""

    @property
    def version(self) -> int | None:
        """The newest version that was synced."""
        return None if self._record is None else self._record.version

    # -- opening -----------------------------------------------------------------------------------

    def prepare(self) -> TableState:
        """Make the table ready to be opened, or quarantine it.

        Raises:
            OSError: it can be neither read nor moved.
        """
        for orphan in self._orphans():
            _logger.info("temporary_file_removed", table=self.name, file=orphan.name)
            orphan.unlink()
        self._record = read_record(self._record_path)
        if not self.directory.is_dir():
            if self._record is not None:
                self.quarantine("its directory is missing")
            return TableState(usable=False, recorded=False)
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
            self.quarantine(f"version {self._record.version}: {e}")
            return TableState(usable=False, recorded=False)
        damaged = damaged_indices(manifest, problems)
        self.opening_findings += [
            Finding("file", str(self.directory / path), problem, repairable=True)
            for path, problem in problems.items()
        ]
        if damaged is None:
            self.quarantine(
                "; ".join(f"{path} {problem}" for path, problem in sorted(problems.items())[:5])
            )
            return TableState(usable=False, recorded=False)
        # LanceDB's clean-up fails if an older version is torn
        self._quarantine_versions(
            [one for one in versions if one < manifest.version and not self._is_complete(one)],
            "torn",
        )
        self._suspect_path.unlink(missing_ok=True)
        return TableState(usable=True, recorded=True, indices=damaged)

    def _open_unrecorded(self, versions: Sequence[int]) -> TableState:
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
            damaged = damaged_indices(manifest, problems)
            if damaged is None:
                rejected.append(version)
                continue
            if rejected:
                self.opening_findings += [
                    Finding("file", str(self._path(one)), "is damaged", repairable=True)
                    for one in rejected
                ]
                mark_refill(self._base, self.name, sync=self._sync)
                self._quarantine_versions(rejected, "damaged")
            return TableState(usable=True, recorded=False, indices=damaged)
        holds_rows = any((self.directory / "data").glob("*"))
        self.quarantine("none of its versions can be read", lost=holds_rows)
        return TableState(usable=False, recorded=False)

    def quarantine(self, reason: str, *, lost: bool = True, of_other_key: bool = False) -> None:
        """Quarantine the table, so that an empty one can replace it.

        Args:
            reason: for the log.
            lost: it had rows, which must be written again.
            of_other_key: its users' rows belong in any table now.
        """
        if lost:
            # first: after a crash between the two the mark must exist
            mark_refill(self._base, self.name, sync=self._sync)
        probe("table_quarantined")
        _logger.error("table_quarantined", table=self.name, reason=reason)
        self.opening_findings.append(
            Finding("table", str(self.directory), f"{reason}; it was quarantined", repairable=True)
        )
        place = self._new_quarantine(_OF_OTHER_KEY if of_other_key else "")
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
            "versions_quarantined", table=self.name, versions=sorted(versions), reason=reason
        )
        place = self._new_quarantine()
        # the newest first: a crash leaves no gap in the versions
        for version in sorted(versions, reverse=True):
            self._path(version).rename(place / manifest_name(version))
        (self.directory / "_versions" / "latest_version_hint.json").unlink(missing_ok=True)
        self._fsync(self.directory / "_versions", place)

    def _new_quarantine(self, suffix: str = "") -> Path:
        quarantine = self._base / QUARANTINE
        quarantine.mkdir(exist_ok=True)
        before = sorted(quarantine.glob(f"{self.name}.*"), key=lambda one: one.stat().st_mtime_ns)
        for one in before[: -_MOST_QUARANTINED + 1]:
            shutil.rmtree(one, ignore_errors=True)
        place = quarantine / f"{self.name}.{secrets.token_hex(4)}{suffix}"
        place.mkdir()
        self._fsync(quarantine, self._base)
        return place

    # -- syncing -----------------------------------------------------------------------------------

    def record(self, version: int) -> int:
        """Sync and record a version and the unrecorded ones before it; returns the new bytes.

        Raises:
            OSError: it may not be on disk; the record did not change.
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
                marks[path] = mark_of(file)
                fresh.append(file)
        if self._sync:
            self._sync_files(fresh, manifest, since=0 if before is None else before.version)
        own = self._path(version)
        record = SyncRecord(1, version, mark_of(own), marks)
        write_synced(self._record_path, msgspec.json.encode(record), sync=self._sync)
        self._record = record
        return sum(marks[str(file.relative_to(self.directory))].size for file in fresh)

    def _sync_files(self, fresh: Sequence[Path], manifest: Manifest, *, since: int) -> None:
        older = [
            path
            for number in range(since + 1, manifest.version)
            if (path := self._path(number)).exists()
        ]
        transaction = self.directory / manifest.transaction
        described = [transaction] if manifest.transaction and transaction.exists() else []
        files = [*fresh, *described, *older, self._path(manifest.version)]
        written = {file.parent for file in files}
        directories = set(written)
        for directory in written - self._synced_directories:  # its own name is new
            directories.update(
                parent for parent in directory.parents if parent.is_relative_to(self._base)
            )
        self._fsync(*files, *sorted(directories, reverse=True))
        # each index that is built has a directory of its own: those of older versions are forgotten
        current = {(self.directory / path).parent for path in manifest.files}
        self._synced_directories = written | (self._synced_directories & current)

    def _fsync(self, *paths: Path) -> None:
        if self._sync:
            for path in paths:
                sync_path(path)

    def mark_suspect(self) -> None:
        """Make the next opening check every byte of the table, because a part could not be read."""
        with contextlib.suppress(OSError):  # the disk may have failed
            self._suspect_path.touch()

    # -- verifying ---------------------------------------------------------------------------------

    def findings(self, *, deep: bool) -> list[Finding]:
        """Files whose size, or content if `deep`, differs from the record."""
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
            elif (deep or path == manifest) and digest_of(self.directory / path) != mark.digest:
                yield path, "is not what was written"

    def _problem(self, path: str, size: int | None) -> str:
        try:
            found = (self.directory / path).stat().st_size
        except OSError as e:
            return f"cannot be read: {e.strerror}"
        return f"has {found} bytes instead of {size}" if size is not None and found != size else ""

    def find_damage(self) -> list[Finding]:
        """The damage that `prepare` would repair or quarantine; changes nothing."""
        record = read_record(self._record_path)
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

    def find_damaged_indices(self) -> tuple[str, ...] | None:
        """Names of the damaged indices; None if any other file is damaged."""
        if self._record is None:
            return ()
        problems = dict(self._problems(self._record, deep=True))
        try:
            return damaged_indices(self._manifest(self._record.version), problems)
        except (OSError, ValueError):
            return None

    def durable_files(self) -> DurableFiles:
        """The files of the recorded version, while another process may write newer ones.

        Raises:
            OSError, ValueError: it cannot be read, or was replaced at the same time: call again.
        """
        name = self._record_path.name
        record = self._record_path.read_bytes() if self._record_path.exists() else b""
        if record:
            version = msgspec.json.decode(record, type=SyncRecord).version
        else:
            version = self._versions()[0]
        manifest = self._manifest(version)
        paths = (*manifest.files, f"_versions/{manifest_name(manifest.version)}")
        return DurableFiles(tuple(f"{self.directory.name}/{path}" for path in paths), name, record)

    def manifest(self) -> Manifest | None:
        """The recorded version; None if there is none."""
        return None if self._record is None else self._manifest(self._record.version)

    def changed_at(self) -> float:
        """When the recorded version was written, in seconds since the epoch; not in the future."""
        assert self._record is not None
        now = time.time()
        with contextlib.suppress(FileNotFoundError):
            return min(self._path(self._record.version).stat().st_mtime, now)
        return now

    # -- removing ----------------------------------------------------------------------------------

    def purge(self) -> None:
        """Remove quarantined files of the table, and files of failed writes (G13).

        Who is erased may have rows in any table that was quarantined for its key.
        """
        quarantine = self._base / QUARANTINE
        for aside in {*quarantine.glob(f"{self.name}.*"), *quarantine.glob(f"*{_OF_OTHER_KEY}")}:
            with contextlib.suppress(FileNotFoundError):  # another table's erasure removed it
                shutil.rmtree(aside)
            if aside.exists():
                raise OSError(f"{aside.name} in the quarantine is not gone yet")
        for orphan in self._orphans():
            orphan.unlink()

    def file_names(self) -> frozenset[str]:
        """The paths of all of the table's files, from its directory."""
        return frozenset(
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if path.is_file()
        )

    def remove_unlisted(self, before: Collection[str]) -> list[str]:
        """Remove all files that the recorded version does not list (G13).

        Args:
            before: the files that there were before the table was rewritten.

        Returns:
            Files of the version that are older than that. A rewritten table has none: no byte of
            a row that it left out can be anywhere, whatever the rows contain.
        """
        manifest = self.manifest()
        if manifest is None:
            return []
        own = {f"_versions/{manifest_name(manifest.version)}", manifest.transaction}
        listed = {*manifest.files, *own}
        for name in self.file_names() - listed:
            (self.directory / name).unlink()
        return sorted(listed & set(before))

    def _orphans(self) -> list[Path]:
        return [
            *self._base.glob(f"{self.name}{RECORD_SUFFIX}.new"),
            *_temporary_files(self.directory),
        ]

    # -- versions ----------------------------------------------------------------------------------

    def _versions(self) -> list[int]:
        """Numbers of the versions, the newest first."""
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


def _temporary_files(directory: Path) -> list[Path]:
    return [path for path in directory.rglob(".tmp*") if path.is_file()]
