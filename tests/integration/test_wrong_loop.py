"""A handle on another event loop than its runtime's is refused at once, and nothing is done."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest

from remora import Config, Runtime
from remora.errors import WrongLoop
from tests.outcomes import outcome_of
from tests.verbs import CALLS, World, open_world, said

Settled = tuple[World, Callable[[], int]]


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settled]:
    """A world on an event loop in another thread, and how much it has ever written."""
    path: Path = tmp_path_factory.mktemp("world")
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(open_world(path)) as world,
    ):
        portal.call(world.runtime.settle)
        yield world, lambda: world.runtime.statistics().log.records


def refuse(call: Callable[[], Awaitable[Any]], name: str) -> None:
    """The call raises `WrongLoop` here before it waits for anything."""
    outcome = asyncio.run(outcome_of(call))
    assert outcome.error == "remora.errors.WrongLoop", name
    assert re.search(r"another event loop.*remora\.blocking", outcome.text, re.DOTALL), name


def test_every_verb_is_refused(settled: Settled) -> None:
    """And nothing is written. Of tools, the model is not told: it is the application's mistake."""
    world, written = settled
    tools = world.user.tools()
    calls: dict[str, Callable[[World], Any]] = {
        **CALLS,
        "Runtime.start": lambda w: w.runtime.start(),
        "save": lambda _: tools.save_to_memory("", ["tea"]),
        "call": lambda _: tools.call("recall_from_memory", {"keywords": ["tea"]}),
    }
    before = written()
    for name, call in calls.items():
        refuse(partial(call, world), name)
        assert written() == before, name


def test_a_thread_without_an_event_loop(settled: Settled) -> None:
    """As a coroutine that something else than an event loop drives."""
    append = settled[0].session.append(said("tea"))
    with pytest.raises(WrongLoop):
        append.send(None)


def test_counters_are_for_every_thread(settled: Settled) -> None:
    """As a scraper of metrics reads them; what changes something is refused."""
    runtime = settled[0].runtime
    read: list[Any] = []
    thread = threading.Thread(target=lambda: read.append(runtime.statistics()))
    thread.start()
    thread.join()
    assert read[0].registry.live
    assert runtime.message_tokens(said("tea"))
    with pytest.raises(WrongLoop):
        runtime.reschedule("fifo_cleanup", 60)


def test_the_next_loop_of_the_same_thread() -> None:
    """One after the other, as with two calls of ``asyncio.run``."""
    bare = {"tokens": {"counter": "heuristic"}, "long_term": {"enabled": False}}
    runtime = Runtime.in_memory(config=Config.from_dict(bare))

    async def use() -> None:
        with pytest.raises(WrongLoop, match="another event loop"):
            await runtime.session("alice", "one").append(said("tea"))

    with asyncio.Runner() as first:
        first.run(runtime.start())
        with asyncio.Runner() as second:
            second.run(use())
        first.run(runtime.aclose())


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_from_trio(settled: Settled) -> None:
    world, written = settled
    before = written()
    with pytest.raises(WrongLoop):
        await world.session.append(said("tea"))
    assert written() == before
