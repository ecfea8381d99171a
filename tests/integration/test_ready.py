"""Until models and tables are loaded: `Runtime.ready`, and the first loads of a process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.errors import InvalidInput, LongTermError, NotReady, RuntimeClosed
from remora.storage.lance.store import LanceStore
from remora.testing import count_probes
from tests.configs import LEAN_TREE

pytestmark = pytest.mark.anyio


class Opening:
    """Opens LanceDB when it is let; before that it waits in a thread, as an import does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self._go = threading.Event()
        really = LanceStore.open

        async def open_(*arguments: Any, **options: Any) -> LanceStore:
            await anyio.to_thread.run_sync(self._go.wait)
            if self.failures:
                self.failures -= 1
                raise LongTermError("the disk is away", retryable=True)
            return await really(*arguments, **options)

        monkeypatch.setattr(LanceStore, "open", open_)

    def go(self) -> None:
        self._go.set()

    def shut(self) -> None:
        self._go.clear()


@pytest.fixture
async def opening(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opening]:
    found = Opening(monkeypatch)
    yield found
    found.go()


@asynccontextmanager
async def opened(path: Path, **recall: float) -> AsyncIterator[Runtime]:
    config = Config.from_dict({**LEAN_TREE, "recall": recall})
    async with Runtime(path, config=config) as runtime:
        await runtime.session("ann", "one").append({"role": "user", "content": "I keep bees."})
        yield runtime


def state(runtime: Runtime) -> tuple[bool, bool, list[str]]:
    """Whether it is ready, whether degraded, and why."""
    health = runtime.health()
    return health.ready, health.degraded, [one.code for one in health.problems]


async def test_ready_waits_for_long_term_memory(tmp_path: Path, opening: Opening) -> None:
    """It returns when the tables are open, and not before; then at once. What cannot be loaded is
    tried again by each call, which gets the error; until then recall is away, and nothing else. It
    ends with the runtime.
    """
    with pytest.raises(RuntimeClosed):
        await Runtime(tmp_path).ready()
    opening.failures = 1
    async with opened(tmp_path) as runtime:
        with pytest.raises(NotReady, match="within 0 s") as refused:
            await runtime.ready(timeout_s=0)
        assert refused.value.retryable
        with anyio.move_on_after(0) as scope:
            await runtime.ready()
        assert scope.cancelled_caught
        assert state(runtime) == (False, True, ["loading"])
        opening.go()
        with pytest.raises(LongTermError, match="the disk is away"):
            await runtime.ready()
        assert state(runtime) == (True, True, ["not_loaded"])
        await runtime.ready()
        assert state(runtime) == (True, False, [])
        await runtime.ready(timeout_s=0)
        with pytest.raises(InvalidInput):
            await runtime.ready(timeout_s=-1)
    with pytest.raises(RuntimeClosed):
        await runtime.ready()


async def test_the_first_load_waits_for_what_is_loaded(tmp_path: Path, opening: Opening) -> None:
    """A load that comes before the tables are open gets what they hold."""
    opening.go()
    async with opened(tmp_path) as runtime:
        await runtime.user("ann").remember("Ann is allergic to nuts.")
        await runtime.settle()
    opening.shut()
    contexts = []
    async with (
        opened(tmp_path, warm_up_s=600.0, deadline_s=600.0) as runtime,
        anyio.create_task_group() as tasks,
    ):
        await runtime.session("ann", "two").load()  # reads what a context needs of the journal

        async def load() -> None:
            contexts.append(await runtime.session("ann", "two").load(query="nuts"))

        with count_probes() as counts:
            tasks.start_soon(load)
            await anyio.wait_all_tasks_blocked()
            assert counts["search_before_warm_up"]
        opening.go()
    assert [one.text for one in contexts[0].memories] == ["Ann is allergic to nuts."]


async def test_a_deadline_is_kept_although_a_thread_is_stuck(
    tmp_path: Path, opening: Opening
) -> None:
    """Who does not wait for loading gets the conversation when the deadline is over, with the
    reason, also while a thread cannot be interrupted.
    """
    async with opened(tmp_path, warm_up_s=0.0, deadline_s=0.01) as runtime:
        context = await runtime.session("ann", "one").load(query="bees")
        assert context.messages[-1]["content"] == "I keep bees."
        source = context.sources["long_term"]
        assert source.status == "late"
        assert source.detail == "not loaded within 0 s: await runtime.ready() before"
        opening.go()
