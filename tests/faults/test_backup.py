"""A backup of a memory that is in use: what was acknowledged before is in it, nothing is doubled,
and half of one is none.
"""

from __future__ import annotations

import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.errors import InvalidInput, StorageError
from remora.maintenance import backup as backups
from remora.maintenance.backup import backup
from remora.maintenance.compare import align_index
from remora.maintenance.verify import verify
from remora.storage.lance.copy import copy_tables
from remora.testing import HashEmbedder
from tests.accounts import bound_by_permissions
from tests.faults.journals import digests
from tests.harness import user as of_user
from tests.patience import until

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {
            "batch_ms": 1,
            "shards": 2,
            "compact_fragments": 3,
            "compact_interval_s": 0.05,
            "keep_versions_s": 0.01,
        },
        "tokens": {"counter": "heuristic"},
    }
)
USERS = 3


def open_runtime(directory: Path) -> Runtime:
    return Runtime(directory, config=CONFIG, embedder=HashEmbedder())


class Load:
    """Writers that go on until they are told to stop, and what was acknowledged to them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.acknowledged: list[tuple[str, str, str]] = []
        self.remembered: list[tuple[str, str]] = []
        self.go = anyio.Event()

    def has(self, messages: int) -> bool:
        return len(self.acknowledged) >= messages

    async def write(self, number: int) -> None:
        rng = random.Random(number)
        user = self._runtime.user(f"u{number}")
        place = 0
        while True:
            await self.go.wait()
            place += 1
            session = f"s{rng.randrange(3)}"
            text = f"{number}:{place} " + "word " * rng.randrange(1, 20)
            await user.session(session).append(of_user(text))
            self.acknowledged.append((user.id, session, text))
            if place % 7 == 0:
                fact = f"fact {number}:{place}"
                await user.remember(fact)
                self.remembered.append((user.id, fact))
            if place % 25 == 0:
                await user.session(session).flush()
            if place % 40 == 0:
                await user.session(session).rewind(1)
                self.acknowledged = [
                    one for one in self.acknowledged if one[:2] != (user.id, session)
                ]
            await anyio.sleep(0)


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "from another process's place"])
async def test_backup_under_load(tmp_path: Path, *, inside: bool) -> None:
    """G3, G4, G7: while appends, folds, flushes, rewinds and compactions go on, a copy with all
    that was acknowledged before.
    """
    live = tmp_path / "live"
    async with open_runtime(live) as runtime, anyio.create_task_group() as tasks:
        load = Load(runtime)
        for number in range(USERS):
            tasks.start_soon(load.write, number)
        for round_ in range(2):
            load.go.set()
            await until(partial(load.has, 150 * (round_ + 1)))
            before, facts = set(load.acknowledged), set(load.remembered)
            dest = tmp_path / f"backup-{round_}"
            if inside:
                await runtime.backup(dest)
            else:
                await backup(live, dest, CONFIG)
            load.go = anyio.Event()
            # a rewind took the others out, perhaps before the snapshot
            kept = before & set(load.acknowledged)
            at_rest = await verify(dest, CONFIG, deep=True)
            assert at_rest.clean, at_rest.findings
            async with open_runtime(dest) as restored:
                await restored.settle()
                for user in {one[0] for one in kept}:
                    for session in {one[1] for one in kept if one[0] == user}:
                        chat = restored.session(user, session)
                        history = [str(one.content) for one in await chat.history()]
                        wanted = {one[2] for one in kept if one[:2] == (user, session)}
                        assert wanted <= set(history)
                        assert len(history) == len(set(history))
                        await chat.append(of_user("after the restore"))
                        await chat.flush()
                    memories = await restored.user(user).memories(types="fact")
                    known = {fact for who, fact in facts if who == user}
                    assert known <= {one.text for one in memories}
                await restored.settle()
                assert await restored.dead_letters() == []
                ids = await (await restored.internals.long_term()).row_ids()
                assert len(ids) == len(set(ids))
            assert (await verify(dest, CONFIG, deep=True)).clean
        tasks.cancel_scope.cancel()


async def test_what_was_taken_out_since_the_snapshot_is_brought_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G7: rows that left long-term memory between the snapshot and the copy are written again, and
    newer ones are gone.
    """
    live, dest = tmp_path / "live", tmp_path / "dest"
    async with open_runtime(live) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append([of_user(f"number {n}") for n in range(6)])
        await chat.flush()
        await runtime.user("alice").remember("Keeps bees")
        await runtime.settle()

        async def meanwhile() -> None:
            await chat.rewind(2)
            await chat.append([of_user(f"instead {n}") for n in range(3)])
            await chat.flush()
            await runtime.user("alice").prune(keep=0, types="fact")
            await runtime.user("alice").remember("Sold the bees")
            await runtime.user("newcomer").remember("Came later")
            await runtime.settle()

        def later(source: Path, target: Path) -> None:
            anyio.from_thread.run(meanwhile)
            copy_tables(source, target)

        monkeypatch.setattr(backups, "copy_tables", later)
        report = await backup(live, dest, CONFIG)
        assert report.refilled
    assert (await verify(dest, CONFIG)).clean
    async with open_runtime(dest) as restored:
        await restored.session("alice", "one").append(of_user("another seventh"))
        await restored.session("alice", "one").flush()
        await restored.settle()
        said = {one.text for one in await restored.user("alice").memories()}
        assert said == {*(f"number {n}" for n in range(6)), "another seventh", "Keeps bees"}
        assert await restored.user("newcomer").memories() == []
    assert (await verify(dest, CONFIG)).clean


async def test_nothing_of_the_original_changes_and_nothing_stands_where_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: a backup reads; it stands whole under its name, or not at all; and what is there already
    is not written over.
    """
    live, dest = tmp_path / "live", tmp_path / "dest"
    async with open_runtime(live) as runtime:
        await runtime.session("alice", "one").append([of_user(f"number {n}") for n in range(6)])
        await runtime.session("alice", "one").flush()
        await runtime.settle()
    before = digests(live)
    seen: list[set[str]] = []

    async def failing(*arguments: Any, **options: Any) -> None:
        await align_index(*arguments, **options)
        (half,) = tmp_path.glob("dest.new-*")
        seen.append({path.name for path in half.iterdir()})
        with pytest.raises(InvalidInput, match="no memory"):
            await verify(half, CONFIG)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(backups, "align_index", failing)
        with pytest.raises(StorageError, match="No space left"):
            await backup(live, dest, CONFIG)
    assert seen
    assert "journal.db" not in seen[0]
    assert [path.name for path in tmp_path.iterdir()] == ["live"]
    dest.mkdir()
    await backup(live, dest, CONFIG)
    assert (await verify(dest, CONFIG)).clean
    assert digests(live) == before
    for taken in (dest, live, live / "within"):
        with pytest.raises(InvalidInput):
            await backup(live, taken, CONFIG)
    with pytest.raises(InvalidInput, match="no memory"):
        await backup(tmp_path / "absent", tmp_path / "other", CONFIG)
    async with Runtime.in_memory(config=CONFIG, embedder=HashEmbedder()) as runtime:
        with pytest.raises(InvalidInput, match="nothing to copy"):
            await runtime.backup(tmp_path / "other")
    assert digests(live) == before


async def test_a_memory_that_this_account_may_only_read(tmp_path: Path) -> None:
    """G4: it is copied, and no byte or permission of it changes."""
    live, dest = tmp_path / "live", tmp_path / "dest"
    async with open_runtime(live) as runtime:
        await runtime.session("alice", "one").append([of_user(f"number {n}") for n in range(6)])
        await runtime.session("alice", "one").flush()
        await runtime.settle()
    places = [live, *live.rglob("*")]
    for place in places:
        place.chmod(0o555 if place.is_dir() else 0o444)
    before = digests(live)
    command = [sys.executable, "-m", "remora", "backup", str(dest), "--dir", str(live)]
    done = await anyio.run_process(bound_by_permissions(*command), check=False)
    assert done.returncode == 0, done.stderr
    assert digests(live) == before
    assert not any(place.stat().st_mode & 0o222 for place in places)
    for place in places:
        place.chmod(0o755)
    assert (await verify(dest, CONFIG)).clean
    async with open_runtime(dest) as runtime:
        assert len(await runtime.session("alice", "one").history()) == 6
