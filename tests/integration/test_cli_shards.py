"""Commands on a memory in shards say what they say of the same memory in one piece."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.cluster.reshard import reshard
from remora.cluster.sharded import ShardedRuntime
from remora.cluster.sharding import shard_of
from tests.configs import LEAN_ENVIRONMENT, LEAN_TREE, poison
from tests.copies import copy_memory
from tests.programs import run_command_aside

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict({**LEAN_TREE, "supervisor": {"max_attempts": 1}})
USERS = ["ada", "bob", "cy", "dora", "eve"]
Run = Any


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same memory twice: ``whole`` in one piece, ``parts`` in three shards."""
    base = tmp_path_factory.mktemp("made")

    async def make() -> None:
        async with Runtime(base / "whole", config=CONFIG, redact_long_term=poison) as runtime:
            for user in USERS:
                chat = runtime.session(user, "chat")
                await chat.append({"role": "user", "content": f"{user} has a cat"}, key="first")
                await chat.flush()
                await runtime.user(user).remember(f"{user} likes tea")
                await runtime.user(user).state.set("colour", user)
            bad = runtime.session("eve", "bad")
            await bad.append({"role": "user", "content": "poison"})
            await bad.flush()
            await runtime.settle()
        copy_memory(base / "whole", base / "parts")
        await reshard(base / "parts", 3, CONFIG)

    anyio.run(make)
    return base


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**LEAN_ENVIRONMENT, "COLUMNS": "500"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run(tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on a copy of each; the exit codes, and the JSON lines that they print."""
    for name in ("whole", "parts"):
        copy_memory(made / name, tmp_path / name)

    async def run_both(*arguments: str | Callable[[str], str]) -> list[tuple[int, list[Any]]]:
        results = []
        for name in ("whole", "parts"):
            capsys.readouterr()
            given = [one if isinstance(one, str) else one(name) for one in arguments]
            line = [*given, "--json", "--dir", str(tmp_path / name)]
            code = await run_command_aside(*line)
            lines = capsys.readouterr().out.splitlines()
            results.append((code, [json.loads(one) for one in lines]))
        return results

    return run_both


def own_ids(lines: list[Any]) -> list[Any]:
    """The lines of jobs without the shard in their ids, in an order of their own."""
    return sorted(
        ({**one, "id": one["id"].rpartition("/")[2]} for one in lines), key=lambda one: one["id"]
    )


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside an owner"])
async def test_what_reads_says_the_same(run: Run, tmp_path: Path, *, beside: bool) -> None:
    async with AsyncExitStack() as owners:
        if beside:
            for name in ("whole", "parts"):
                runtime = Runtime(tmp_path / name, config=CONFIG, redact_long_term=poison)
                of = partial(ShardedRuntime.of, runtime)
                await owners.enter_async_context(await anyio.to_thread.run_sync(of))
        for command in (
            ("users",),
            ("users", "--limit", "2", "--order", "name"),
            ("users", "--limit", "2", "--order", "name", "--after", "bob"),
            ("sessions", "eve"),
            ("show", "ada", "chat"),
            ("recall", "bob", "who likes tea?"),
            ("stats", "cy"),
            ("stats", "cy", "chat"),
            ("show", "ada", "nothing"),
            ("sessions", "nobody"),
            ("recall", "nobody", "anything"),
        ):
            whole, parts = await run(*command)
            assert parts == whole, command
            assert (whole[0] == 0) == ("no" not in " ".join(command)), command
        whole, parts = await run("stats")
        assert parts[1][0].pop("shards") == "3"
        for (one,) in (whole[1], parts[1]):
            del one["bytes_on_disk"]
        assert parts == whole
        for command in (("jobs",), ("jobs", "--user", "eve"), ("jobs", "--user", "ada")):
            whole, parts = await run(*command)
            assert own_ids(parts[1]) == own_ids(whole[1])
            assert [one["id"].partition("/")[0] for one in parts[1]] == [
                str(shard_of(one["user"], 3)) for one in parts[1]
            ]
        whole, parts = await run("export", lambda name: str(tmp_path / f"{name}.jsonl"))
        assert parts == whole
        exported = [
            sorted((tmp_path / f"{name}.jsonl").read_text().splitlines()[1:-1])
            for name in ("whole", "parts")
        ]
        assert exported[0] == exported[1]
        whole, parts = await run("verify", "--deep")
        assert parts[0] == whole[0] == 0
        assert {k: parts[1][0][k] for k in ("counts", "rows", "findings")} == {
            k: whole[1][0][k] for k in ("counts", "rows", "findings")
        }
        if beside:  # said once, and not by each shard
            said = [one for one in parts[1][0]["notes"] if "a process uses it" in one]
            assert said == [one for one in whole[1][0]["notes"] if "a process uses it" in one] != []
        whole, parts = await run("backup", lambda name: str(tmp_path / f"{name}-copy"))
        assert parts[1][0]["counts"] == whole[1][0]["counts"]
        if beside:
            for command in (("reembed",), ("repair",)):
                assert [code for code, _ in await run(*command)] == [1, 1], command
    copy = Runtime(tmp_path / "parts-copy", config=CONFIG)
    async with await anyio.to_thread.run_sync(partial(ShardedRuntime.of, copy)) as memory:
        assert len(memory.shards) == 3
        assert (await memory.user("dora").recall("tea"))[0].text == "dora likes tea"


async def test_what_writes_does_the_same(run: Run, tmp_path: Path) -> None:
    whole, parts = await run("forget", "bob", "--yes")
    assert whole[0] == parts[0] == 0
    assert parts[1][0]["journal"] == whole[1][0]["journal"]
    file = tmp_path / "more.jsonl"
    said = [{"role": "user", "content": "I moved to Lisbon"}]
    file.write_text(
        "".join(
            json.dumps({"user": user, "session": "new", "messages": said}) + "\n" for user in USERS
        )
    )
    for result in await run("replay", str(file)):
        assert result[0] == 0
    whole, parts = await run("export", lambda name: str(tmp_path / f"{name}.jsonl"))
    assert parts == whole
    await run("users")
    whole, parts = await run("import", str(tmp_path / "whole.jsonl"), "--skip-existing")
    assert parts == whole
    whole, parts = await run("import", str(tmp_path / "whole.jsonl"))
    assert [whole[0], parts[0]] == [1, 1]
    whole, parts = await run("reembed")
    assert (parts[0], parts[1][0]["rows"]) == (0, whole[1][0]["rows"])
    whole, parts = await run("repair")
    assert parts == whole
    for result in await run("verify"):
        assert result[0] == 0


async def test_dead_letters_are_retried_and_dropped_by_their_ids(run: Run, tmp_path: Path) -> None:
    directory = ["--dir", str(tmp_path / "parts")]

    async def command(*arguments: str) -> int:
        return await run_command_aside(*arguments, *directory)

    _, (_, (dead,)) = await run("jobs", "--dead")
    assert dead["id"].startswith(f"{shard_of('eve', 3)}/flush-")
    for wrong in (dead["id"].partition("/")[2], "9/flush-1-1", "0/none", "none"):
        assert await command("jobs", "retry", wrong) == 1
        assert await command("jobs", "drop", "--yes", dead["id"], wrong) == 1
    assert await command("jobs", "retry", dead["id"]) == 0
    assert (await run("jobs", "--dead"))[1] == (0, [])
    assert await command("jobs", "drop", "--yes", dead["id"]) == 1


async def test_damage_is_named_with_its_shard(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "parts"
    number = shard_of("dora", 3)
    journal = path / f"shard-0{number}" / "journal.db"
    content = journal.read_bytes()
    at = content.index(b"dora has a cat")
    journal.write_bytes(content[:at] + b"DORA" + content[at + 4 :])
    _, (code, (found,)) = await run("verify")
    assert code == 1
    assert {one["where"].partition("/")[0] for one in found["findings"]} == {f"shard-0{number}"}
    journal.write_bytes(content)

    # a shard that another number of shards made
    shutil.rmtree(path / "shard-01")
    copy_memory(path / "shard-02", path / "shard-01")
    _, (code, (found,)) = await run("verify")
    assert code == 1
    assert any("wrong shard" in one["detail"] for one in found["findings"])

    (path / "shards.json").write_text("{}")
    capsys.readouterr()
    for arguments in (
        ["verify"],
        ["users"],
        ["recall", "ada", "tea"],
        ["reshard", "--shards", "2"],
    ):
        line = [*arguments, "--dir", str(path)]
        assert await run_command_aside(*line) != 0
        assert "shards.json is damaged" in capsys.readouterr().err


async def test_reshard_says_what_it_did(
    tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "memory"
    copy_memory(made / "parts", path)

    async def command(*arguments: str) -> tuple[int, str, str]:
        code = await run_command_aside("reshard", *arguments)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    code, out, _ = await command(str(path), "--shards", "1")
    assert code == 0
    assert "has 1 shard now, and had 3: 5 users, 6 messages, 10 rows" in out
    code, out, _ = await command(str(path), "--shards", "1")
    assert (code, "has 1 shard already: there is nothing to do" in out) == (0, True)
    assert (await command(str(path), "--shards", "0"))[0] == 1
    async with Runtime(path, config=CONFIG) as runtime:
        assert (await runtime.counts()).messages == 6
        assert "is in use by process" in (await command("--dir", str(path), "--shards", "2"))[2]
