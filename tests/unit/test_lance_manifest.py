"""Which files a version of a LanceDB table consists of, read from the manifests that LanceDB
writes.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from remora.ids import user_key
from remora.storage.lance.manifest import Manifest, manifest_name, parse_manifest, version_of
from tests.lance import lance, put, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


async def _versions(base: Path) -> list[tuple[Manifest, int, bytes]]:
    """Versions of a table through all that is done to one, each with its count of rows and its
    bytes.
    """
    found = []
    async with lance(base, compact_fragments=1, index_user_rows=1, keep_versions_s=600.0) as store:

        async def look() -> None:
            (shard,) = store.tables.shards.values()
            version = await shard.table.version()
            data = (base / "mem_000.lance" / "_versions" / manifest_name(version)).read_bytes()
            manifest = parse_manifest(data)
            assert manifest.version == version
            found.append((manifest, await shard.table.count_rows(), data))

        await put(store, rows_of("alice", range(30)))
        await look()
        await put(store, rows_of("bob", range(20)), may_exist=True)
        await look()
        await store.delete("alice", ["alice-3", "alice-4"])
        await look()
        await store.compact()
        await look()
        await put(store, rows_of("bob", range(20, 40)))
        await store.delete("bob", [f"bob-{n}" for n in range(0, 20, 2)])
        await look()
        await store.erase(user_key("nobody"))
        await look()
    return found


async def test_every_file_is_named(tmp_path: Path) -> None:
    """G6: after each kind of write, the files of a version are those that it cannot be read
    without, and rows add up.
    """
    base = tmp_path / "lance"
    found = await _versions(base)
    kinds = {path.partition("/")[0] for manifest, _, _ in found for path in manifest.files}
    assert kinds == {"data", "_deletions", "_indices"}
    for manifest, rows, _ in found:
        assert sum(one.rows for one in manifest.fragments) == rows
        assert len({one.number for one in manifest.fragments}) == len(manifest.fragments)
    newest, _, _ = found[-1]  # alone after erasing: whatever is there is named
    there = {
        str(path.relative_to(base / "mem_000.lance"))
        for path in (base / "mem_000.lance").rglob("*")
        if path.is_file()
    }
    other = {
        f"_versions/{manifest_name(newest.version)}",
        "_versions/latest_version_hint.json",
        newest.transaction,
    }
    assert there - other == set(newest.files)
    for path, size in newest.files.items():
        assert size in {None, (base / "mem_000.lance" / path).stat().st_size}


async def test_a_torn_manifest_is_none(tmp_path: Path) -> None:
    """G6: cut off anywhere, zeroed, or of other bytes, it is refused, with ValueError and nothing
    else.
    """
    rng = random.Random(3)
    for _, _, data in (await _versions(tmp_path / "lance"))[::2]:
        for size in (0, 1, 15, 16, len(data) // 2, len(data) - 1):
            with pytest.raises(ValueError, match="no manifest"):
                parse_manifest(data[:size])
        with pytest.raises(ValueError, match="no manifest"):
            parse_manifest(bytes(len(data)))
        for _ in range(200):
            at = rng.randrange(len(data))
            changed: Any = None
            try:
                changed = parse_manifest(
                    data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
                )
            except ValueError:
                continue
            assert isinstance(
                changed, Manifest
            )  # a bit of what it does not look at: the record's digest sees that


def test_names_of_versions() -> None:
    """G6: the file of a version has its number in its name, newest first in a listing; other files
    have none.
    """
    for version in (1, 2, 9_999, 2**40):
        name = manifest_name(version)
        assert version_of(name) == version
        assert manifest_name(version + 1) < name
        others = ("latest_version_hint.json", ".tmpabc", f"{version}.manifest", "manifest")
        assert [version_of(other) for other in (*others, f"{name}.new")] == [None] * 5
