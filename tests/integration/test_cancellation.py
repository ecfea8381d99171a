"""Cancelled means cancelled: every public coroutine, cut anywhere, by asyncio and by anyio."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from remora import Runtime
from remora.errors import RemoraError
from remora.testing import HashEmbedder
from tests.embedders import HeldEmbedder
from tests.verbs import CALLS, Call, World, open_world, public_coroutines, said

pytestmark = pytest.mark.anyio

CUTS = (*range(12), 16, 24, 40, 80, 160)
"""After so many turns of the event loop a call is cancelled."""


def test_every_verb_has_a_call() -> None:
    """A new verb is in the table that these tests take their cases from."""
    assert sorted(CALLS) == sorted(public_coroutines())


async def turns(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def cancel_task(call: Callable[[], Coroutine[Any, Any, None]], cut: int) -> None:
    """As a disconnected client's request handler is cancelled."""
    task = asyncio.ensure_future(call())
    await turns(cut)
    cancelled = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None, (cancelled, task.exception())


async def cancel_twice(call: Callable[[], Coroutine[Any, Any, None]], cut: int) -> None:
    task = asyncio.ensure_future(call())
    await turns(cut)
    task.cancel()
    await turns(1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None, task.exception()


async def time_out(call: Callable[[], Coroutine[Any, Any, None]], cut: int) -> None:
    """As ``asyncio.timeout`` does: a TimeoutError, or the answer."""
    deadline: list[asyncio.Timeout] = []

    async def bounded() -> None:
        async with asyncio.timeout(None) as timeout:
            deadline.append(timeout)
            await call()

    task = asyncio.ensure_future(bounded())
    await turns(max(cut, 1))
    if not task.done():
        deadline[0].reschedule(0)
    await asyncio.wait([task])
    assert task.exception() is None or isinstance(task.exception(), TimeoutError)


async def leave_group(call: Callable[[], Coroutine[Any, Any, None]], cut: int) -> None:
    """As the failure of a task cancels its siblings: the only error is that failure."""

    async def fail() -> None:
        await turns(cut)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(call())
            group.create_task(fail())
    assert [type(one) for one in raised.value.exceptions] == [ZeroDivisionError]


async def leave_scope(call: Callable[[], Coroutine[Any, Any, None]], cut: int) -> None:
    """As anyio cancels: the scope swallows it, and nothing else comes out."""
    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await turns(cut)
        group.cancel_scope.cancel()


Way = Callable[[Callable[[], Coroutine[Any, Any, None]], int], Coroutine[Any, Any, None]]
WAYS: tuple[Way, ...] = (cancel_task, cancel_twice, time_out, leave_group, leave_scope)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def world(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """One for all calls but those that close it."""
    async with open_world(tmp_path_factory.mktemp("world")) as opened:
        yield opened


_numbers = itertools.count()


async def cut_everywhere(world: World, call: Call) -> None:
    for way in WAYS:
        for cut in CUTS:
            at = world.at(next(_numbers))

            async def run(at: World = at) -> None:
                await call(at)

            await way(run, cut)


@pytest.mark.parametrize("name", [one for one in CALLS if one != "Runtime.aclose"])
async def test_a_cancelled_call_ends_as_cancelled(name: str, world: World) -> None:
    """Nobody who catches `RemoraError` swallows a cancellation; the runtime works afterwards."""
    await world.session.append([said("before"), said("and more")])
    await cut_everywhere(world, CALLS[name])
    await world.session.append(said("afterwards"))
    assert (await world.session.history())[-1].content == "afterwards"
    await world.user.recall("afterwards")


@pytest.mark.parametrize("way", WAYS)
async def test_closing_can_be_cancelled(way: Way, tmp_path: Path) -> None:
    """A cancelled `aclose` ends as cancelled, and leaving closes what is left."""
    for cut in (0, 1, 3, 8, 40):
        async with open_world(tmp_path / str(cut), sessions=False) as world:
            await way(world.runtime.aclose, cut)
        async with Runtime(tmp_path / str(cut) / "memory", embedder=HashEmbedder(16)) as again:
            await again.session("ada", "chat").append(said("it opens again"))


@pytest.mark.parametrize("name", ["learn", "search_working", "recall", "search"])
async def test_a_task_that_retries_can_be_cancelled(name: str) -> None:
    """The loop that the docstrings advise ends when its task is cancelled."""
    embedder = HeldEmbedder("", 16)
    async with Runtime.in_memory(embedder=embedder) as runtime:
        world = World(runtime, Path())
        await world.session.append(said("tea"))

        async def retry() -> None:
            while True:
                try:
                    await CALLS[f"{'Session' if name == 'search' else 'User'}.{name}"](world)
                except RemoraError as e:
                    if not getattr(e, "retryable", False):
                        raise

        task = asyncio.ensure_future(retry())
        await embedder.reached.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
