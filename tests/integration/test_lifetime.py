"""Opening and closing: by any task, again, cut short, from within, or not at all."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import numpy as np
import numpy.typing as npt
import pytest

from remora import Config, Runtime
from remora.errors import InvalidInput, ReentrantAsk, RuntimeClosed, WrongLoop
from remora.storage.memory import MemoryJournal, MemoryStore
from remora.testing import HashEmbedder, count_probes
from tests.configs import LEAN

pytestmark = pytest.mark.anyio

BARE = Config.from_dict({"tokens": {"counter": "heuristic"}, "long_term": {"enabled": False}})
HELLO: dict[str, Any] = {"role": "user", "content": "hello"}


async def in_a_task(function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """In a task of its own, as pytest-asyncio runs each half of a fixture."""
    return await asyncio.create_task(function())


async def texts(runtime: Runtime) -> list[Any]:
    return [one.content for one in await runtime.session("alice", "one").history()]


# -- by any task -----------------------------------------------------------------------------------


async def test_one_task_opens_and_another_closes(tmp_path: Path) -> None:
    """G12: the directory is free when `aclose` returns, for all who close."""
    for number in range(3):
        runtime = Runtime(tmp_path, config=LEAN)
        assert await in_a_task(runtime.start) is runtime
        assert await texts(runtime) == ["hello"] * number
        await runtime.session("alice", "one").append(HELLO)
        with pytest.raises(InvalidInput, match="open already"):
            await runtime.start()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(runtime.aclose)
            await in_a_task(runtime.aclose)
            async with Runtime(tmp_path, config=LEAN):
                pass
        with pytest.raises(RuntimeClosed, match="is closed"):
            await runtime.session("alice", "one").load()
        await runtime.aclose()


async def test_a_fixture_is_set_up_and_torn_down_in_two_tasks(tmp_path: Path) -> None:
    """``async with`` in a fixture, as pytest-asyncio runs it."""

    async def fixture() -> AsyncIterator[Runtime]:
        async with Runtime(tmp_path, config=LEAN) as runtime:
            yield runtime

    halves = fixture()
    runtime = await in_a_task(lambda: anext(halves))  # type: ignore[arg-type]
    await runtime.session("alice", "one").append(HELLO)
    with pytest.raises(StopAsyncIteration):
        await in_a_task(lambda: anext(halves))  # type: ignore[arg-type]
    async with Runtime(tmp_path, config=LEAN) as again:
        assert await texts(again) == ["hello"]


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_any_task_on_trio() -> None:
    """Without SQLite and LanceDB, on the other event loop."""
    runtime = Runtime.in_memory(config=BARE)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.start)
    await runtime.session("alice", "one").append(HELLO)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.aclose)
    assert "closed" in repr(runtime)


# -- again -----------------------------------------------------------------------------------------


@asynccontextmanager
async def lifespan(runtime: Runtime) -> AsyncIterator[None]:
    async with runtime:
        yield


def test_an_application_is_started_twice(tmp_path: Path) -> None:
    """As Starlette's ``TestClient`` does it: each time on an event loop of its own, in a thread."""
    for runtime in (Runtime.in_memory(config=LEAN), Runtime(tmp_path, config=LEAN)):
        chat = runtime.session("alice", "one")
        for number in range(3):
            with (
                anyio.from_thread.start_blocking_portal() as portal,
                portal.wrap_async_context_manager(lifespan(runtime)),
            ):
                kept = portal.call(chat.history)
                assert len(kept) == (0 if runtime.path is None else number)
                portal.call(chat.append, HELLO)


async def test_a_part_that_was_closed_is_not_opened_again() -> None:
    """A journal or store that was given as an object is closed with the runtime; one that is made
    is made again.
    """
    given: dict[str, Any] = {"journal": MemoryJournal(), "store": MemoryStore(dimension=None)}
    for name, part in given.items():
        runtime = Runtime.in_memory(config=LEAN, **{name: part})
        async with runtime:
            pass
        with pytest.raises(RuntimeClosed, match="make another"):
            await runtime.start()

    async def make() -> MemoryJournal:
        return MemoryJournal()

    runtime = Runtime.in_memory(config=LEAN, journal=make)
    for _ in range(2):
        async with runtime:
            await runtime.session("alice", "one").append(HELLO)
            assert await texts(runtime) == ["hello"]


@pytest.mark.blocking  # the test itself writes a file
async def test_a_failed_start_can_be_repeated(tmp_path: Path) -> None:
    """Nothing stays open, and the error is the one that opening met."""
    blocked = tmp_path / "memory"
    blocked.write_text("a file")
    runtime = Runtime(blocked, config=LEAN)
    for _ in range(2):
        with pytest.raises(Exception, match="memory") as raised:
            await runtime.start()
        assert type(raised.value).__module__ == "remora.errors"
    blocked.unlink()
    async with runtime:
        await runtime.session("alice", "one").append(HELLO)


# -- cut short -------------------------------------------------------------------------------------

CUTS = (*range(10), 14, 20, 30, 60)


@pytest.mark.parametrize("native", [False, True])
async def test_opening_can_be_cancelled(tmp_path: Path, *, native: bool) -> None:
    """Nothing stays open: the directory can be opened at once."""
    with count_probes() as counts:
        for cut in CUTS:
            runtime = Runtime(tmp_path, config=LEAN)
            if native:
                task = asyncio.create_task(runtime.start())
                for _ in range(cut):
                    await anyio.lowlevel.checkpoint()
                task.cancel()
                await asyncio.wait([task])
            else:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(runtime.start)
                    for _ in range(cut):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            await runtime.aclose()
            async with Runtime(tmp_path, config=LEAN) as again:
                await again.session("alice", "one").load()
    assert counts["opening_cancelled"]


async def test_closed_while_it_opens(tmp_path: Path) -> None:
    """Whoever opens it is told, and the directory is free."""
    outcomes: list[str] = []

    async def start(runtime: Runtime) -> None:
        try:
            await runtime.start()
        except RuntimeClosed as e:
            outcomes.append(str(e))

    with count_probes() as counts:
        for cut in CUTS:
            runtime = Runtime(tmp_path, config=LEAN)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(start, runtime)
                for _ in range(cut + 1):
                    await anyio.lowlevel.checkpoint()
                await runtime.aclose()
            async with Runtime(tmp_path, config=LEAN):
                pass
    assert counts["closed_while_opening"]
    assert set(outcomes) == {"the runtime was closed while it opened"}


class StuckJournal(MemoryJournal):
    """Its disk does not answer any more."""

    stuck = False

    def write(self, write: Any) -> None:
        if not self.stuck:
            super().write(write)


async def test_a_second_cancellation_ends_the_wait_for_the_disk() -> None:
    """As a second Ctrl-C does: the caller is told, and nobody hangs."""
    journal = StuckJournal()
    runtime = await Runtime.in_memory(config=BARE, journal=journal).start()
    chat = runtime.session("alice", "one")
    await chat.append(HELLO)
    journal.stuck = True
    append = asyncio.create_task(chat.append(HELLO, timeout_s=600))
    await anyio.lowlevel.checkpoint()
    with count_probes() as counts:
        closing = asyncio.create_task(runtime.aclose())
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert not closing.done()
        closing.cancel()
        await asyncio.wait([closing, append])
    assert closing.cancelled()
    assert type(append.exception()).__name__ in {"OutcomeUnknown", "RuntimeClosed"}
    assert counts["drain_cut_short"] == 1
    assert "closed" in repr(runtime)


# -- from within -----------------------------------------------------------------------------------


class ClosingEmbedder(HashEmbedder):
    """Closes the runtime when it is asked, and keeps what that raised."""

    def __init__(self) -> None:
        super().__init__(16)
        self.runtime: Runtime | None = None
        self.outcomes: list[Exception | None] = []

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.runtime is not None:
            try:
                await self.runtime.aclose()
                self.outcomes.append(None)
            except Exception as e:
                self.outcomes.append(e)
        return await super().embed(texts)


@pytest.mark.parametrize("verb", ["load", "search", "recall", "flush"])
async def test_a_plug_in_closes_the_runtime(verb: str) -> None:
    """It does, or is refused where that would wait for itself: nobody hangs."""
    embedder = ClosingEmbedder()
    async with Runtime.in_memory(embedder=embedder) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(HELLO)
        embedder.runtime = runtime
        with suppress(RuntimeClosed):
            match verb:
                case "load":
                    await chat.load(query="hello?")
                case "search":
                    await chat.search("hello?", semantic=True)
                case "recall":
                    await runtime.user("alice").recall("hello?")
                case _:
                    await chat.flush()
                    await chat.settle()
    assert embedder.outcomes
    assert all(one is None or isinstance(one, ReentrantAsk) for one in embedder.outcomes)


# -- not at all ------------------------------------------------------------------------------------


async def check_texts(directory: Path) -> None:
    async with Runtime(directory, config=LEAN) as again:
        assert await texts(again) == ["hello"]


def test_a_runtime_that_nobody_closes(tmp_path: Path) -> None:
    """It says so when nothing refers to it; its handles work until the event loop ends."""

    async def main() -> None:
        kept = [await Runtime(tmp_path, config=LEAN).start()]
        alice = kept[0].user("alice")
        with pytest.warns(ResourceWarning, match=r"Runtime\(.*open\) was not closed"):
            kept.clear()
        gc.collect()
        await alice.session("one").append(HELLO)
        # of a task that begins as the loop ends, anyio complains
        assert await alice.recall("hello")

    asyncio.run(main())
    asyncio.run(check_texts(tmp_path))


def test_the_event_loop_ends_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """G3, G12: what was acknowledged is kept, the directory is free, and the log says why."""
    runtime = Runtime(tmp_path, config=LEAN)

    async def forget_to_close() -> None:
        await runtime.start()
        await runtime.session("alice", "one").append(HELLO)
        await runtime.user("alice").recall("hello")  # as above

    with count_probes() as counts, caplog.at_level(logging.WARNING):
        asyncio.run(forget_to_close())
    assert counts["loop_ended_before_the_runtime"] == 1
    assert "runtime_not_closed" in caplog.text
    asyncio.run(check_texts(tmp_path))


def test_a_loop_that_was_closed_under_it() -> None:
    """Without a word to its tasks: the runtime says so instead of hanging."""
    loop = asyncio.new_event_loop()
    runtime = Runtime.in_memory(config=BARE)
    loop.run_until_complete(runtime.start())
    tasks = asyncio.all_tasks(loop)
    try:

        async def use() -> None:
            for verb in (runtime.session("alice", "one").load, runtime.aclose, runtime.start):
                with pytest.raises(WrongLoop):
                    await verb()

        asyncio.run(use())
    finally:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()
