"""The journal against long-term memory: nothing amiss where nothing is, and each thing named where
something is.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.blocks import VectorMemoryBlock
from remora.ids import SessionKey, row_id
from remora.maintenance.align import align_index
from remora.maintenance.compare import Difference, compare_index
from remora.maintenance.offline import Offline, offline
from remora.maintenance.verify import verify
from remora.storage.lance.naming import table_of
from remora.storage.ports import Retention
from remora.testing import HashEmbedder
from tests.lance import digests_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "shards": 3},
        "tokens": {"counter": "heuristic"},
    }
)


def open_runtime(directory: Path, **options: Any) -> Runtime:
    return Runtime(directory, config=CONFIG, embedder=HashEmbedder(), **options)


async def fill(directory: Path) -> None:
    """Some of all that long-term memory holds, and of what leaves it again."""
    blocks = [VectorMemoryBlock(name="past")]
    rng = random.Random(4)  # so that users are in the same tables each time
    async with open_runtime(directory, blocks=blocks, rng=rng) as runtime:
        for user in ("alice", "bob", "o'hara %", "erin"):
            one = runtime.user(user)
            for session in ("one", "two"):
                chat = one.session(session)
                for number in range(12):
                    await chat.append(
                        {
                            "role": "user",
                            "content": f"{user} said {number} in {session}: " + "word " * 12,
                        }
                    )
            await one.remember(["Keeps bees", f"{user} is a name"], type="preference")
            await runtime.settle()
        alice = runtime.user("alice")
        await alice.session("one").rewind(9)
        await alice.session("two").flush()
        await runtime.settle()
        await alice.session("two").clear()
        await alice.prune(keep=14)
        await runtime.settle()


async def differences(directory: Path) -> list[Difference]:
    async with offline(directory, CONFIG) as memory, memory.scan() as scan:
        return [one async for one in compare_index(memory.journal, scan)]


def kinds(found: list[Difference]) -> list[str]:
    return sorted(one.finding.kind for one in found)


@asynccontextmanager
async def tables(memory: Offline) -> AsyncIterator[Any]:
    """LanceDB behind remora's back."""
    import lancedb  # noqa: PLC0415

    database = await lancedb.connect_async(str(memory.place))
    yield database
    database.close()


async def agree(directory: Path) -> None:
    """What repair and backup do with what they find."""
    async with offline(directory, CONFIG) as memory, memory.store() as store:
        await align_index(memory, store)
    async with open_runtime(directory, blocks=[VectorMemoryBlock(name="past")]) as runtime:
        await runtime.reembedded()
        await runtime.settle()


async def test_nothing_is_amiss_in_what_remora_wrote(tmp_path: Path) -> None:
    """G7: folds, flushes, blocks, memories, rewinds, clears and prunes leave exactly the rows that
    the journal expects.
    """
    await fill(tmp_path)
    assert await differences(tmp_path) == []


async def test_each_kind_of_damage_is_named_and_mended(tmp_path: Path) -> None:
    """G1, G7: rows deleted, doubled, moved, altered, made up: each is named; what is mended agrees,
    and holds what it held.
    """
    await fill(tmp_path)
    async with offline(tmp_path, CONFIG) as memory, tables(memory) as database:
        async with memory.scan() as scan:
            before = {row.id async for rows in scan.users() for row in rows.rows}
        bob = digests_of(tmp_path).user("bob")
        mine = table_of(bob, 3)
        table = await database.open_table(mine)
        key = f"user_key = '{bob}'"
        found = await table.query().where(f"{key} AND memory_type = 'message'").to_arrow()
        bobs = found.sort_by("seq")
        lost, doubled, moved, altered = (
            row_id(SessionKey("bob", "one"), seq) for seq in (1, 2, 3, 4)
        )
        facts = (
            await table.query()
            .where(f"{key} AND memory_type = 'preference'")
            .select(["id"])
            .to_arrow()
        )
        fact = facts.column("id")[0].as_py()

        def only(id_: str) -> Any:
            import pyarrow.compute as pc  # noqa: PLC0415

            return bobs.filter(pc.equal(bobs.column("id"), id_))

        other = next(name for name in (await database.list_tables()).tables if name != mine)
        await (await database.open_table(other)).add(only(moved))
        await table.add(only(doubled))
        await table.delete(f"id IN ('{lost}', '{fact}', '{moved}')")
        await table.update({"seq": 99}, where=f"id = '{altered}'")
        stranger = only(doubled).to_pylist()[0]
        foreign = {**stranger, "id": "0" * 32, "user_id": "mallory"}
        unknown = {**stranger, "id": "1" * 32, "session_id": "never"}
        import pyarrow as pa  # noqa: PLC0415

        await table.add(pa.Table.from_pylist([foreign, unknown], schema=bobs.schema))
    found_now = await differences(tmp_path)
    assert kinds(found_now) == [
        "doubled",
        "foreign",
        "foreign",
        "missing",
        "missing",
        "orphan",
        "orphan",
    ]
    told = "\n".join(
        f"{one.finding.kind} {one.finding.where} {one.finding.detail}" for one in found_now
    )
    for text in (
        "missing bob / one 3 messages 1, 3-4",
        f"missing bob 1 memory {fact}",
        "foreign mallory",
        "bob / never",
        other,
    ):
        assert text in told
    await agree(tmp_path)
    assert await differences(tmp_path) == []
    async with offline(tmp_path, CONFIG) as memory, memory.scan() as scan:
        after = [row.id async for rows in scan.users() for row in rows.rows]
    assert sorted(after) == sorted(before)


async def test_a_message_of_another_time_under_the_same_number(tmp_path: Path) -> None:
    """G7: a row that outlived its message, whose number another one got since, is no row of that
    one.
    """
    await fill(tmp_path)
    id_ = row_id(SessionKey("bob", "two"), 2)
    async with offline(tmp_path, CONFIG) as memory, tables(memory) as database:
        table = await database.open_table(table_of(digests_of(tmp_path).user("bob"), 3))
        await table.update(
            updates_sql={
                "created_at": "arrow_cast(1000000, 'Timestamp(Microsecond, Some(\"UTC\"))')"
            },
            where=f"id = '{id_}'",
        )
    found = await differences(tmp_path)
    assert kinds(found) == ["missing", "orphan"]
    assert all(one.finding.where == "bob / two" for one in found)
    await agree(tmp_path)
    assert await differences(tmp_path) == []


async def test_a_table_that_cannot_be_read_is_one_finding(tmp_path: Path) -> None:
    """G7: of users whose table is broken nothing is said to be missing; of the others everything is
    compared.
    """
    await fill(tmp_path)
    name = table_of(digests_of(tmp_path).user("bob"), 3)

    def zero() -> None:
        manifests = sorted(
            (tmp_path / "longterm" / f"{name}.lance" / "_versions").glob("*.manifest")
        )
        manifests[0].write_bytes(bytes(manifests[0].stat().st_size))

    await anyio.to_thread.run_sync(zero)
    async with offline(tmp_path, CONFIG) as memory, memory.scan() as scan:
        found = [one async for one in compare_index(memory.journal, scan)]
        assert list(scan.broken) == [name]
    assert found == []


async def test_what_is_being_forgotten_is_no_orphan(tmp_path: Path) -> None:
    """G13: after a crash between the journal's part of an erasure and long-term memory's, verify
    says that it is not finished.
    """
    await fill(tmp_path)
    async with offline(tmp_path, CONFIG) as memory:
        await memory.journal.erase("bob")
        await memory.journal.erase("erin", "one")
    assert await differences(tmp_path) == []
    found = await verify(tmp_path, CONFIG)
    assert {one.kind for one in found.findings} == {"erasure"}
    assert not any(
        name in f"{one.where} {one.detail}" for one in found.findings for name in ("bob", "erin")
    )
    async with offline(tmp_path, CONFIG) as memory:
        for note in await memory.journal.erasures():
            await memory.journal.finish_erasure(
                note.number
            )  # and long-term memory still has the rows
    found = await verify(tmp_path, CONFIG)
    assert {(one.kind, one.where) for one in found.findings} == {
        ("orphan", "bob"),
        ("orphan", "erin / one"),
    }


async def test_rows_of_trimmed_messages_stay(tmp_path: Path) -> None:
    """G6, G7: what retention took out of the journal is still long-term memory's, and nothing is
    amiss.
    """
    await fill(tmp_path)
    async with offline(tmp_path, CONFIG) as memory:
        assert await memory.journal.trim(Retention(max_messages=1), 2**60)
    assert await differences(tmp_path) == []
    assert (await verify(tmp_path, CONFIG, deep=True)).clean
