"""What is erased from long-term memory is in no file of it, whatever was done to the rows, and
whenever a crash interrupts it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora.errors import LongTermError
from remora.ids import session_key, user_key
from remora.storage.lance.shard import Shard
from remora.storage.lance.store import LanceStore
from remora.storage.ports import MemoryRow
from remora.testing import count_probes
from tests.lance import copied, data_files, held, lance, put, rows_of, vectors_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

OTHERS = ("bob", "carol")
USER = "victim@example"
VICTIM = user_key(USER)
RARE = "zyzzyva"


def secrets(session: str = "s-qoph", numbers: range = range(8)) -> list[MemoryRow]:
    """Rows of every type, with something of the user's own in every field."""
    kinds = ("message", "summary", "fact", "block")
    return [
        row
        for n in numbers
        for row in rows_of(
            USER, [n], session=session, agent=f"agent-{RARE}", speaker=f"speaker-{RARE}", memory_type=kinds[n % 4],  # noqa: E501
            turn=f"{RARE}turn{n} said it", window=f"{RARE}window{n} around it",
        )
    ]  # fmt: skip


def needles(rows: Sequence[MemoryRow]) -> list[bytes]:
    """All that would give them away: words, ids, digests, and vectors, whole or a piece of them."""
    texts = {RARE, rows[0].user, user_key(rows[0].user)}
    for row in rows:
        texts |= {row.id, row.session, session_key(row.user, row.session)}
    pieces = [
        vector.tobytes()[start : start + 12] for vector in vectors_of(rows) for start in (0, 64)
    ]
    return [text.encode() for text in sorted(texts)] + pieces


def hits(base: Path, wanted: Sequence[bytes]) -> list[tuple[str, bytes]]:
    found = []
    for path in base.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found += [(str(path.relative_to(base)), one) for one in wanted if one in data]
        found += [(str(path), one) for one in wanted if one in path.name.encode()]
    return found


def left_of_it(base: Path) -> list[tuple[str, bytes]]:
    """What files still have of the victim."""
    return hits(base, needles(EVERYTHING))


async def first_found(store: LanceStore, user: str, text: str) -> list[str]:
    return [one.row.id for one in await store.search(user, text, None, depth=1)]


async def _lived_in(base: Path) -> list[MemoryRow]:
    """A store in which the victim's rows are wherever LanceDB puts rows: returns those of the
    others.
    """
    others = [row for user in OTHERS for row in rows_of(user, range(40))]
    mine = secrets()
    async with lance(base, compact_fragments=1, index_user_rows=1) as store:
        for start in range(0, 40, 10):
            some = others[start : start + 10] + others[40 + start : 50 + start]
            await put(store, some + mine[start // 5 : start // 5 + 2])
            await store.compact()
        await put(store, [*mine, *others[:3]], may_exist=True)  # its log has what a merge was given
        # out of sight, and its predicate in the log
        await store.delete(USER, [mine[0].id, mine[1].id])
        await put(store, REST)
        (shard,) = store.tables.shards.values()
        lost = zip(LOST, vectors_of(LOST), strict=True)  # never acknowledged: what a crash leaves
        await shard.table.add(store.tables.rows.table(lost))
    (base / "mem_000.lance" / "data" / ".tmpX1y2Z3").write_text(f"{RARE} {VICTIM}")
    return others


REST, LOST = secrets("s-kaf", range(90, 93)), secrets("s-lost", range(30, 33))
EVERYTHING = [*secrets(), *REST, *LOST]


async def test_no_byte_is_left(tmp_path: Path) -> None:
    """G13: text, ids, digests, vectors: in no data file, index, log, older version or quarantined
    file; others are whole.
    """
    base = tmp_path / "lance"
    others = await _lived_in(base)
    before = {needle for _, needle in hits(base, needles(EVERYTHING))}
    assert {RARE.encode(), VICTIM.encode(), USER.encode()} <= before
    assert len(before) > 20  # what is looked for can be found
    async with lance(base, index_user_rows=1) as store:
        assert list((base / "quarantine").iterdir())
        (base / "mem_000.lance" / "data" / ".tmpA1b2C3").write_bytes(RARE.encode())
        assert await store.erase(VICTIM) == 6 + 3
        assert not left_of_it(base)
        assert await held(store, [*OTHERS, USER]) == sorted(row.id for row in others)
        for n in (3, 33):
            query = vectors_of(rows_of("bob", [n]))[0]
            found = await store.search("bob", f"number{n}", query, depth=3)
            assert f"bob-{n}" in {one.row.id for one in found}
        assert list(await store.verify(deep=True)) == []
        await put(store, rows_of("dora", range(3)))
    async with lance(base) as store:
        assert len(await held(store, OTHERS)) == 80
        assert not left_of_it(base)


async def test_no_byte_of_a_session_is_left(tmp_path: Path) -> None:
    """G13: of one session likewise, and the user keeps the rest."""
    base = tmp_path / "lance"
    await _lived_in(base)
    kept = needles(REST)
    wanted = [needle for needle in needles(secrets()) if needle not in kept]
    async with lance(base, index_user_rows=1) as store:
        assert await store.erase(VICTIM, session_key(USER, "s-qoph")) == 6
        assert hits(base, wanted) == []
        assert await held(store, [USER]) == sorted(row.id for row in REST)


@pytest.mark.parametrize("directory", ["memory", None])
async def test_erasures_side_by_side(tmp_path: Path, directory: str | None) -> None:
    """G13: those of several tables at once warn of nothing, leave no older version, and leave the
    warnings of the process as they were.
    """
    users = [f"user-{n}" for n in range(12)]
    path = None if directory is None else tmp_path / directory
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before = list(warnings.filters)
        async with lance(path, shards=4) as store:
            for user in (*users, *OTHERS):
                await put(store, rows_of(user, range(3)))
            async with anyio.create_task_group() as tasks:
                for user in users:
                    tasks.start_soon(store.erase, user_key(user))
            assert await held(store, users) == []
            assert len(await held(store, OTHERS)) == 6
            assert len(store.tables.shards) == 4
            for shard in store.tables.shards.values():
                assert len(await shard.table.list_versions()) == 1
        assert warnings.filters == before


async def test_the_last_rows_of_a_table(tmp_path: Path) -> None:
    """G13: where nobody else is in the table; and it takes rows again."""
    base = tmp_path / "lance"
    async with lance(base) as store:
        await put(store, secrets())
        assert await store.erase(VICTIM) == 8
        assert not left_of_it(base)
        assert await store.erase(VICTIM) == 0
        await put(store, rows_of("bob", range(3)))
        assert await first_found(store, "bob", "number2") == ["bob-2"]


async def test_rows_that_wait_for_their_commit(tmp_path: Path) -> None:
    """G13: rows that are queued are erased, too; whoever brought them is not left waiting, and the
    rows of others that came with them are stored.
    """
    base = tmp_path / "lance"
    async with lance(base, batch_ms=60_000, batch_rows=12) as store:
        with count_probes() as counts:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(put, store, [*secrets(), *rows_of("bob", range(3))])
                await anyio.wait_all_tasks_blocked()
                await store.erase(VICTIM)
                await put(store, rows_of("carol", range(12)))  # as many as are committed at once
        assert counts["queued_rows_dropped"]
        assert await first_found(store, "bob", "number2") == ["bob-2"]
    assert not left_of_it(base)


async def test_a_table_that_was_put_aside(tmp_path: Path) -> None:
    """G13: what was put aside as damaged is erased as well, whether there is a table in its place
    or not.
    """
    base = tmp_path / "lance"
    for again in (False, True):
        async with lance(base) as store:
            await put(store, secrets()[:4], may_exist=True)
            await put(store, secrets()[4:], may_exist=True)
        data_files(base)[-1].unlink()
        async with lance(base) as store:
            assert store.refill_needed
            assert left_of_it(base)
            if again:
                await put(store, rows_of("bob", range(3)))
            assert await store.erase(VICTIM) == 0
            assert not left_of_it(base)


class _Crash(Exception):
    """The process is gone."""


STEPS = ("add", "set_unenforced_primary_key", "create_index", "optimize")
SYNCHRONOUS_STEPS = ("record", "purge", "remove_unlisted")


class _Watched:
    """A handle or a table's files that stop the process when a step is done, and the next is not
    begun.
    """

    def __init__(self, inner: Any, plan: list[int]) -> None:
        self._inner = inner
        self._plan = plan

    def _step(self) -> None:
        self._plan[0] -= 1
        if self._plan[0] == 0:
            raise _Crash

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def asynchronous(*args: Any, **options: Any) -> Any:
            result = await found(*args, **options)
            self._step()
            return result

        def synchronous(*args: Any, **options: Any) -> Any:
            result = found(*args, **options)
            self._step()
            return result

        if name in STEPS:
            return asynchronous
        return synchronous if name in SYNCHRONOUS_STEPS else found


async def test_a_crash_at_any_step(tmp_path: Path) -> None:
    """G6, G13: wherever an erasure is cut off, others' rows are whole at the next start, and done
    again it leaves nothing.
    """
    original = tmp_path / "original"
    others = sorted(row.id for row in await _lived_in(original))
    crashes = 0
    for step in range(1, 60):
        base = await copied(original, tmp_path / str(step))
        plan = [step]
        try:
            async with lance(base, index_user_rows=1, words_from=1) as store:
                (shard,) = store.tables.shards.values()
                _watch(shard, plan)
                await store.erase(VICTIM)
        except (_Crash, LongTermError, ExceptionGroup):
            crashes += 1
        if plan[0] > 0:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with lance(base, index_user_rows=1) as store:
                assert not store.refill_needed
                assert await held(store, OTHERS) == others, step
                vector = vectors_of(rows_of("bob", [7]))[0]
                found = await store.search("bob", "number7", vector, depth=3)
                assert "bob-7" in {one.row.id for one in found}
                assert len(await store.rows(USER)) in {0, 9}
                await store.erase(VICTIM)
                assert not left_of_it(base), step
                assert await held(store, [*OTHERS, USER]) == others
                assert list(await store.verify(deep=True)) == []
    assert crashes == step - 1 > 7


def _watch(shard: Shard, plan: list[int]) -> None:
    reopen: Any = shard.reopen

    async def watched() -> Any:
        return _Watched(await reopen(), plan)

    shard.reopen = watched
    shard.files = _Watched(shard.files, plan)  # type: ignore[assignment]


async def test_an_erasure_that_fails_is_no_obstacle(tmp_path: Path) -> None:
    """G11, G13: after one that failed half-way, in the same process, others write and read on, and
    it can be done again.
    """
    base = tmp_path / "lance"
    others = await _lived_in(base)
    async with lance(base, index_user_rows=1) as store:
        (shard,) = store.tables.shards.values()
        for step in (1, 3, 6):
            reopen, files = shard.reopen, shard.files
            _watch(shard, [step])
            with pytest.raises(_Crash):
                await store.erase(VICTIM)
            shard.reopen, shard.files = reopen, files
            await put(store, rows_of("bob", range(100 + step, 101 + step)))
            assert await first_found(store, "bob", f"number{100 + step}") == [f"bob-{100 + step}"]
        assert await store.erase(VICTIM) in {0, 9}
        assert not left_of_it(base)
        assert len(await held(store, OTHERS)) == len(others) + 3
