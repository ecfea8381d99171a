"""The journal's files are removed, emptied or replaced: nobody's message goes into nothing (G3)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora import Config, Runtime, Session
from remora.errors import InvalidInput, JournalDamaged, OutcomeUnknown, OwnershipLost, StorageError
from remora.ids import row_id
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.runtime.log import commit_records
from remora.storage.ports import SessionKey
from remora.storage.records import Opened
from remora.testing import HashEmbedder
from tests.configs import PLAIN
from tests.faults.journals import digests, journal_at
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves change files

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 2},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.01},
        "recall": {"deadline_s": 600, "rerank_deadline_s": 600},
    }
)


def opened(where: Path, **options: Any) -> Runtime:
    return Runtime(where, config=CONFIG, embedder=HashEmbedder(), **options)


async def indexed(chat: Session, *texts: str) -> None:
    """Append messages, and wait until they are in long-term memory."""
    await chat.append([user(text) for text in texts])
    await chat.flush()
    await chat.settle()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _replace(path: Path) -> None:
    copy = path.with_name("copy")
    shutil.copyfile(path, copy)
    copy.replace(path)


def _rename_directory(path: Path) -> None:
    path.parent.rename(path.parent.with_name("elsewhere"))


LOSSES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "journal.db removed": ("journal.db", Path.unlink),
    "journal.db emptied": ("journal.db", _empty),
    "journal.db replaced": ("journal.db", _replace),
    "write-ahead log removed": ("journal.db-wal", Path.unlink),
    "directory renamed": ("journal.db", _rename_directory),
    "directory removed": ("journal.db", lambda path: shutil.rmtree(path.parent)),
}


@pytest.mark.parametrize("idle", [False, True], ids=["writing", "idle"])
async def test_nothing_is_acknowledged_after_the_files_are_gone(
    tmp_path: Path, *, idle: bool
) -> None:
    """G3, G12: the next append fails, and so do all others; the statistics say why. The regular
    checkpoint looks at the files though nothing is written.
    """
    for loss, (name, lose) in LOSSES.items():
        where = tmp_path / loss / "m"
        async with Runtime(where, config=PLAIN) as runtime:
            chat = runtime.session("alice", "s")
            await chat.append(user("before"))
            lose(where / name)
            if idle:
                await look(runtime)
            else:
                with pytest.raises((OutcomeUnknown, OwnershipLost), match=name):
                    await chat.append(user("after"))
            await _everything_says_lost(runtime, name)


async def _everything_says_lost(runtime: Runtime, why: str) -> None:
    chat, other = runtime.session("alice", "s"), runtime.session("bob", "s")
    for _ in range(2):
        for call in (chat.append, other.append):
            with pytest.raises(OwnershipLost, match=why):
                await call(user("after"))
        for read in (chat.load, chat.history, other.load, runtime.settle, runtime.ready):
            with pytest.raises(OwnershipLost, match=why):
                await read()
        with pytest.raises(OwnershipLost, match=why):
            runtime.statistics()


async def look(runtime: Runtime) -> None:
    """Do what regularly looks at the files though nothing is written."""
    await runtime.internals.journal.checkpoint()
    await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("how", ["by writing", "idle"])
async def test_a_runtime_that_was_overtaken_answers_nothing(how: str, tmp_path: Path) -> None:
    """G12: another owner writes; nobody is told what was so before. It opens again afterwards."""
    runtime = Runtime(tmp_path, config=PLAIN)
    async with runtime:
        chat = runtime.session("alice", "s")
        await chat.append(user("before"))
        await chat.load()
        async with journal_at(tmp_path / "journal.db") as journal:
            await commit_records(journal, [Opened(9, *SessionKey("carol", "s"), 0)])
            if how == "by writing":
                with pytest.raises(OwnershipLost, match="taken"):
                    await chat.append(user("after"))
            else:
                await look(runtime)
            await _everything_says_lost(runtime, "taken")
    with pytest.raises(OwnershipLost, match="taken"):
        await chat.load()
    async with runtime:
        await chat.append(user("again"))
        assert [one.content for one in await chat.history()] == ["before", "again"]


async def test_what_was_being_read_is_not_answered(tmp_path: Path) -> None:
    """G12, G13: a recall and a context that wait for a model when another owner takes over may have
    read what that owner has erased since.
    """
    asked = {"what harbour": anyio.Event(), "which harbour": anyio.Event()}
    answer = anyio.Event()

    async def rerank(query: str, texts: Sequence[str]) -> Sequence[float]:
        asked[query].set()
        await answer.wait()
        return [1.0] * len(texts)

    async with opened(tmp_path, reranker=rerank) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user("the secret is a harbour"), user("a harbour far away")])
        other = runtime.session("alice", "other")

        async def expect_lost(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(OwnershipLost):
                await call()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_lost, partial(runtime.user("alice").recall, "what harbour"))
            tasks.start_soon(expect_lost, partial(other.load, query="which harbour"))
            for one in asked.values():
                await one.wait()
            async with journal_at(tmp_path / "journal.db") as journal:
                await journal.erase("alice")
                await runtime.internals.journal.checkpoint()
            answer.set()


async def test_those_who_wait_hear_that_it_was_lost(tmp_path: Path) -> None:
    """G12: appends that are not committed yet, and turns that wait, end at once."""
    errors: list[Exception] = []

    async def expect_error(call: Callable[[], Awaitable[object]]) -> None:
        with pytest.raises((OwnershipLost, OutcomeUnknown)) as caught:
            await call()
        errors.append(caught.value)

    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append(user("before"))
        inside, ended = anyio.Event(), anyio.Event()

        async def hold(inside: anyio.Event) -> None:
            async with chat.turn(user("runs")) as turn:
                inside.set()
                await ended.wait()
                await turn.reply("too late")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_error, partial(hold, inside))
            await inside.wait()
            tasks.start_soon(expect_error, chat.turn(user("waits")).__aenter__)
            await anyio.wait_all_tasks_blocked()
            (tmp_path / "journal.db").unlink()
            for number in range(20):
                tasks.start_soon(expect_error, partial(chat.append, user(str(number))))
            await anyio.wait_all_tasks_blocked()
            ended.set()
        assert OwnershipLost in set(map(type, errors))


async def test_a_lost_log_costs_nothing_if_the_runtime_closes(tmp_path: Path) -> None:
    """G3: what was acknowledged is moved into the main file when the runtime closes."""
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user("one"), user("two")])
        (tmp_path / "journal.db-wal").unlink()
    async with Runtime(tmp_path, config=PLAIN) as runtime:
        history = await runtime.session("alice", "s").history()
        assert [message.content for message in history] == ["one", "two"]


async def test_a_renamed_directory_leaves_the_next_owner_alone(tmp_path: Path) -> None:
    """G1, G12: long-term memory goes by names; the rows of one owner never reach the other's."""
    where = tmp_path / "m"
    async with opened(where) as first:
        chat = first.session("alice", "s")
        await indexed(chat, *(f"first {number}" for number in range(4)))
        await chat.append([user(f"first {number}") for number in range(4, 6)])
        store = await first.internals.long_term()
        where.rename(tmp_path / "moved")
        async with opened(where) as second:
            texts = [f"second {number}" for number in range(3)]
            await indexed(second.session("alice", "s"), *texts)
            with pytest.raises(StorageError, match="was replaced"):
                await store.delete("alice", [row_id(SessionKey("alice", "s"), 1)])
            with pytest.raises((OutcomeUnknown, StorageError)):
                await chat.flush()
            rows = await second.user("alice").memories()
            assert [row.text.rpartition(": ")[2] for row in rows] == texts
    for name, count in (("moved", 6), ("m", 3)):
        async with opened(tmp_path / name) as runtime:
            await runtime.settle()
            assert len(await runtime.session("alice", "s").history()) == count


@pytest.mark.parametrize("lose", ["renamed", "removed", "another's"])
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_recall_after_the_directory_is_gone(lose: str, tmp_path: Path, *, warm: bool) -> None:
    """G1, G12: nothing is answered from what stands in its place, nor from memory; a context says
    that long-term memory failed.
    """
    where, other = tmp_path / "m", tmp_path / "other"
    if lose == "another's":
        async with opened(other) as runtime:
            await indexed(runtime.session("alice", "s"), "number of another")
    async with opened(where) as runtime:
        runtime.reschedule("checkpoint", 3_600)  # where the journal looks, once in a while
        alice = runtime.user("alice")
        await indexed(alice.session("s"), *(f"number {number}" for number in range(5)))
        if warm:
            assert await alice.recall("number")
        where.rename(tmp_path / "moved")
        if lose == "removed":
            shutil.rmtree(tmp_path / "moved")
        elif lose == "another's":
            other.rename(where)
        if warm:
            await look(runtime)
        for _ in range(3):
            with pytest.raises(OwnershipLost, match=r"removed|replaced"):
                await alice.recall("number")
            with pytest.raises(OwnershipLost):
                await alice.memories()
            if warm:
                with pytest.raises(OwnershipLost):
                    await alice.session("s").load(query="what number")
            else:  # the journal has not noticed yet
                context = await alice.session("s").load(query="what number")
                assert context.sources["long_term"].status == "failed"
                assert not context.memories
    if lose == "another's":
        async with opened(where) as runtime:
            texts = [one.text for one in await runtime.user("alice").memories()]
            assert len(texts) == 1
            assert texts[0].endswith("number of another")


# -- between two runs ---------------------------------------------------------------------------


async def filled(where: Path, config: Config = CONFIG) -> None:
    async with Runtime(where, config=config, embedder=HashEmbedder()) as runtime:
        await indexed(runtime.session("alice", "s"), *(f"number {number}" for number in range(5)))


@pytest.mark.parametrize("left", ["mark and tables", "mark", "tables"])
@pytest.mark.parametrize("how", ["missing", "empty"])
async def test_a_start_without_the_journal_is_refused(how: str, left: str, tmp_path: Path) -> None:
    """G3, G6: a mark or tables without their journal never look like a new directory."""
    where = tmp_path / "m"
    await filled(where)
    (where / "journal.db").unlink()
    if how == "empty":
        (where / "journal.db").touch()
    if "mark" not in left:
        (where / "journal.mark").unlink()
    if "tables" not in left:
        shutil.rmtree(where / "longterm")
    before = digests(where, "remora.lock", "owner.json")
    for _ in range(2):
        with pytest.raises(JournalDamaged, match=rf"is {how}.*restore the whole directory"):
            await filled(where)
        assert digests(where, "remora.lock", "owner.json") == before
    if how == "empty":
        with pytest.raises(JournalDamaged):
            await repair(where, CONFIG)
        assert not (await verify(where, CONFIG)).clean
    else:
        for check in (repair, verify):
            with pytest.raises(InvalidInput):
                await check(where, CONFIG)
    # the remedy that the error names for a start without the conversations
    where.rename(tmp_path / "kept")
    await filled(where)
    assert (await verify(where, CONFIG)).clean


async def test_another_journal_in_its_place_is_refused(tmp_path: Path) -> None:
    """G6, G7: rows of long-term memory may be of the other journal. Repair takes it on purpose."""
    where, other = tmp_path / "m", tmp_path / "other"
    await filled(where)
    async with opened(other) as runtime:
        await runtime.session("alice", "s").append(user("of the other"))
    shutil.copyfile(other / "journal.db", where / "journal.db")
    with pytest.raises(JournalDamaged, match=r"replaced.*--accept-loss"):
        await filled(where)
    found = await verify(where, CONFIG)
    assert found.findings[0].kind == "wal"
    assert "replaced by another" in found.findings[0].detail
    with pytest.raises(JournalDamaged, match="--accept-loss"):
        await repair(where, CONFIG)
    assert (await repair(where, CONFIG, accept_loss=True)).left == ()
    async with opened(where) as runtime:
        await runtime.settle()
        assert await runtime.user("alice").memories() == []
        history = await runtime.session("alice", "s").history()
        assert [message.content for message in history] == ["of the other"]


async def test_a_new_directory_with_an_empty_file_is_a_start(tmp_path: Path) -> None:
    """A first start that was killed early leaves such a file, and nothing was acknowledged."""
    (tmp_path / "journal.db").touch()
    await filled(tmp_path, PLAIN)
    assert (await verify(tmp_path, PLAIN)).clean
