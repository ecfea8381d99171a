"""Long-term memory finds users by digests under a key of its own, which is in the journal alone."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import numpy as np
import pytest

from remora import Config, Runtime
from remora.blocks import VectorMemoryBlock
from remora.errors import ErasureInProgress, InvalidId, LongTermError
from remora.ids import UNKEYED, Digests, session_key, user_key
from remora.maintenance.offline import offline
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.services import index_directory
from remora.storage.erasure_notes import DIGEST_KEYS
from remora.storage.lance.store import LanceStore
from remora.testing import HashEmbedder
from remora.testing.stores import DIMENSION
from tests.copies import copy_memory
from tests.embedders import NotingEmbedder
from tests.lance import digest_keys, digests_of, lance, put, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves look into directories

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "shards": 2},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 600},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02},
    }
)
CANARY = "qzvk"
VICTIM = f"{CANARY}victim"
USERS = (VICTIM, "bob", "erin")


def says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def runtime_on(directory: Path, embedder: HashEmbedder | None = None, **options: Any) -> Runtime:
    config = options.pop("config", CONFIG)
    blocks = [VectorMemoryBlock(name="past")]
    return Runtime(
        directory, config=config, embedder=embedder or HashEmbedder(), blocks=blocks, **options
    )


async def fill(where: Path) -> dict[str, Any]:
    """Messages, memories, working memory and a block's rows of three users; what is stored."""
    async with runtime_on(where) as runtime:
        for user in USERS:
            for session in ("one", "two"):
                chat = runtime.session(user, session)
                for number in range(14):
                    text = f"{user} said number {number} in {session}, of ferries and bridges"
                    await chat.append(says(text))
                await chat.flush()
            await runtime.user(user).remember([f"{user} keeps bees", f"{user} has maps"])
            await runtime.user(user).learn([f"{user} takes the ferry at nine"])
        await runtime.settle()
        return await held(runtime)


async def held(runtime: Runtime, users: Sequence[str] = USERS) -> dict[str, Any]:
    """Each user's rows with their vectors, and what recall finds."""
    store = await runtime.internals.long_term()
    found: dict[str, Any] = {}
    for user in users:
        rows, vectors = await store.embedded_rows(user)
        assert vectors is not None
        kept = sorted(zip(rows, map(bytes, vectors), strict=True), key=lambda one: one[0].id)
        found[user] = [kept, [hit.id for hit in await runtime.user(user).recall("bees", limit=5)]]
    assert len(await store.row_ids()) == sum(len(rows) for rows, _ in found.values())
    return found


class Filled(NamedTuple):
    """A closed memory that `fill` left, and what it held."""

    where: Path
    held: dict[str, Any]


def filled_at(where: Path) -> Filled:
    return Filled(where, anyio.run(fill, where))


@pytest.fixture(scope="module")
def of_today(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    return filled_at(tmp_path_factory.mktemp("today") / "memory")


@pytest.fixture(scope="module")
def of_before_keys(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    with pytest.MonkeyPatch.context() as before_keys:
        before_keys.setattr(index_directory, "draw_key", lambda *_: "")
        return filled_at(tmp_path_factory.mktemp("earlier") / "memory")


@pytest.fixture
def memory(of_today: Filled, tmp_path: Path) -> Filled:
    """A copy of a memory that has a key."""
    return of_today._replace(where=copy_memory(of_today.where, tmp_path / "memory"))


@pytest.fixture
def earlier(of_before_keys: Filled, tmp_path: Path) -> Filled:
    """A copy of one that has none, as before there were keys."""
    return of_before_keys._replace(where=copy_memory(of_before_keys.where, tmp_path / "memory"))


def traces(directory: Path, *needles: str) -> list[str]:
    return [
        f"{path.relative_to(directory)}: {needle}"
        for path in directory.rglob("*")
        for needle in needles
        if needle in path.name or (path.is_file() and needle.encode() in path.read_bytes())
    ]


def directories(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir() if path.name.startswith("longterm"))


def set_keys(directory: Path, value: str | None) -> None:
    """Change the setting behind remora's back."""
    with closing(sqlite3.connect(directory / "journal.db")) as journal, journal:
        if value is None:
            journal.execute("DELETE FROM settings WHERE name = ?", (DIGEST_KEYS,))
        else:
            journal.execute("UPDATE settings SET value = ? WHERE name = ?", (value, DIGEST_KEYS))


# -- digests ---------------------------------------------------------------------------------------


def test_digests_of_before_stay() -> None:
    """G7: without a key they are what earlier remoras stored; under a key they are others."""
    assert user_key("alice") == "a22506e49fc81ec2c645328adbf97efa"
    assert session_key("alice", "chat") == "cf79bccb3431137660ed3ad29f8d3357"
    assert UNKEYED.owner("alice", "chat") == (user_key("alice"), session_key("alice", "chat"))
    assert UNKEYED.owner("alice", None) == (user_key("alice"), "")
    keys = ("", "a", "b", "b" * 64, "ü" * 64)
    assert len({Digests(key).user("alice") for key in keys}) == len(keys)
    assert len({Digests(key).session("alice", "chat") for key in keys}) == len(keys)


# -- a new memory ----------------------------------------------------------------------------------


async def test_nobody_can_compute_them(memory: Filled, tmp_path: Path) -> None:
    """G13: no file has a digest that can be computed from an id; the key is in the journal alone,
    and another directory has another.
    """
    where, another = memory.where, tmp_path / "another"
    async with runtime_on(another) as runtime:
        await runtime.user(VICTIM).remember(["keeps bees"])
        await runtime.settle()
    own = digests_of(where)
    (key,), (other,) = digest_keys(where), digest_keys(another)
    assert len(key) == 64
    assert key != other
    assert traces(tmp_path, user_key(VICTIM), session_key(VICTIM, "one")) == []
    assert traces(where / "longterm", own.user(VICTIM))
    assert traces(another / "longterm", digests_of(another).user(VICTIM))
    assert traces(another, own.user(VICTIM)) == []
    assert {line.partition(".")[0] for line in traces(where, key)} == {"journal"}
    found = await verify(where, CONFIG, deep=True)
    assert found.findings == ()


async def test_the_key_is_shown_nowhere(
    memory: Filled, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """G13: not in log lines at DEBUG, exports, or what `verify`, `repair` and errors say."""
    caplog.set_level(logging.DEBUG)
    where = memory.where
    (key,) = digest_keys(where)
    async with runtime_on(where) as runtime:
        await runtime.session(VICTIM, "one").append(says("of ferries"))
        await runtime.settle()
        (tmp_path / "exported").mkdir()
        await runtime.export(tmp_path / "exported" / "all.jsonl")
        await runtime.export(tmp_path / "exported" / "tables")
        store = await runtime.internals.long_term()
        assert isinstance(store, LanceStore)
        assert key not in f"{store.tables.digests!r} {runtime!r} {runtime.internals.index!r}"
    async with offline(where, CONFIG) as opened:
        assert key not in repr(opened)
    set_keys(where, json.dumps(["0" * 64]))
    told = repr([await verify(where, CONFIG, deep=True), await repair(where, CONFIG)])
    assert "another key" in told
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert not [one for one in (*lines, told) if key in one or "0" * 64 in one]
    assert traces(tmp_path / "exported", key) == []


async def test_copies_are_found_by_the_same_key(memory: Filled, tmp_path: Path) -> None:
    """G7: a backup has the journal's key, and so do its tables; an import has a key of its own."""
    where, before = memory
    async with runtime_on(where) as runtime:
        await runtime.backup(tmp_path / "backup")
        await runtime.export(tmp_path / "all.jsonl")
    assert digest_keys(tmp_path / "backup") == digest_keys(where)
    assert (await verify(tmp_path / "backup", CONFIG, deep=True)).findings == ()
    async with runtime_on(tmp_path / "backup") as runtime:
        assert await held(runtime) == before
        await runtime.user(VICTIM).forget()
    assert traces(tmp_path / "backup", CANARY, digests_of(where).user(VICTIM)) == []
    async with runtime_on(tmp_path / "imported") as runtime:
        await runtime.import_(tmp_path / "all.jsonl")
        await runtime.settle()
        recalled = await runtime.user("bob").recall("bees", limit=1)
        assert recalled[0].text == "bob keeps bees"
    assert digest_keys(tmp_path / "imported") != digest_keys(where)


# -- a memory of before there were keys ------------------------------------------------------------


async def test_no_model_is_called_for_it(earlier: Filled) -> None:
    """G7: every row, vector and answer stays as it is, those of memory blocks included, and nothing
    is embedded; so it can be done while the runtime serves.
    """
    where, before = earlier
    assert digest_keys(where) == [""]
    embedder = NotingEmbedder()
    async with runtime_on(where, embedder) as runtime:
        assert runtime.reembedding is None, "it is not begun without being asked for"
    async with runtime_on(where, embedder, reembed=True) as runtime:
        await runtime.reembedded()
        assert embedder.texts == []
        assert await held(runtime) == before
    assert directories(where) == ["longterm-2"]
    assert len(digest_keys(where)) == 1
    assert traces(where, user_key(VICTIM)) == []
    async with runtime_on(where, embedder, reembed=True) as runtime:
        assert runtime.reembedding is None, "once is enough"
    assert (await verify(where, CONFIG, deep=True)).findings == ()


async def test_another_embedder_gives_it_a_key_too(earlier: Filled) -> None:
    """G7: vectors of another embedder are not taken over."""
    where = earlier.where
    embedder = NotingEmbedder(96)
    async with runtime_on(where, embedder, reembed=True) as runtime:
        await runtime.reembedded()
        assert len(embedder.texts) > 3 * 28
        store = await runtime.internals.long_term()
        vectors = (await store.embedded_rows("bob"))[1]
        assert vectors is not None
        assert vectors.shape[1] == 96
    assert len(digest_keys(where)[0]) == 64


async def test_a_directory_that_is_gone_gets_a_key(earlier: Filled) -> None:
    """G7: no row needs the empty key any more."""
    where, before = earlier
    (where / "longterm").rename(where / "moved-away")
    async with runtime_on(where) as runtime:
        await runtime.reembedded()
        found = await held(runtime)
    for user in USERS:  # what memory blocks had stored is gone with the directory
        kept = {row.id for row, _ in before[user][0] if row.memory_type != "block"}
        assert {row.id for row, _ in found[user][0]} == kept
    assert len(digest_keys(where)[0]) == 64


class _Stuck:
    """Lets so many calls of `LanceStore.add` through."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, calls: int) -> None:
        self.reached = anyio.Event()
        self.free = anyio.Event()
        self._left = calls
        add = LanceStore.add

        async def some(store: LanceStore, *arguments: Any, **options: Any) -> None:
            self._left -= 1
            if self._left < 0:
                self.reached.set()
                await self.free.wait()
            await add(store, *arguments, **options)

        monkeypatch.setattr(LanceStore, "add", some)


@pytest.mark.parametrize("calls", [0, 1, 4])
async def test_cut_off_and_gone_on_with(earlier: Filled, calls: int) -> None:
    """G7, G12: closed in the middle; the next start goes on, whatever it is asked."""
    where, before = earlier
    with pytest.MonkeyPatch.context() as patched:
        stuck = _Stuck(patched, calls)
        async with runtime_on(where, reembed=True):
            await stuck.reached.wait()
    assert directories(where) == ["longterm", "longterm-2"]
    assert digest_keys(where)[1:] == [""]
    async with runtime_on(where) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
    assert directories(where) == ["longterm-2"]
    assert len(digest_keys(where)) == 1


@pytest.mark.parametrize("calls", [0, 4])
async def test_forgotten_in_the_middle(
    earlier: Filled, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    """G13: a user and a session are forgotten while rows are under both keys: no byte is left of
    them when `forget` returns, nor in the end.
    """
    where, before = earlier
    stuck = _Stuck(monkeypatch, calls)
    async with runtime_on(where, reembed=True) as runtime:
        await stuck.reached.wait()
        stuck.free.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.user(VICTIM).forget)
            tasks.start_soon(runtime.session("bob", "one").forget)
        gone = [CANARY, user_key(VICTIM), digests_of(where).user(VICTIM), "of ferries and b"]
        assert traces(where, *gone[:3]) == []
        await runtime.reembedded()
        left = await held(runtime, ("bob", "erin"))
        assert {row.session for row, _ in left["bob"][0]} <= {"two", ""}
        assert left["erin"] == before["erin"]
    assert traces(where, *gone[:3]) == []


@pytest.mark.parametrize("begun", [False, True], ids=["before it", "in the middle"])
async def test_an_erasure_that_crashed(earlier: Filled, *, begun: bool) -> None:
    """G13: the journal has forgotten, and the process died before long-term memory had: with a note
    of before there were keys, or one that was left in the middle of the change.
    """
    where, before = earlier
    if begun:
        with pytest.MonkeyPatch.context() as patched:
            stuck = _Stuck(patched, 1)
            async with runtime_on(where, reembed=True):
                await stuck.reached.wait()
    async with offline(where, CONFIG) as opened:
        await opened.journal.erase(VICTIM)
        await opened.journal.erase("bob", "one")
        notes = await opened.journal.erasures()
        assert [len(note.owners) for note in notes] == [1 + begun] * 2
        assert (user_key(VICTIM), "") in notes[0].owners
    found = await verify(where, CONFIG)
    assert {one.kind for one in found.findings} == {"erasure"}, found.findings
    async with runtime_on(where, reembed=True) as runtime:
        assert await runtime.retry_erasures() == []
        assert traces(where, user_key(VICTIM), digests_of(where).user(VICTIM)) == []
        await runtime.reembedded()
        left = await held(runtime, ("bob", "erin"))
        assert {row.session for row, _ in left["bob"][0]} <= {"two", ""}
        assert left["erin"] == before["erin"]
        assert (await runtime.session(VICTIM, "one").append(says("back"))).seqs == (1,)
        await runtime.user(VICTIM).forget()
    assert traces(where, CANARY) == []


async def test_forgotten_as_the_rebuild_ends(
    earlier: Filled, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """G13: old directories are not removed while an erasure has them open; it does not fail."""
    where = earlier.where
    complete, erase, asked = anyio.Event(), LanceStore.erase, anyio.Event()

    async def erase_as_it_ends(store: LanceStore, *owner: Any) -> int:
        asked.set()
        await complete.wait()
        await anyio.wait_all_tasks_blocked()
        return await erase(store, *owner)

    async with offline(where, CONFIG) as opened:
        await opened.journal.erase(VICTIM)
    monkeypatch.setattr(LanceStore, "erase", erase_as_it_ends)
    async with runtime_on(where, reembed=True) as runtime:
        change = runtime.internals.journal.change_settings

        async def change_settings(settings: dict[str, str]) -> None:
            if settings == {"reembed": ""}:
                await asked.wait()
                complete.set()
            await change(settings)

        monkeypatch.setattr(runtime.internals.journal, "change_settings", change_settings)
        await runtime.reembedded()
        assert await runtime.retry_erasures() == []
    assert traces(where, CANARY, user_key(VICTIM)) == []
    assert "erasure_failed" not in caplog.text
    assert directories(where) == ["longterm-2"]


async def test_refused_while_it_is_erased_after_a_restart(
    memory: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: a note under a key refuses the user, and nobody else, as one without a key did."""
    where = memory.where
    async with offline(where, CONFIG) as opened:
        await opened.journal.erase(VICTIM)

    async def broken(*_: Any) -> int:
        raise LongTermError("away", retryable=True)

    with monkeypatch.context() as away:
        away.setattr(LanceStore, "erase", broken)
        async with runtime_on(where) as runtime:
            (waiting,) = runtime.erasures(VICTIM)
            assert runtime.erasures() == [waiting]
            assert runtime.erasures("bob") == []
            with pytest.raises(InvalidId):
                runtime.erasures("")
            assert waiting.user_key == digests_of(where).user(VICTIM)
            for ask in (runtime.user(VICTIM).memories, runtime.session(VICTIM, "new").load):
                with pytest.raises(ErasureInProgress):
                    await ask()
            assert await runtime.session("bob", "one").history()
    async with runtime_on(where) as runtime:
        assert await runtime.retry_erasures() == []
        await runtime.session(VICTIM, "one").append(says("back"))


# -- a key that is lost ----------------------------------------------------------------------------

LOST = {
    "gone": None,
    "another": json.dumps(["f" * 64]),
    "unreadable": '["',
    "no list": "7",
    "empty": "[]",
}


@pytest.mark.parametrize(
    ("value", "repaired"), [*((value, False) for value in LOST.values()), (None, True)]
)
async def test_a_lost_key_is_noticed(memory: Filled, value: str | None, *, repaired: bool) -> None:
    """G6, G7, G13: tables that no digest fits are no empty tables: `verify` names them, the next
    start writes the rows again, and who is forgotten then leaves no byte in what was put aside.
    `remora repair` says what it puts aside.
    """
    where, before = memory
    own = digests_of(where).user(VICTIM)
    set_keys(where, value)
    found = await verify(where, CONFIG)
    assert any("another key" in one.detail for one in found.findings), found.findings
    if repaired:
        report = await repair(where, CONFIG)
        assert any("quarantine" in line for line in report.done)
    async with runtime_on(where) as runtime:
        await runtime.reembedded()
        now = await held(runtime)
        for user in USERS:  # what memory blocks had stored is put aside
            kept = {row.id for row, _ in before[user][0] if row.memory_type != "block"}
            assert {row.id for row, _ in now[user][0]} == kept
        assert traces(where / "longterm" / "quarantine", own)
        await runtime.user(VICTIM).forget()
        assert traces(where, CANARY, own) == []
    assert (await verify(where, CONFIG, deep=True)).findings == ()


async def test_tables_of_another_key_at_an_address(tmp_path: Path) -> None:
    """G7: where nothing can be put aside, it is refused, without the address or a key."""
    keys = ("1" * 64, "2" * 64)
    async with lance(str(tmp_path / "place"), digests=Digests(keys[0])) as store:
        await put(store, rows_of("alice", range(3)))
    async with lance(str(tmp_path / "place"), digests=Digests(keys[0])) as store:
        assert len(await store.rows("alice")) == 3
    config = CONFIG.long_term
    address = f"file://{tmp_path / 'place'}"
    with pytest.raises(LongTermError, match="another key") as told:
        await LanceStore.open(address, dimension=DIMENSION, config=config, digests=Digests(keys[1]))
    assert not [one for one in (*keys, str(tmp_path)) if one in repr(told.value)]


async def test_a_few_damaged_rows_are_no_other_key(tmp_path: Path) -> None:
    """G1: one row under another's digest does not cost the table."""
    base, digests = tmp_path / "lance", Digests("k")
    async with lance(base, digests=digests) as store:
        await put(store, rows_of("alice", range(6)))
        (shard,) = store.tables.shards.values()
        await shard.table.update({"user_key": "0" * 32}, where="id = 'alice-0'")
        await shard.record(0.0)
    async with lance(base, digests=digests) as store:
        assert len(await store.rows("alice")) == 5
        assert [one.kind for one in await store.verify()] == ["foreign"]


# -- stores that are not LanceDB in the directory --------------------------------------------------


async def test_a_store_of_the_applications_own(memory: Filled) -> None:
    """G13: it is asked by digests that it can compute, also where LanceDB was used before."""
    from remora.storage.memory import MemoryStore  # noqa: PLC0415

    where = memory.where
    store = MemoryStore(64)
    for enabled in (True, False):
        long_term = {"enabled": enabled, "batch_ms": 1, "shards": 2}
        config = Config.from_dict({"long_term": long_term, "tokens": {"counter": "heuristic"}})
        async with Runtime(where, config=config, embedder=HashEmbedder(), store=store) as runtime:
            await put_rows(store)
            await runtime.session("erin", "one").append(says("hello"))
            await runtime.user("erin").forget()
            assert await store.rows("erin") == []
            assert traces(where, digests_of(where).user("erin")) == []


async def put_rows(store: Any) -> None:
    rows = rows_of("erin", range(3))
    await store.add(rows, np.ones((3, 64), np.float32), may_exist=True)
