"""Damage done to a memory directory: detected and named, never a wrong answer, repaired where it
can be (G4, G6, G7).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Config, Runtime
from remora.cli.main import main
from remora.errors import StorageError
from remora.storage.lance.naming import table_of
from tests.copies import copy_memory
from tests.lance import digests_of

pytestmark = pytest.mark.blocking

SETTINGS = {
    "buffer": {"token_limit": 300, "summary_tokens": 80},
    "long_term": {"batch_ms": 1, "shards": 2},
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
}
CONFIG = Config.from_dict(SETTINGS)
USERS = ("alice", "bob")
Truth = dict[tuple[str, ...], Any]


def open_runtime(directory: Path) -> Runtime:
    return Runtime(directory, config=CONFIG, rng=random.Random(4))  # the same tables each time


def said(user: str, session: str, number: int) -> str:
    return f"{user} in {session}, canary{number:03d}: " + "word " * 12


async def fill(runtime: Runtime, first: int, last: int) -> None:
    for user in USERS:
        for session in ("one", "two"):
            for number in range(first, last):
                await runtime.session(user, session).append(
                    {"role": "user", "content": said(user, session, number)}
                )
            await runtime.session(user, session).flush()
        await runtime.user(user).remember(
            [f"{user} keeps {first} bees", f"{user} has {first} maps"]
        )
    await runtime.settle()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that was closed."""
    directory = tmp_path_factory.mktemp("whole") / "memory"

    async def make() -> None:
        async with open_runtime(directory) as runtime:
            await fill(runtime, 0, 12)

    anyio.run(make)
    return directory


@pytest.fixture(scope="module")
def truth(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """What it answers."""
    return answers(copy_memory(whole, tmp_path_factory.mktemp("truth") / "memory"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a process leaves it that is killed: with a write-ahead log, an owner's note
    and work under way.
    """
    directory = tmp_path_factory.mktemp("killed") / "memory"

    async def make() -> None:
        async with open_runtime(directory.parent / "live") as runtime:
            await fill(runtime, 0, 6)
            await runtime.internals.journal.checkpoint()
            await fill(runtime, 6, 12)
            await runtime.session("alice", "one").append(
                [{"role": "user", "content": said("alice", "one", 100 + n)} for n in range(9)]
            )
            copy_memory(directory.parent / "live", directory)

    anyio.run(make)
    return directory


@pytest.fixture
def memory(tmp_path: Path, whole: Path) -> Path:
    return copy_memory(whole, tmp_path / "memory")


@pytest.fixture
def command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Runs ``remora``; its exit code, and all that it prints."""
    monkeypatch.setenv("COLUMNS", "400")
    settings = tmp_path / "remora.json"
    settings.write_text(json.dumps(SETTINGS))

    def run(*arguments: str | Path) -> tuple[int, str]:
        capsys.readouterr()
        code = main([*map(str, arguments), "--config", str(settings)])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def answers(directory: Path) -> Truth:
    """What each verb answers of each user: text, or the name of the error."""

    async def one(verb: Callable[[], Any]) -> Any:
        try:
            return await verb()
        except StorageError as e:
            return type(e).__name__

    async def ask() -> Truth:
        found: Truth = {}
        async with open_runtime(directory) as runtime:
            with contextlib.suppress(StorageError):
                await runtime.reembedded()
            await runtime.settle()
            for user in USERS:
                handle = runtime.user(user)

                async def memories(handle: Any = handle) -> Any:
                    return sorted(
                        (one.type, one.session, one.seq, one.text)
                        for one in await handle.memories()
                    )

                async def recalled(handle: Any = handle) -> Any:
                    return sorted(
                        one.text for one in await handle.recall("canary001 keeps bees", limit=100)
                    )

                found[user, "memories"] = await one(memories)
                found[user, "recall"] = await one(recalled)
                for session in ("one", "two"):
                    chat = handle.session(session)

                    async def history(chat: Any = chat) -> Any:
                        return [str(one.content) for one in await chat.history()]

                    async def load(chat: Any = chat) -> Any:
                        return [str(one["content"]) for one in (await chat.load()).messages]

                    found[user, session, "history"] = await one(history)
                    found[user, session, "load"] = await one(load)
        return found

    return anyio.run(ask)


def never_wrong(found: Truth, truth: Truth) -> None:
    """Each answer is an error, or the right one; what is searched may lack something until it is
    repaired.
    """
    for question, answer in found.items():
        if isinstance(answer, str):
            continue
        if question[1] in {"memories", "recall"}:
            assert set(answer) <= set(truth[question]), question
        else:
            assert answer == truth[question], question


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x40
    path.write_bytes(content)


# -- nothing is amiss ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["whole", "killed"])
def test_verify_changes_nothing(
    which: str, tmp_path: Path, request: pytest.FixtureRequest, command: Any
) -> None:
    """G12: of a directory that was closed, and of one whose owner was killed, no byte changes, and
    nothing is amiss.
    """
    memory = copy_memory(request.getfixturevalue(which), tmp_path / "memory")
    before = digests(memory)
    assert ("journal.db-wal" in before) == ("owner.json" in before) == (which == "killed")
    code, printed = command("verify", "--dir", memory, "--deep")
    assert code == 0, printed
    assert ": consistent" in printed
    assert digests(memory) == before
    code, printed = command("verify", "--dir", memory, "--json")
    told = json.loads(printed)
    assert (code, told["clean"], told["findings"]) == (0, True, [])
    assert told["counts"]["messages"] >= 48
    assert told["rows"] >= 48
    assert digests(memory) == before


def test_beside_an_owner_and_without_a_memory(memory: Path, tmp_path: Path, command: Any) -> None:
    """G12: beside an owner a directory is verified, and not repaired; the owner is named. What is
    no memory cannot be read.
    """

    async def beside() -> None:
        async with open_runtime(memory) as runtime:
            runtime.reschedule("checkpoint", 3_600)  # the owner itself changes no file meanwhile
            await runtime.settle()
            before = digests(memory)
            run = partial(anyio.to_thread.run_sync, command)
            code, printed = await run("repair", "--dir", memory)
            assert code == 1
            assert f"is in use by process {os.getpid()}" in printed
            code, printed = await run("verify", "--deep", "--dir", memory)
            assert code == 0, printed
            assert "a process uses it" in printed
            assert digests(memory) == before

    anyio.run(beside)
    assert command("verify", "--dir", tmp_path / "absent")[0] == 2
    (tmp_path / "empty").mkdir()
    code, printed = command("verify", "--dir", tmp_path / "empty", "--json")
    assert code == 2
    assert "no memory" in json.loads(printed)["error"]
    assert list((tmp_path / "empty").iterdir()) == []
    copy_memory(memory, tmp_path / "other")
    (tmp_path / "other" / "journal.db").write_bytes(b"no database" * 1_000)
    code, printed = command("verify", "--dir", tmp_path / "other")
    assert code == 1
    assert "no SQLite file" in printed


# -- the journal -----------------------------------------------------------------------------------


def test_a_write_ahead_log_cut_short(killed: Path, tmp_path: Path, command: Any) -> None:
    """G3, G4: acknowledged commits that are gone are noticed, nothing is served without them until
    that is accepted.
    """
    memory = copy_memory(killed, tmp_path / "memory")
    log = memory / "journal.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 3)
    before = digests(memory)
    code, printed = command("verify", "--dir", memory)
    assert code == 1
    assert "wal: journal.db-wal: it was cut short or lost" in printed
    with pytest.raises(StorageError, match="lacks"):
        answers(memory)
    code, printed = command("repair", "--dir", memory)
    assert code == 1
    assert "--accept-loss" in printed
    assert {name: one for name, one in digests(memory).items() if name.startswith("longterm")} == {
        name: one for name, one in before.items() if name.startswith("longterm")
    }
    code, printed = command("repair", "--dir", memory, "--accept-loss")
    assert code == 0, printed
    assert "given up:" in printed
    assert command("verify", "--dir", memory, "--deep")[0] == 0
    found = answers(memory)
    for user in USERS:
        history = found[user, "one", "history"]
        assert history == [said(user, "one", n) for n in range(len(history))]
        assert len(history) >= 6, "what was checkpointed is there"
        assert all(
            text in history
            for kind, session, _, text in found[user, "memories"]
            if (kind, session) == ("message", "one")
        )
    assert command("verify", "--dir", memory, "--deep")[0] == 0


def test_commits_that_were_not_promised_to_survive(tmp_path: Path, command: Any) -> None:
    """G3, G7: at durability ``process`` what a power cut took is said, and rows of it, whose
    numbers would be given anew, go.
    """
    memory = tmp_path / "memory"

    async def make() -> None:
        journal = msgspec.structs.replace(CONFIG.journal, durability="process")
        async with Runtime(
            tmp_path / "live", config=msgspec.structs.replace(CONFIG, journal=journal)
        ) as runtime:
            await fill(runtime, 0, 6)
            await runtime.internals.journal.checkpoint()
            await fill(runtime, 6, 12)
            copy_memory(tmp_path / "live", memory)

    anyio.run(make)
    log = memory / "journal.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size // 3)
    code, printed = command("verify", "--dir", memory)
    assert code == 1
    assert "which journal.durability did not promise to keep" in printed
    assert "orphan: " in printed
    assert not any(line.startswith("wal: ") for line in printed.splitlines())
    code, printed = command("repair", "--dir", memory)
    assert code == 0, printed
    found = answers(memory)
    for user in USERS:
        for kind, session, _, text in found[user, "memories"]:
            assert kind == "fact" or text in found[user, session, "history"]
    assert command("verify", "--dir", memory, "--deep")[0] == 0


def _place_of(journal: Path, text: str) -> int:
    return journal.read_bytes().index(text.encode())


def test_a_byte_of_a_message(memory: Path, truth: Truth, command: Any) -> None:
    """G4, G6: the session says that it is damaged, all others answer; given up, the message is
    gone, and nothing else.
    """
    flip(memory / "journal.db", _place_of(memory / "journal.db", said("alice", "one", 10)) + 5)
    code, printed = command("verify", "--dir", memory)
    assert code == 1
    assert "alice" in printed
    assert "message 11 is not as it was written" in printed
    assert "restore a backup" in printed
    found = answers(memory)
    never_wrong(found, truth)
    assert found["alice", "one", "history"] == "JournalDamaged"
    assert found["alice", "two", "history"] == truth["alice", "two", "history"]
    code, printed = command("repair", "--dir", memory)
    assert code == 1
    assert "remaining findings:" in printed
    assert answers(memory)["alice", "one", "history"] == "JournalDamaged"
    code, printed = command("repair", "--dir", memory, "--drop-damaged")
    assert code == 0, printed
    assert "given up: message 11 of alice / one" in printed
    assert command("verify", "--dir", memory, "--deep")[0] == 0
    after = answers(memory)
    assert after["alice", "one", "history"] == [
        text for text in truth["alice", "one", "history"] if "canary010" not in text
    ]
    assert after["bob", "one", "history"] == truth["bob", "one", "history"]
    assert after["bob", "memories"] == truth["bob", "memories"]
    assert all(
        "canary010" not in text
        for _, session, _, text in after["alice", "memories"]
        if session == "one"
    )
    code, printed = command("repair", "--dir", memory, "--drop-damaged")
    assert (code, "there was nothing to repair" in printed) == (0, True)


def test_a_row_of_every_kind(memory: Path, truth: Truth, command: Any) -> None:
    """G4: a message that is missing, a summary, a memory, a job, a facet: each is named, and what
    is given up is that alone.
    """
    with sqlite3.connect(memory / "journal.db") as database:
        ((sid,),) = database.execute(
            "SELECT sid FROM actors WHERE user = 'alice' AND session = 'two'"
        )
        ((own,),) = database.execute("SELECT sid FROM actors WHERE user = 'alice' AND session = ''")
        database.execute("DELETE FROM messages WHERE pos = ?", (sid << 32 | 3,))
        database.execute(
            "UPDATE folds SET text = 'An invented summary.' WHERE sid = ? AND text != ''", (sid,)
        )
        database.execute(
            "UPDATE memories SET content = 'Keeps wolves' WHERE sid = ? AND content LIKE '%maps'",
            (own,),
        )
        database.execute(
            "INSERT INTO facets (sid, kind, name, value, crc) VALUES (?, 'access', 'x', x'00', 1)",
            (own,),
        )
        database.execute(
            "INSERT INTO jobs (id, lane, sid, payload, crc) VALUES ('made-up', 'flush', ?, x'00', "
            "1)",
            (sid,),
        )
    database.close()
    code, printed = command("verify", "--dir", memory)
    assert code == 1
    for named in ("message 3 is missing", "a summary", "the memory", "made-up", "'access'"):
        assert named in printed, printed
    never_wrong(
        {question: one for question, one in answers(memory).items() if question[1] != "recall"},
        truth,
    )
    code, printed = command("repair", "--dir", memory, "--drop-damaged")
    assert code == 0, printed
    assert command("verify", "--dir", memory, "--deep")[0] == 0
    after = answers(memory)
    assert after["alice", "two", "history"] == [
        text for text in truth["alice", "two", "history"] if "canary002" not in text
    ]
    assert after["alice", "one", "history"] == truth["alice", "one", "history"]
    assert after["bob", "memories"] == truth["bob", "memories"]
    assert {text for kind, _, _, text in after["alice", "memories"] if kind == "fact"} == {
        "alice keeps 0 bees"
    }


def test_any_byte_of_the_journal(whole: Path, truth: Truth, tmp_path: Path) -> None:
    """G4: whichever byte is flipped, every answer is the right one, or an error."""
    rng = random.Random(7)
    size = (whole / "journal.db").stat().st_size
    for number in range(6):
        memory = copy_memory(whole, tmp_path / f"flipped-{number}")
        flip(memory / "journal.db", rng.randrange(100, size))
        with contextlib.suppress(StorageError):
            never_wrong(answers(memory), truth)
        shutil.rmtree(memory)


# -- long-term memory ------------------------------------------------------------------------------


def _table(memory: Path, user: str) -> Path:
    return memory / "longterm" / f"{table_of(digests_of(memory).user(user), 2)}.lance"


def _newest(table: Path, kind: str) -> Path:
    return max((table / kind).rglob("*.lance"), key=lambda path: path.stat().st_size)


def _flip_data(memory: Path) -> None:
    path = _newest(_table(memory, "alice"), "data")
    flip(path, path.stat().st_size // 3)


def _remove_data(memory: Path) -> None:
    _newest(_table(memory, "alice"), "data").unlink()


def _cut_data(memory: Path) -> None:
    path = _newest(_table(memory, "alice"), "data")
    path.write_bytes(path.read_bytes()[:-10])


def _flip_index(memory: Path) -> None:
    path = _newest(_table(memory, "alice"), "_indices")
    flip(path, path.stat().st_size // 2)


def _remove_index(memory: Path) -> None:
    _newest(_table(memory, "alice"), "_indices").unlink()


def _zero_manifest(memory: Path) -> None:
    newest = min((_table(memory, "alice") / "_versions").glob("*.manifest"))
    newest.write_bytes(bytes(newest.stat().st_size))


def _remove_table(memory: Path) -> None:
    shutil.rmtree(_table(memory, "alice"))


def _remove_everything(memory: Path) -> None:
    shutil.rmtree(memory / "longterm")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (_flip_data, "is not what was written"),
        (_remove_data, "cannot be read"),
        (_cut_data, "bytes instead of"),
        (_flip_index, "is not what was written"),
        (_remove_index, "cannot be read"),
        (_zero_manifest, ".manifest"),
        (_remove_table, "it is missing"),
        (_remove_everything, "it is not there"),
    ],
)
def test_damaged_files_of_long_term_memory(
    damage: Callable[[Path], None], named: str, memory: Path, truth: Truth, command: Any
) -> None:
    """G6, G7: each is named, no answer is wrong, and repaired, long-term memory holds what it held."""  # noqa: E501
    damage(memory)
    before = digests(memory)
    code, printed = command("verify", "--dir", memory, "--deep")
    assert code == 1
    assert named in printed
    assert "longterm" in printed or "long-term" in printed
    assert digests(memory) == before
    never_wrong(answers(copy_memory(memory, memory.parent / "served")), truth)
    code, printed = command("repair", "--dir", memory)
    assert code == 0, printed
    assert answers(memory) == truth
    code, printed = command("verify", "--dir", memory, "--deep")
    assert code == 0, printed
    code, printed = command("repair", "--dir", memory)
    assert (code, "there was nothing to repair" in printed) == (0, True)


@pytest.mark.parametrize("fill_", [True, False], ids=["filled at once", "left to the next start"])
def test_rows_behind_remoras_back(memory: Path, truth: Truth, command: Any, *, fill_: bool) -> None:
    """G1, G7: rows that somebody deleted, added or moved are named, never shown, and put right."""

    async def meddle() -> None:
        import lancedb  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        database = await lancedb.connect_async(str(memory / "longterm"))
        alice = digests_of(memory).user("alice")
        table = await database.open_table(table_of(alice, 2))
        row = (
            await table.query().where(f"user_key = '{alice}' AND seq = 3").limit(1).to_arrow()
        ).to_pylist()[0]
        schema = await table.schema()
        foreign = {**row, "id": "f" * 32, "user_id": "mallory", "content": "canary001 of mallory"}
        altered = {**row, "id": "e" * 32, "content": "canary001, altered"}
        await table.delete(f"user_key = '{alice}' AND seq BETWEEN 5 AND 6")
        await table.add(pa.Table.from_pylist([foreign, altered, row], schema=schema))
        table.close()
        database.close()
        (
            memory / "longterm" / f"{table_of(alice, 2)}.synced.json"
        ).unlink()  # else it would not even be looked at

    anyio.run(meddle)
    code, printed = command("verify", "--dir", memory, "--deep")
    assert code == 1
    for kind in (
        "missing: alice / one: 2 messages 5-6",
        "foreign: mallory",
        "orphan: alice",
        "doubled: alice",
        "not as it was written",
    ):
        assert kind in printed, printed
    never_wrong(answers(copy_memory(memory, memory.parent / "served")), truth)
    code, printed = command("repair", "--dir", memory, *([] if fill_ else ["--no-fill"]))
    assert code == 0, printed
    assert ("missing rows are written at the next start" in printed) is not fill_
    assert answers(memory) == truth
    assert command("verify", "--dir", memory, "--deep")[0] == 0


def test_backup_command(memory: Path, tmp_path: Path, command: Any) -> None:
    """G3: a copy is made and checked from the command line; what is there already is not replaced."""  # noqa: E501
    dest = tmp_path / "backup"
    code, printed = command("backup", dest, "--dir", memory)
    assert code == 0, printed
    assert "4 sessions with 48 messages" in printed
    assert command("verify", "--dir", dest, "--deep")[0] == 0
    assert answers(dest) == answers(memory)
    code, printed = command("backup", dest, "--dir", memory)
    assert code == 1
    assert "exists already" in printed
