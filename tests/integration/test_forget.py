"""Forgetting, on real SQLite and LanceDB: a user, or one session, down to the bytes."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
import pytest

import remora.config
from remora import Config, ErasureReceipt, Runtime
from remora.blocks import FactExtractionMemoryBlock, VectorMemoryBlock
from remora.errors import (
    CommitFailed,
    ErasureDelayed,
    ErasureInProgress,
    LongTermError,
    NotGranted,
    ReentrantAsk,
    RuntimeClosed,
)
from remora.ids import key_digest, row_id, user_key
from remora.runtime.clock import SystemClock
from remora.storage.lance.store import LanceStore
from remora.storage.memory import MemoryStore
from remora.storage.ports import SessionKey, UserKey
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.embedders import HeldEmbedder
from tests.patience import until
from tests.programs import run_command

pytestmark = pytest.mark.anyio

EMBEDDER = HashEmbedder()
CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "shards": 1, "compact_fragments": 4},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"max_attempts": 1, "backoff_s": 0.01},
        "recall": {"deadline_s": 600},
        "synopsis": {"shown": "always"},
        "retention": {"forgotten_s": 0},
    }
)
GATHERING = msgspec.structs.replace(
    CONFIG, retention=msgspec.structs.replace(CONFIG.retention, forgotten_s=3_600)
)
"""Files are rewritten for one erasure at once, and for those after it when that is asked for."""
CANARY = "qzvk"
"""In everything that the forgotten user ever said, and in nothing else: lower case, and no stemmer
takes any of it away.
"""
USER = f"{CANARY}user-ÄÖ'%_"


def runtime_on(directory: Path, **options: Any) -> Runtime:
    blocks = [
        FactExtractionMemoryBlock(name="facts", priority=1),
        VectorMemoryBlock(name="vectors", priority=2),
    ]
    given = {"config": CONFIG, "embedder": EMBEDDER, "blocks": blocks, **options}
    return Runtime(directory, **given)


def traces(directory: Path, *needles: bytes) -> list[str]:
    """Files that hold a needle, or are named by one; a memory directory has no others than its own."""  # noqa: E501
    found: list[str] = []
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        content = path.read_bytes() if path.is_file() else b""
        found.extend(
            f"{name}: {needle[:24]!r}"
            for needle in needles
            if needle in content or needle in name.encode()
        )
    return found


async def traces_of(directory: Path, *needles: bytes) -> list[str]:
    return await anyio.to_thread.run_sync(traces, directory, *needles)


def spoken(user: str, session: str, number: int) -> dict[str, Any]:
    return {
        "role": "user" if number % 2 else "assistant",
        "name": f"{CANARY}name" if user == USER else "name",
        "content": f"{CANARY if user == USER else 'plain'}word{number} was said in {session}, and "
        "some more words to fold soon",
        "id": f"{user}-{session}-{number}",
        "metadata": {f"{user}meta": [f"{user}value", {"deep": f"{user}deep"}]},
    }


async def talk(runtime: Runtime, user: str, session: str, count: int = 14) -> None:
    chat = runtime.session(user, session)
    for number in range(count):
        await chat.append(spoken(user, session, number), key=f"{user}-{session}-{number}")
    mark = CANARY if user == USER else "plain"
    call: dict[str, Any] = {
        "id": f"{mark}call",
        "type": "function",
        "function": {"name": f"{mark}tool", "arguments": f'{{"a": "{mark}arg"}}'},
    }
    await chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
    await chat.append({"role": "tool", "tool_call_id": f"{mark}call", "content": f"{mark}result"})
    await chat.append(
        {"role": "user", "content": f"{mark}deleted, and gone at once", "id": f"{mark}deleted"}
    )
    await chat.delete([f"{mark}deleted"])
    await chat.flush()


async def lead_a_life(runtime: Runtime, user: str) -> None:
    """Every kind of row that a user can leave behind."""
    mark = CANARY if user == USER else "plain"
    who = runtime.user(user)
    for session in (f"{mark}one", f"{mark}two"):
        await talk(runtime, user, session)
        await who.learn(f"{mark}learned in {session}", source=f"{mark}source", session=session)
    await who.learn(f"{mark}learned of all")
    await who.remember(
        f"{mark}remembered", type="preference", session=f"{mark}one", agent=f"{mark}agent"
    )
    await who.remember(f"{mark}fact for good")
    await who.recall(f"{mark}word3")
    await who.synopsis()
    await runtime.session(user, f"{mark}two").clear()
    await runtime.settle()
    await who.synopsis(refresh=True)
    await runtime.settle()


async def needles(runtime: Runtime, user: str) -> list[bytes]:
    """What must not be found: words, id, keys, digests of the id, and the vectors as they are
    stored.
    """
    store = await runtime.internals.long_term()
    assert isinstance(store, LanceStore)
    rows, vectors = await store.embedded_rows(user)
    assert len(rows) > 20, "the life was too short to prove anything"
    assert vectors is not None
    return [
        CANARY.encode(),
        CANARY.upper().encode(),
        CANARY.encode("utf-16-le"),
        user.encode(),
        msgspec.msgpack.encode(user),
        user_key(user).encode(),
        store.tables.digests.user(user).encode(),
        key_digest(f"{user}-{CANARY}one-3"),
        row_id(SessionKey(user, f"{CANARY}one"), 3).encode(),
        *(np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in vectors),
    ]


class Life(NamedTuple):
    """A closed memory in which `USER` and bob left every kind of row."""

    directory: Path
    needles: list[bytes]
    of_bob: int


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Life:
    directory = tmp_path_factory.mktemp("lived") / "memory"

    async def live() -> Life:
        async with runtime_on(directory) as runtime:
            for user in (USER, "bob"):
                await lead_a_life(runtime, user)
            of_bob = await (await runtime.internals.long_term()).rows("bob")
            return Life(directory, await needles(runtime, USER), len(of_bob))

    return anyio.run(live)


@pytest.fixture
def life(lived: Life, tmp_path: Path) -> Life:
    return lived._replace(directory=copy_memory(lived.directory, tmp_path / "memory"))


@pytest.fixture
async def runtime(life: Life) -> AsyncIterator[Runtime]:
    async with runtime_on(life.directory) as opened:
        yield opened


async def test_no_byte_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G10, G13: canaries in every field of every kind of row: none in any file once the user is
    forgotten. Until then nothing of the user runs, so nothing new can be taken for what is to go;
    others are served, and lose nothing. Afterwards the user is as if they had never been.
    """
    directory = tmp_path / "memory"
    begun, go = anyio.Event(), anyio.Event()
    remove = LanceStore.remove

    async def slow(self: LanceStore, *arguments: Any) -> int:
        begun.set()
        await go.wait()
        return await remove(self, *arguments)

    monkeypatch.setattr(LanceStore, "remove", slow)
    async with runtime_on(directory) as runtime:
        who, bob = runtime.user(USER), runtime.user("bob")
        await lead_a_life(runtime, USER)
        await lead_a_life(runtime, "bob")
        sought = await needles(runtime, USER)
        before = await traces_of(directory, *sought)
        assert {name.split("/")[0].split(":")[0] for name in before} >= {
            "journal.db-wal",
            "longterm",
        }
        history = await bob.session("plainone").history()
        recalled = [one.text for one in await bob.recall("plainword3")]
        rows = await (await runtime.internals.long_term()).rows("bob")
        receipts: list[ErasureReceipt] = []

        async def forget() -> None:
            receipts.append(await who.forget())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forget)
            await begun.wait()
            for refused in (
                who.session("new").append({"role": "user", "content": "x"}),
                who.session("new").load(),
                who.recall("x"),
                who.remember("x"),
                who.learn("x"),
            ):
                with pytest.raises(ErasureInProgress):
                    await refused
            await runtime.session("carol", "s").append(spoken("carol", "s", 0))
            context = await bob.session("new").load(query="plainword3")
            assert context.sources.long_term.status in {"ok", "omitted"}
            assert await bob.recall("plainword4")
            go.set()

        assert await traces_of(directory, *sought) == []
        assert receipts[0].long_term > 20
        assert receipts[0].journal["messages"] == 34
        assert all(
            receipts[0].journal[table] > 0
            for table in ("actors", "messages", "summaries", "state_items", "memories")
        )
        assert await bob.session("plainone").history() == history
        assert [one.text for one in await bob.recall("plainword3")] == recalled
        assert await (await runtime.internals.long_term()).rows("bob") == rows

        chat = who.session(f"{CANARY}one")
        assert await who.sessions() == []
        assert await chat.history() == []
        assert (await chat.load(query=f"{CANARY}word3")).messages == []
        assert await who.recall(f"{CANARY}word3") == []
        assert await who.search_working(f"{CANARY}learned") == []
        assert await who.memories() == []
        assert (await who.synopsis()).state == "empty"
        counts = await runtime.counts(USER)
        assert (counts.sessions, counts.messages, counts.memories, counts.pending_jobs) == (
            0, 0, 0, 0,
        )  # fmt: skip
        receipt = await chat.append(spoken(USER, f"{CANARY}one", 0), key=f"{USER}-{CANARY}one-0")
        assert not receipt.duplicate, "the keys went with the rest"
        assert receipt.seqs == (1,)
        await chat.flush()
        await runtime.settle()
        assert len(await who.recall(f"{CANARY}word0")) == 1


async def test_a_session_alone(runtime: Runtime, life: Life) -> None:
    """G13: a session goes with what the user's own actor holds of it; the user's other sessions
    stay.
    """
    who, gone = runtime.user(USER), f"{CANARY}one"
    kept = await who.session(f"{CANARY}two").history()
    receipt = await who.session(gone).forget()
    assert receipt.journal["messages"] == 17
    sought = (gone.encode(), row_id(SessionKey(USER, gone), 3).encode())
    assert await traces_of(life.directory, *sought) == []
    assert await who.session(gone).history() == []
    assert await who.session(f"{CANARY}two").history() == kept
    assert [one.text for one in await who.memories(["fact", "preference"])] == [
        f"{CANARY}fact for good"
    ]
    assert {one.text for one in await who.search_working(f"{CANARY}learned", limit=9)} == {
        f"{CANARY}learned in {CANARY}two",
        f"{CANARY}learned of all",
    }
    assert {one.session for one in await who.recall("said more words fold", limit=50)} == {
        f"{CANARY}two",
        "",
    }


async def test_appends_in_flight(runtime: Runtime) -> None:
    """G13, G3: what was acknowledged before goes, what came too late is refused; nothing is in
    between.
    """
    chat = runtime.session(USER, "s")
    refused = 0

    async def send(number: int) -> None:
        nonlocal refused
        try:
            await chat.append({"role": "user", "content": f"{CANARY} {number}"})
        except ErasureInProgress:
            refused += 1

    while not refused:
        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(send, number)
                if number == 20:
                    tasks.start_soon(runtime.user(USER).forget)
    await runtime.user(USER).forget()
    assert await chat.history() == []


async def test_callers(runtime: Runtime, life: Life) -> None:
    """G11, G13: a user that never was is forgotten without a fuss; a cancelled caller takes nothing
    along, the erasure goes on to its end; several at once are one.
    """
    receipt = await runtime.user("nobody").forget()
    assert receipt.long_term == 0
    assert sum(receipt.journal.values()) == 0
    with anyio.move_on_after(0):
        await runtime.user(USER).forget()
    await runtime.user("nobody").forget()  # erased in the order of asking
    assert await traces_of(life.directory, *life.needles) == []
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(runtime.user("bob").forget)
    assert await runtime.user("bob").sessions() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (LanceStore, "remove"),
        (LanceStore, "erase"),
        (SqliteJournal, "scrub"),
        (SqliteJournal, "finish_erasure"),
    ],
)
async def test_a_crash_half_way(
    life: Life, owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: whatever it died at, the next start finishes it, and refuses the user until then."""
    reached = anyio.Event()

    async def never(*_: Any) -> None:
        reached.set()
        await anyio.sleep_forever()

    with monkeypatch.context() as patched:
        async with runtime_on(life.directory) as runtime:
            patched.setattr(owner, name, never)
            async with anyio.create_task_group() as tasks:

                async def asked() -> None:
                    with pytest.raises(RuntimeClosed):
                        await runtime.user(USER).forget()

                tasks.start_soon(asked)
                await reached.wait()
                await runtime.aclose()
    async with runtime_on(life.directory) as runtime:
        await runtime.user("nobody").forget()
        assert await traces_of(life.directory, *life.needles) == []
        await runtime.session(USER, "s").append({"role": "user", "content": "welcome back"})
        assert await runtime.internals.journal.erasures() == []


async def test_failures(runtime: Runtime, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """G4, G6, G13: where the journal refuses, nothing is forgotten, and the user is served as
    before. While files cannot be rewritten it is tried again, and who asked waits; what cannot mend
    itself is told.
    """
    who = runtime.user(USER)

    async def full(*_: Any) -> None:
        raise CommitFailed("full")

    with monkeypatch.context() as patched:
        patched.setattr(SqliteJournal, "erase", full)
        with pytest.raises(CommitFailed):
            await who.forget()
    assert len(await who.session(f"{CANARY}one").history()) == 16
    assert await who.recall(f"{CANARY}word3")
    erase, failures = LanceStore.erase, [True, True]

    async def failing(self: LanceStore, *arguments: Any) -> int:
        if failures:
            failures.pop()
            raise LongTermError("away", retryable=True)
        return await erase(self, *arguments)

    monkeypatch.setattr(LanceStore, "erase", failing)
    receipt = await who.forget()
    assert receipt.long_term > 20
    assert await traces_of(life.directory, *life.needles) == []

    async def broken(*_: Any) -> int:
        raise LongTermError("broken", retryable=False)

    monkeypatch.setattr(LanceStore, "erase", broken)
    with pytest.raises(ErasureDelayed, match="broken") as told:
        await runtime.user("bob").forget()
    assert not told.value.retryable


async def test_erasures_in_a_row_share_the_rewriting(tmp_path: Path) -> None:
    """G13: the first is whole when it returns; the receipts of those after it say when their bytes
    are gone. The users are new at once, and what they say then stays.
    """
    directory = tmp_path / "memory"
    async with runtime_on(directory, config=GATHERING) as runtime:
        await lead_a_life(runtime, USER)
        await lead_a_life(runtime, "bob")
        sought = await needles(runtime, USER)
        assert (await runtime.user("nobody").forget()).erased_by is None
        before = datetime.now(UTC)
        receipt = await runtime.user(USER).forget()
        assert receipt.erased_by is not None
        assert before < receipt.erased_by <= datetime.now(UTC) + timedelta(hours=1)
        assert receipt.long_term > 20
        who = runtime.user(USER)
        assert await who.sessions() == []
        assert await who.recall(f"{CANARY}word3") == []
        assert await traces_of(directory, *sought) != []
        assert [one.attempts for one in runtime.erasures(USER)] == [0]
        await talk(runtime, USER, "again")
        await runtime.settle()
        assert await runtime.retry_erasures() == []
        assert await who.recall(f"{CANARY}word3")
        assert len(await who.session("again").history()) == 16
        found = await traces_of(directory, f"{CANARY}one".encode(), f"{CANARY}learned".encode())
        assert found == []
        assert (await runtime.session("bob", "plainone").forget()).erased_by is not None
        assert await runtime.user("bob").recall("plainword3 plaintwo")
        assert await who.session("again").load()


@pytest.mark.parametrize("session", [None, f"{CANARY}one"])
async def test_a_crash_before_the_files_are_rewritten(
    life: Life, session: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: the next start rewrites the files, and what the user said in the meantime stays."""
    reached = anyio.Event()

    async def never(*_: Any) -> None:
        reached.set()
        await anyio.sleep_forever()

    with monkeypatch.context() as patched:
        async with runtime_on(life.directory) as runtime:
            patched.setattr(LanceStore, "erase", never)
            async with anyio.create_task_group() as tasks:

                async def asked() -> None:
                    who = runtime.user(USER)
                    with pytest.raises(RuntimeClosed, match="next start"):
                        await (who if session is None else who.session(session)).forget()

                tasks.start_soon(asked)
                await reached.wait()
                await runtime.user(USER).remember("I am back, and like figs")
                await talk(runtime, USER, "again")
                await runtime.settle()
                rows = await (await runtime.internals.long_term()).rows(USER)
                await runtime.aclose()
    async with runtime_on(life.directory) as runtime:
        assert [one.text for one in await runtime.user(USER).recall("figs", limit=1)]
        await runtime.user("nobody").forget()
        assert await runtime.internals.journal.erasures() == []
        kept = await (await runtime.internals.long_term()).rows(USER)
        assert {row.id for row in kept} == {row.id for row in rows}
        assert any(row.session == "again" for row in kept)
        gone = f"{CANARY}word3 was said in {CANARY}one".encode()
        assert await traces_of(life.directory, gone) == []


class LongPauses(SystemClock):
    """The pause after a rewriting outlasts a test."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(1_000 * seconds)


async def test_retries_beside_erasures_take_nothing_from_those_who_came_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows leave long-term memory once: the user may write new ones when that has ended."""
    remove, removed = LanceStore.remove, list[str]()

    async def slow(self: LanceStore, user: str, session: str = "") -> int:
        removed.append(user)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return await remove(self, user, session)

    monkeypatch.setattr(LanceStore, "remove", slow)
    users = [f"user {number}" for number in range(80)]
    async with runtime_on(tmp_path / "memory", config=GATHERING, clock=LongPauses()) as runtime:
        for user in users:
            await runtime.user(user).remember(f"{user} likes figs")
        await runtime.user("nobody").forget()  # what follows is gathered, unless it is retried
        removed.clear()

        async def forget(user: str) -> None:
            await runtime.user(user).forget()
            await runtime.user(user).remember(f"{user} is back")
            await runtime.user(user).settle()

        async with anyio.create_task_group() as tasks:
            for user in users:
                tasks.start_soon(forget, user)
            while len(removed) < len(users):
                await anyio.lowlevel.checkpoint()
                await runtime.retry_erasures()
        await runtime.settle()
        assert await runtime.retry_erasures() == []
        assert len(removed) == len(set(removed)) == len(users)
        for user in users:
            assert [one.text for one in await runtime.user(user).memories()] == [f"{user} is back"]


async def test_not_from_within_a_job(tmp_path: Path) -> None:
    """G11: a summarizer that forgets its own user would wait for itself: refused."""
    raised: list[Exception] = []

    class Tactless:
        name = "tactless"

        async def summarize(self, *_: Any, **__: Any) -> str:
            try:
                await opened.user("ann").forget()
            except Exception as e:
                raised.append(e)
            return "a summary"

    async with runtime_on(tmp_path / "memory", summarizer=Tactless()) as opened:
        await talk(opened, "ann", "s")
        await opened.settle()
    assert isinstance(raised[0], ReentrantAsk)


async def test_in_memory() -> None:
    """G13: a runtime without a directory forgets as well."""
    async with Runtime.in_memory(config=CONFIG, embedder=EMBEDDER) as runtime:
        await lead_a_life(runtime, USER)
        await lead_a_life(runtime, "bob")
        receipt = await runtime.user(USER).forget()
        assert receipt.long_term > 10
        assert await runtime.user(USER).recall(f"{CANARY}word3") == []
        assert await runtime.user("bob").recall("plainword3")
        assert not any(
            isinstance(key, (UserKey, SessionKey)) and key.user == USER
            for key in runtime.internals.registry.live_keys()
        )


@pytest.mark.blocking
def test_from_the_command_line(
    life: Life, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: ``remora forget`` asks, or is told --yes; says what went; and a session alone can go."""
    where = ["--dir", str(life.directory)]
    assert run_command("forget", USER, *where) == 1
    assert "--yes" in capsys.readouterr().err
    assert traces(life.directory, *life.needles)
    monkeypatch.setattr("sys.stdin", Terminal("no\n"))
    assert run_command("forget", USER, *where) == 1
    assert "nothing was erased" in capsys.readouterr().out
    assert run_command("forget", USER, f"{CANARY}one", *where, "--yes") == 0
    assert "17 messages" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run_command("forget", USER, *where) == 0
    shown = capsys.readouterr().out
    assert "17 messages" in shown
    assert "long-term rows" in shown
    assert traces(life.directory, *life.needles) == []
    assert run_command("forget", "nobody", *where, "--yes") == 0
    assert "there was nothing" in capsys.readouterr().out
    assert run_command("show", "bob", "plainone", *where) == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_a_shared_scope(tmp_path: Path) -> None:
    """G13, S4.33: its owner has a shared scope erased, nobody else."""
    async with runtime_on(tmp_path) as runtime:
        scope = runtime.shared("team")
        owner, member = scope.as_("ann"), scope.as_("bo")
        await owner.claim()
        await owner.grant("bo", "write")
        await member.remember(f"{CANARY} of the team")
        await owner.settle()
        with pytest.raises(NotGranted):
            await member.forget()
        receipt = await owner.forget()
        assert receipt.long_term == 1
        assert await traces_of(tmp_path, CANARY.encode(), b"shared/team") == []
        with pytest.raises(NotGranted):
            await owner.memories()


# -- what was found by breaking it -----------------------------------------------------------------


@pytest.mark.parametrize("session", [None, f"{CANARY}s"], ids=["user", "session"])
async def test_rows_that_wait_for_a_commit(tmp_path: Path, session: str | None) -> None:
    """G13: rows that a withdrawn flush had queued in the store are not written once the user is
    forgotten; others' are.
    """
    slow = msgspec.structs.replace(
        CONFIG, long_term=msgspec.structs.replace(CONFIG.long_term, batch_ms=600_000.0)
    )
    async with runtime_on(tmp_path / "memory", config=slow, blocks=None) as runtime:
        store = await runtime.internals.long_term()
        for user in (USER, "bob"):
            chat = runtime.session(user, f"{CANARY}s")
            await chat.append([spoken(user, f"{CANARY}s", number) for number in range(6)])
            await chat.flush()
        assert isinstance(store, LanceStore)
        await until(lambda: store.writer.queued >= 2, "both flushes are queued")
        who = runtime.user(USER)
        await (who.forget() if session is None else who.session(session).forget())
        await store.writer.commit_queued()
        await runtime.settle()
        assert await store.rows(USER) == []
        assert len(await store.rows("bob")) == 6


async def test_recalls_beside(runtime: Runtime) -> None:
    """G13: whatever was being recalled while the user was forgotten, nothing of it is held, or
    served afterwards.
    """
    await runtime.user(USER).forget()
    for turn in range(4):
        await talk(runtime, USER, f"{CANARY}one")
        await runtime.settle()
        over = anyio.Event()

        async def recalling(turn: int = turn, over: anyio.Event = over) -> None:
            number = 0
            while not over.is_set():
                with suppress(ErasureInProgress):
                    await runtime.user(USER).recall(f"{CANARY}word{turn} {number % 7}", limit=30)
                await anyio.sleep(0.001)  # the loop has time for the erasure
                number += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(recalling)
            await anyio.sleep(0)
            await runtime.user(USER).forget()
            over.set()
        assert await runtime.user(USER).recall(f"{CANARY}word3", limit=30) == []
        assert await (await runtime.internals.long_term()).rows(USER) == []


@pytest.mark.parametrize("answers", [True, False], ids=["late", "never"])
async def test_while_it_is_embedded_anew(life: Life, answers: bool) -> None:
    """G13: what is being embedded anew of a user who is forgotten is given up, and does not come
    back; the others' goes on.
    """
    embedder = HeldEmbedder(CANARY, 96)
    async with runtime_on(life.directory, embedder=embedder, reembed=True) as runtime:
        await embedder.reached.wait()
        await runtime.user(USER).forget()
        if answers:
            embedder.go.set()
        await runtime.reembedded()
        assert len(await (await runtime.internals.long_term()).rows("bob")) == life.of_bob
        assert await traces_of(life.directory, *life.needles) == []


@pytest.mark.parametrize("elsewhere", ["store", "uri"])
async def test_long_term_memory_is_elsewhere_now(tmp_path: Path, elsewhere: str) -> None:
    """G13: rows of a time when long-term memory was in the directory are erased although another
    place is in use now.
    """
    directory = tmp_path / "memory"
    async with runtime_on(directory) as runtime:
        await lead_a_life(runtime, USER)
        sought = await needles(runtime, USER)
    config = CONFIG
    options: dict[str, Any] = {}
    if elsewhere == "uri":
        uri = remora.config.Secret(str(tmp_path / "other"))
        config = msgspec.structs.replace(
            CONFIG, long_term=msgspec.structs.replace(CONFIG.long_term, uri=uri)
        )
    else:
        options = {"store": MemoryStore(EMBEDDER.dimension)}
    async with Runtime(directory, config=config, embedder=EMBEDDER, **options) as runtime:
        await runtime.user(USER).forget()
        assert await traces_of(directory, *sought) == []


async def test_closed_before_it_began(tmp_path: Path) -> None:
    """G13: a runtime that closes before anything was erased says so; nothing is half gone."""
    hanging, go = anyio.Event(), anyio.Event()

    class Hanging:
        name = "hanging"

        async def summarize(self, *_: Any, **__: Any) -> str:
            hanging.set()
            with anyio.CancelScope(shield=True):
                await go.wait()
            return "summary"

    async with runtime_on(tmp_path, blocks=None, summarizer=Hanging()) as runtime:
        chat = runtime.session("ann", "s")
        for number in range(40):
            await chat.append(spoken("ann", "s", number))
        await hanging.wait()
        async with anyio.create_task_group() as tasks:

            async def asked() -> None:
                with pytest.raises(RuntimeClosed, match="nothing was erased"):
                    await runtime.user("ann").forget()
                go.set()

            tasks.start_soon(asked)
            with pytest.raises(ErasureInProgress):
                while True:  # until it has begun
                    await anyio.lowlevel.checkpoint()
                    await runtime.user("ann").recall("x")
            await runtime.aclose()
    async with runtime_on(tmp_path, blocks=None) as runtime:
        assert len(await runtime.session("ann", "s").history()) == 40
        assert (await runtime.user("ann").forget()).journal["messages"] == 40
