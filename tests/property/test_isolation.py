"""Names that try to be SQL, paths, wildcards or each other: one user's verbs never show or change
what is another's.
"""

from __future__ import annotations

import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from inspect import isawaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora import Config, Runtime
from remora.errors import InvalidId
from remora.ids import MAX_ID_BYTES
from remora.maintenance.compare import compare_index
from remora.maintenance.offline import offline
from remora.storage.memory import MemoryStore
from remora.testing import HashEmbedder
from tests import harness

pytestmark = pytest.mark.blocking

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "long_term": {"batch_ms": 1, "shards": 2},
        "tokens": {"counter": "heuristic"},
    }
)
LONGEST = "n" * MAX_ID_BYTES
_OWNER = re.compile(r"of place(\d+)")

# Each family: names that a careless store takes for one another.
FAMILIES = (
    ("o'brien", "o''brien", "o\\'brien", "o", "' OR 1=1 --", "' OR user_key != '"),
    ("a%", "a_", "a", "ab", "%", "_", "a\\%", "*"),
    ("caf\u00e9", "cafe\u0301", "cafe", "CAF\u00c9", "CAFE\u0301"),
    ("alice", "Alice", "ALICE", "alice ", " alice", "al\u200bice", "alic"),
    ("../alice", "alice", "..", ".", "/", "alice/..", "C:\\alice", "~"),
    ("\u202eecila", "alice", "ecila", "\u2066alice\u2069"),
    (
        "用户",
        "用",
        "户",
        "\U0001f701",
        "\U0001f701\ufe0f",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f468",
    ),
    (
        "a:b",
        "a",
        "1:a",
        "a:b:c",
        "shared/x",
        "block:past",
        '"; DROP TABLE messages; --',
        '{"user": "a"}',
        "$where",
        "mem_000",
    ),
    (LONGEST, LONGEST[:-1], LONGEST[:-1] + "m", LONGEST[:-2]),
    ("0", "00", "1", "-1", "NULL", "None", "true", "NaN", "0x0"),
)


def valid(name: str) -> bool:
    try:
        return 0 < len(name.encode()) <= MAX_ID_BYTES and all(
            unicodedata.category(one) != "Cc" for one in name
        )
    except UnicodeEncodeError:
        return False


free = st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=12).filter(
    valid
)
related = st.sampled_from(FAMILIES).flatmap(
    lambda family: st.lists(st.sampled_from(family), min_size=2, max_size=4, unique=True)
)
names = related | st.lists(free, min_size=2, max_size=3, unique=True)
VERBS = (
    "append",
    "flush",
    "remember",
    "clear",
    "delete",
    "truncate",
    "rewind",
    "prune",
    "learn",
    "fork",
)
verbs = st.sampled_from(VERBS)
programs = st.lists(st.tuples(verbs, st.integers(0, 3), st.integers(0, 2)), min_size=3, max_size=10)


class World:
    """A runtime, and what each user should have in it."""

    def __init__(self, runtime: Runtime, users: Sequence[str], sessions: Sequence[str]) -> None:
        self.runtime = runtime
        self.users = users
        self.names = sessions
        self.said: dict[tuple[str, str], list[str]] = {}
        self.facts: dict[str, set[str]] = {user: set() for user in users}
        self.learned: dict[str, set[str]] = {user: set() for user in users}
        self._number = 0
        self._appends = Counter[tuple[str, str]]()

    def canary(self, user: str) -> str:
        """A text of this user's alone, which looks like all the others'."""
        self._number += 1
        return (
            f"the same words in every text, number{self._number} of place{self.users.index(user)}"
        )

    def mine(self, user: str, text: str) -> bool:
        return set(_OWNER.findall(text)) <= {str(self.users.index(user))}

    async def step(self, verb: str, user: str, session: str) -> None:
        handle = self.runtime.user(user)
        chat = handle.session(session)
        said = self.said.setdefault((user, session), [])
        match verb:
            case "append":
                texts = [self.canary(user) for _ in range(3)]
                self._appends[user, session] += 1  # others have the same keys
                key = f"key {self._appends[user, session]}"
                receipt = await chat.append([harness.user(text) for text in texts], key=key)
                assert not receipt.duplicate
                said.extend(texts)
            case "flush":
                await chat.flush()
            case "remember":
                fact = self.canary(user)
                await handle.remember([fact, "said by all of them"], session=session)
                self.facts[user] |= {fact, "said by all of them"}
            case "learn":
                text = self.canary(user)
                await handle.learn(text)
                self.learned[user].add(text)
            case "clear":
                await chat.clear()
            case "delete" if await chat.size():
                (gone,) = (await chat.get_messages())[:1]
                await chat.delete(positions=0)
                said.remove(str(gone.content))
            case "truncate":
                await chat.truncate_to_size(1)
            case "rewind":
                history = await chat.history()
                if len(history) > 1:
                    keep = len(history) // 2
                    await chat.rewind(history[keep - 1].seq or 0)
                    del said[keep:]
            case "prune":
                await handle.prune(keep=1)
                self.facts[user] &= {
                    memory.content for memory in await self.runtime.internals.journal.memories(user)
                }
            case "fork":
                copy = f"{session[:400]} fork {len(self.said)}"
                if said and valid(copy) and (user, copy) not in self.said:
                    forked = await chat.fork(copy)
                    self.said[user, copy] = [str(one.content) for one in await forked.history()]
                    assert Counter(self.said[user, copy]) == Counter(said)
            case _:
                pass
        await self.runtime.settle()

    async def seen(self, user: str) -> Any:
        """All that the user's own verbs show, each text checked for whose it is."""
        handle = self.runtime.user(user)
        histories, contexts = {}, {}
        listings = await handle.sessions()
        held = [session for (who, session), said in self.said.items() if who == user and said]
        assert sorted(one.key.session for one in listings) == sorted(held)
        for listing in listings:
            assert listing.key.user == user
            assert listing.messages == len(self.said[user, listing.key.session])
            chat = handle.session(listing.key.session)
            histories[listing.key.session] = [str(one.content) for one in await chat.history()]
            contexts[listing.key.session] = [
                str(one["content"]) for one in (await chat.load()).messages
            ]
        memories = sorted((one.type, one.session, one.text) for one in await handle.memories())
        stats = await handle.stats()
        figures = (
            stats.sessions,
            stats.messages,
            stats.tokens,
            stats.memories,
            stats.long_term_rows,
            stats.working_items,
        )
        texts = [
            *(text for some in (*histories.values(), *contexts.values()) for text in some),
            *(one[2] for one in memories),
        ]
        assert all(self.mine(user, text) for text in texts)
        assert figures[3] == len(self.facts[user])
        assert figures[4] == len(memories)
        return histories, contexts, memories, figures

    async def searched(self, user: str, session: str) -> list[str]:
        """Texts that the user's searches find; other users' words are what is asked for."""
        handle = self.runtime.user(user)
        query = "the same words in every text, place0 place1 place2 place3 said by all of them"
        found = [one.text for one in await handle.recall(query, limit=100)]
        found += [one.text for one in await handle.recall(query, limit=100, session=session)]
        found += [one.text for one in await handle.agent(session[:100]).recall(query, limit=100)]
        found += [one.text for one in await handle.search_working(query, limit=100)]
        found += [
            str(one["content"])
            for one in (await handle.session(session).load(query=query)).messages
        ]
        found += [
            str(one.message.content)
            for one in await handle.session(session).search(query, limit=100)
        ]
        return found


async def run_program(
    runtime: Runtime, users: Sequence[str], sessions: Sequence[str], program: Sequence[Any]
) -> World:
    world = World(runtime, users, sessions)
    for user in users:  # each has something that could be shown to another, or be changed by one
        await world.step("append", user, sessions[0])
        await world.step("remember", user, sessions[0])
        await world.step("flush", user, sessions[0])
    before = {user: await world.seen(user) for user in users}
    for verb, who, where in program:
        user = users[who % len(users)]
        await world.step(verb, user, sessions[where % len(sessions)])
        after = {other: await world.seen(other) for other in users}
        for other in users:
            assert other == user or after[other] == before[other], (
                f"{verb} of {user!r} changed what {other!r} has"
            )
        before = after
    for user in users:
        for session in sessions:
            for text in await world.searched(user, session):
                assert world.mine(user, text)
        histories = before[user][0]
        wanted = {
            session: said for (who, session), said in world.said.items() if who == user and said
        }
        assert {session: said for session, said in histories.items() if said} == wanted
        items = {item.content for item in await runtime.internals.journal.memories(user)}
        assert items == world.facts[user]
    counts = await runtime.counts()
    assert counts.users == len(users)
    assert counts.dead_jobs == 0
    return world


async def exported(runtime: Runtime, world: World, path: Path) -> None:
    """Each session and each memory is its user's in what is exported."""
    await runtime.export(path)
    for line in (await anyio.Path(path).read_text("utf-8")).split("\n"):
        record = json.loads(line) if line else {}
        user = record.get("user")
        if user is not None:
            assert user in world.users
            texts = [str(one["chat"]["content"]) for one in record.get("messages", ())]
            texts += [one["content"] for one in record.get("memories", ())]
            assert all(world.mine(user, text) for text in texts)


@settings(max_examples=20)
@given(names, names, programs)
def test_in_memory(users: list[str], sessions: list[str], program: list[Any]) -> None:
    """G1, G10: whatever the names, each user's verbs act on that user alone, in memory."""

    async def run() -> None:
        store = MemoryStore(256)
        async with Runtime.in_memory(
            config=CONFIG, embedder=HashEmbedder(256), store=store
        ) as runtime:
            await run_program(runtime, users, sessions, program)

    anyio.run(run)


LANCE = {"_versions", "_indices", "_transactions", "_deletions", "data"}
"""Folders of each table, which hold nothing of whoever is called so."""


def on_disk(users: Sequence[str], sessions: Sequence[str], program: Sequence[Any]) -> None:
    async def run(directory: Path) -> None:
        memory = directory / "memory"
        async with Runtime(memory, config=CONFIG, embedder=HashEmbedder()) as runtime:
            world = await run_program(runtime, users, sessions, program)
            seen = {user: await world.seen(user) for user in users}
            await exported(runtime, world, directory / "all.jsonl")
        async with Runtime(memory, config=CONFIG, embedder=HashEmbedder()) as runtime:
            await runtime.settle()
            world.runtime = runtime
            assert {user: await world.seen(user) for user in users} == seen
        async with offline(memory, CONFIG) as opened, opened.scan() as scan:
            assert [one.finding async for one in compare_index(opened.journal, scan)] == []
        held = {path.name for path in (*memory.rglob("*"), *directory.iterdir())} - LANCE
        assert not any(name in held for name in (*users, *sessions) if len(name) > 3), (
            "no name of a user's is a file's"
        )

    with TemporaryDirectory() as directory:
        anyio.run(run, Path(directory))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: ascii(family[0][:12]))
def test_families_on_disk(family: tuple[str, ...]) -> None:
    """G1, G10: names that a careless store takes for one another, on SQLite and LanceDB: each row
    is where its user's belong.
    """
    rng = random.Random(family[0])
    others = [verb for verb in VERBS if verb != "append"]
    rng.shuffle(others)
    program = [(verb, rng.randrange(4), rng.randrange(3)) for verb in others]
    on_disk(family[:4], family[-3:], program)


@settings(max_examples=4)
@given(names, names, programs)
def test_on_disk(users: list[str], sessions: list[str], program: list[Any]) -> None:
    """G1, G10: the same of any names; what is written is read back so."""
    on_disk(users, sessions, program)


NO_NAMES = (
    *("", "a\x00b", "\x00", "a\nb", "\r", "\t", "\x1b[31m", "\x7f", "a\x85", "\x1fshared/x"),
    *(LONGEST + "n", "é" * 257, "n" * 10_000, "\ud800"),
)


@pytest.mark.anyio
async def test_what_can_name_nobody_is_refused() -> None:
    """G1, G10: control characters, lone surrogates and ids over 512 bytes are refused before
    anything is written.
    """
    async with Runtime.in_memory(
        config=CONFIG, embedder=HashEmbedder(256), store=MemoryStore(256)
    ) as runtime:
        calls: dict[str, Callable[[str], Any]] = {
            "a user": runtime.user,
            "a session": lambda name: runtime.session("alice", name),
            "a session's user": lambda name: runtime.session(name, "one"),
            "a shared scope": runtime.shared,
            "a key": lambda name: runtime.session("alice", "one").append(
                harness.user("x"), key=name
            ),
            "a memory's session": lambda name: runtime.user("alice").remember("x", session=name),
        }
        for what, call in calls.items():
            for name in NO_NAMES:
                try:
                    answer = call(name)
                    if isawaitable(answer):
                        await answer
                except InvalidId:
                    continue
                pytest.fail(f"{what} is named {name[:20]!a}")
        counts = await runtime.counts()
        assert (counts.users, counts.sessions, counts.messages, counts.memories) == (0, 0, 0, 0)
