"""Closed memories with something in them, each made once and then copied, and all that they say."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

import remora
from remora.cluster.reshard import reshard
from remora.cluster.sharded import ShardedRuntime
from remora.messages import ChatDict
from remora.testing import HashEmbedder
from tests.configs import PLAIN, poison
from tests.copies import copy_memory

__all__ = ["CONFIG", "PLAIN", "USERS", "Templates", "look", "looked", "opened", "poison", "said"]

CONFIG = remora.Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "supervisor": {"max_attempts": 1, "backoff_s": 0.01, "max_backoff_s": 0.02},
        "buffer": {"token_limit": 200, "summary_tokens": 50},
        "synopsis": {"shown": "never"},
    }
)
USERS = [f"user {number}" for number in range(5)]


def said(text: str) -> ChatDict:
    return {"role": "user", "content": text}


async def opened(path: Path, config: remora.Config = CONFIG) -> ShardedRuntime:
    embedder = HashEmbedder(16) if config.long_term.enabled else None
    runtime = remora.Runtime(path, config=config, embedder=embedder, redact_long_term=poison)
    return await anyio.to_thread.run_sync(partial(ShardedRuntime.of, runtime))


async def fill(path: Path) -> None:
    """A memory with something of each kind."""
    async with remora.Runtime(
        path, config=CONFIG, embedder=HashEmbedder(16), redact_long_term=poison
    ) as memory:
        for number, user in enumerate(USERS):
            who = memory.user(user)
            chat = who.session("chat")
            texts = [said(f"fact {number}.{n} about tea and trains") for n in range(12)]
            await chat.append(texts, key="first")
            await who.remember({"content": f"{user} likes tea", "key": "drink"})
            await who.state.set("colour", number)
            await chat.state.set("draft", [number])
            await who.learn([f"{user} is awake"])
            await chat.flush()
        async with memory.session("user 1", "turns").turn(said("hello"), key="turn") as turn:
            await turn.reply("good evening")
        await memory.session("user 2", "chat").rewind(8)
        await memory.user("user 2").session("chat").fork("copy")
        bad = memory.session("user 3", "bad")
        await bad.append(said("poison"))
        await bad.flush()
        member = memory.shared("team").as_("ada")
        await member.claim()
        await member.grant("bob", "read")
        await member.remember("the team meets on Mondays")
        await memory.settle()
        for user in USERS:
            await memory.user(user).recall("tea")  # counts as an access
        await memory.user("user 4").forget()


async def look(memory: ShardedRuntime) -> dict[str, Any]:
    """What every reading verb says."""
    await memory.settle()
    found: dict[str, Any] = {
        "counts": await memory.counts(),
        "users": await memory.users(limit=None),
        "newest": [one.user for one in await memory.users(limit=None, order="newest")],
        "dead": {(job.id.rpartition("/")[2], job.error) for job in await memory.dead_letters()},
        "erasures": len(memory.erasures()),
    }
    if memory.config.long_term.enabled:
        found["rows"] = (await memory.long_term_statistics()).rows
    for user in USERS:
        who = memory.user(user)
        of_user: dict[str, Any] = {
            "sessions": await who.sessions(),
            "state": await who.state.items(),
            "inspect": (await who.inspect()).accesses,
        }
        if memory.config.long_term.enabled:
            of_user |= {
                "remembered": await who.remembered(),
                "memories": {one.id: one for one in await who.memories()},
                "working": await who.search_working(f"{user} is awake"),
            }
        for one in of_user["sessions"]:
            chat = who.session(one.session)
            view = await chat.inspect()
            of_user[one.session] = (
                await chat.history(include_archived=True),
                (await chat.load()).messages,
                await chat.stats(),
                await chat.state.items(),
                (view.summary, view.summaries, view.watermarks),
            )
        found[user] = of_user
    member = memory.shared("team").as_("ada")
    if memory.config.long_term.enabled:
        found["team"] = (await member.members(), [one.text for one in await member.memories()])
    return found


async def looked(path: Path, config: remora.Config = CONFIG) -> dict[str, Any]:
    """What every reading verb says of a closed memory."""
    async with await opened(path, config) as memory:
        return await look(memory)


async def fill_plain(path: Path, shards: int) -> None:
    """A memory without long-term memory."""
    async with remora.Runtime(path, config=PLAIN) as memory:
        for user in USERS:
            await memory.session(user, "chat").append([said("one"), said("two")], key="first")
            await memory.user(user).state.set("colour", user)
    if shards > 1:
        await reshard(path, shards, PLAIN)


class Templates:
    """Makes copies of memories, and tells what they say: as they are made, tests change them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._said: dict[str, dict[str, Any]] = {}

    async def full(self, to: Path) -> dict[str, Any]:
        """Something of each kind, opened with `CONFIG`."""
        return await self._copy("full", fill, CONFIG, to)

    async def plain(self, to: Path, shards: int = 1) -> dict[str, Any]:
        """No long-term memory, opened with `PLAIN`."""
        return await self._copy(f"{shards}", partial(fill_plain, shards=shards), PLAIN, to)

    async def _copy(
        self, name: str, make: Callable[[Path], Awaitable[None]], config: remora.Config, to: Path
    ) -> dict[str, Any]:
        template = self._directory / name
        if name not in self._said:
            await make(template)
            self._said[name] = await looked(template, config)
        copy_memory(template, to)
        return self._said[name]
