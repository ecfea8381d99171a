"""A memory directory and what it answers, by public names alone.

`tests.golden.make_directory` makes a directory with `fill`; the tests open it with today's code and
compare its `answers`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora import BufferPolicy, Config, Runtime, Session, User
from remora.blocks import BaseMemoryBlock, ChatMessage, StaticMemoryBlock, VectorMemoryBlock
from remora.errors import NotGranted
from remora.ids import row_id
from remora.storage.ports import SessionKey

CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 400, "token_flush_size": 60, "summary_tokens": 60},
        "long_term": {"batch_ms": 1, "shards": 2},
        "supervisor": {"backoff_s": 0.001, "max_attempts": 2, "jitter": 0.0, "drain_s": 0.2},
        # as it was when the answers were recorded
        "recall": {"deadline_s": 60, "unindexed_rows": 0},
        "context": {"block_timeout_s": 60, "quoted_role": "system"},
        "synopsis": {"deadline_s": 60, "shown": "always"},
    }
)
BEGIN = datetime(2026, 1, 1, 9, tzinfo=UTC)
TOPICS = ("bridges", "gardens", "cellos", "ferries", "beehives", "maps")
HOSTILE = "o'hara ☂ %_"
SESSIONS = {
    "alice": ("plain", "long", "waiting", "ring", "window", "cleared", "edited", "forked"),
    "bob": ("chat", "poison"),
    HOSTILE: ("s/1",),
}
KEYS = {
    "plain": ("request-1",),
    "long": ("key-1", "key-24"),
    "cleared": ("key-2", "key-7"),
    "ring": ("key-5",),
}
"""Idempotency keys that were used in these sessions."""
_LOOK = {"name": "look", "arguments": '{"at": "ñ"}'}
CALL = {"id": "call_1", "type": "function", "function": _LOOK}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


class StoppedClock:
    """Wall time that stands still, so that ages are the same whenever this runs."""

    def time(self) -> float:
        return (BEGIN + timedelta(days=30)).timestamp()

    def monotonic(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class FirstWords:
    """Summarizes by the first words of each line.

    Args:
        waits: never finish a summary of the session ``waiting``.
    """

    name = "first-words"

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits

    async def summarize(
        self, previous: str | None, lines: Sequence[Any], *, max_tokens: int
    ) -> str:
        if self._waits and any("slowly" in line.text for line in lines):
            await anyio.sleep_forever()
        words = [" ".join(line.text.split()[:2]) for line in lines]
        return " ".join([*([previous] if previous else []), *words])[-240:]


class Mentions(BaseMemoryBlock[str]):
    """Counts the messages that mention bridges."""

    count: int = 0

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return f"Bridges were mentioned {self.count} times."

    async def _aput(self, messages: list[ChatMessage]) -> None:
        self.count += sum("bridges" in message.content for message in messages)


def policy(key: Any) -> BufferPolicy:
    match key.session:
        case "ring":
            return BufferPolicy.ring(4, multiplier=1, batch=2)
        case "window":
            return BufferPolicy.window(4)
        case _:
            return BufferPolicy.summary_buffer(160)


def blocks(key: Any) -> list[Any]:
    if key.user != "alice" or key.session == "waiting":
        return []
    static = StaticMemoryBlock(name="core", static_content="Alice lives in Lisbon.")
    vectors = VectorMemoryBlock(name="vectors", priority=2)
    return [static, Mentions(name="mentions", priority=1), vectors]


def keep_zebras_out(text: str) -> str:
    if "zebra" in text:
        raise ValueError("no zebras")
    return text


def open_runtime(directory: Path, *, waits: bool = True, mended: bool = False) -> Runtime:
    return Runtime(
        directory, config=CONFIG, policy=policy, blocks=blocks,
        summarizer=FirstWords(waits=waits), clock=StoppedClock(),
        redact_long_term=None if mended else keep_zebras_out,
    )  # fmt: skip


# -- what is put in --------------------------------------------------------------------------------


def message(number: int, text: str, **fields: Any) -> dict[str, Any]:
    role, at = "user" if number % 2 else "assistant", BEGIN + timedelta(minutes=number)
    return {"role": role, "content": text, "created_at": at, **fields}


def _sentence(number: int, session: str, extra: str = "") -> dict[str, Any]:
    topic = TOPICS[number % len(TOPICS)]
    text = f"Sentence {number} of {session} is about {topic}{extra}, "
    return message(number, f"{text}and {number * 37 % 101} of them are old.")


def _keyed(key: str, session: str) -> list[dict[str, Any]]:
    """What was appended under a key."""
    if key == "request-1":
        return [
            message(1, "Hello ☂", id="m-2", metadata={"a": [1, {"b": None}]}),
            message(2, "", tool_calls=[CALL]) | {"content": None},
        ]
    return [_sentence(int(key.removeprefix("key-")), session)]


async def talk(chat: Session, count: int, *, extra: str = "", first: int = 1) -> None:
    """Plain turns, each written to the end before the next begins."""
    for number in range(first, first + count):
        await chat.append(_sentence(number, chat.key.session, extra), key=f"key-{number}")
        if not extra:
            await chat.settle()


async def fill(runtime: Runtime) -> None:
    """Use every part of a memory directory once."""
    alice, bob, hostile = (runtime.user(name) for name in SESSIONS)
    plain = alice.session("plain")
    await plain.append(message(0, "Be brief.", role="system"))
    await plain.append(_keyed("request-1", "plain"), key="request-1")
    await plain.append(message(3, "a bridge", role="tool", tool_call_id="call_1"))
    parts = [{"type": "text", "text": "in parts"}, IMAGE]
    await plain.append(message(5, "in parts", name="Ann") | {"content": parts})
    await plain.flush()
    await plain.settle()
    await talk(alice.session("long"), 24)
    await talk(alice.session("ring"), 13)
    await talk(alice.session("window"), 9)
    cleared = alice.session("cleared")
    await talk(cleared, 5)
    await cleared.clear()
    await talk(cleared, 2, first=6)
    edited = alice.session("edited")
    await talk(edited, 10)
    await edited.flush()
    await edited.settle()
    await edited.fork("forked", at=6)
    await edited.delete([(await edited.history())[7].id or ""])
    await edited.rewind(9)
    await talk(bob.session("chat"), 14)
    await talk(hostile.session("s/1"), 6)
    await hostile.session("s/1").flush()
    poison = bob.session("poison")
    animals = enumerate(("an ape", "a zebra", "an ape", "an ape"), start=1)
    await poison.append([message(n, f"Sentence {n} of a zoo, {animal}.") for n, animal in animals])
    await poison.flush()
    await poison.settle()
    await alice.remember("Prefers metric units", type="preference", importance=0.8, session="plain")
    await alice.remember([{"content": "Has a cello", "created_at": BEGIN}, "Allergic to bees"])
    await alice.agent("tutor").remember("Is learning Portuguese", type="context")
    talked = [message(1, "I cross bridges on foot"), message(2, "Noted.")]
    await alice.record(talked, session="plain")
    times = ["The ferry leaves at nine", "The garden closes at six"]
    await alice.learn(times, source="tool:timetable", session="plain")
    await alice.learn("Lisbon has two bridges")
    await alice.settle()
    team = runtime.shared("team")
    await team.as_("zoe").claim()
    await team.as_("zoe").grant("alice", "write")
    await team.as_("zoe").grant("bo", "read")
    await team.as_("zoe").revoke("bo")
    await team.as_("alice").remember("The release is on Friday", importance=0.9)
    await team.as_("zoe").settle()
    carol = runtime.user("carol")
    await talk(carol.session("gone"), 3)
    await carol.forget()
    await alice.recall("metric units", limit=2)
    await alice.inspect()
    await alice.synopsis(refresh=True)
    await runtime.settle()
    waiting = alice.session("waiting")
    await talk(waiting, 12, extra=" slowly")
    while (await runtime.counts()).pending_jobs > 1:  # all but the summary that never comes
        await anyio.sleep(0.01)


async def finish(runtime: Runtime) -> None:
    """Do all work that is left, dead letters included."""
    await runtime.retry_dead_letters()
    await runtime.settle()


async def import_export(runtime: Runtime, export: Path) -> None:
    """Take an export over, to the end."""
    await runtime.import_(export)
    await runtime.settle()


# -- what comes out --------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """What JSON can hold; figures of nearness to three places."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, set | frozenset):
        return plain(sorted(value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def found(user: str, memories: Sequence[Any]) -> list[Any]:
    """Memories by what is stored of them, in the order in which they were found.

    Messages have the ids of their rows here, which do not change; `Memory.id` is the message's.
    """
    names = ("text", "role", "session", "seq", "type", "importance", "agent")
    return [
        {
            "id": row_id(SessionKey(user, one.session), one.seq)
            if one.type == "message"
            else one.id,
            **{name: plain(getattr(one, name)) for name in (*names, "created_at", "tokens")},
        }
        for one in memories
    ]


def context(loaded: Any) -> dict[str, Any]:
    names = ("messages", "tokens", "summary", "pending", "omitted", "awaiting", "orphans")
    return {name: plain(getattr(loaded, name)) for name in names}


async def answers(runtime: Runtime, *, imported: bool = False) -> dict[str, Any]:
    """What the directory answers: everything that is stored, then what is found in it.

    Args:
        runtime: over a copy of the directory.
        imported: the directory was made from an export, so idempotency keys and earlier states are
            not in it.
    """
    await runtime.reembedded()
    said: dict[str, Any] = {"sessions": {}, "users": {}}
    for name, sessions in SESSIONS.items():
        user = runtime.user(name)
        for session in sessions:
            answer = await _session(user.session(session), imported=imported)
            said["sessions"][f"{name}/{session}"] = answer
        said["users"][name] = await _user(user, imported=imported)
    said["team"] = await _team(runtime)
    if not imported:
        dead = await runtime.dead_letters()
        said["dead_letters"] = [[one.id, plain(one.key), one.attempts, one.error] for one in dead]
        said["counts"] = plain(await runtime.counts())
        said["forgotten"] = plain(await runtime.counts("carol"))
        said["rows"] = (await runtime.long_term_statistics()).rows
    as_json: dict[str, Any] = json.loads(json.dumps(said))
    return as_json


async def _session(chat: Session, *, imported: bool) -> dict[str, Any]:
    history = await chat.history()
    answer: dict[str, Any] = {
        "history": [
            [one.seq, one.id, plain(one.created_at), one.to_chat(), one.metadata] for one in history
        ],
        "load": context(await chat.load()),
        "messages": [[one.seq, one.to_chat()] for one in await chat.get_messages()],
    }
    if imported:
        return answer
    exported = msgspec.to_builtins(await chat.export())
    del exported["messages"]
    answer["export"] = plain(exported)
    if chat.key.session in {"ring", "forked"}:
        answer["state"] = plain(await chat.state_dict())
    figures = plain(await chat.stats())
    # two have the names that they had when the answers were recorded
    names = {"flushed": "indexed", "restated": "rewritten"}
    kept = ("messages", "buffered", "pending", *names)
    answer["stats"] = {name: figures[names.get(name, name)] for name in kept}
    middle = history[len(history) // 2].seq
    then = [one.seq for one in await chat.history(at=middle)]
    answer["at"] = {str(middle): [context(await chat.load(at=middle)), then]}
    answer["keys"] = {}
    for key in KEYS.get(chat.key.session, ()):
        receipt = await chat.append(_keyed(key, chat.key.session), key=key)
        answer["keys"][key] = [receipt.duplicate, list(receipt.seqs), list(receipt.ids)]
    return answer


async def _user(user: User, *, imported: bool) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "sessions": sorted([one.key.session, one.messages] for one in await user.sessions()),
        "memories": sorted(found(user.id, await user.memories()), key=lambda one: one["id"]),
    }
    if not imported:
        figures = plain(await user.stats())
        answer["stats"] = {name: figures[name] for name in figures if not name.endswith("_rate")}
        rows = (await user.export_arrow()).to_pylist()
        names = ("id", "session_id", "memory_type", "importance", "accessed_at", "access_count")
        answer["arrow"] = sorted(
            [*(plain(row[name]) for name in names), plain(row["embedding"] or [])[:3]]
            for row in rows
        )
        synopsis = await user.synopsis() if user.id == "alice" else None
        answer["synopsis"] = synopsis and [synopsis.identity, synopsis.context, synopsis.state]
    answer["working"] = [
        [one.text, one.source, one.session, plain(one.score)]
        for one in await user.search_working("when does the ferry leave?")
    ]
    answer["recall"] = {}
    for query in (
        "what is old about the ferries",
        "bridges in Lisbon",
        "metric units",
        "apes in a zoo",
    ):
        answer["recall"][query] = [
            one["id"] for one in found(user.id, await user.recall(query, limit=6))
        ]
        await user.inspect()  # what was found is counted before the next question
    answer["agent"] = found(user.id, await user.agent("tutor").recall("Portuguese", limit=2))
    await user.inspect()
    answer["asked"] = context(
        await user.session("chat").load("how old are the ferries?", max_tokens=300)
    )
    await user.settle()  # a synopsis that the load asked for
    return answer


async def _team(runtime: Runtime) -> dict[str, Any]:
    team = runtime.shared("team")
    try:
        await team.as_("bo").memories()
        refused = False
    except NotGranted:
        refused = True
    return {
        "members": await team.as_("zoe").members(),
        "memories": found("", await team.as_("zoe").memories()),
        "recall": found("", await team.as_("alice").recall("when is the release?")),
        "refused": refused,
    }
