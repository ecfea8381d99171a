"""Every public verb does the same in a worker as in the process that owns the memory.

The same calls are made, one after the other, of a runtime in this process and of one behind a
socket, and what they return or raise is compared.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread
import pytest

import remora
import tests.cluster_calls
import tests.verbs
from remora.api.keyed_state import KeyedState
from remora.api.memories import Agent
from remora.api.shards import parts_of
from remora.api.shared import SharedMember, SharedScope
from remora.api.turn import Turn
from remora.blocks import StaticMemoryBlock
from remora.cluster.sharded import ShardedRuntime
from remora.runtime.clock import SystemClock
from remora.testing.runtimes import Outcome, find_differences, outcome_of
from tests.cluster_calls import ERRORS, MORE
from tests.remote import Owner
from tests.verbs import CALLS, Call, SlowChatModel, SlowEmbedder, World, fill_world, said

pytestmark = pytest.mark.anyio

NOT_COMPARED = frozenset({"Runtime.aclose", "Runtime.start"})
"""How each kind ends and begins."""
OWN = re.compile(
    r".*\.(embedding_hit_rate|synopsis_(hits|misses|hit_rate)|bytes)"
    r"|Runtime\.long_term_statistics .*\.(commits|merges|fragments)"
)
"""What may differ. A worker has a cache of its own for what it embeds itself; readers of a profile
may come before it is written; how many rows are written at once, and how many bytes times take, are
up to the moment.
"""

Make: TypeAlias = Callable[[Path], remora.Runtime | ShardedRuntime]
Opened: TypeAlias = tuple[World, Sequence[remora.Runtime]]
KINDS = (
    remora.Runtime,
    remora.User,
    remora.Session,
    Agent,
    SharedScope,
    SharedMember,
    KeyedState,
    Turn,
)
LOCAL_ONLY = frozenset({"from_file", "in_memory", "internals"})
"""How a runtime of this process is made, and what it is made of."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


PATIENT = remora.Config.from_dict({"recall": {"deadline_s": 60}, "synopsis": {"deadline_s": 60}})
"""No tier is late, however slow the machine is."""


class StoppedClock(SystemClock):
    """The wall clock stands still, so that two memories have the same times."""

    @staticmethod
    def time() -> float:
        return 1_767_225_600.0


def mask(text: str) -> str:
    """A redaction hook."""
    return text.replace("ada", "***")


def make_bare(path: Path) -> remora.Runtime:
    """Without long-term memory and models, with a hook and a memory block."""
    bare = {"long_term": {"enabled": False}, "models": {"embedder": "none"}}
    return remora.Runtime(
        path / "memory",
        config=remora.Config.from_dict(bare),
        redact=mask,
        blocks=[StaticMemoryBlock(name="rules", static_content="Be kind.")],
        clock=StoppedClock(),
    )


def make_runtime(path: Path) -> remora.Runtime:
    return remora.Runtime(
        path / "memory",
        config=PATIENT,
        embedder=SlowEmbedder(16),
        chat_model=SlowChatModel(),
        clock=StoppedClock(),
    )


def make_shards(path: Path) -> ShardedRuntime:
    return ShardedRuntime.of(make_runtime(path), shards=2)


async def play(
    world: World, shards: Sequence[remora.Runtime], calls: Mapping[str, Call]
) -> dict[str, Outcome]:
    """The outcome of each call; the memory is at rest before and after each."""
    names = {str(world.path): "PATH"}
    names |= {parts_of(one).instance: f"SHARD{number}" for number, one in enumerate(shards)}
    filled = await outcome_of(partial(fill_world, world))
    # after the first messages: no long-term memory, or no files in common
    assert not filled.error or re.search("switched off|on another machine", filled.text)
    outcomes = {}
    for number, (name, call) in enumerate(calls.items()):
        for one in shards:
            await one.settle()
        outcomes[name] = await outcome_of(partial(call, world.at(number)), names)
    return outcomes


@asynccontextmanager
async def local(path: Path, make: Make) -> AsyncIterator[Opened]:
    async with make(path) as runtime:
        shards: Any = getattr(runtime, "shards", [runtime])
        yield World(runtime, path), shards  # type: ignore[arg-type]


@asynccontextmanager
async def behind_a_socket(path: Path, make: Make) -> AsyncIterator[Opened]:
    owner = Owner(lambda: made if isinstance(made := make(path), ShardedRuntime) else [made])
    await owner.start()
    try:
        memory = owner.worker()
        shards = await memory.open()
        runtime = ShardedRuntime(shards, transfers=memory.transfers)
        await runtime.start()
        try:
            yield World(runtime, path), owner.shards  # type: ignore[arg-type]
        finally:
            await memory.aclose()
    finally:
        await owner.stop()


async def compared(
    path: Path, calls: Mapping[str, Call], make: Make = make_runtime
) -> tuple[dict[str, Outcome], list[str]]:
    """What came of the calls in this process, and where the worker's outcomes differ."""
    found = []
    for kind, opened in (("local", local), ("remote", behind_a_socket)):
        place = path / kind
        await anyio.to_thread.run_sync(place.mkdir)
        async with opened(place, make) as (world, shards):
            found.append(await play(world, shards, calls))
    one, other = found
    differences = [
        difference
        for name in calls
        for difference in find_differences(one[name], other[name], f"{name} ")
        if not OWN.fullmatch(difference.partition(":")[0])
    ]
    return one, differences


def members(kind: type) -> set[str]:
    """Public names of a class, without deprecated ones."""
    return {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_")
        and not hasattr(getattr(member, "fget", member), "__deprecated__")
    }


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_public_member_is_used(kind: type) -> None:
    """Coroutines are listed (`tests.verbs.public_coroutines`); this is for the others."""
    calls = inspect.getsource(tests.verbs) + inspect.getsource(tests.cluster_calls)
    unused = {name for name in members(kind) if not re.search(rf"\.{name}\b", calls)}
    assert unused <= LOCAL_ONLY


@pytest.mark.parametrize("whole", [False, True], ids=["sessions", "users"])
async def test_verbs(tmp_path: Path, whole: bool) -> None:
    """Those of users and of the whole memory, and all others."""
    calls = {
        name: call
        for name, call in CALLS.items()
        if name not in NOT_COMPARED and name.startswith(("User.", "Runtime.")) is whole
    }
    outcomes, differences = await compared(tmp_path, calls)
    assert not differences
    assert {name: one for name, one in outcomes.items() if one.error} == {}


async def test_arguments_and_what_verbs_do_together(tmp_path: Path) -> None:
    outcomes, differences = await compared(tmp_path, MORE)
    assert not differences
    assert {name: one for name, one in outcomes.items() if one.error} == {}


async def test_errors(tmp_path: Path) -> None:
    """Class, text and attributes."""
    outcomes, differences = await compared(tmp_path, ERRORS)
    assert not differences
    assert [name for name, one in outcomes.items() if not one.error] == ["forgotten"]


@pytest.mark.blocking  # the memory's layout is read when it is made
async def test_in_shards(tmp_path: Path) -> None:
    """Users and scopes are in different shards; verbs of the memory are of all of them."""
    calls = {
        name: call
        for name, call in CALLS.items()
        if name.startswith("Runtime.") and name not in NOT_COMPARED
    }
    outcomes, differences = await compared(tmp_path, {**calls, **MORE, **ERRORS}, make_shards)
    assert not differences
    assert {name for name in (*calls, *MORE) if outcomes[name].error} == set()
    counts = outcomes["Runtime.backup"].result[1]["counts"]
    assert counts == outcomes["Runtime.counts"].result


async def test_without_long_term_memory(tmp_path: Path) -> None:
    """What needs it is refused in the same words; a hook and a memory block do their work."""
    calls = {**CALLS, **MORE, **ERRORS}
    for name in NOT_COMPARED:
        del calls[name]
    outcomes, differences = await compared(tmp_path, calls, make_bare)
    assert not differences
    assert "switched off" in outcomes["User.recall"].text


async def test_a_summary_that_another_worker_showed(tmp_path: Path) -> None:
    """It is remora's own text in every worker, and no user's words."""
    owner = Owner(lambda: [make_runtime(tmp_path)])
    await owner.start()
    memories = [owner.worker() for _ in range(2)]
    try:
        one, other = [(await memory.open())[0].user("ada") for memory in memories]
        state = {"messages": [said("hello")], "summary": "They met in Lisbon."}
        await one.session("long").load_state_dict(state)
        context = await one.session("long").load()
        assert "Lisbon" in context.messages[0]["content"]
        ids = await other.record([*context.messages, said("bye")])
        assert [one.text for one in await other.remembered()] == ["hello", "bye"]
        assert len(ids) == 2
    finally:
        for memory in memories:
            await memory.aclose()
        await owner.stop()
