"""Dividing a memory into another number of shards: all of it survives, and every crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import remora
from remora.cluster.reshard import reshard
from remora.errors import (
    DirectoryLocked,
    ErasureDelayed,
    InvalidInput,
    LongTermError,
    StorageError,
)
from remora.storage.lance.store import LanceStore
from remora.storage.layout import DIVISION_FILE, SHARDS_FILE
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.filled import CONFIG, PLAIN, USERS, Templates, look, looked, opened, said

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and copy files


async def test_everything_survives_one_to_eight_to_three_to_one(
    templates: Templates, tmp_path: Path
) -> None:
    path = tmp_path / "memory"
    await templates.full(path)
    async with await opened(path) as memory:
        recalled = [one.id for one in await memory.user("user 0").recall("fact about trains")]
        before = await look(memory)
        ids = [job.id for job in await memory.dead_letters()]
    assert before["counts"].dead_jobs == 1
    told: list[tuple[int, int]] = []
    for shards in (8, 3, 1):
        report = await reshard(
            path, shards, CONFIG, progress=lambda done, total: told.append((done, total))
        )
        assert (report.shards, report.resumed, report.rows) == (shards, False, before["rows"])
        assert told[-1][0] == told[-1][1]
        async with await opened(path) as memory:
            assert len(memory.shards) == shards
            after = await look(memory)
            for name, value in before.items():
                assert after[name] == value, name
            again = await memory.user("user 0").recall("fact about trains")
            assert [one.id for one in again] == recalled
            before = await look(memory)  # what was recalled was accessed
            # the keys of earlier appends and turns
            texts = [said(f"fact 0.{n} about tea and trains") for n in range(12)]
            receipt = await memory.session("user 0", "chat").append(texts, key="first")
            assert receipt.duplicate
            async with memory.session("user 1", "turns").turn(said("hello"), key="turn") as turn:
                assert turn.replayed
    assert sorted(one.name for one in path.iterdir()) == [
        "journal.db",
        "journal.mark",
        "longterm",
        "remora.lock",
    ]
    async with remora.Runtime(path, config=CONFIG, embedder=HashEmbedder(16)) as whole:
        assert [job.id for job in await whole.dead_letters()] == ids
        assert await whole.retry_dead_letters() == 1
        await whole.settle()
        assert not await whole.dead_letters()
        assert await whole.session("user 0", "new").append(said("a new session"))
        assert not (await whole.users(prefix="user 4"))


class Killed(BaseException):
    """The process ends here."""


def kill_at(step: str, directory: Path, copy: Path) -> Callable[[str], None]:
    """Copies the directory as a kill at this step leaves it, and ends the process."""

    def on_step(name: str) -> None:
        if name == step:
            copy_memory(directory, copy, "remora.lock")
            raise Killed

    return on_step


STEPS = (
    "begun",
    "journal 0 made",
    "journal 0",
    "journal 1 made",
    "journal 1",
    "rows",
    "verified",
    "synced",
    "replaced",
    "removed",
)
REPLACED = ("replaced", "removed")


@pytest.mark.parametrize(
    ("step", "shards"),
    [
        *((step, (1, 2)) for step in STEPS),
        *((step, (3, 2)) for step in ("journal 0", "verified", "replaced")),
        *((step, (2, 1)) for step in STEPS if not step.startswith("journal 1")),
    ],
)
async def test_a_kill_at_any_step_loses_nothing(
    templates: Templates, tmp_path: Path, step: str, shards: tuple[int, int]
) -> None:
    before, after = shards
    path, left = tmp_path / "memory", tmp_path / "left"
    whole = await templates.plain(path, before)
    with pytest.raises(Killed):
        await reshard(path, after, PLAIN, on_step=kill_at(step, path, left))
    resumed = tmp_path / "resumed"
    copy_memory(left, resumed)

    # an application that opens it finds all, and nothing is left of the other copy
    async with await opened(left, PLAIN) as memory:
        assert len(memory.shards) == (after if step in REPLACED else before)
        assert await look(memory) == whole
        await memory.session("user 0", "chat").append(said("three"))
    names = {one.name for one in left.iterdir()}
    assert DIVISION_FILE not in names
    assert len([name for name in names if name.startswith("shard-")]) == (
        len(memory.shards) if len(memory.shards) > 1 else 0
    )
    assert ("journal.db" in names) == (SHARDS_FILE not in names) == (len(memory.shards) == 1)

    # or the same command goes on
    if step in REPLACED:
        with pytest.raises(InvalidInput, match="already"):
            await reshard(resumed, after, PLAIN)
    else:
        report = await reshard(resumed, after, PLAIN)
        assert report.resumed
    async with await opened(resumed, PLAIN) as memory:
        assert len(memory.shards) == after
        assert await look(memory) == whole

    # one that another start has discarded begins again
    if step not in REPLACED:
        assert not (await reshard(left, after, PLAIN)).resumed
        async with await opened(left, PLAIN) as memory:
            assert len(await memory.session("user 0", "chat").history()) == 3


@pytest.mark.parametrize("step", ["rows added", "rows", "synced"])
async def test_a_kill_while_long_term_memory_is_copied(tmp_path: Path, step: str) -> None:
    path, left = tmp_path / "memory", tmp_path / "left"
    async with remora.Runtime(path, config=CONFIG, embedder=HashEmbedder(16)) as runtime:
        for user in USERS:
            await runtime.user(user).remember(f"{user} likes tea")
        await runtime.settle()
    with pytest.raises((Killed, BaseExceptionGroup)):
        await reshard(path, 2, CONFIG, on_step=kill_at(step, path, left))
    report = await reshard(left, 2, CONFIG)
    assert (report.resumed, report.rows) == (True, 5)
    async with await opened(left) as memory:
        for user in USERS:
            assert (await memory.user(user).recall("tea"))[0].text == f"{user} likes tea"


async def test_a_copy_is_not_used_once_the_memory_was_opened_by_an_earlier_release(
    templates: Templates, tmp_path: Path
) -> None:
    """It knows nothing of the division: the journal's epoch tells."""
    path, left = tmp_path / "memory", tmp_path / "left"
    await templates.plain(path)
    with pytest.raises(Killed):
        await reshard(path, 2, PLAIN, on_step=kill_at("verified", path, left))
    note = (left / DIVISION_FILE).read_bytes()
    (left / DIVISION_FILE).unlink()
    for shard in ("shard-00", "shard-01"):
        (left / shard).rename(tmp_path / shard)
    async with remora.Runtime(left, config=PLAIN) as runtime:
        await runtime.session("user 0", "chat").append(said("three"))
    (left / DIVISION_FILE).write_bytes(note)
    for shard in ("shard-00", "shard-01"):
        (tmp_path / shard).rename(left / shard)
    assert not (await reshard(left, 2, PLAIN)).resumed
    async with await opened(left, PLAIN) as memory:
        assert len(await memory.session("user 0", "chat").history()) == 3


async def test_an_erasure_that_waits_ends_in_the_new_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: rows that wait to be erased are not copied, and the user may come back."""
    path = tmp_path / "memory"

    async def fails(store: LanceStore, owner: str, session: str = "") -> int:
        raise LongTermError("it cannot be reached", retryable=True)

    with monkeypatch.context() as patch:
        patch.setattr(LanceStore, "erase", fails)
        async with remora.Runtime(path, config=CONFIG, embedder=HashEmbedder(16)) as runtime:
            for user in USERS:
                await runtime.user(user).remember(f"the secret of {user}")
            await runtime.settle()
            with pytest.raises(ErasureDelayed):
                await runtime.user("user 1").forget()
    assert (await reshard(path, 3, CONFIG)).rows == 4
    async with await opened(path) as memory:
        assert await memory.retry_erasures() == []
        for user in USERS:
            found = [one.text for one in await memory.user(user).recall("secret")]
            assert found == ([] if user == "user 1" else [f"the secret of {user}"])
        await memory.user("user 1").remember("back again")
    kept = [one.read_bytes() for one in path.rglob("*") if one.is_file()]
    assert not any(b"secret of user 1" in one for one in kept)


async def test_lost_long_term_memory_is_not_replaced(templates: Templates, tmp_path: Path) -> None:
    """New tables would be empty, and count."""
    path = tmp_path / "memory"
    await templates.full(path)
    shutil.rmtree(path / "longterm")
    names = {one.name for one in path.iterdir()}
    for config in (CONFIG, PLAIN):
        with pytest.raises(StorageError, match="it is not there"):
            await reshard(path, 2, config)
    assert {one.name for one in path.iterdir()} == names


async def test_bad_input_is_refused_and_nothing_changes(
    templates: Templates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "memory"
    whole = await templates.plain(path)
    for wrong in (0, 257):
        with pytest.raises(InvalidInput, match="1 to 256"):
            await reshard(path, wrong, PLAIN)
    with pytest.raises(InvalidInput, match="1 shard already"):
        await reshard(path, 1, PLAIN)
    with pytest.raises(InvalidInput, match="no memory"):
        await reshard(tmp_path / "nowhere", 2, PLAIN)
    elsewhere = remora.Config.from_dict({"long_term": {"uri": "s3://bucket/memory"}})
    with pytest.raises(InvalidInput, match="at an address"):
        await reshard(path, 2, elsewhere)
    async with remora.Runtime(path, config=PLAIN):
        with pytest.raises(DirectoryLocked):
            await reshard(path, 2, PLAIN)
    with monkeypatch.context() as patch:
        usage = shutil.disk_usage(tmp_path)
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1 << 20))
        with pytest.raises(StorageError, match="free space"):
            await reshard(path, 2, PLAIN)
    assert {one.name for one in path.iterdir()} == {"journal.db", "journal.mark", "remora.lock"}
    journal = path / "journal.db"
    sound = journal.read_bytes()
    at = sound.index(b"two")
    journal.write_bytes(sound[:at] + b"tvo" + sound[at + 3 :])
    with pytest.raises(StorageError, match="is damaged"):
        await reshard(path, 2, PLAIN)
    journal.write_bytes(sound)
    assert await looked(path, PLAIN) == whole
