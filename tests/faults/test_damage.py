"""Damage done to a memory directory: detected and named, never a wrong answer, repaired where it
can be (G4, G6, G7).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from remora import Config, Runtime
from remora.errors import StorageError
from remora.storage.lance.directory import table_of
from tests.copies import copy_memory
from tests.faults.journals import altered, digests
from tests.harness import user as of_user
from tests.lance import digests_of
from tests.programs import run_command

pytestmark = pytest.mark.blocking

SETTINGS = {
    "buffer": {"token_limit": 300, "summary_tokens": 80},
    "long_term": {"batch_ms": 1, "shards": 2},
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "recall": {"hot_rows": 20},  # so that words are indexed
}
CONFIG = Config.from_dict(SETTINGS)
USERS = ("alice", "bob")
Truth = dict[tuple[str, ...], Any]
Command = Callable[..., str]


def open_runtime(directory: Path) -> Runtime:
    return Runtime(directory, config=CONFIG, rng=random.Random(4))  # the same tables each time


def said(user: str, session: str, number: int) -> str:
    return f"{user} in {session}, canary{number:03d}: " + "word " * 12


async def fill(runtime: Runtime, first: int, last: int) -> None:
    for user in USERS:
        for session in ("one", "two"):
            chat = runtime.session(user, session)
            for number in range(first, last):
                await chat.append(of_user(said(user, session, number)))
            await chat.flush()
        facts = [f"{user} keeps {first} bees", f"{user} has {first} maps"]
        await runtime.user(user).remember(facts)
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


async def leave_killed(directory: Path, config: Config) -> None:
    """Copy a directory in use, a part of which is checkpointed, and work of which is under way."""
    live = directory.with_name("live")
    async with Runtime(live, config=config, rng=random.Random(4)) as runtime:
        await fill(runtime, 0, 6)
        await runtime.internals.journal.checkpoint()
        await fill(runtime, 6, 12)
        under_way = [of_user(said("alice", "one", 100 + n)) for n in range(9)]
        await runtime.session("alice", "one").append(under_way)
        copy_memory(live, directory)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a process leaves it that is killed: with a write-ahead log, an owner's note
    and work under way.
    """
    directory = tmp_path_factory.mktemp("killed") / "memory"

    anyio.run(leave_killed, directory, CONFIG)
    return directory


@pytest.fixture
def memory(tmp_path: Path, whole: Path) -> Path:
    return copy_memory(whole, tmp_path / "memory")


@pytest.fixture
def command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs a command of ``remora`` on a directory, which exits with a code; all that it prints."""
    monkeypatch.setenv("COLUMNS", "400")
    settings = tmp_path / "remora.json"
    settings.write_text(json.dumps(SETTINGS))

    def run(code: int, name: str, memory: Path, *options: str | Path) -> str:
        capsys.readouterr()
        words = [name, *map(str, options), "--dir", str(memory), "--config", str(settings)]
        exited = run_command(*words)
        printed = capsys.readouterr()
        assert exited == code, printed
        return printed.out + printed.err

    return run


def answers(directory: Path) -> Truth:
    """What each verb answers of each user: text, or the name of the error."""
    found: Truth = {}

    async def note(question: tuple[str, ...], answer: Any) -> None:
        try:
            found[question] = await answer
        except StorageError as e:
            found[question] = type(e).__name__

    async def memories(user: Any) -> Any:
        return sorted((one.type, one.session, one.seq, one.text) for one in await user.memories())

    async def recalled(user: Any) -> Any:
        return sorted(one.text for one in await user.recall("canary001 keeps bees", limit=100))

    async def history(chat: Any) -> Any:
        return [str(one.content) for one in await chat.history()]

    async def load(chat: Any) -> Any:
        return [str(one["content"]) for one in (await chat.load()).messages]

    async def ask() -> None:
        async with open_runtime(directory) as runtime:
            with contextlib.suppress(StorageError):
                await runtime.reembedded()
            await runtime.settle()
            for user in USERS:
                handle = runtime.user(user)
                await note((user, "memories"), memories(handle))
                await note((user, "recall"), recalled(handle))
                for session in ("one", "two"):
                    chat = handle.session(session)
                    await note((user, session, "history"), history(chat))
                    await note((user, session, "load"), load(chat))

    anyio.run(ask)
    return found


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


def cut_log(memory: Path) -> None:
    log = memory / "journal.db-wal"
    os.truncate(log, log.stat().st_size // 3)


# -- nothing is amiss ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["whole", "killed"])
def test_verify_changes_nothing(
    which: str, tmp_path: Path, request: pytest.FixtureRequest, command: Command
) -> None:
    """G12: of a directory that was closed, and of one whose owner was killed, no byte changes, and
    nothing is amiss.
    """
    memory = copy_memory(request.getfixturevalue(which), tmp_path / "memory")
    before = digests(memory)
    assert ("journal.db-wal" in before) == ("owner.json" in before) == (which == "killed")
    assert ": consistent" in command(0, "verify", memory, "--deep")
    assert digests(memory) == before
    told = json.loads(command(0, "verify", memory, "--json"))
    assert (told["clean"], told["findings"]) == (True, [])
    assert told["counts"]["messages"] >= 48
    assert told["rows"] >= 48
    assert digests(memory) == before


def test_beside_an_owner_and_without_a_memory(
    memory: Path, tmp_path: Path, command: Command
) -> None:
    """G12: beside an owner a directory is verified, and not repaired; the owner is named. What is
    no memory cannot be read.
    """

    async def beside() -> None:
        async with open_runtime(memory) as runtime:
            runtime.reschedule("checkpoint", 3_600)  # the owner itself changes no file meanwhile
            await runtime.settle()
            before = digests(memory)
            run = partial(anyio.to_thread.run_sync, command)
            used = f"is in use by process {os.getpid()}"
            assert used in await run(1, "repair", memory)
            assert "a process uses it" in await run(0, "verify", memory, "--deep")
            assert digests(memory) == before

    anyio.run(beside)
    command(2, "verify", tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "no memory" in json.loads(command(2, "verify", tmp_path / "empty", "--json"))["error"]
    assert list((tmp_path / "empty").iterdir()) == []
    (memory / "journal.db").write_bytes(b"no database" * 1_000)
    assert "no SQLite file" in command(1, "verify", memory)


# -- the journal -----------------------------------------------------------------------------------


def test_a_write_ahead_log_cut_short(killed: Path, tmp_path: Path, command: Command) -> None:
    """G3, G4: acknowledged commits that are gone are noticed, nothing is served without them until
    that is accepted.
    """
    memory = copy_memory(killed, tmp_path / "memory")
    cut_log(memory)
    before = digests(memory / "longterm")
    assert "wal: journal.db-wal: it was cut short or lost" in command(1, "verify", memory)
    with pytest.raises(StorageError, match="lacks"):
        answers(memory)
    assert "--accept-loss" in command(1, "repair", memory)
    assert digests(memory / "longterm") == before
    assert "given up:" in command(0, "repair", memory, "--accept-loss")
    command(0, "verify", memory, "--deep")
    found = answers(memory)
    for user in USERS:
        history = found[user, "one", "history"]
        assert history == [said(user, "one", n) for n in range(len(history))]
        assert len(history) >= 6, "what was checkpointed is there"
        for kind, session, _, text in found[user, "memories"]:
            assert (kind, session) != ("message", "one") or text in history
    command(0, "verify", memory, "--deep")


def test_commits_that_were_not_promised_to_survive(tmp_path: Path, command: Command) -> None:
    """G3, G7: at durability ``process`` what a power cut took is said, and rows of it, whose
    numbers would be given anew, go.
    """
    memory, journal = (
        tmp_path / "memory",
        msgspec.structs.replace(CONFIG.journal, durability="process"),
    )
    anyio.run(leave_killed, memory, msgspec.structs.replace(CONFIG, journal=journal))
    cut_log(memory)
    printed = command(1, "verify", memory)
    assert "which journal.durability did not promise to keep" in printed
    assert "orphan: " in printed
    assert not any(line.startswith("wal: ") for line in printed.splitlines())
    command(0, "repair", memory)
    found = answers(memory)
    for user in USERS:
        for kind, session, _, text in found[user, "memories"]:
            assert kind == "fact" or text in found[user, session, "history"]
    command(0, "verify", memory, "--deep")


def without(truth: Truth, user: str, session: str, canary: str) -> list[str]:
    """A history without one message."""
    return [text for text in truth[user, session, "history"] if canary not in text]


def test_a_byte_of_a_message(memory: Path, truth: Truth, command: Command) -> None:
    """G4, G6: the session says that it is damaged, all others answer; given up, the message is
    gone, and nothing else.
    """
    journal = memory / "journal.db"
    flip(journal, journal.read_bytes().index(said("alice", "one", 10).encode()) + 5)
    printed = command(1, "verify", memory)
    for named in ("alice", "message 11 is not as it was written", "restore a backup"):
        assert named in printed
    found = answers(memory)
    never_wrong(found, truth)
    assert found["alice", "one", "history"] == "JournalDamaged"
    assert found["alice", "two", "history"] == truth["alice", "two", "history"]
    assert "remaining findings:" in command(1, "repair", memory)
    assert answers(memory)["alice", "one", "history"] == "JournalDamaged"
    given_up = "given up: message 11 of alice / one"
    assert given_up in command(0, "repair", memory, "--drop-damaged")
    command(0, "verify", memory, "--deep")
    after = answers(memory)
    assert after["alice", "one", "history"] == without(truth, "alice", "one", "canary010")
    for question in (("bob", "one", "history"), ("bob", "memories")):
        assert after[question] == truth[question]
    for _, session, _, text in after["alice", "memories"]:
        assert session != "one" or "canary010" not in text
    assert "there was nothing to repair" in command(0, "repair", memory, "--drop-damaged")


def test_a_row_of_every_kind(memory: Path, truth: Truth, command: Command) -> None:
    """G4: a message that is missing, a summary, a memory, a job, a facet: each is named, and what
    is given up is that alone.
    """
    two = "(SELECT sid FROM actors WHERE user = 'alice' AND session = 'two')"
    own = "(SELECT sid FROM actors WHERE user = 'alice' AND session = '')"
    altered(
        memory / "journal.db",
        f"DELETE FROM messages WHERE pos = ({two} << 32 | 3)",
        f"UPDATE summaries SET text = 'An invented summary.' WHERE sid = {two} AND text != ''",
        f"UPDATE memories SET content = 'Keeps wolves' WHERE sid = {own} AND content LIKE '%maps'",
        "INSERT INTO state_items (sid, kind, name, value, crc) "
        f"VALUES ({own}, 'access', 'x', x'00', 1)",
        "INSERT INTO jobs (id, queue, sid, payload, crc) "
        f"VALUES ('made-up', 'flush', {two}, x'00', 1)",
    )
    printed = command(1, "verify", memory)
    for named in ("message 3 is missing", "a summary", "the memory", "made-up", "'access'"):
        assert named in printed, printed
    found = answers(memory)
    never_wrong({name: found[name] for name in found if name[1] != "recall"}, truth)
    command(0, "repair", memory, "--drop-damaged")
    command(0, "verify", memory, "--deep")
    after = answers(memory)
    assert after["alice", "two", "history"] == without(truth, "alice", "two", "canary002")
    for question in (("alice", "one", "history"), ("bob", "memories")):
        assert after[question] == truth[question]
    facts = {text for kind, _, _, text in after["alice", "memories"] if kind == "fact"}
    assert facts == {"alice keeps 0 bees"}


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


def _table(memory: Path) -> Path:
    return memory / "longterm" / f"{table_of(digests_of(memory).user('alice'), 2)}.lance"


def _newest(memory: Path, kind: str) -> Path:
    return max((_table(memory) / kind).rglob("*.lance"), key=lambda path: path.stat().st_size)


def _flip(path: Path) -> None:
    flip(path, path.stat().st_size * 2 // 5)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 10)


def _zero_manifest(memory: Path) -> None:
    newest = min((_table(memory) / "_versions").glob("*.manifest"))
    newest.write_bytes(bytes(newest.stat().st_size))


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "data flipped": (lambda at: _flip(_newest(at, "data")), "is not what was written"),
    "data removed": (lambda at: _newest(at, "data").unlink(), "cannot be read"),
    "data cut": (lambda at: _cut(_newest(at, "data")), "bytes instead of"),
    "index flipped": (lambda at: _flip(_newest(at, "_indices")), "is not what was written"),
    "index removed": (lambda at: _newest(at, "_indices").unlink(), "cannot be read"),
    "manifest zeroed": (_zero_manifest, ".manifest"),
    "table removed": (lambda at: shutil.rmtree(_table(at)), "it is missing"),
    "all removed": (lambda at: shutil.rmtree(at / "longterm"), "it is not there"),
}


@pytest.mark.parametrize(("damage", "named"), DAMAGE.values(), ids=DAMAGE)
def test_damaged_files_of_long_term_memory(
    damage: Callable[[Path], None], named: str, memory: Path, truth: Truth, command: Command
) -> None:
    """G6, G7: each is named, no answer is wrong, and repaired, long-term memory holds what it
    held.
    """
    damage(memory)
    before = digests(memory)
    printed = command(1, "verify", memory, "--deep")
    assert named in printed
    assert "longterm" in printed or "long-term" in printed
    assert digests(memory) == before
    never_wrong(answers(copy_memory(memory, memory.parent / "served")), truth)
    command(0, "repair", memory)
    assert answers(memory) == truth
    command(0, "verify", memory, "--deep")
    assert "there was nothing to repair" in command(0, "repair", memory)


@pytest.mark.parametrize("fill_", [True, False], ids=["filled at once", "left to the next start"])
def test_rows_behind_remoras_back(
    memory: Path, truth: Truth, command: Command, *, fill_: bool
) -> None:
    """G1, G7: rows that somebody deleted, added or moved are named, never shown, and put right."""

    async def meddle() -> None:
        import lancedb  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        database = await lancedb.connect_async(str(memory / "longterm"))
        alice = digests_of(memory).user("alice")
        table = await database.open_table(_table(memory).stem)
        found = table.query().where(f"user_key = '{alice}' AND seq = 3").limit(1)
        (row,) = (await found.to_arrow()).to_pylist()
        schema = await table.schema()
        foreign = {**row, "id": "f" * 32, "user_id": "mallory", "content": "canary001 of mallory"}
        changed = {**row, "id": "e" * 32, "content": "canary001, altered"}
        await table.delete(f"user_key = '{alice}' AND seq BETWEEN 5 AND 6")
        await table.add(pa.Table.from_pylist([foreign, changed, row], schema=schema))
        table.close()
        database.close()
        # else it would not even be looked at
        _table(memory).with_suffix(".synced.json").unlink()

    anyio.run(meddle)
    printed = command(1, "verify", memory, "--deep")
    for kind in (
        "missing: alice / one: 2 messages 5-6",
        "foreign: mallory",
        "orphan: alice",
        "doubled: alice",
        "not as it was written",
    ):
        assert kind in printed, printed
    never_wrong(answers(copy_memory(memory, memory.parent / "served")), truth)
    printed = command(0, "repair", memory, *([] if fill_ else ["--no-fill"]))
    assert ("missing rows are written at the next start" in printed) is not fill_
    assert answers(memory) == truth
    command(0, "verify", memory, "--deep")


def test_backup_command(memory: Path, tmp_path: Path, command: Command) -> None:
    """G3: a copy is made and checked from the command line; what is there already is not
    replaced.
    """
    dest = tmp_path / "backup"
    assert "4 sessions with 48 messages" in command(0, "backup", memory, dest)
    command(0, "verify", dest, "--deep")
    assert answers(dest) == answers(memory)
    assert "exists already" in command(1, "backup", memory, dest)
