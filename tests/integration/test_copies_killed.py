"""``kill -9`` of a process that exports, imports, divides or moves a memory, at some step: what was
there is there, once, and the same command ends what was begun. Each run draws the step, the nightly
one tries them all.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import remora
from remora.cluster.moving import move_to_database, move_to_directory, without_database
from remora.cluster.reshard import NothingToDivide, reshard
from remora.cluster.sharding import find_shards
from remora.errors import ConfigError, DirectoryUnusable
from remora.maintenance.verify import verify
from remora.storage.copying import TABLES
from remora.storage.postgres.copying import DatabaseRows
from tests.copies import copy_memory
from tests.faults.copy_kills import count_steps, in_database, kill_at, make
from tests.filled import CONFIG, PLAIN, Templates, look, looked
from tests.postgres import Cluster
from tests.sqlite import rows_of

# processes are waited for, and files are looked at, while nothing else runs
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
Choose = Callable[[int], list[int]]
_numbers = itertools.count(1)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["one", "all"])
def chosen(request: pytest.FixtureRequest, new_seeds: Choose) -> Choose:
    """The steps, of so many, at which a process is killed: all of them, or one of this run's."""
    if request.param:
        return lambda count: list(range(1, count + 1))
    return lambda count: [1 + seed % count for seed in new_seeds(1)]


async def exported(runtime: remora.Runtime, path: Path) -> Counter[str]:
    """The lines of an export but for the first, which says when it was written."""
    await runtime.settle()
    await runtime.export(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.unlink()
    return Counter(lines[1:-1])


async def sound(directory: Path, config: remora.Config) -> None:
    """Nothing is damaged or doubled, in any shard."""
    for shard in find_shards(directory):
        found = await verify(shard, config, deep=True)
        assert found.findings == (), (shard, found.findings)


# -- export ----------------------------------------------------------------------------------------


def content(path: Path) -> Any:
    """What is exported at a path, but for when; None for nothing."""
    if path.is_dir():
        import pyarrow.parquet as pq  # noqa: PLC0415  # half a second

        return {one.name: pq.read_table(one).to_pylist() for one in sorted(path.iterdir())}
    if not path.exists():
        return None
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize("name", ["export.jsonl", "export"])
async def test_an_export_is_whole_or_not_there(
    templates: Templates, tmp_path: Path, name: str, chosen: Choose
) -> None:
    """S4.25, S4.37, G4: whatever has the name of an export is one; the memory is what it was."""
    memory, path = tmp_path / "memory", tmp_path / name
    before = await templates.full(memory)
    steps = count_steps("export", memory, path)
    whole = content(path)
    assert whole
    for step in chosen(steps):
        for old in (True, False):
            if not old:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            kill_at(step, "export", memory, path)
            aside = [one for one in tmp_path.iterdir() if ".old-" in one.name]
            # a directory of before has another name for a moment
            assert content(aside[0] if aside else path) in ([whole] if old else [whole, None])
            for one in tmp_path.iterdir():
                if one.name.startswith(f"{name}."):
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
            count_steps("export", memory, path)
            assert content(path) == whole
    assert await looked(memory) == before


# -- import ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["export.jsonl", "export"])
async def test_an_import_goes_on(
    templates: Templates, tmp_path: Path, name: str, chosen: Choose
) -> None:
    """S4.25, S4.37, G1, G4: a session is there as a whole or not at all, and the same import brings
    the others.
    """
    await templates.full(tmp_path / "source")
    path = tmp_path / name
    async with make(tmp_path / "source", CONFIG) as source:
        await source.export(path)
    steps = count_steps("import", tmp_path / "whole", path)
    async with make(tmp_path / "whole", CONFIG) as runtime:
        whole = await exported(runtime, tmp_path / "lines.jsonl")
        users = await runtime.users(limit=None)
        keys = [(who.user, one.session) for who in users for one in await sessions(runtime, who)]
        parts = {key: await runtime.session(*key).export() for key in keys}
        counts = await runtime.counts()
        rows = sorted(await (await runtime.internals.long_term()).row_ids())
    for step in chosen(steps):
        target = tmp_path / f"target-{step}"
        kill_at(step, "import", target, path)
        async with make(target, CONFIG) as runtime:
            await runtime.settle()
            for who in await runtime.users(limit=None):
                for one in await sessions(runtime, who):
                    key = (who.user, one.session)
                    assert await runtime.session(*key).export() == parts[key], (step, key)
        count_steps("import", target, path)
        async with make(target, CONFIG) as runtime:
            assert await exported(runtime, tmp_path / "lines.jsonl") == whole, step
            assert await runtime.counts() == counts
            assert sorted(await (await runtime.internals.long_term()).row_ids()) == rows, step
        await sound(target, CONFIG)
        shutil.rmtree(target)


async def sessions(runtime: remora.Runtime, who: Any) -> Any:
    return await runtime.user(who.user).sessions(limit=None)


# -- into another number of shards -----------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 2), (2, 1)])
async def test_a_division_goes_on(
    templates: Templates, tmp_path: Path, before: int, after: int, chosen: Choose
) -> None:
    """G1, G4: an application that starts finds everything, and so does one after the command was
    given again. Nothing is left of the other copy.
    """
    memory = tmp_path / "memory"
    whole = await templates.full(memory)
    if before > 1:
        await reshard(memory, before, CONFIG)
    done = copy_memory(memory, tmp_path / "done")
    steps = count_steps("reshard", done, after)
    names = {one.name for one in done.iterdir()}
    for step in chosen(steps):
        left = copy_memory(memory, tmp_path / "left")
        kill_at(step, "reshard", left, after)
        started = copy_memory(left, tmp_path / "started")
        assert await looked(started) == whole, step
        await sound(started, CONFIG)
        with suppress(NothingToDivide):
            await reshard(left, after, CONFIG)
        assert len(find_shards(left)) == after
        await sound(left, CONFIG)
        assert {one.name for one in left.iterdir()} == names
        assert await looked(left) == whole, step
        for one in (left, started):
            shutil.rmtree(one)


# -- into PostgreSQL, and back ---------------------------------------------------------------------


async def see(directory: Path, config: remora.Config) -> dict[str, Any]:
    async with make(directory, config) as memory:
        found: Any = memory
        return await look(found)


async def which_counts(directory: Path, config: remora.Config) -> list[dict[str, Any]]:
    """What the places say in which the memory is found: never both."""
    found = []
    for one in (without_database(config), config):
        with suppress(ConfigError, DirectoryUnusable):
            found.append(await see(directory, one))
    assert len(found) <= 1
    return found


async def test_a_move_goes_on(
    cluster: Cluster, templates: Templates, tmp_path: Path, chosen: Choose
) -> None:
    """S2.04, G1, G4: the memory is in one of the two places, or refused in both until the same
    command has ended what was begun; every row is as it was.
    """
    memory = tmp_path / "memory"
    whole = await templates.full(memory)
    rows = await rows_of(memory / "journal.db")
    schema = f"counted_{next(_numbers)}"
    done = copy_memory(memory, tmp_path / "done")
    there = count_steps("move", done, "postgresql", 1, cluster.dsn(), schema)
    back = count_steps("move", done, "directory", 1, cluster.dsn(), schema)
    places = itertools.zip_longest(chosen(there), chosen(back))
    for step, step_back in places:
        path, schema = copy_memory(memory, tmp_path / "path"), f"killed_{next(_numbers)}"
        config = in_database(CONFIG, cluster.dsn(), schema)
        if step is not None:
            kill_at(step, "move", path, "postgresql", 1, cluster.dsn(), schema)
        assert all(one == whole for one in await which_counts(path, config)), step
        with suppress(NothingToDivide):
            await move_to_database(path, config)
        assert await which_counts(path, config) == [whole]
        if step_back is not None:
            kill_at(step_back, "move", path, "directory", 1, cluster.dsn(), schema)
        assert all(one == whole for one in await which_counts(path, config)), step_back
        if not is_back(path):
            await move_to_directory(path, config)
        assert await rows_of(path / "journal.db") == rows, (step, step_back)
        await sound(path, CONFIG)
        assert await see(path, CONFIG) == whole
        assert {one.name for one in path.iterdir()} == {one.name for one in memory.iterdir()}
        shutil.rmtree(path)


def is_back(path: Path) -> bool:
    return (path / "journal.db").exists() and not (path / "moving.json").exists()


async def test_a_move_into_shards_goes_on(
    cluster: Cluster, templates: Templates, tmp_path: Path, chosen: Choose
) -> None:
    """S2.04, S2.31, G1, G4: all rows are in PostgreSQL, once, when the same command has ended."""
    memory = tmp_path / "memory"
    await templates.plain(memory)
    there = await rows_of(memory / "journal.db")
    rows = {table: Counter(unnumbered(table, there[table])) for table in TABLES}
    schema = f"shards_{next(_numbers)}"
    done = copy_memory(memory, tmp_path / "done")
    steps = count_steps("move", done, "postgresql", 2, cluster.dsn(), schema)
    for step in chosen(steps):
        path, schema = copy_memory(memory, tmp_path / "path"), f"shards_{next(_numbers)}"
        kill_at(step, "move", path, "postgresql", 2, cluster.dsn(), schema)
        config = in_database(PLAIN, cluster.dsn(), schema, shards=2)
        with suppress(NothingToDivide):
            await move_to_database(path, config)
        assert {one.name for one in path.iterdir()} - {"remora.lock", "owner.json"} == {
            "moving.json"
        }
        found: dict[str, Counter[Any]] = {table: Counter() for table in TABLES}
        for number in range(2):
            async with DatabaseRows.open(cluster.dsn(), f"{schema}_{number:02}") as database:
                for table in TABLES:
                    async for some in database.read(table):
                        found[table].update(unnumbered(table, some))
        assert found == rows, step
        shutil.rmtree(path)


def unnumbered(table: str, rows: Any) -> list[Any]:
    """The rows without the numbers that each journal gives."""
    return [row[TABLES[table].counted :] for row in rows]
