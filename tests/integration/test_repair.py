"""Long-term memory is an index over the journal: what differs is named, and repaired or rebuilt it
equals what was there, without anything that is not to come back.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from remora import Config, Runtime
from remora.blocks import VectorMemoryBlock
from remora.errors import JournalDamaged
from remora.ids import row_id
from remora.maintenance.compare import compare_index
from remora.maintenance.offline import offline
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.runtime.clock import SystemClock
from remora.storage.lance.directory import table_of
from remora.storage.ports import Retention, SessionKey
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.embedders import HeldEmbedder, NotingEmbedder
from tests.harness import user
from tests.lance import data_files, digests_of, record_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

TREE: dict[str, Any] = {
    "long_term": {"batch_ms": 1, "shards": 3},
    "tokens": {"counter": "heuristic"},
    "recall": {"deadline_s": 600},
    "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.002, "max_attempts": 2},
}
CONFIG = Config.from_dict(TREE)
FOLDING = Config.from_dict({**TREE, "buffer": {"token_limit": 300, "summary_tokens": 80}})
USERS = ("alice", "bob", "erin")
QUERIES = ("ferries and bridges", "number 3", "who keeps bees", "the word of alice")


def opened(where: Path, embedder: HashEmbedder | None = None, **options: Any) -> Runtime:
    rng = random.Random(4)  # so that users are in the same tables each time
    options = {"config": CONFIG, "rng": rng, **options}
    return Runtime(where, embedder=embedder or HashEmbedder(), **options)


async def rebuilt(runtime: Runtime) -> None:
    await runtime.reembedded()
    await runtime.settle()


def home(where: Path) -> str:
    """The table that bob is in."""
    return table_of(digests_of(where).user("bob"), 3)


async def clean(where: Path) -> bool:
    return (await verify(where, CONFIG, deep=True)).clean


@asynccontextmanager
async def tables(where: Path) -> AsyncIterator[Any]:
    """LanceDB behind remora's back."""
    import lancedb  # noqa: PLC0415

    database = await lancedb.connect_async(str(where / "longterm"))
    yield database
    database.close()


# -- what differs is named -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def varied_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of all that long-term memory holds, and of what leaves it again."""
    directory = tmp_path_factory.mktemp("varied") / "memory"

    async def make() -> None:
        blocks = [VectorMemoryBlock(name="past")]
        async with opened(directory, config=FOLDING, blocks=blocks) as runtime:
            for name in ("alice", "bob", "o'hara %", "erin"):
                one = runtime.user(name)
                for session in ("one", "two"):
                    chat = one.session(session)
                    for number in range(12):
                        text = f"{name} said {number} in {session}: " + "word " * 12
                        await chat.append(user(text))
                await one.remember(["Keeps bees", f"{name} is a name"], type="preference")
                await runtime.settle()
            alice = runtime.user("alice")
            await alice.session("one").rewind(9)
            await alice.session("two").flush()
            await runtime.settle()
            await alice.session("two").clear()
            await alice.prune(keep=14)
            await runtime.settle()

    anyio.run(make)
    return directory


@pytest.fixture
def varied(varied_template: Path, tmp_path: Path) -> Path:
    return copy_memory(varied_template, tmp_path / "memory")


async def findings(where: Path) -> list[Any]:
    async with offline(where, CONFIG) as memory, memory.scan() as scan:
        return [one.finding async for one in compare_index(memory.journal, scan)]


def kinds(found: list[Any]) -> list[str]:
    return sorted(one.kind for one in found)


async def test_nothing_is_amiss_in_what_remora_wrote(varied: Path) -> None:
    """G6, G7: folds, flushes, blocks, memories, rewinds, clears and prunes leave exactly the rows
    that the journal expects. What retention takes out of the journal is still long-term memory's.
    """
    assert await findings(varied) == []
    assert (await repair(varied, CONFIG)).done == ()
    async with offline(varied, CONFIG) as memory:
        assert await memory.journal.trim(Retention(max_messages=1), 2**60)
    assert await findings(varied) == []
    assert await clean(varied)


async def test_a_table_that_cannot_be_read_is_one_finding(varied: Path) -> None:
    """G7: of users whose table is broken nothing is said to be missing; of the others everything is
    compared.
    """
    name = home(varied)
    manifest = min((varied / "longterm" / f"{name}.lance" / "_versions").glob("*.manifest"))
    manifest.write_bytes(bytes(manifest.stat().st_size))
    async with offline(varied, CONFIG) as memory, memory.scan() as scan:
        found = [one async for one in compare_index(memory.journal, scan)]
        assert list(scan.broken) == [name]
    assert found == []


async def test_what_is_being_forgotten_is_no_orphan(varied: Path) -> None:
    """G13: after a crash between the journal's part of an erasure and long-term memory's, verify
    says that it is not finished.
    """
    async with offline(varied, CONFIG) as memory:
        await memory.journal.erase("bob")
        await memory.journal.erase("erin", "one")
    assert await findings(varied) == []
    found = await verify(varied, CONFIG)
    assert {one.kind for one in found.findings} == {"erasure"}
    assert not any(
        name in f"{one.where} {one.detail}" for one in found.findings for name in ("bob", "erin")
    )
    async with offline(varied, CONFIG) as memory:
        for note in await memory.journal.erasures():
            await memory.journal.finish_erasure(note.number)  # the rows are still there
    found = await verify(varied, CONFIG)
    assert {(one.kind, one.where) for one in found.findings} == {
        ("orphan", "bob"),
        ("orphan", "erin / one"),
    }


# -- repaired, it equals a rebuild -----------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed directory whose sessions were each indexed at once, as a rebuild does it."""
    directory = tmp_path_factory.mktemp("filled") / "memory"

    async def make() -> None:
        async with opened(directory) as runtime:
            for name in USERS:
                for session in ("one", "two"):
                    chat = runtime.session(name, session)
                    for number in range(10):
                        text = f"number {number}: {name} in {session} on ferries and bridges"
                        await chat.append(user(text))
                    await chat.flush()
                await runtime.user(name).remember([f"{name} keeps bees", f"{name} has maps"])
            await runtime.settle()

    anyio.run(make)
    return directory


async def answers(runtime: Runtime) -> dict[tuple[str, str], Any]:
    """What recall finds for each user and query, in order, and every row that there is."""
    found: dict[tuple[str, str], Any] = {
        (name, query): [hit.text for hit in await runtime.user(name).recall(query, limit=50)]
        for name in USERS
        for query in QUERIES
    }
    found["", "rows"] = sorted(await (await runtime.internals.long_term()).row_ids())
    return found


@pytest.fixture(scope="module")
def fresh(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    """What long-term memory answers that is made from the journal alone."""
    where = copy_memory(filled, tmp_path_factory.mktemp("fresh") / "memory")
    shutil.rmtree(where / "longterm")

    async def rebuild() -> dict[tuple[str, str], Any]:
        async with opened(where) as runtime:
            await rebuilt(runtime)
            return await answers(runtime)

    return anyio.run(rebuild)


def rows(change: Callable[[Any, str], Awaitable[Any]]) -> Callable[[Path], Awaitable[None]]:
    """Damage done to the rows of bob's table."""

    async def damage(where: Path) -> None:
        name = home(where)
        async with tables(where) as database:
            table = await database.open_table(name)
            await change(table, f"user_key = '{digests_of(where).user('bob')}'")
            table.close()
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
    found = await table.query().where(f"{mine} AND session_id = 'one'").to_arrow()
    foreign = [
        {**row, "id": f"{n:032x}", "user_id": "eve"} for n, row in enumerate(found.to_pylist())
    ]
    await table.add(pa.Table.from_pylist(foreign, schema=found.schema))
    await table.delete(f"{mine} AND user_id = 'bob' AND session_id = 'one'")


async def _date(table: Any, _: str) -> None:
    earlier = "arrow_cast(1000000, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    id_ = row_id(SessionKey("bob", "two"), 2)
    await table.update(updates_sql={"created_at": earlier}, where=f"id = '{id_}'")


async def _all_at_once(where: Path) -> None:
    mine, bob = home(where), f"user_key = '{digests_of(where).user('bob')}'"
    lost, doubled, moved, altered = (row_id(SessionKey("bob", "one"), n) for n in (1, 2, 3, 4))
    async with tables(where) as database:
        table = await database.open_table(mine)
        bobs = await table.query().where(f"{bob} AND memory_type = 'message'").to_arrow()

        def only(id_: str) -> Any:
            return bobs.filter(pc.equal(bobs.column("id"), id_))

        (other, *_) = {*(await database.list_tables()).tables} - {mine}
        await (await database.open_table(other)).add(only(moved))
        await table.add(only(doubled))
        await table.delete(f"id IN ('{lost}', '{moved}') OR content = 'bob keeps bees'")
        await table.update({"seq": 99}, where=f"id = '{altered}'")
        stranger = only(doubled).to_pylist()[0]
        foreign = {**stranger, "id": "0" * 32, "user_id": "mallory"}
        unknown = {**stranger, "id": "1" * 32, "session_id": "never"}
        await table.add(pa.Table.from_pylist([foreign, unknown], schema=bobs.schema))
    for name in (mine, other):
        (where / "longterm" / f"{name}.synced.json").unlink()


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
    "a row of another time": rows(_date),
    "rows of every kind": _all_at_once,
    "a data file": _lose_data,
    "every manifest": _lose_manifest,
    "a table": _lose_table,
    "every table": _lose_all,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_repaired_recall_equals_a_fresh_rebuild(
    damage: Callable[[Path], Awaitable[None]], filled: Path, fresh: Any, tmp_path: Path
) -> None:
    """G6, G7: whatever is damaged, repair and the next start lead to what the journal says."""
    memory = copy_memory(filled, tmp_path / "memory")
    await damage(memory)
    assert not await clean(memory)
    report = await repair(memory, CONFIG)
    assert report.done
    assert report.left == ()
    async with opened(memory) as runtime:
        await rebuilt(runtime)
        assert await answers(runtime) == fresh
    assert await clean(memory)
    assert (await repair(memory, CONFIG)).done == ()


async def test_each_kind_of_damage_is_named(filled: Path, tmp_path: Path) -> None:
    """G1, G7: rows deleted, doubled, moved, altered, made up; and a row that outlived its message,
    whose number another one got since, is no row of that one.
    """
    memory = copy_memory(filled, tmp_path / "memory")
    await _all_at_once(memory)
    found, twice = await findings(memory), ["foreign", "missing", "orphan"]
    assert kinds(found) == sorted(["doubled", *twice, *twice])
    told = "\n".join(f"{one.kind} {one.where} {one.detail}" for one in found)
    for text in (
        "missing bob / one 3 messages 1, 3-4",
        "missing bob 1 memory ",
        "foreign mallory",
        "bob / never",
    ):
        assert text in told
    dated = copy_memory(filled, tmp_path / "dated")
    await DAMAGES["a row of another time"](dated)
    found = await findings(dated)
    assert kinds(found) == ["missing", "orphan"]
    assert all(one.where == "bob / two" for one in found)


async def test_only_what_is_missing_is_embedded(filled: Path, tmp_path: Path) -> None:
    """G7: a rebuild leaves existing rows alone, so that repair costs what the damage costs."""
    memory = copy_memory(filled, tmp_path / "memory")
    await DAMAGES["some rows"](memory)
    await repair(memory, CONFIG)
    embedder = NotingEmbedder()
    async with opened(memory, embedder) as runtime:
        await rebuilt(runtime)
        assert len(embedder.texts) == 8
        assert runtime.reembedding is None


async def test_a_damaged_session_keeps_no_other_from_being_rebuilt(
    filled: Path, fresh: dict[tuple[str, str], Any], tmp_path: Path
) -> None:
    """G6, G7, G11: its failure is told and tried again at each start; the other sessions are
    rebuilt, and its own messages that can be read.
    """
    memory = copy_memory(filled, tmp_path / "memory")
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
            for (name, query), hits in fresh.items():
                if name in {"bob", "erin"}:
                    assert found[name, query] == hits
            assert len(found["", "rows"]) == len(fresh["", "rows"]) - 1
    report = await repair(memory, CONFIG, drop_damaged=True)
    assert report.left == ()
    async with opened(memory) as runtime:
        await rebuilt(runtime)
        assert len((await answers(runtime))["", "rows"]) == len(fresh["", "rows"]) - 1
    assert await clean(memory)


# -- what a rebuild finds, and what it does not bring back -----------------------------------------


class HeldClock(SystemClock):
    """Sleeps end only after `release` is set."""

    def __init__(self) -> None:
        self.release = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.release.wait()
        await super().sleep(seconds)


async def remove(where: Path) -> None:
    await anyio.to_thread.run_sync(shutil.rmtree, where / "longterm")


async def memories(runtime: Runtime) -> list[str]:
    return sorted(row.text for row in await runtime.user("alice").memories())


async def test_a_lost_directory_of_recorded_memories_alone(tmp_path: Path) -> None:
    """G6: memories count as well as messages when it is asked whether anything is lost. It is
    reported, and the next start writes it, with or without repair.
    """
    where = tmp_path / "m"
    async with opened(where) as runtime:
        await runtime.user("alice").remember(["Prefers metric units", "Is allergic to bees"])
        await runtime.session("alice", "s").append(user("never indexed"))
        await runtime.settle()
    for repaired in (False, True):
        await remove(where)
        found = await verify(where, CONFIG)
        assert [(one.kind, one.repairable) for one in found.findings] == [("table", True)]
        assert "2 recorded memories" in found.findings[0].detail
        if repaired:
            assert (await repair(where, CONFIG)).done
        async with opened(where) as runtime:
            await runtime.reembedded()
            assert len(await memories(runtime)) == 2
            assert await runtime.user("alice").recall("bees", limit=5)
        assert await clean(where)


async def test_a_directory_that_never_held_a_row_is_not_lost(tmp_path: Path) -> None:
    """Nothing is rebuilt where nothing was indexed."""
    async with opened(tmp_path / "m") as runtime:
        await runtime.session("alice", "s").append(user("never indexed"))
        await runtime.ready()  # long-term memory has its directory
    await remove(tmp_path / "m")
    assert await clean(tmp_path / "m")
    async with opened(tmp_path / "m") as runtime:
        await runtime.reembedded()
        assert runtime.reembedding is None


async def rows_after_forgetting(where: Path, *, clear: bool) -> list[tuple[int, str]]:
    """Forget a session while it is being rebuilt, write to it, then flush or clear it."""
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"gated old {number}") for number in range(8)])
        await chat.flush()
        await runtime.settle()
    await remove(where)
    embedder, clock = HeldEmbedder("gated"), HeldClock()
    async with opened(where, embedder, clock=clock) as runtime:
        chat = runtime.session("alice", "s")
        await embedder.reached.wait()
        await chat.forget()
        await chat.append([user(f"new {number}") for number in range(4)])
        embedder.go.set()
        clock.release.set()  # the rebuild tries that session again only now
        await runtime.reembedded()
        await (chat.clear() if clear else chat.flush())
        await runtime.settle()
        return [(row.seq, row.text) for row in await runtime.user("alice").memories()]


async def test_a_session_begun_anew_during_a_rebuild(tmp_path: Path) -> None:
    """G7: it is indexed once: a mark that was read before the session was forgotten says nothing
    about the new one. Messages that no flush had indexed before they were cleared stay out.
    """
    rows = await rows_after_forgetting(tmp_path / "flushed", clear=False)
    assert [seq for seq, _ in rows] == [1, 2, 3, 4]
    assert await clean(tmp_path / "flushed")
    assert await rows_after_forgetting(tmp_path / "cleared", clear=True) == []


async def windows(runtime: Runtime) -> dict[int, Any]:
    """The rows of the session, by number, with all that search looks at."""
    store = await runtime.internals.long_term()
    rows = await store.rows("alice")
    assert len({row.id for row in rows}) == len(rows)
    return {row.seq: (row.turn, row.window, row.importance, row.tokens) for row in rows}


@pytest.mark.parametrize("between", ["nothing", "clear", "restart", "rewind"])
async def test_rows_of_a_session_flushed_in_its_middle_equal_a_rebuild(
    between: str, tmp_path: Path
) -> None:
    """G6, G7: a message that was the newest when it was indexed gets its later neighbours."""
    where = tmp_path / "m"
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"sentence {number} of the first half") for number in range(5)])
        await chat.flush()
        if between == "rewind":
            await chat.append(user("this never happened"))
            await chat.rewind(5)
        if between == "clear":
            await chat.clear()
        if between != "restart":
            await chat.append([user(f"sentence {number} of the rest") for number in range(3)])
            await chat.flush()
        await runtime.settle()
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"sentence {number} of the end") for number in range(3)])
        await chat.flush()
        await runtime.settle()
        history = await windows(runtime)
    await remove(where)
    async with opened(where) as runtime:
        await runtime.reembedded()
        assert await windows(runtime) == history
    assert await clean(where)
