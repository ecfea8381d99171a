"""Another embedder: long-term memory is made anew from the journal, beside a runtime that serves,
whatever is cut off when.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from remora import BufferPolicy, Config, Runtime
from remora.blocks import VectorMemoryBlock
from remora.errors import ConfigError, EmbedderChanged, ModelAnswerInvalid, ModelUnavailable
from remora.storage.lance.store import LanceStore
from remora.storage.memory import MemoryJournal
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.harness import user
from tests.lance import data_files, newest, record_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves look into directories

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "shards": 2},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 600},
        "supervisor": {
            "backoff_s": 0.001,
            "max_backoff_s": 0.002,
            "max_attempts": 3,
            "flush_concurrency": 2,
        },
    }
)
PLAIN = Config.from_dict(
    {
        "models": {"embedder": "none"},
        "tokens": {"counter": "heuristic"},
        "long_term": {"batch_ms": 1},
    }
)
Rows = dict[str, Any]
ENTRIES = BufferPolicy(above_messages=2, batch=2, fold="entry", entries=2)


class Renamed(HashEmbedder):
    """The same dimension under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.name = "renamed"


class Gated(HashEmbedder):
    """Embeds so many texts, and then waits; fails where it is told to."""

    def __init__(self, texts: int, failure: Exception | None = None) -> None:
        super().__init__(96)
        self.left = texts
        self.stuck = anyio.Event()
        self.failure = failure

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.left -= len(texts)
        if self.left < 0:
            self.stuck.set()
            if self.failure is not None:
                raise self.failure
            await anyio.sleep_forever()
        return await super().embed(texts)


def opened(where: Path, embedder: Any = None, **options: Any) -> Runtime:
    return Runtime(
        where, config=options.pop("config", CONFIG), embedder=embedder or HashEmbedder(), **options
    )


async def fill(where: Path, **options: Any) -> Rows:
    """Folded, flushed, cleared, deleted and pruned messages, memories, working memory; what
    long-term memory holds of them.
    """
    async with opened(where, **options) as runtime:
        for number in range(20):
            chat = runtime.session(f"u{number % 5}", f"s{number}")
            said = [f"Sentence {place} of {number} about ferries and bridges" for place in range(6)]
            await chat.append([user(text) for text in said])
            await chat.flush()
        odd = runtime.session("u0", "odd")
        for number in range(12):
            await odd.append(user(f"Odd sentence {number} about beehives"))
            await odd.settle()
        await odd.flush()
        await odd.settle()
        await odd.delete(positions=len(await odd.get_messages()) - 1)
        await odd.append([user("never flushed, then cleared")])
        await odd.clear()
        await odd.append([user("said after that, of beehives")])
        await odd.flush()
        await runtime.user("u1").remember(["Prefers metric units", "Keeps bees"])
        await runtime.user("u1").learn(["The ferry leaves at nine", "The key is under the pot"])
        await runtime.settle()
        await runtime.user("u2").prune(keep=10, strategy="fifo")
        await runtime.settle()
        return await held(runtime)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    where = tmp_path_factory.mktemp("filled") / "memory"
    return where, anyio.run(fill, where)


@pytest.fixture
def memory(filled: tuple[Path, Rows], tmp_path: Path) -> Path:
    """A copy of the closed memory that `fill` leaves."""
    return copy_memory(filled[0], tmp_path / "memory")


@pytest.fixture
def before(filled: tuple[Path, Rows]) -> Rows:
    """What that holds."""
    return filled[1]


async def held(runtime: Runtime) -> Rows:
    """All rows, by id; each is there once. Their windows may hold words that had not been said when
    they were first written.
    """
    store = await runtime.internals.long_term()
    users = sorted({key.user for key, _ in await runtime.internals.journal.indexed_through()})
    rows = [row for one in users for row in await store.rows(one)]
    assert sorted(row.id for row in rows) == sorted(await store.row_ids())
    found = {
        row.id: (
            row.user,
            row.session,
            row.seq,
            row.content,
            row.turn,
            row.memory_type,
            row.created_us,
        )
        for row in rows
    }
    assert len(found) == len(rows), "a row is there twice"
    return found


def directories(where: Path) -> list[str]:
    return sorted(path.name for path in where.iterdir() if path.name.startswith("longterm"))


def move_away(base: Path) -> None:
    base.rename(base.with_name("moved-away"))


def damage(base: Path) -> None:
    """Cut off a data file of the table that has most rows."""
    files = [path for path in base.rglob("*.lance") if path.parent.name == "data"]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])


def tables(base: Path) -> list[str]:
    """The names of those that have rows."""
    names = [path.name.partition(".")[0] for path in base.glob("*.synced.json")]
    return [name for name in names if record_of(base, name).files]


def remove_data_files(base: Path) -> None:
    for name in tables(base):
        data_files(base, name)[0].unlink()


def zero_manifests(base: Path) -> None:
    for name in tables(base):
        manifest = newest(base, name)
        manifest.write_bytes(bytes(manifest.stat().st_size))


@pytest.mark.parametrize("embedder", [HashEmbedder(96), Renamed()], ids=["dimension", "name"])
async def test_another_embedder_is_refused_and_then_made_use_of(
    memory: Path, before: Rows, embedder: HashEmbedder
) -> None:
    """S2.17, G7: the error says what to do; made anew, the same rows have vectors of the new
    embedder, and recall finds them.
    """
    with pytest.raises(EmbedderChanged) as caught:
        async with opened(memory, embedder):
            pass
    text = str(caught.value)
    assert f"remora reembed --dir {memory}" in text
    assert "models.embedder" in text
    assert "hash-64/64" in text
    assert f"{embedder.name}/{embedder.dimension}" in text
    async with opened(memory) as runtime:
        assert await held(runtime) == before, "a refusal changes nothing"
        assert runtime.reembedding is None
    async with opened(memory, embedder, reembed=True) as runtime:
        steps: list[tuple[int, int]] = []
        await runtime.reembedded(lambda done, total: steps.append((done, total)))
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] > 100
        assert runtime.reembedding is None
        assert await held(runtime) == before
        rows, vectors = await (await runtime.internals.long_term()).embedded_rows("u1")
        assert vectors is not None
        assert vectors.shape == (len(rows), embedder.dimension)
        hits = await runtime.user("u1").recall("metric units", limit=1)
        assert hits[0].text == "Prefers metric units"
        (hit,) = await runtime.user("u1").search_working("when does the ferry leave", limit=1)
        assert hit.text == "The ferry leaves at nine"
        assert directories(memory) == ["longterm-2"]
    async with opened(memory, embedder) as runtime:
        assert await held(runtime) == before
        assert runtime.reembedding is None
        await runtime.reembedded()
    with pytest.raises(EmbedderChanged):
        async with opened(memory):
            pass


async def test_with_vectors_and_without(memory: Path, before: Rows) -> None:
    """S2.08, G7: from an embedder to none and back again."""
    async with Runtime(memory, config=PLAIN, reembed=True) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
        assert (await (await runtime.internals.long_term()).embedded_rows("u1"))[1] is None
        assert await runtime.user("u3").recall("ferries", limit=1)
    async with opened(memory, reembed=True) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
        assert directories(memory) == ["longterm-3"]


async def test_it_serves_meanwhile(memory: Path) -> None:
    """G5, G7: appends, flushes, deletions and memories go on; recall finds what is done so far;
    nothing is there twice.
    """
    embedder = Gated(40)
    async with opened(memory, embedder, reembed=True) as runtime:
        await embedder.stuck.wait()
        assert runtime.reembedding is not None
        assert 0 <= runtime.reembedding.done < runtime.reembedding.total
        receipt = await runtime.session("u0", "s0").append(user("Said while it goes on"))
        assert receipt.seqs == (7,)
        assert (await runtime.session("u0", "s0").load()).messages
        assert (await runtime.session("u4", "s19").delete(positions=0)).deleted == 1
        embedder.left = 1_000_000
    async with opened(memory, HashEmbedder(96)) as runtime:
        assert runtime.reembedding is not None, "an unfinished one goes on without being asked"
        chat = runtime.session("u3", "new")
        await chat.append(user("A new ferry while it goes on"))
        await chat.flush()
        await runtime.user("u3").remember("Loves while it goes on")
        await runtime.reembedded()
        await runtime.settle()
        rows = await held(runtime)
        said = [row[3] for row in rows.values()]
        assert said.count("A new ferry while it goes on") == 1
        assert said.count("Loves while it goes on") == 1
        history = await runtime.session("u4", "s19").history()
        gone = {f"Sentence {place} of 19 about ferries and bridges" for place in range(6)} - {
            one.content for one in history
        }
        assert len(gone) == 1
        assert not gone.intersection(said)


@pytest.mark.parametrize(
    ("texts", "meanwhile"),
    [(0, ""), (1, ""), (30, ""), (70, ""), (110, ""), (110, "damage"), (110, "another cursor")],
)
async def test_cut_off_and_gone_on_with(
    memory: Path, before: Rows, texts: int, meanwhile: str
) -> None:
    """G4, G7, G12, G13: closed in the middle, at any point; the next start goes on, each row is
    there once, the old ones are gone. What was done is done again where its table is damaged. How
    far it came is kept without anybody's name, and a note that fits nobody any more begins anew.
    """
    embedder = Gated(texts)
    async with opened(memory, embedder, reembed=True) as runtime:
        await embedder.stuck.wait()
        if meanwhile:
            cursor = await runtime.internals.journal.setting("reembed")
            assert cursor not in {"", "begin", None}, "it notes how far it came"
            assert len(str(cursor)) == 32
        if meanwhile == "another cursor":
            await runtime.internals.journal.change_settings({"reembed": "0" * 32})
    assert directories(memory) == ["longterm", "longterm-2"]
    if meanwhile == "damage":
        damage(memory / "longterm-2")
    async with opened(memory, HashEmbedder(96)) as runtime:
        assert runtime.reembedding is not None
        await runtime.reembedded()
        assert await held(runtime) == before
    assert directories(memory) == ["longterm-2"]


async def test_a_third_embedder_in_the_middle(memory: Path, before: Rows) -> None:
    """G7: while it goes on the embedder changes once more: begun anew, and all that was there
    before is gone in the end.
    """
    embedder = Gated(30)
    async with opened(memory, embedder, reembed=True):
        await embedder.stuck.wait()
    with pytest.raises(EmbedderChanged):
        async with opened(memory, Renamed()):
            pass
    async with opened(memory, Renamed(), reembed=True) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
    assert directories(memory) == ["longterm-3"]


async def test_a_crash_after_the_end(
    memory: Path, before: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G12: complete, but the old directory is still there: the next start removes it, and makes
    nothing anew.
    """

    def stuck(place: Path) -> None:
        raise PermissionError(13, "not now")

    with monkeypatch.context() as crash:
        crash.setattr(shutil, "rmtree", stuck)
        async with opened(memory, HashEmbedder(96), reembed=True) as runtime:
            await runtime.reembedded()
    assert directories(memory) == ["longterm", "longterm-2"]
    async with opened(memory, HashEmbedder(96)) as runtime:
        assert runtime.reembedding is None
        assert directories(memory) == ["longterm-2"]
        assert await held(runtime) == before


async def test_failures(memory: Path, before: Rows) -> None:
    """G6, G11: an embedder that is away is waited for; one that is broken lets it rest, says why,
    and the runtime serves on.
    """
    broken = Gated(30, ModelAnswerInvalid("broken for good"))
    async with opened(memory, broken, reembed=True) as runtime:
        with pytest.raises(ModelAnswerInvalid, match="broken for good"):
            await runtime.reembedded()
        assert runtime.reembedding is not None
        assert "broken for good" in runtime.reembedding.error
        assert (await runtime.session("u0", "s0").append(user("still here"))).seqs == (7,)
    away = Gated(30, ModelUnavailable("away"))
    async with opened(memory, away) as runtime, anyio.create_task_group() as tasks:

        async def come_back() -> None:
            await away.stuck.wait()
            for _ in range(20):  # longer than what is broken is given
                away.stuck = anyio.Event()
                await away.stuck.wait()
            away.left = 1_000_000

        tasks.start_soon(come_back)
        await runtime.reembedded()
        assert await held(runtime) == before


@pytest.mark.parametrize("pruned", [False, True])
async def test_entries_and_what_blocks_stored(tmp_path: Path, *, pruned: bool) -> None:
    """S2.04, S3.15, S4.41, G7: summary entries come back from the journal, rows of memory blocks
    from the directory before; what was pruned does not come back.
    """
    options: dict[str, Any] = {"policy": ENTRIES, "blocks": [VectorMemoryBlock(similarity_top_k=1)]}
    async with opened(tmp_path, **options) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(14):
            await chat.append(user(f"Sentence {number} about ferries"))
            await chat.settle()
        if pruned:
            await runtime.user("alice").prune(keep=1, strategy="fifo")
            await runtime.settle()
        before = await held(runtime)
    kinds = [row[5] for row in before.values()]
    assert set(kinds) >= ({"block"} if pruned else {"message", "summary", "block"})
    assert (len(kinds) - kinds.count("block") == 1) is pruned
    async with opened(tmp_path, HashEmbedder(96), reembed=True, **options) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
        chat = runtime.session("alice", "chat")
        assert "ferries" in str((await chat.load()).messages)


@pytest.mark.parametrize("harm", [move_away, damage, remove_data_files, zero_manifests])
async def test_what_is_lost_or_damaged_is_filled_again(
    memory: Path,
    before: Rows,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
) -> None:
    """G6, G7: a table that is damaged is put aside at the next start, and the log says so; each row
    is there once again from the journal, without anybody asking.
    """
    harm(memory / "longterm")
    async with opened(memory) as runtime:
        await runtime.internals.long_term()
        assert runtime.reembedding is not None
        await runtime.reembedded()
        assert await held(runtime) == before
        found = await runtime.user("u1").recall("metric units", limit=1)
        assert found[0].text == "Prefers metric units"
    assert ("table_quarantined" in caplog.text) is (harm is not move_away)
    caplog.clear()
    async with opened(memory) as runtime:
        assert runtime.reembedding is None
        assert await held(runtime) == before
    assert "long_term_damaged" not in caplog.text


async def test_shards_may_change_with_it(memory: Path, before: Rows) -> None:
    """S2.31: another number of tables holds from then on, and every user's rows are found."""
    config = Config.from_dict(
        {"long_term": {"shards": 3, "batch_ms": 1}, "tokens": {"counter": "heuristic"}}
    )
    async with opened(memory, HashEmbedder(96), config=config, reembed=True) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
    names = {path.name for path in (memory / "longterm-2").glob("*.lance")}
    assert names <= {"mem_000.lance", "mem_001.lance", "mem_002.lance"}  # one may have no user


async def test_at_an_address(tmp_path: Path) -> None:
    """S2.16: where `long_term.uri` names the place, the tables of before are dropped there."""
    address = tmp_path / "elsewhere"
    config = Config.from_dict(
        {"long_term": {"uri": str(address), "batch_ms": 1}, "tokens": {"counter": "heuristic"}}
    )
    before = await fill(tmp_path / "memory", config=config)
    async with opened(
        tmp_path / "memory", HashEmbedder(96), config=config, reembed=True
    ) as runtime:
        await runtime.reembedded()
        assert await held(runtime) == before
    assert not list(address.glob("mem_*"))
    assert list((address / "longterm-2").glob("mem_*"))
    await LanceStore.drop(str(address / "longterm-2"), config.long_term.object_store)
    assert not list((address / "longterm-2").glob("mem_*"))


async def test_settings_change_together() -> None:
    """G4: several settings change at once; one that was set stays as it is where it is only asked
    for.
    """
    journal = MemoryJournal()
    await journal.change_settings({"a": "1", "b": "2"})
    assert await journal.init_setting("a", "3") == "1"
    await journal.change_settings({"a": ""})
    assert (await journal.setting("a"), await journal.setting("b")) == ("", "2")


async def test_without_long_term_memory_there_is_nothing_to_make_anew() -> None:
    """S3.11: asked for where long-term memory is switched off, it is refused."""
    with pytest.raises(ConfigError, match=r"long_term\.enabled"):
        Runtime.in_memory(config=Config.from_dict({"long_term": {"enabled": False}}), reembed=True)
