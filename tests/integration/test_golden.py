"""Golden journals and directories: what earlier code left on the disk is opened by today's code,
and reads and answers as it did.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora.cli.main import main
from remora.cluster.reshard import reshard
from remora.errors import JournalTooNew
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.schema import FORMAT, MIGRATIONS
from tests.golden.directory import CONFIG, SESSIONS, answers, finish, import_export, open_runtime
from tests.golden.reading import reading

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves copy files

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = [*filter(None, MIGRATIONS), FORMAT]
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/files.tar.xz"))


def differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Where `now` does not say what `then` said. What came since, a new field with its default, is
    no difference; nor is what a small budget has room for.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        for name, value in then.items():
            if name == "tight":
                continue
            if name in now:
                yield from differences(value, now[name], f"{where}.{name}")
            else:
                yield f"{where}.{name} is gone"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (before, after) in enumerate(zip(then, now, strict=True)):
            yield from differences(before, after, f"{where}[{index}]")
    elif where.endswith(".working_bytes") and sys.version_info >= (3, 12):
        if not 0.98 * then <= now <= then:  # each text is smaller by 8 bytes than in 3.11
            yield f"{where}: {then!r} is now {now!r}"
    elif then != now:
        yield f"{where}: {then!r} is now {now!r}"


# -- journals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", FORMATS)
async def test_golden_journal_reads_as_it_did(number: int, tmp_path: Path) -> None:
    """G3, G6: histories, contexts, keys, memories, jobs and settings of every format that is read,
    after migration and once more. Of a format, there is a journal from the first commit that
    writes it.
    """
    golden = GOLDEN / f"format-{number}"
    where = f"file:{golden}/journal.db?mode=ro&immutable=1"
    with closing(sqlite3.connect(where, uri=True)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (number,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert (golden / "journal.db").stat().st_size < 200_000
    then = json.loads((golden / "reads-as.json").read_text(encoding="utf-8"))
    for migrated in (False, True):
        directory = tmp_path / f"{migrated}"
        directory.mkdir()
        shutil.copyfile(golden / "journal.db", directory / "journal.db")
        if migrated:  # and left at that
            path = directory / "journal.db"
            await (await SqliteJournal.open(path, durability="power")).aclose()
        now = json.loads(json.dumps(await reading(directory)))
        assert list(differences(then, now)) == []
        assert now["findings"] == []


async def test_code_that_is_older_than_the_journal_refuses_it(tmp_path: Path) -> None:
    """G3: a journal of the next format is named as such by both numbers, and not a byte of it is
    changed.
    """
    path = tmp_path / "journal.db"
    for number in FORMATS:
        shutil.copyfile(GOLDEN / f"format-{number}" / "journal.db", path)
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"PRAGMA user_version = {FORMAT + 1}")
        before = path.read_bytes()
        with pytest.raises(JournalTooNew, match="upgrade remora") as caught:
            await SqliteJournal.open(path, durability="power")
        assert (caught.value.found, caught.value.supported) == (FORMAT + 1, FORMAT)
        assert path.read_bytes() == before
        assert [one.name for one in tmp_path.iterdir()] == ["journal.db"]


READING = ["users", "sessions alice", "jobs", "view", "show alice chat", "stats",
           "recall alice tea", "export DEST", "tune LABELS"]  # fmt: skip


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "with a log"])
@pytest.mark.parametrize("number", FORMATS[:-1])
async def test_commands_that_read_leave_an_earlier_journal_as_it_is(
    number: int, closed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """G3: the remora that wrote it can still open it. All of them say what brings it up to date."""
    journal = tmp_path / "memory" / "journal.db"
    journal.parent.mkdir()
    shutil.copyfile(GOLDEN / f"format-{number}" / "journal.db", journal)
    labels = tmp_path / "labels.jsonl"
    labels.write_text('{"user": "alice", "query": "tea", "relevant": ["1"]}\n' * 2)
    places = {"DEST": str(tmp_path / "all.jsonl"), "LABELS": str(labels)}
    with closing(sqlite3.connect(journal)) as database:
        if not closed:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("UPDATE settings SET value = value")
            database.commit()
        before = journal.read_bytes()
        for line in READING:
            words = [places.get(word, word) for word in line.split()]
            command = [*words, "--dir", str(journal.parent)]
            assert await anyio.to_thread.run_sync(main, command) == 1, line
            said = " ".join(capsys.readouterr().err.split())
            assert f"{journal} has the format {number} of an earlier remora" in said, line
            assert "start the application once" in said
        assert journal.read_bytes() == before
    assert not (tmp_path / "all.jsonl").exists()


# -- directories -----------------------------------------------------------------------------------


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one golden directory's files."""
    with tarfile.open(GOLDEN / request.param / "files.tar.xz") as files:
        # Python 3.11.0 to 3.11.3 have no filters
        options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        files.extractall(tmp_path, **options)
    return tmp_path


@pytest.fixture
def then(request: pytest.FixtureRequest, golden: Path) -> dict[str, Any]:
    """What it answered when it was made."""
    directory = GOLDEN / request.node.callspec.params["golden"]
    found: dict[str, Any] = json.loads((directory / "answers.json").read_text(encoding="utf-8"))
    return found


def _without_wording(answer: dict[str, Any]) -> dict[str, Any]:
    """Answers without how a context words what it recalled, how much fits beside that, and which
    memories a recall ranks first.
    """
    users = {
        name: {
            **user,
            "asked": {"summary": user["asked"]["summary"]},
            "recall": {query: len(ids) for query, ids in user["recall"].items()},
        }
        for name, user in answer["users"].items()
    }
    return {**answer, "users": users}


def without_access(answer: dict[str, Any]) -> dict[str, Any]:
    """Answers without the figures of access, which reach the disk when the user's actor leaves
    memory.
    """
    rows = {
        name: [[*row[:4], *row[6:]] for row in user["arrow"]]
        for name, user in answer["users"].items()
    }
    users = {name: {**user, "arrow": rows[name]} for name, user in answer["users"].items()}
    return {**answer, "users": users}


def changes(then: Any, now: Any, *, access: bool = False) -> list[str]:
    """How the two differ, but for wording, and for figures of access if not wanted."""
    if not access:
        then, now = without_access(then), without_access(now)
    then, now = _without_wording(then), _without_wording(now)
    return list(differences(then, now))


async def verify(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = await anyio.to_thread.run_sync(main, ["verify", "--deep", "--dir", str(directory)])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["memory", "killed", "backup"])
async def test_a_directory_answers_as_it_did(
    golden: Path, then: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """G3, G6, G7: closed, killed, or restored from its backup; again at the second opening. The
    command line finds nothing, before and after today's code has used it, and in a backup that
    today's code makes. What was left to do is done: the summary that was not written, and the dead
    letter, once its cause is mended.
    """
    await verify(golden / name, capsys)
    async with open_runtime(golden / name) as runtime:
        found = await answers(runtime)
        assert changes(then["memory"], found, access=name == "memory") == []
    async with open_runtime(golden / name) as runtime:
        assert (await runtime.session("alice", "waiting").load()).pending
        assert len(await runtime.dead_letters()) == 1
        assert changes(then["memory"], await answers(runtime)) == []
        await runtime.session("alice", "plain").load(query="bridges")
        await runtime.backup(golden / "new")
    await verify(golden / name, capsys)
    await verify(golden / "new", capsys)
    async with open_runtime(golden / name, waits=False, mended=True) as runtime:
        await finish(runtime)
        assert await runtime.dead_letters() == []
        assert changes(then["finished"], await answers(runtime)) == []


@pytest.mark.parametrize("name", ["memory", "killed"])
async def test_a_directory_that_is_divided_first(
    golden: Path, then: dict[str, Any], name: str
) -> None:
    """G3: today's code never opened it. It answers as it did when it is in one piece again."""
    assert (await reshard(golden / name, 2, CONFIG)).before == 1
    assert (await reshard(golden / name, 1, CONFIG)).before == 2
    async with open_runtime(golden / name) as runtime:
        found = await answers(runtime)
        assert changes(then["memory"], found, access=name == "memory") == []


@pytest.mark.parametrize("name", ["export.jsonl", "export"])
async def test_an_export_is_imported(golden: Path, then: dict[str, Any], name: str) -> None:
    """S4.37: JSON lines and Parquet."""
    async with open_runtime(golden / "imported", waits=False, mended=True) as runtime:
        await import_export(runtime, golden / name)
        found = await answers(runtime, imported=True)
        assert changes(then["imported"], found, access=True) == []


async def test_an_export_is_written_as_it_was(golden: Path) -> None:
    """S4.25: line by line, but for what was read since, and for the time at the top."""

    def lines(name: str) -> list[Any]:
        found = (golden / name).read_text(encoding="utf-8").splitlines()
        plain = [line for line in found[1:-1] if '"kind":"access"' not in line]
        return [json.loads(line) for line in plain]

    async with open_runtime(golden / "memory") as runtime:
        await runtime.export(golden / "again.jsonl")
    assert lines("again.jsonl") == lines("export.jsonl")


async def test_a_forgotten_user_leaves_nothing(golden: Path) -> None:
    """G13: what earlier code wrote is erased by today's, down to the bytes."""
    secret = b"Sentence 3 of chat"
    files = [path for path in (golden / "memory").rglob("*") if path.is_file()]
    assert any(secret in path.read_bytes() for path in files)
    async with open_runtime(golden / "memory") as runtime:
        await runtime.user("bob").forget()
        for name in SESSIONS:
            assert bool((await runtime.counts(name)).messages) == (name != "bob")
    files = [path for path in (golden / "memory").rglob("*") if path.is_file()]
    assert not any(secret in path.read_bytes() for path in files)
