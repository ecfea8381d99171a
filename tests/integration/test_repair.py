"""Repair: long-term memory is an index over the journal, so repaired it equals a fresh rebuild."""

from __future__ import annotations

import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from remora import Config, Runtime
from remora.errors import JournalDamaged
from remora.ids import SessionKey, row_id
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.storage.lance.naming import table_of
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.lance import data_files, digests_of, record_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 3},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 60},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.002, "max_attempts": 2},
    }
)
USERS = ("alice", "bob", "erin")
QUERIES = ("ferries and bridges", "number 3", "who keeps bees", "the word of alice")


def home(where: Path) -> str:
    """The table that bob is in."""
    return table_of(digests_of(where).user("bob"), 3)


class CountingEmbedder(HashEmbedder):
    """Counts the texts that it embeds."""

    def __init__(self) -> None:
        super().__init__()
        self.texts = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.texts += len(texts)
        return await super().embed(texts)


def opened(where: Path, embedder: HashEmbedder | None = None) -> Runtime:
    rng = random.Random(4)  # so that users are in the same tables each time
    return Runtime(where, config=CONFIG, embedder=embedder or HashEmbedder(), rng=rng)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory whose sessions were each indexed at once, as a rebuild does it."""
    directory = tmp_path_factory.mktemp("filled") / "memory"

    async def make() -> None:
        async with opened(directory) as runtime:
            for user in USERS:
                for session in ("one", "two"):
                    chat = runtime.session(user, session)
                    for number in range(10):
                        text = f"number {number}: {user} in {session} on ferries and bridges"
                        await chat.append({"role": "user", "content": text})
                    await chat.flush()
                await runtime.user(user).remember([f"{user} keeps bees", f"{user} has maps"])
            await runtime.settle()

    anyio.run(make)
    return directory


async def answers(runtime: Runtime) -> dict[tuple[str, str], Any]:
    """What recall finds for each user and query, in order, and every row that there is."""
    found: dict[tuple[str, str], Any] = {
        (user, query): [hit.text for hit in await runtime.user(user).recall(query, limit=50)]
        for user in USERS
        for query in QUERIES
    }
    found["", "rows"] = sorted(await (await runtime.internals.long_term()).row_ids())
    return found


async def rebuilt(where: Path) -> dict[tuple[str, str], Any]:
    """What long-term memory answers that is made from the journal alone."""
    await anyio.to_thread.run_sync(shutil.rmtree, where / "longterm")
    async with opened(where) as runtime:
        await runtime.reembedded()
        await runtime.settle()
        return await answers(runtime)


def rows(change: Callable[[Any, str], Awaitable[Any]]) -> Callable[[Path], Awaitable[None]]:
    """Damage done to the rows of bob's table."""

    async def damage(where: Path) -> None:
        import lancedb  # noqa: PLC0415

        database = await lancedb.connect_async(str(where / "longterm"))
        name = home(where)
        table = await database.open_table(name)
        await change(table, f"user_key = '{digests_of(where).user('bob')}'")
        table.close()
        database.close()
        (where / "longterm" / f"{name}.synced.json").unlink()  # or the new version is rolled back

    return damage


async def _delete(table: Any, mine: str) -> None:
    await table.delete(f"{mine} AND seq BETWEEN 3 AND 6")


async def _delete_all(table: Any, mine: str) -> None:
    await table.delete(mine)


async def _double(table: Any, mine: str) -> None:
    await table.add(await table.query().where(f"{mine} AND session_id = 'one'").to_arrow())


async def _alter(table: Any, mine: str) -> None:
    await table.update({"content": "an invented text"}, where=f"{mine} AND seq = 2")


async def _renumber(table: Any, _: str) -> None:
    await table.update({"seq": 99}, where=f"id = '{row_id(SessionKey('bob', 'one'), 4)}'")


async def _steal(table: Any, mine: str) -> None:
    import pyarrow as pa  # noqa: PLC0415

    found = await table.query().where(f"{mine} AND session_id = 'one'").to_arrow()
    foreign = [
        {**row, "id": f"{n:032x}", "user_id": "eve"} for n, row in enumerate(found.to_pylist())
    ]
    await table.add(pa.Table.from_pylist(foreign, schema=found.schema))
    await table.delete(f"{mine} AND user_id = 'bob' AND session_id = 'one'")


async def _lose_data(where: Path) -> None:
    data_files(where / "longterm", home(where))[0].unlink()


async def _lose_manifest(where: Path) -> None:
    version = record_of(where / "longterm", home(where)).version
    for path in (where / "longterm" / f"{home(where)}.lance" / "_versions").glob("*.manifest"):
        path.write_bytes(bytes(path.stat().st_size))
    assert version


async def _lose_table(where: Path) -> None:
    shutil.rmtree(where / "longterm" / f"{home(where)}.lance")


async def _lose_all(where: Path) -> None:
    shutil.rmtree(where / "longterm")


DAMAGES = {
    "some rows": rows(_delete),
    "all of a user's rows": rows(_delete_all),
    "doubled rows": rows(_double),
    "altered rows": rows(_alter),
    "a row of another number": rows(_renumber),
    "rows of somebody else": rows(_steal),
    "a data file": _lose_data,
    "every manifest": _lose_manifest,
    "a table": _lose_table,
    "every table": _lose_all,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_repaired_recall_equals_a_fresh_rebuild(
    damage: Callable[[Path], Awaitable[None]], filled: Path, tmp_path: Path
) -> None:
    """G6, G7: whatever is damaged, repair and the next start lead to what the journal says."""
    memory = copy_memory(filled, tmp_path / "memory")
    fresh = await rebuilt(copy_memory(filled, tmp_path / "fresh"))
    await damage(memory)
    assert not (await verify(memory, CONFIG, deep=True)).clean
    report = await repair(memory, CONFIG)
    assert report.done
    assert report.left == ()
    async with opened(memory) as runtime:
        await runtime.reembedded()
        await runtime.settle()
        assert await answers(runtime) == fresh
    assert (await verify(memory, CONFIG, deep=True)).clean
    assert (await repair(memory, CONFIG)).done == ()


async def test_only_what_is_missing_is_embedded(filled: Path, tmp_path: Path) -> None:
    """G7: a rebuild leaves existing rows alone, so that repair costs what the damage costs."""
    memory = copy_memory(filled, tmp_path / "memory")
    await DAMAGES["some rows"](memory)
    await repair(memory, CONFIG)
    embedder = CountingEmbedder()
    async with opened(memory, embedder) as runtime:
        await runtime.reembedded()
        await runtime.settle()
        assert embedder.texts == 8
        assert runtime.reembedding is None


async def test_a_damaged_session_keeps_no_other_from_being_rebuilt(
    filled: Path, tmp_path: Path
) -> None:
    """G6, G7, G11: its failure is told and tried again at each start; the other sessions are
    rebuilt, and its own messages that can be read.
    """
    memory = copy_memory(filled, tmp_path / "memory")
    fresh = await rebuilt(copy_memory(filled, tmp_path / "fresh"))
    journal = memory / "journal.db"
    content = bytearray(journal.read_bytes())
    content[content.index(b"number 5: alice in one") + 4] ^= 0x40
    journal.write_bytes(content)
    await _lose_all(memory)
    for _ in range(2):
        async with opened(memory) as runtime:
            with pytest.raises(JournalDamaged):
                await runtime.reembedded()
            assert runtime.reembedding is not None
            found = await answers(runtime)
            assert {(u, q): hits for (u, q), hits in found.items() if u in {"bob", "erin"}} == {
                (u, q): hits for (u, q), hits in fresh.items() if u in {"bob", "erin"}
            }
            assert len(found["", "rows"]) == len(fresh["", "rows"]) - 1
    report = await repair(memory, CONFIG, drop_damaged=True)
    assert report.left == ()
    async with opened(memory) as runtime:
        await runtime.reembedded()
        await runtime.settle()
        assert len((await answers(runtime))["", "rows"]) == len(fresh["", "rows"]) - 1
    assert (await verify(memory, CONFIG, deep=True)).clean
