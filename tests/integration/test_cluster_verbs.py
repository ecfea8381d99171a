"""Every public verb does the same wherever the memory is: on a disk, in memory, behind a socket,
over HTTP.

The same calls are made, one after the other, of a memory in this process and of one in another
place, and what they return or raise is compared. `test_nodes` does so with nodes of two machines.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import anyio
import pytest

import remora
import tests.verbs
from remora import Agent, KeyedState, SharedMember, SharedScope, Turn
from remora.api.base import holder_of
from remora.blocks import StaticMemoryBlock
from remora.cluster.sharded import ShardedRuntime
from remora.runtime.clock import SystemClock
from tests.outcomes import Outcome, find_differences, outcome_of
from tests.remote import Owner
from tests.served import connected, is_served
from tests.verbs import (
    CALLS,
    ERRORS,
    MORE,
    SlowChatModel,
    SlowEmbedder,
    World,
    fill_world,
    public_members,
)

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

NOT_COMPARED = frozenset({"Runtime.aclose", "Runtime.start"})
"""How each kind ends and begins."""
EVERY = {name: call for name, call in (CALLS | MORE | ERRORS).items() if name not in NOT_COMPARED}
OWN = re.compile(
    r".*\.(embedding_hit_rate|synopsis_(hits|misses|hit_rate)|bytes)"
    r"|Runtime\.long_term_statistics .*\.(commits|merges|fragments)"
)
"""What may differ. A worker has a cache of its own for what it embeds itself; readers of a profile
may come before it is written; how many rows are written at once, and how many bytes times take, are
up to the moment.
"""
SERVED = re.compile(
    r".*: 'Session' is 'ClientSession'"
    r"|.*\.working\[.*\]\.vector: .*"
    r"|a value that is none \.text: .*"
)
"""Over HTTP: names of classes, vectors of working memory, one text."""

Make: TypeAlias = Callable[[Path], remora.Runtime | ShardedRuntime]


class Opened(NamedTuple):
    """A memory that is open.

    Attributes:
        world: reaches it.
        shards: that it has.
        owner: reaches it where it is, for calls of which `world` has no verb.
    """

    world: World
    shards: Sequence[Any]
    owner: World | None = None


Host: TypeAlias = Callable[[Path, Make], AbstractAsyncContextManager[Opened]]
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
PATIENT = remora.Config.from_dict(
    {
        "recall": {"deadline_s": 60},
        "synopsis": {"deadline_s": 60},
        "retention": {"forgotten_s": 0},
    }
)
"""No tier is late, and no erasure is gathered, however slow the machine is."""


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
    bare = {
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "retention": {"forgotten_s": 0},
    }
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


def make_in_memory(_: Path) -> remora.Runtime:
    return remora.Runtime.in_memory(
        config=PATIENT,
        embedder=SlowEmbedder(16),
        chat_model=SlowChatModel(),
        clock=StoppedClock(),
    )


def make_shards(path: Path) -> ShardedRuntime:
    return ShardedRuntime.of(make_runtime(path), shards=2)


class Tenant:
    """A memory whose users and scopes have a tenant's prefix, as a service stores them."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def user(self, user: str) -> Any:
        return self.runtime.user(f"shop/{user}")

    def session(self, user: str, session: str) -> Any:
        return self.user(user).session(session)

    def shared(self, name: str) -> Any:
        return self.runtime.shared(f"shop/{name}")

    async def users(self, *, prefix: str = "", limit: int | None = 100) -> Any:
        return await self.runtime.users(prefix=f"shop/{prefix}", limit=limit)


def world_of(runtime: Any, path: Path) -> World:
    return World(Tenant(runtime), path)  # type: ignore[arg-type]


@asynccontextmanager
async def here(path: Path, make: Make) -> AsyncIterator[Opened]:
    async with make(path) as runtime:
        yield Opened(world_of(runtime, path), getattr(runtime, "shards", [runtime]))


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
            yield Opened(world_of(runtime, path), owner.shards)
        finally:
            await memory.aclose()
    finally:
        await owner.stop()


@asynccontextmanager
async def over_http(path: Path, make: Make) -> AsyncIterator[Opened]:
    async with make(path) as runtime, connected(runtime, path) as client:  # type: ignore[arg-type]
        yield Opened(World(client, path), [runtime], world_of(runtime, path))  # type: ignore[arg-type]


async def play(path: Path, opening: AbstractAsyncContextManager[Opened]) -> dict[str, Outcome]:
    """The outcome of each call; the memory is at rest before and after each."""
    outcomes = {}
    async with opening as opened:
        names = {str(path): "PATH", "shop/": ""}
        names |= {
            holder_of(one).parts.instance: f"SHARD{number}"
            for number, one in enumerate(opened.shards)
        }
        filled = await outcome_of(partial(fill_world, opened.world))
        # after the first messages: no long-term memory, or no files in common
        assert not filled.error or re.search("switched off|on another machine", filled.text)
        for number, (name, call) in enumerate(EVERY.items()):
            for one in opened.shards:
                await one.settle()
            world = opened.world if is_served(name) else opened.owner or opened.world
            outcomes[name] = await outcome_of(partial(call, world.at(number)), names)
    return outcomes


_PLAYED: dict[Make, dict[str, Outcome]] = {}


async def differences_of(
    path: Path, make: Make, host: Callable[[Path], AbstractAsyncContextManager[Opened]]
) -> tuple[dict[str, Outcome], dict[str, Outcome], list[str]]:
    """What came of the calls here and at a host, and in what that differs."""
    for place in ("here", "there"):
        await anyio.Path(path / place).mkdir()
    if make not in _PLAYED:
        _PLAYED[make] = await play(path / "here", here(path / "here", make))
    found = await play(path / "there", host(path / "there"))
    differences = [
        difference
        for name in EVERY
        for difference in find_differences(_PLAYED[make][name], found[name], f"{name} ")
        if not OWN.fullmatch(difference.partition(":")[0])
    ]
    return _PLAYED[make], found, differences


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_public_member_is_used(kind: type) -> None:
    """Coroutines are listed (`tests.verbs.public_coroutines`); this is for the others."""
    calls = inspect.getsource(tests.verbs)
    unused = {name for name in public_members(kind) if not re.search(rf"\.{name}\b", calls)}
    assert unused <= LOCAL_ONLY


HOSTS: dict[str, tuple[Make, Host]] = {
    "in memory": (make_runtime, lambda path, make: here(path, make_in_memory)),
    "a socket": (make_runtime, behind_a_socket),
    "HTTP": (make_runtime, over_http),
    "a socket, in shards": (make_shards, behind_a_socket),
    "a socket, without long-term memory": (make_bare, behind_a_socket),
}


@pytest.mark.parametrize("name", HOSTS)
async def test_every_verb(name: str, tmp_path: Path) -> None:
    """Results, with their types; of errors class, text and attributes. In shards, users and scopes
    are in different ones, and verbs of the memory are of all. Without long-term memory, what needs
    it is refused in the same words, and a hook and a memory block do their work.
    """
    make, host = HOSTS[name]
    outcomes, _, differences = await differences_of(tmp_path, make, lambda path: host(path, make))
    if host is over_http:
        differences = [one for one in differences if not SERVED.fullmatch(one)]
    if name == "in memory":
        copied = ("Runtime.backup ", "a backup over something ")  # there is nothing to copy
        differences = [one for one in differences if not one.startswith(copied)]
    assert not differences
    if make is make_bare:
        assert "switched off" in outcomes["User.recall"].text
    else:
        failed = {name for name, one in outcomes.items() if one.error}
        assert failed == ERRORS.keys() - {"forgotten"}
        counts = outcomes["Runtime.backup"].result[1]["counts"]
        assert counts == outcomes["Runtime.counts"].result
