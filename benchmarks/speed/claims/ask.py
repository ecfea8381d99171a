"""Asking an actor for something that touches no storage.

*Kernel*: `ActorRegistry.ask` on a behavior that returns a number, over a log in memory: only the
runtime's own way to message handling and back. *Session*: the same call with a session's `Inspect`
(watermarks, counts, keys) or `Load` (what a model should see) on a session of 20 messages. *Idle*:
one task asks, and again once answered; the actor runs on its caller's stack. *Contended*: 100 tasks
ask one actor whose mailbox is in use. A posted message fills it, and since an answered task asks
again at once, it never empties; each ask goes through the mailbox and wakes its task
(`queued_share` says how many did). *Spread*: 100 tasks, each with an actor of its own.

Figures are microseconds of wall time per ask, the median of slices. The limits are a call of a
coroutine that returns at once (*limit-call*), and a future resolved by `call_soon` and awaited
(*limit-hop*): the least that an event loop takes for a message between two tasks, with as many
tasks.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from pathlib import Path
from typing import Any

import anyio

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import CONFIG, messages
from remora import Runtime
from remora.actors.session.messages import Inspect, Load
from remora.runtime.actor import Decision
from remora.runtime.clock import SystemClock
from remora.runtime.passivation import RegistryLimits
from remora.runtime.registry import ActorRegistry
from remora.storage.memory import MemoryJournal
from remora.storage.records import SavedUser

NAME = "ask"
TITLE = "Asking an actor"
WORK = (
    "An operation that touches no storage: the kernel's ask of a trivial turn, and a session's "
    "`Inspect` and `Load` of 20 "
    "messages; by one task (idle), by 100 tasks through one mailbox (contended), by 100 tasks of "
    "100 actors (spread). "
    "*limit-call* calls a coroutine, *limit-hop* awaits a future that `call_soon` resolves, by as "
    "many tasks."
)
CONTESTANTS = ("remora", "remora-uvloop", "limit-call", "limit-hop")
FASTER = {"remora-uvloop": "its event loop is written in C"}

_TASKS = 100
_BUDGET = 30_000
Ask = Callable[[int], Awaitable[object]]
"""Ask on behalf of this task."""


def cases(smoke: bool) -> Sequence[Case]:
    rest: dict[str, int | float] = (
        {"asks": 1_000, "slices": 3} if smoke else {"asks": 20_000, "slices": 15}
    )
    ours = ("remora", "remora-uvloop")
    found = []
    for name, tasks in (("idle", 1), ("contended", _TASKS), ("spread", _TASKS))[
        : 2 if smoke else 3
    ]:
        sizes = {"tasks": tasks} | rest
        found.append(Case(NAME, f"{name}, kernel", sizes))
        if not smoke:
            found.append(Case(NAME, f"{name}, session inspect", sizes, contestants=ours))
            found.append(Case(NAME, f"{name}, session load", sizes, contestants=ours))
    return found


class _Counting:
    """A behaviour whose turns return how many there were."""

    def restore(self, key: Hashable, image: Any) -> list[int]:  # noqa: ARG002 - nothing is stored
        return [0]

    def handle(self, state: list[int], message: Any) -> Decision:
        state[0] += message
        return Decision(state[0])

    def apply(self, state: list[int], record: Any) -> None:
        state.append(record)

    def on_idle(self, state: list[int], *, closing: bool = False) -> None:  # noqa: ARG002
        state.clear()

    def size(self, state: list[int]) -> int:  # noqa: ARG002
        return 100


async def _slices(ask: Ask, case: Case) -> float:
    """Microseconds an ask: the median of slices, all tasks together."""
    tasks, asks = int(case.sizes["tasks"]), int(case.sizes["asks"])
    each = max(asks // tasks, 1)
    found = []

    async def asker(number: int) -> None:
        for _ in range(each):
            await ask(number)

    for _ in range(int(case.sizes["slices"])):
        begun = time.perf_counter()
        if tasks == 1:
            await asker(0)
        else:
            async with anyio.create_task_group() as group:
                for number in range(tasks):
                    group.start_soon(asker, number)
        found.append((time.perf_counter() - begun) / (each * tasks) * 1e6)
    return statistics.median(found)


async def _through(
    directory: ActorRegistry, keys: Sequence[Hashable], message: Any, case: Case
) -> dict[str, float]:
    contended = case.name.startswith("contended")

    async def ask(number: int) -> object:
        if contended and not number:
            directory.post(keys[0], message)  # whoever asks next finds the mailbox in use
        return await directory.ask(keys[number % len(keys)], message)

    async def plain(number: int) -> object:
        return await directory.ask(keys[number % len(keys)], message)

    for key in keys:
        await directory.ask(key, message)
    before = directory.statistics()
    took = await _slices(ask if contended else plain, case)
    after = directory.statistics()
    queued = after.queued_messages - before.queued_messages
    return {
        "ask_us": took,
        "queued_share": queued / (queued + after.inline_messages - before.inline_messages),
    }


async def _kernel(case: Case, _: int) -> dict[str, float]:
    keys = [f"actor-{n}" for n in range(_TASKS if case.name.startswith("spread") else 1)]
    directory = ActorRegistry({str: _Counting()}, _Log(), SystemClock(), RegistryLimits(), _nothing)
    async with anyio.create_task_group() as tasks:
        directory.start(tasks)
        found = await _through(directory, keys, 1, case)
        tasks.cancel_scope.cancel()
    return found


class _Log(MemoryJournal):
    """The journal in memory, for actors that are neither sessions nor users."""

    async def hydrate(self, keys: Sequence[Hashable]) -> Sequence[Any]:
        return [SavedUser(sid=0, opened=False)] * len(keys)


def _nothing(_: Decision) -> None:
    """Turns that decide nothing."""


async def _session(case: Case, seed: int) -> dict[str, float]:
    message = Load(_BUDGET) if case.name.endswith("load") else Inspect()
    async with Runtime.in_memory(config=CONFIG) as runtime:
        handles = [
            runtime.session(f"user-{n}", "chat")
            for n in range(_TASKS if case.name.startswith("spread") else 1)
        ]
        for handle in handles:
            await handle.append(messages(seed, 20))
        return await _through(
            runtime.internals.registry, [handle.key for handle in handles], message, case
        )


async def _call(case: Case, _: int) -> dict[str, float]:
    async def answer() -> int:
        return 1

    async def ask(_: int) -> object:
        return await answer()

    return {"ask_us": await _slices(ask, case)}


async def _hop(case: Case, _: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()

    async def ask(_: int) -> object:
        future: asyncio.Future[int] = loop.create_future()
        loop.call_soon(future.set_result, 1)
        return await future

    return {"ask_us": await _slices(ask, case)}


def measure(
    contestant: str,
    case: Case,
    directory: Path,  # noqa: ARG001
    seed: int,
    smoke: bool,  # noqa: ARG001
) -> dict[str, float]:
    work: Callable[[Case, int], Coroutine[Any, Any, dict[str, float]]]
    if contestant == "limit-call":
        work = _call
    elif contestant == "limit-hop":
        work = _hop
    else:
        work = _kernel if case.name.endswith("kernel") else _session
    return anyio.run(
        work, case, seed, backend_options={"use_uvloop": contestant == "remora-uvloop"}
    )
