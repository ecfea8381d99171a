"""Golden directories: what earlier code left on the disk is opened by today's code, and answers the
same.
"""

from __future__ import annotations

import base64
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from remora import Runtime
from remora.cli.main import main
from remora.storage.records import ENTRY_KIND
from tests.golden.directory import SESSIONS, answers, finish, import_export, open_runtime
from tests.integration.test_golden import differences


def changes(then: Any, now: Any) -> Iterator[str]:
    """How the two differ, but for fields that were added since, how a context words what it
    recalled, how much fits beside that, and which memories a recall ranks first.
    """
    return differences(_without_wording(without_added(then)), _without_wording(without_added(now)))


pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves copy files

GOLDEN = Path(__file__).parents[1] / "golden"
VERSIONS = sorted(path.parent.name for path in GOLDEN.glob("*/files.tar.xz"))


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
    """What it answered, but for what has changed since on purpose.

    ``since.json``: in a context too tight for summaries and messages next to a memory block, one
    rule now decides (`remora.actors.session.window`): summaries take at most half, the running
    one first. Before, the planner then dropped the summary, or the oldest entries. And a context
    that leaves messages out begins with a user's message; a summary that does not fit is shortened.
    """
    directory = GOLDEN / request.node.callspec.params["golden"]
    found: dict[str, Any] = json.loads((directory / "answers.json").read_text(encoding="utf-8"))
    since = json.loads((directory / "since.json").read_text(encoding="utf-8"))
    for name, answer in found.items():
        for session, changed in [*since["all"].items(), *since.get(name, {}).items()]:
            if session in answer.get("sessions", {}):
                answer["sessions"][session].update(changed)
    return found


ADDED: dict[str, object] = {"lost": [], "verbatim": [], "prose": 0, "brief": "", "brief_tokens": 0}
"""Fields of a summary that later code added, where they say nothing."""


def without_added(value: Any) -> Any:
    """What is exported, without fields that were added since and say nothing."""
    if isinstance(value, list):
        return [without_added(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == ENTRY_KIND and isinstance(value.get("value"), str):
        entry = without_added(msgspec.msgpack.decode(base64.b64decode(value["value"])))
        return {**value, "value": entry}
    return {
        name: without_added(one)
        for name, one in value.items()
        if not (name in ADDED and one == ADDED[name])
    }


def _without_wording(answer: dict[str, Any]) -> dict[str, Any]:
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


@pytest.mark.parametrize("name", ["memory", "killed", "backup"])
async def test_a_directory_answers_as_it_did(golden: Path, then: dict[str, Any], name: str) -> None:
    """G3, G6, G7: closed, killed, or restored from its backup; again at the second opening."""
    compared: Callable[[dict[str, Any]], dict[str, Any]] = (
        (lambda found: found) if name == "memory" else without_access
    )
    async with open_runtime(golden / name) as runtime:
        assert list(changes(compared(then["memory"]), compared(await answers(runtime)))) == []
    async with open_runtime(golden / name) as runtime:
        assert (
            list(changes(without_access(then["memory"]), without_access(await answers(runtime))))
            == []
        )


@pytest.mark.parametrize("name", ["memory", "killed", "backup"])
async def test_what_was_left_to_do_is_done(golden: Path, then: dict[str, Any], name: str) -> None:
    """G6, G7: the summary that was not written, and the dead letter, once its cause is mended."""
    async with open_runtime(golden / name) as runtime:
        assert (await runtime.session("alice", "waiting").load()).pending
        assert len(await runtime.dead_letters()) == 1
    async with open_runtime(golden / name, waits=False, mended=True) as runtime:
        await finish(runtime)
        assert await runtime.dead_letters() == []
        assert (
            list(changes(without_access(then["finished"]), without_access(await answers(runtime))))
            == []
        )


@pytest.mark.parametrize("name", ["memory", "killed", "backup"])
async def test_a_directory_verifies(
    golden: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """G3, G7: by the command line, before and after today's code has used it, and in a backup that
    today's code makes.
    """

    async def verify(directory: Path) -> None:
        code = await anyio.to_thread.run_sync(main, ["verify", "--deep", "--dir", str(directory)])
        assert code == 0, capsys.readouterr().out

    await verify(golden / name)
    async with open_runtime(golden / name) as runtime:
        await runtime.session("alice", "plain").load(query="bridges")
        await runtime.backup(golden / "new")
    await verify(golden / name)
    await verify(golden / "new")


@pytest.mark.parametrize("name", ["export.jsonl", "export"])
async def test_an_export_is_imported(golden: Path, then: dict[str, Any], name: str) -> None:
    """S4.37: JSON lines and Parquet."""
    async with open_runtime(golden / "imported", waits=False, mended=True) as runtime:
        await import_export(runtime, golden / name)
        assert list(changes(then["imported"], await answers(runtime, imported=True))) == []


async def test_an_export_is_written_as_it_was(golden: Path) -> None:
    """S4.25: line by line, but for what was read since, and for the time at the top."""

    def lines(name: str) -> list[Any]:
        found = (golden / name).read_text(encoding="utf-8").splitlines()
        plain = [line for line in found[1:-1] if '"kind":"access"' not in line]
        return [without_added(json.loads(line)) for line in plain]

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
        await still_there(runtime)
    files = [path for path in (golden / "memory").rglob("*") if path.is_file()]
    assert not any(secret in path.read_bytes() for path in files)


async def still_there(runtime: Runtime) -> None:
    for name in SESSIONS:
        assert bool((await runtime.counts(name)).messages) == (name != "bob")
