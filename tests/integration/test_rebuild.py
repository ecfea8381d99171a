"""What a rebuild of long-term memory must find, and what it must not bring back."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import numpy.typing as npt
import pytest

from remora import Config, Runtime
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.runtime.clock import Clock, SystemClock
from remora.testing import HashEmbedder
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 2},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 60},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.002},
    }
)


class Gated(HashEmbedder):
    """Waits before it embeds a text with this word in it, once it is told to."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word
        self.reached = anyio.Event()
        self.gate = anyio.Event()

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if any(self.word in text for text in texts):
            self.reached.set()
            await self.gate.wait()
        return await super().embed(texts)


class HeldClock(SystemClock):
    """Sleeps end only after `release` is set."""

    def __init__(self) -> None:
        self.release = anyio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.release.wait()
        await super().sleep(seconds)


def opened(
    where: Path, embedder: HashEmbedder | None = None, clock: Clock | None = None
) -> Runtime:
    return Runtime(where, config=CONFIG, embedder=embedder or HashEmbedder(), clock=clock)


async def remove(where: Path) -> None:
    await anyio.to_thread.run_sync(shutil.rmtree, where / "longterm")


# -- a directory that only had recorded memories ------------------------------------------------


async def remembered(where: Path) -> None:
    async with opened(where) as runtime:
        await runtime.user("alice").remember(["Prefers metric units", "Is allergic to bees"])
        await runtime.session("alice", "s").append(user("never indexed"))
        await runtime.settle()
    await remove(where)


async def memories(runtime: Runtime) -> list[str]:
    return sorted(row.text for row in await runtime.user("alice").memories())


async def test_recorded_memories_return_after_the_directory_is_lost(tmp_path: Path) -> None:
    """G6: memories count as well as messages when it is asked whether anything is lost."""
    await remembered(tmp_path / "m")
    async with opened(tmp_path / "m") as runtime:
        await runtime.reembedded()
        assert len(await memories(runtime)) == 2
        assert await runtime.user("alice").recall("bees", limit=5)


async def test_verify_and_repair_notice_the_lost_directory_of_memories(tmp_path: Path) -> None:
    """G6: what is lost is reported, and repair has the next start write it."""
    await remembered(tmp_path / "m")
    found = await verify(tmp_path / "m", CONFIG)
    assert [(one.kind, one.repairable) for one in found.findings] == [("table", True)]
    assert "2 recorded memories" in found.findings[0].detail
    assert (await repair(tmp_path / "m", CONFIG)).done
    async with opened(tmp_path / "m") as runtime:
        await runtime.reembedded()
        assert len(await memories(runtime)) == 2
    assert (await verify(tmp_path / "m", CONFIG, deep=True)).clean


async def test_a_directory_that_never_held_a_row_is_not_lost(tmp_path: Path) -> None:
    """Nothing is rebuilt where nothing was indexed."""
    async with opened(tmp_path / "m") as runtime:
        await runtime.session("alice", "s").append(user("never indexed"))
        await runtime.ready()  # long-term memory has its directory
    await remove(tmp_path / "m")
    assert (await verify(tmp_path / "m", CONFIG)).clean
    async with opened(tmp_path / "m") as runtime:
        await runtime.reembedded()
        assert runtime.reembedding is None


# -- a session that is forgotten, and begun anew, in the meantime ---------------------------------


async def rows_after_forgetting(where: Path, *, clear: bool) -> list[tuple[int, str]]:
    """Forget a session while it is being rebuilt, write to it, then flush or clear it."""
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"gated old {number}") for number in range(8)])
        await chat.flush()
        await runtime.settle()
    await remove(where)
    embedder, clock = Gated("gated"), HeldClock()
    async with opened(where, embedder, clock) as runtime:
        chat = runtime.session("alice", "s")
        await embedder.reached.wait()
        await chat.forget()
        await chat.append([user(f"new {number}") for number in range(4)])
        embedder.gate.set()
        clock.release.set()  # the rebuild tries that session again only now
        await runtime.reembedded()
        await (chat.clear() if clear else chat.flush())
        await runtime.settle()
        return [(row.seq, row.text) for row in await runtime.user("alice").memories()]


async def test_a_session_begun_anew_during_a_rebuild_is_indexed_once(tmp_path: Path) -> None:
    """G7: a mark that was read before the session was forgotten says nothing about the new one."""
    rows = await rows_after_forgetting(tmp_path / "m", clear=False)
    assert [seq for seq, _ in rows] == [1, 2, 3, 4]
    assert (await verify(tmp_path / "m", CONFIG, deep=True)).clean


async def test_messages_cleared_after_a_rebuild_stay_out(tmp_path: Path) -> None:
    """Messages that no flush had indexed before they were cleared are never recalled."""
    assert await rows_after_forgetting(tmp_path / "m", clear=True) == []


# -- the same rows, however they came about --------------------------------------------------------


async def windows(runtime: Runtime) -> dict[int, Any]:
    """The rows of the session, by number, with all that search looks at."""
    store = await runtime.internals.long_term()
    rows = await store.rows("alice")
    assert len({row.id for row in rows}) == len(rows)
    return {row.seq: (row.turn, row.window, row.importance, row.tokens) for row in rows}


@pytest.mark.parametrize("between", ["nothing", "clear", "restart", "rewind"])
async def test_rows_of_a_session_flushed_in_its_middle_equal_a_rebuild(
    between: str, tmp_path: Path
) -> None:
    """G6, G7: a message that was the newest when it was indexed gets its later neighbours."""
    where = tmp_path / "m"
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"sentence {number} of the first half") for number in range(5)])
        await chat.flush()
        if between == "rewind":
            await chat.append(user("this never happened"))
            await chat.rewind(5)
        if between == "clear":
            await chat.clear()
        if between != "restart":
            await chat.append([user(f"sentence {number} of the rest") for number in range(3)])
            await chat.flush()
        await runtime.settle()
    async with opened(where) as runtime:
        chat = runtime.session("alice", "s")
        await chat.append([user(f"sentence {number} of the end") for number in range(3)])
        await chat.flush()
        await runtime.settle()
        history = await windows(runtime)
    await remove(where)
    async with opened(where) as runtime:
        await runtime.reembedded()
        assert await windows(runtime) == history
    assert (await verify(where, CONFIG, deep=True)).clean
