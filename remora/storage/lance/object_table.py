"""One table at an object store: the version that counts, and who committed what came after it.

LanceDB refuses most writes of a former owner by itself, once the new one has committed a *restore*:
they conflict with it. A table that is rewritten (compaction, erasure) does not conflict. It puts
a version on top of the new owner's, as if that one's rows had never been. So a version counts only
when it is noted in the journal, which the former owner cannot do, and before it is noted its
lineage is checked: each version since the last one that counts must have been made on top of the
one before it, by this process. Otherwise `ForeignWrite` is raised, the table goes back to the
version that counts, and the write is done again.

A version's manifest names its transaction, ``<version that it was made on>-<uuid>.txn``. LanceDB's
compaction reserves numbers for its fragments first, and is made on the version before that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from remora.runtime.probes import probe
from remora.storage.lance.directory import TABLE_SUFFIX
from remora.storage.lance.manifest import (
    RESERVE_FRAGMENTS,
    REWRITE,
    Manifest,
    damaged_indices,
    manifest_name,
    operation_of,
    parse_manifest,
)
from remora.storage.lance.objects import ObjectStore
from remora.storage.lance.versions import TableVersions
from remora.storage.ports import Finding


class ForeignWrite(RuntimeError):
    """Another process has written to the table since the version that counts."""


class ObjectTable:
    """The objects of one table.

    Args:
        name: the table's name.
        objects: the objects of all tables.
        versions: where the version that counts is noted.
        version: that version; None for a table that does not exist yet.

    Attributes:
        version: the newest version that this process knows to count.
    """

    def __init__(
        self, name: str, objects: ObjectStore, versions: TableVersions, version: int | None
    ) -> None:
        self.version = version
        self._name = name
        self._directory = f"{name}{TABLE_SUFFIX}"
        self._objects = objects
        self._versions = versions

    # -- versions ----------------------------------------------------------------------------------

    async def record(self, version: int) -> None:
        """Have a version count that this process made, one commit after the other.

        Raises:
            ForeignWrite: not all of its commits are this process's.
            OwnershipLost: another process owns the journal.
            OSError, StorageError: it may not count.
        """
        if version == self.version:
            return
        if self.version is not None:
            await self._check_lineage(self.version, version)
        await self.note(version)

    async def note(self, version: int, *, refill: bool = False) -> None:
        """Have a version count, whatever came before it; see `record`."""
        await self._versions.note({self._name: version}, refill=refill or None)
        self.version = version

    async def confirm(self) -> int:
        """The version that counts, after a write whose outcome is not known.

        Raises:
            OwnershipLost: another process owns the journal: the table is that one's.
            StorageError: it cannot be found out.
        """
        noted = await self._versions.read()
        version = self.version if noted is None else noted.tables.get(self._name, self.version)
        assert version is not None
        await self.note(version)
        return version

    async def _check_lineage(self, first: int, last: int) -> None:
        reserved = False
        for version in range(first + 1, last + 1):
            if last == first + 1:
                return  # the one commit that this process made
            manifest = await self.manifest(version)
            made_on = int(manifest.transaction.rpartition("/")[2].partition("-")[0] or -1)
            operation = await self._operation(manifest)
            compacted = reserved and operation == REWRITE and made_on == version - 2
            if made_on != version - 1 and not compacted:
                probe("foreign_version_found")
                raise ForeignWrite(
                    f"version {version} of {self._name} was made on version {made_on}: another "
                    "process wrote to it"
                )
            reserved = operation == RESERVE_FRAGMENTS

    async def _operation(self, manifest: Manifest) -> int:
        return operation_of(await self._read(manifest.transaction))

    # -- objects -----------------------------------------------------------------------------------

    async def _read(self, path: str) -> bytes:
        return await self._objects.read(f"{self._directory}/{path}")

    async def manifest(self, version: int | None = None) -> Manifest:
        """A version's manifest; that of the one that counts by default.

        Raises:
            OSError: it cannot be read.
        """
        wanted = version or self.version
        assert wanted is not None
        try:
            return parse_manifest(await self._read(f"_versions/{manifest_name(wanted)}"))
        except ValueError as e:
            raise OSError(f"version {wanted} of {self._name}: {e}") from e

    async def sizes(self) -> Mapping[str, int]:
        """The table's objects, by their paths from its directory, and their sizes in bytes."""
        prefix = f"{self._directory}/"
        found = await self._objects.sizes(self._directory)
        return {
            name.removeprefix(prefix): size
            for name, size in found.items()
            if name.startswith(prefix)
        }

    async def find_damage(self, version: int) -> tuple[tuple[str, ...] | None, list[Finding]]:
        """Return what is wrong with a version's objects, and which indices that makes useless.

        Returns:
            Names of damaged indices, which can be built again, or None if anything else is damaged;
            and the objects that are missing, or have another size.
        """
        place = f"_versions/{manifest_name(version)}"
        try:
            manifest = parse_manifest(await self._read(place))
        except (FileNotFoundError, ValueError) as e:
            problem = "is missing" if isinstance(e, OSError) else str(e)
            return None, [self._finding(place, problem)]
        sizes = await self.sizes()
        problems: dict[str, str] = {}
        for path, size in manifest.files.items():
            found = sizes.get(path)
            if found is None:
                problems[path] = "is missing"
            elif size is not None and found != size:
                problems[path] = f"has {found} bytes instead of {size}"
        findings = [self._finding(path, problem) for path, problem in sorted(problems.items())]
        return damaged_indices(manifest, problems), findings

    async def findings(self) -> list[Finding]:
        """Objects of the version that counts that are missing, or have another size."""
        assert self.version is not None
        return (await self.find_damage(self.version))[1]

    def _finding(self, path: str, problem: str) -> Finding:
        return Finding("file", f"{self._directory}/{path}", problem, repairable=True)

    async def remove_unlisted(self, before: Collection[str]) -> list[str]:
        """Remove objects that the version that counts does not list (G13).

        Only those in `before`, which were there while this process owned the journal: what a newer
        owner has written since is not touched.

        Args:
            before: paths of the objects that there were before the table was rewritten.

        Returns:
            Those of them that are still there.
        """
        manifest = await self.manifest()
        own = {f"_versions/{manifest_name(manifest.version)}", manifest.transaction}
        gone = set(before) - {*manifest.files, *own}
        await self._objects.remove([f"{self._directory}/{path}" for path in gone])
        return sorted(set(before) & (await self.sizes()).keys())
