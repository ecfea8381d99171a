"""LanceDB's directory after crashes, power cuts, a bad disk: what was acknowledged is there once,
what is damaged is named.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora.config import LongTermConfig
from remora.errors import LongTermError
from remora.ids import user_key
from remora.storage.lance import shard as lance_shard
from remora.storage.lance.shard import copy_rows, sorted_row_ids
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow
from tests.lance import (
    USERS,
    copied,
    data_files,
    held,
    lance,
    newest,
    put,
    record_of,
    rows_of,
    unsynced,
    vectors_of,
)

# the damage is done with plain file calls, while nothing else runs
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


def everybody(numbers: range) -> list[MemoryRow]:
    return [row for user in USERS for row in rows_of(user, numbers)]


def ids(rows: list[MemoryRow]) -> list[str]:
    return sorted(row.id for row in rows)


def table_of(store: LanceStore, rows: list[MemoryRow], schema: Any = None) -> Any:
    """Rows with their vectors, as LanceDB takes them."""
    return store.tables.rows.table(zip(rows, vectors_of(rows), strict=True), schema)


async def first_found(store: LanceStore, user: str, text: str) -> list[str]:
    return [one.row.id for one in await store.search(user, text, None, depth=1)]


# -- power -----------------------------------------------------------------------------------------


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _halved(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGED = ("alice-17", "alice-5")
CUTS: tuple[Callable[[Path], None], ...] = (_zeroed, _halved, Path.unlink)


@pytest.mark.parametrize("step", ["add", "merge", "delete", "compact", "rewrite"])
async def test_power_cut_before_the_sync(tmp_path: Path, step: str) -> None:
    """G3, G6, G7: what was acknowledged is whole after a power cut at any write; what was not is
    absent, and done again.
    """
    base, acknowledged, more = tmp_path / "lance", everybody(range(12)), everybody(range(12, 15))
    async with lance(base, compact_fragments=1) as store:
        for start in range(0, len(acknowledged), 6):
            await put(store, acknowledged[start : start + 6])
        (shard,) = store.tables.shards.values()
        match step:  # as far as LanceDB has done its part, and the disk has not
            case "add":
                await shard.table.add(table_of(store, more))
            case "merge":
                merge = shard.table.merge_insert("id").when_not_matched_insert_all()
                await merge.use_index(False).execute(table_of(store, more))
            case "delete":
                await shard.table.delete("id = 'alice-3'")
            case "compact":
                await shard.table.optimize()
            case _:
                source = await shard.reopen()
                order, _ = await sorted_row_ids(source, store.tables.rows, None)
                await copy_rows(source, shard.table, store.tables.rows, order)
        crashes = [await copied(base, tmp_path / cut.__name__) for cut in CUTS]
    for crashed, cut in zip(crashes, CUTS, strict=True):
        lost = unsynced(crashed)
        assert any(path.suffix == ".manifest" for path in lost)
        for path in lost:
            cut(path)
        async with lance(crashed) as store:
            assert await held(store) == ids(acknowledged)
            assert not store.refill_needed
            found = await store.search("bob", "amber number3", vectors_of(more)[0], depth=20)
            assert {one.row.user for one in found} == {"bob"}
            await put(store, more, may_exist=True)
            assert await held(store) == ids(acknowledged + more)
            assert list(await store.verify(deep=True)) == []


async def test_any_part_of_what_was_not_synced_may_be_lost(tmp_path: Path) -> None:
    """G3, G6, G7: over drawn histories and drawn losses, acknowledged rows are each there once, and
    none that was deleted.
    """
    for seed in range(6):
        rng = random.Random(seed)
        base, expected = tmp_path / f"{seed}", set[str]()
        async with lance(base, compact_fragments=2, keep_versions_s=0.001) as store:
            for number in range(rng.randrange(4, 12)):
                match rng.randrange(5):
                    case 0 if expected:
                        gone = rng.sample(sorted(expected), min(3, len(expected)))
                        await store.delete("alice", gone)
                        expected.difference_update(gone)
                    case 1:
                        await store.compact()
                    case choice:
                        rows = rows_of("alice", range(number * 5, number * 5 + rng.randrange(1, 9)))
                        may_exist = choice == 2 or not expected.isdisjoint(ids(rows))
                        await put(store, rows, may_exist=may_exist)
                        expected.update(ids(rows))
            if not expected:
                continue
            # a write that is cut off between LanceDB's commit and the record
            (shard,) = store.tables.shards.values()
            rows = rows_of("alice", range(900, 905))
            await shard.table.add(table_of(store, rows))
            crashed = await copied(base, tmp_path / f"{seed}-crashed")
        for path in unsynced(crashed):
            rng.choice([*CUTS, lambda _: None])(path)
        async with lance(crashed) as store:
            assert await held(store) == sorted(expected), seed
            assert not store.refill_needed


async def test_what_the_disk_did_not_take_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3, G6, G7: a sync that fails is told, as what may succeed later; and later it does, with
    each row once.
    """
    base, before, more = tmp_path / "lance", everybody(range(6)), everybody(range(6, 9))
    real = os.fsync

    def failing(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(".lance"):
            raise OSError(5, "Input/output error")
        real(descriptor)

    async with lance(base) as store:
        await put(store, before)
        monkeypatch.setattr(os, "fsync", failing)
        for _ in range(2):
            with pytest.raises(LongTermError, match="the disk failed") as caught:
                await put(store, more)
            assert caught.value.retryable
        with pytest.raises(LongTermError, match="the disk failed"):
            await store.delete("alice", ["alice-1"])
        assert record_of(base).files
        monkeypatch.setattr(os, "fsync", real)
        await put(store, more, may_exist=True)
        assert await held(store) == ids(before + more)
    # what was written while the disk failed may be anything; no version that counts refers to it
    async with lance(base) as store:
        assert await held(store) == ids(before + more)
        assert list(await store.verify(deep=True)) == []


async def test_nothing_is_synced_where_nothing_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G3: `durability: process` costs no sync; what it wrote is there for the next process."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with lance(tmp_path / "lance", sync=False) as store:
        await put(store, everybody(range(3)))
    assert synced == []
    async with lance(tmp_path / "lance", sync=False) as store:
        assert await held(store) == ids(everybody(range(3)))


# -- damage ----------------------------------------------------------------------------------------


async def _filled(base: Path, **options: Any) -> list[MemoryRow]:
    rows = everybody(range(12))
    async with lance(base, **options) as store:
        for start in range(0, len(rows), 12):
            await put(store, rows[start : start + 12])
    return rows


@pytest.mark.parametrize("damage", CUTS, ids=lambda cut: cut.__name__)
@pytest.mark.parametrize("what", ["data", "manifest"])
async def test_a_damaged_table_is_put_aside(
    tmp_path: Path, what: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """G6: a table that is not as it was written is never an answer: it is named, put aside, and
    wants to be filled again.
    """
    base = tmp_path / "lance"
    rows = await _filled(base)
    path = data_files(base)[1] if what == "data" else newest(base)
    damage(path)
    if what == "data" and damage is _zeroed:
        # of the right size: only its bytes tell, and they are looked at after it was met
        async with lance(base) as store:
            with pytest.raises(LongTermError) as caught:
                await held(store)
            assert not caught.value.retryable
            assert str(path) in {finding.where for finding in await store.verify(deep=True)}
    async with lance(base) as store:
        assert store.refill_needed
        assert await held(store) == []
        assert any(str(base / "mem_000.lance") in one.where for one in await store.verify())
        await put(store, rows[:3], may_exist=True)
    assert len([line for line in caplog.messages if "table_quarantined table=mem_000" in line]) == 1
    async with lance(base) as store:  # until it is noted where it outlives the process
        assert store.refill_needed
        await put(store, rows, may_exist=True)
        await store.clear_refill()
        assert await held(store) == ids(rows)
    async with lance(base) as store:
        assert not store.refill_needed
        assert list(await store.verify(deep=True)) == []


async def test_other_tables_stay(tmp_path: Path) -> None:
    """G6: damage to one table is no other table's."""
    base = tmp_path / "lance"
    async with lance(base, shards=4) as store:
        rows = [row for n in range(12) for row in rows_of(f"user-{n}", range(3))]
        await put(store, rows)
        homes = {f"user-{n}": store.tables.name_of(user_key(f"user-{n}")) for n in range(12)}
    data_files(base, "mem_001")[0].unlink()
    async with lance(base, shards=4) as store:
        for user, home in homes.items():
            assert len(await store.rows(user)) == (0 if home == "mem_001" else 3)


async def test_an_index_is_made_again(tmp_path: Path) -> None:
    """G6: a damaged index takes no row with it: it is made again at the next opening."""
    base = tmp_path / "lance"
    rows = await _filled(base, compact_fragments=1, index_user_rows=1)
    async with lance(base, compact_fragments=1, index_user_rows=1) as store:
        await store.compact()
    indices = [path for path in record_of(base).files if path.startswith("_indices/")]
    for path in indices[::3]:
        (base / "mem_000.lance" / path).unlink()
    async with lance(base) as store:
        assert not store.refill_needed
        assert await held(store) == ids(rows)
        assert await first_found(store, "bob", "number7") == ["bob-7"]
        assert {finding.kind for finding in await store.verify()} == {"file"}
    async with lance(base) as store:
        assert list(await store.verify(deep=True)) == []


async def test_damaged_rows_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G6, S2.17: one flipped bit of a text, and one of a vector: the rows are in no answer, the
    others are; statistics count them, `verify(deep=True)` names them.
    """
    base = tmp_path / "lance"
    rows = rows_of("alice", range(40))
    async with lance(base) as store:
        await put(store, rows)
    (path,) = data_files(base)
    data = bytearray(path.read_bytes())
    data[data.index(b"number17")] ^= 32  # in one of the columns that hold it
    data[data.index(vectors_of(rows)[5].tobytes()[:16])] ^= 1
    path.write_bytes(data)
    async with lance(base) as store:
        assert await held(store) == ids([row for row in rows if row.id != "alice-17"])
        found = await store.search("alice", "number17 number18", vectors_of(rows)[17], depth=40)
        assert "alice-17" not in {one.row.id for one in found}
        assert "alice-18" in {one.row.id for one in found}
        embedded, vectors = await store.embedded_rows("alice")
        assert ids(list(embedded)) == ids([row for row in rows if row.id not in DAMAGED])
        assert vectors is not None
        assert abs(vectors - vectors_of(list(embedded))).max() < 1e-6
        assert (await store.statistics()).damaged > 0
        findings = await store.verify(deep=True)
    assert {(finding.kind, finding.where) for finding in findings} == {
        ("file", str(path)),
        *(("table", f"mem_000, row {one}") for one in DAMAGED),
    }
    told = {line for line in caplog.messages if "row_damaged" in line}
    assert told == {f"event=row_damaged row={one}" for one in DAMAGED}


async def test_doubled_and_foreign_rows_are_named(tmp_path: Path) -> None:
    """G7: `verify` names rows that are there twice, and rows in another user's table."""
    async with lance(tmp_path / "lance", shards=2) as store:
        rows = [row for n in range(8) for row in rows_of(f"user-{n}", range(2))]
        await put(store, rows)
        home, other = (store.tables.shards[name] for name in ("mem_000", "mem_001"))
        mine = next(row for row in rows if store.tables.name_of(user_key(row.user)) == "mem_000")
        for shard in (home, other):
            await shard.add(table_of(store, [mine]))
            await shard.record(0.0)
        found = {(finding.kind, finding.where) for finding in await store.verify()}
    assert found == {("doubled", f"mem_000, row {mine.id}"), ("foreign", f"mem_001, row {mine.id}")}


async def test_temporary_files_are_removed(tmp_path: Path) -> None:
    """G13: what LanceDB forgot when it was killed holds rows in plain text; it is gone after the
    next start.
    """
    base = tmp_path / "lance"
    rows = await _filled(base)
    orphans = [
        base / "mem_000.lance" / folder / ".tmpA1b2C3"
        for folder in ("data", "_versions", "_transactions", "")
    ]
    for path in orphans:
        path.write_bytes(b"secret")
    (base / "mem_000.synced.json.new").write_bytes(b"{")
    async with lance(base) as store:
        assert await held(store) == ids(rows)
    assert not [path for path in (*orphans, base / "mem_000.synced.json.new") if path.exists()]


# -- directories of before -------------------------------------------------------------------------


@pytest.mark.parametrize("age", [0, 1], ids=["with windows", "and without checks"])
async def test_a_directory_from_before_there_were_records(tmp_path: Path, age: int) -> None:
    """S2.16, G6: tables without a record, of an older version, are read, recorded, and rewritten:
    then rows carry a check, and no window.
    """
    base, rows = tmp_path / "lance", everybody(range(5))
    await _as_before(base, rows, age)
    async with lance(base, compact_fragments=1) as store:
        assert await held(store) == ids(rows)
        assert not store.refill_needed
        more = everybody(range(5, 7))
        await put(store, more)
        assert await held(store) == ids(rows + more)
        assert list(await store.verify(deep=True)) == []
        await store.compact()
        assert await held(store) == ids(rows + more)
        (shard,) = store.tables.shards.values()
        names = (await shard.table.schema()).names
        assert ("check" in names, "window" in names) == (True, False)
        assert await first_found(store, "bob", "number6") == ["bob-6"]
    async with lance(base) as store:
        assert await held(store) == ids(rows + more)


async def test_a_zeroed_manifest_without_a_record(tmp_path: Path) -> None:
    """G6: LanceDB opens a manifest of zeros as an empty table; the version before is taken, what it
    lacks is filled again.
    """
    base, rows = tmp_path / "lance", everybody(range(5))
    versions = await _as_before(base, rows)
    _zeroed(versions[0])
    async with lance(base) as store:
        assert store.refill_needed
        assert await held(store) == ids(rows[:-1])
        await put(store, rows, may_exist=True)
        assert await held(store) == ids(rows)
    for path in (base / "mem_000.lance" / "_versions").glob("*.manifest"):
        _zeroed(path)
    (base / "mem_000.synced.json").unlink()
    async with lance(base) as store:
        assert store.refill_needed
        assert await held(store) == []


async def test_another_schema_is_put_aside(tmp_path: Path) -> None:
    """G6: a table with other columns or another dimension is not of this store, and takes nothing
    of it down.
    """
    base = tmp_path / "lance"
    async with lance(base, dimension=None) as store:
        await store.add(rows_of("alice", range(3)), None, may_exist=False)
    async with lance(base) as store:
        assert store.refill_needed
        await put(store, rows_of("alice", range(3)), may_exist=True)
        assert len(await held(store)) == 3


async def _as_before(base: Path, rows: list[MemoryRow], age: int = 1) -> list[Path]:
    """A table as it was made before there were records; returns its versions' files, the newest
    first.

    Args:
        base: where.
        rows: its rows.
        age: 1 for a table of a time when there were no checks either.
    """
    import lancedb  # noqa: PLC0415

    store = await LanceStore.open(None, dimension=32, config=LongTermConfig(shards=1))
    database = await lancedb.connect_async(str(base))
    schema = store.tables.rows.older_schemas[age]
    table = await database.create_table("mem_000", schema=schema)
    await table.set_unenforced_primary_key("id")
    for some in (rows[:-1], rows[-1:]):
        await table.add(table_of(store, some, schema))
    table.close()
    await store.aclose()
    return sorted((base / "mem_000.lance" / "_versions").glob("*.manifest"))


# -- readers ---------------------------------------------------------------------------------------


async def test_upkeep_takes_nothing_from_a_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6, S4.19: who began to read an hour-old version goes on reading it, whatever is compacted
    meanwhile; later it is gone.
    """
    base = tmp_path / "lance"

    def fifty(number: int) -> list[MemoryRow]:
        return rows_of("alice", range(number * 50, number * 50 + 50))

    monkeypatch.setattr(lance_shard, "COMMIT_GRAIN_S", 0.0)
    async with lance(base, compact_fragments=1, keep_versions_s=600.0) as store:
        for number in range(6):
            await put(store, fifty(number))
        (shard,) = store.tables.shards.values()
        hour_old = newest(base)
        batches = await shard.table.query().select(["id"]).to_batches(max_batch_length=10)
        first = await anext(batches)
        for number in range(6, 9):
            await put(store, fifty(number))
            assert await store.compact() == 1
        assert hour_old.exists()
        rest = [batch async for batch in batches]
        assert len(first) + sum(len(batch) for batch in rest) == 300
        monkeypatch.setattr(lance_shard, "CLOCK_SLACK_S", 0.0)
        for number in range(9, 11):
            await put(store, fifty(number))
            # as it would be when that time has passed
            await shard.compact(keep_s=-1.0, index_rows=10**6)
        assert not hour_old.exists()
        assert len(await held(store)) == 550
        assert list(await store.verify(deep=True)) == []


@pytest.mark.parametrize("reopened", [False, True])
async def test_a_table_at_rest_has_one_version(
    reopened: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4.19: nothing that was superseded stays, nor what one compaction made and superseded, nor
    what the process before this one left.
    """
    base = tmp_path / "lance"
    monkeypatch.setattr(lance_shard, "COMMIT_GRAIN_S", 0.0)

    async def rest(store: LanceStore) -> None:
        (shard,) = store.tables.shards.values()
        for _ in range(4):  # as it would be when that time has passed
            await shard.compact(keep_s=-1.0, index_rows=10**6)

    async with lance(base, compact_fragments=100, keep_versions_s=600.0) as store:
        for number in range(6):
            await put(store, rows_of("alice", range(number * 50, number * 50 + 50)))
        if not reopened:
            await rest(store)
    if reopened:
        monkeypatch.setattr(lance_shard, "CLOCK_SLACK_S", 0.0)
        async with lance(base, keep_versions_s=600.0) as store:
            (shard,) = store.tables.shards.values()
            await shard.compact(keep_s=-1.0, index_rows=10**6)
            assert len([*base.glob("*.lance/_versions/*.manifest")]) <= 4, "its own, and the last"
            await rest(store)
    assert len([*base.glob("*.lance/_versions/*.manifest")]) == 1
    async with lance(base) as store:
        assert len(await held(store)) == 300
        assert list(await store.verify(deep=True)) == []


async def test_searches_go_on_while_a_shard_is_written_anew(tmp_path: Path) -> None:
    """G6, G13: other users' searches, in words and vectors, neither fail nor miss a row while one
    user is erased.
    """
    base = tmp_path / "lance"
    async with lance(base, index_user_rows=1) as store:
        await put(store, everybody(range(60)))
        wrong: list[Any] = []
        rounds, done = 0, False
        vector = vectors_of(rows_of("bob", [7]))[0]

        async def read() -> None:
            nonlocal rounds
            while not done:
                rounds += 1
                found = await store.search("bob", "number7", vector, depth=5)
                if "bob-7" not in {one.row.id for one in found}:
                    wrong.append(found)
                if len(await store.rows("carol")) != 60:
                    wrong.append("carol")

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(read)
            erasures = 0
            while erasures < 4 or rounds <= 4:
                erasures += 1
                assert await store.erase(user_key("alice")) == 60
                await put(store, rows_of("alice", range(60)))
            done = True
        assert wrong == []
