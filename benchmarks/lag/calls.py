"""The largest calls of every public verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from remora import Config, Runtime, Session, User
from remora.messages import ChatDict
from remora.transfer import SessionExport

__all__ = ["BEFORE", "CALLS", "NOT_MEASURED", "Call", "World", "largest_calls", "prepare"]


class World(msgspec.Struct):
    """A runtime in which there is much of everything.

    Attributes:
        runtime: it.
        path: a directory for files.
        messages: of the long session.
        number: of this call; a call that writes writes something new each time.
        export: the long session's.
        bytes: of the largest message.
        characters: of the longest text to learn, remember or look for.
        count: messages, memories or texts of the largest batch.
    """

    runtime: Runtime
    path: Path
    messages: int
    number: int = 0
    export: SessionExport | None = None
    bytes: int = 15_000_000
    characters: int = 100_000
    count: int = 1_000

    @property
    def user(self) -> User:
        """A user with a long session, and as many memories and working items as a call adds."""
        return self.runtime.user("lin")

    @property
    def long(self) -> Session:
        """`messages` long; most have left the buffer."""
        return self.user.session("long")

    @property
    def wide(self) -> Session:
        """With as many messages in its buffer as the default limits allow."""
        return self.runtime.session("ada", "wide")

    @property
    def heavy(self) -> Session:
        """With the largest messages in its buffer: pictures."""
        return self.runtime.session("ada", "heavy")

    @property
    def new(self) -> Session:
        """A session of this call alone."""
        return self.runtime.session(f"new {self.number}", "chat")

    @property
    def copy(self) -> Session:
        """A copy of the long session, of this call alone."""
        return self.user.session(f"copy {self.number}")

    def text(self, length: int = 0) -> str:
        """English of this length, as long as possible by default; new in each call."""
        length = length or self.characters
        start = f"{self.number} {length} "
        return (start + "lorem ipsum dolor sit amet " * (length // 27 + 1))[:length]

    def texts(self, count: int = 0, length: int = 40) -> list[str]:
        """Texts, as many as possible by default; new in each call."""
        return [f"{place} {self.text(length)}" for place in range(count or self.count)]

    def long_texts(self) -> list[str]:
        """A tenth as many as possible, each almost as long as possible."""
        return self.texts(self.count // 10, self.characters - 10)


def said(content: Any, **more: Any) -> ChatDict:
    """A user's message."""
    return {"role": "user", "content": content, **more}


def lines(world: World, times: int = 1) -> list[ChatDict]:
    """Messages, new in each call."""
    about = f"of {world.number} on a harbour"
    return [said(f"message {place} {about}") for place in range(world.count * times)]


def picture(size: int) -> ChatDict:
    """A message with a picture of so many bytes of base64."""
    url = {"url": "data:image/png;base64," + "iVBORw0K" * (size // 8)}
    return said([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": url}])


def parts(count: int = 1_000) -> ChatDict:
    """A message of so many parts."""
    return said([{"type": "text", "text": f"part {place} of it"} for place in range(count)])


def with_calls(count: int = 1_000) -> ChatDict:
    """A message of so many tool calls."""
    calls = [
        {"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        for n in range(count)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


VALUE = [7] * 8_000
"""A value of keyed state, almost as large as possible."""


async def prepare(world: World) -> None:
    """Fill it."""
    runtime = world.runtime
    for base in range(0, world.messages, 1_000):
        count = min(1_000, world.messages - base)
        await world.long.append(
            [said(f"message {base + place} of a long walk") for place in range(count)]
        )
    await runtime.settle()
    for _ in range(2):
        await world.wide.append([said(f"w{place}") for place in range(world.count * 4 // 5)])
    for _ in range(8):
        await world.heavy.append(picture(world.bytes))
    for number in range(4):
        items = [f"fact {number} {place} of lin" for place in range(world.count)]
        await world.user.remember(items)
    await _fill_working_memory(world)
    for number in range(world.count):
        await world.user.state.set(f"key {number}", VALUE)
    await runtime.shared("team").as_("owner").claim()
    await runtime.shared("team").as_("owner").remember(items)
    await world.user.agent("cook").remember(items)
    await runtime.settle()
    world.export = await world.long.export()
    await runtime.export(world.path / "export.jsonl")


Call = Callable[[World], Awaitable[Any]]


async def _delete_many(w: World) -> None:
    await w.copy.append([said(f"w{place}") for place in range(w.count)])
    await w.copy.delete(positions=range(w.count))


async def _append_copy(w: World) -> None:
    await w.user.import_session(_export(w), session=w.copy.key.session)


def _export(w: World) -> SessionExport:
    assert w.export is not None
    return w.export


CALLS: Mapping[str, Mapping[str, Call]] = {
    "Session.append": {
        "1 000 messages": lambda w: w.new.append(lines(w)),
        "1 000 messages with ids": lambda w: w.new.append(
            [dict[str, Any](one, id=f"{w.number} {place}") for place, one in enumerate(lines(w))]
        ),
        "1 000 parts": lambda w: w.new.append(parts()),
        "1 000 tool calls": lambda w: w.new.append(with_calls()),
        "1 MB": lambda w: w.new.append(said(w.text(w.bytes // 15))),
        "15 MB": lambda w: w.new.append(said(w.text(w.bytes))),
        "15 MB of emoji": lambda w: w.new.append(said("🙂" * (w.bytes // 4))),
        "15 MB of base64": lambda w: w.new.append(said("iVBORw0K" * (w.bytes // 8))),
        "a picture of 15 MB": lambda w: w.new.append(picture(w.bytes)),
    },
    "Session.load": {
        "query of 100 000 characters": lambda w: w.long.load(w.text()),
        "of 1 600 messages": lambda w: w.wide.load(),
        "of 15 MB pictures": lambda w: w.heavy.load(),
        "at": lambda w: w.long.load(at=w.messages // 2),
        "override of 1 000": lambda w: w.long.load(override=lines(w)),
    },
    "Session.clear": {"of a long session": lambda w: w.copy.clear()},
    "Session.flush": {"of a long session": lambda w: w.copy.flush()},
    "Session.history": {
        "long": lambda w: w.long.history(),
        "of 15 MB pictures": lambda w: w.heavy.history(),
    },
    "Session.stats": {"long": lambda w: w.long.stats()},
    "Session.inspect": {"long": lambda w: w.wide.inspect()},
    "Session.size": {"wide": lambda w: w.wide.size()},
    "Session.export": {
        "long": lambda w: w.long.export(),
        "of 15 MB pictures": lambda w: w.heavy.export(),
    },
    "Session.fork": {"long": lambda w: w.long.fork(f"fork {w.number}")},
    "Session.rewind": {"long, to 1": lambda w: w.copy.rewind(1)},
    "Session.delete": {"1 000 of 1 000": _delete_many},
    "Session.truncate_to_size": {"long": lambda w: w.copy.truncate_to_size(10)},
    "Session.forget": {"long": lambda w: w.copy.forget()},
    "Session.get_messages": {
        "wide": lambda w: w.wide.get_messages(),
        "of 15 MB pictures": lambda w: w.heavy.get_messages(),
    },
    "Session.contents": {
        "wide": lambda w: w.wide.contents(),
        "of 15 MB pictures": lambda w: w.heavy.contents(),
    },
    "Session.state_dict": {
        "wide": lambda w: w.wide.state_dict(),
        "of 15 MB pictures": lambda w: w.heavy.state_dict(),
    },
    "Session.load_state_dict": {
        "10 000 messages": lambda w: w.new.load_state_dict({"messages": lines(w, 10)}),
    },
    "Session.search": {
        "query of 100 000 characters": lambda w: w.wide.search(w.text(), limit=1_000),
        "by words": lambda w: w.wide.search(w.text(), limit=1_000, semantic=False),
        "in 15 MB pictures": lambda w: w.heavy.search("look"),
    },
    "User.sessions": {"": lambda w: w.user.sessions()},
    "User.append_many": {
        "1 000 sessions": lambda w: w.runtime.user(f"many {w.number}").append_many(
            {f"s{place}": one for place, one in enumerate(lines(w))}
        ),
    },
    "User.import_session": {"long": _append_copy},
    "User.export_arrow": {"long": lambda w: w.user.export_arrow()},
    "User.prune": {"long": lambda w: w.user.prune(keep=w.messages * 2)},
    "User.learn": {
        "1 000 texts": lambda w: w.user.learn(w.texts()),
        "100 000 characters": lambda w: w.user.learn(w.text()),
        "100 texts of 100 000 characters": lambda w: w.user.learn(w.long_texts()),
    },
    "User.search_working": {"": lambda w: w.user.search_working(w.text(), limit=1_000)},
    "User.synopsis": {"": lambda w: w.user.synopsis(refresh=True)},
    "User.inspect": {"": lambda w: w.user.inspect()},
    "User.stats": {"": lambda w: w.user.stats()},
    "User.instructions": {"": lambda w: w.user.instructions()},
    "User.find_sessions": {"": lambda w: w.user.find_sessions(f"a long walk {w.number}")},
    "User.remember": {
        "1 000 memories": lambda w: w.user.remember(w.texts()),
        "100 000 characters": lambda w: w.user.remember(w.text()),
        "100 of 100 000 characters": lambda w: w.user.remember(w.long_texts()),
    },
    "User.record": {
        "1 000 messages": lambda w: w.user.record(lines(w)),
        "a picture of 15 MB": lambda w: w.user.record(picture(w.bytes)),
    },
    "User.recall": {
        "query of 100 000 characters": lambda w: w.user.recall(w.text(), limit=1_000),
        "limit of 1 000": lambda w: w.user.recall(f"a long walk {w.number}", limit=1_000),
    },
    "User.recall_many": {
        "1 000 queries": lambda w: w.user.recall_many(w.texts()),
    },
    "KeyedState.change": {
        "100 values of 16 kB": lambda w: w.user.state.change(
            {f"key {number}": VALUE for number in range(100)}
        )
    },
    "KeyedState.get_many": {
        "1 000 values of 16 kB": lambda w: w.user.state.get_many(
            f"key {number}" for number in range(1_000)
        )
    },
    "KeyedState.items": {"1 000 values of 16 kB": lambda w: w.user.state.items()},
    "KeyedState.set": {"16 kB": lambda w: w.user.state.set("key 1", VALUE)},
    "User.memories": {"long": lambda w: w.user.memories(order="importance")},
    "User.forget": {"of a copy": lambda w: w.runtime.user(f"gone {w.number}").forget()},
    "SharedMember.remember": {
        "1 000 memories": lambda w: w.runtime.shared("team").as_("owner").remember(w.texts())
    },
    "SharedMember.recall": {
        "limit of 1 000": lambda w: (
            w.runtime.shared("team").as_("owner").recall(w.text(), limit=1_000)
        )
    },
    "Runtime.append_many": {
        "1 000 batches": lambda w: w.runtime.append_many(
            [
                (w.runtime.session(f"{place} {w.number}", "s"), one, None)
                for place, one in enumerate(lines(w))
            ]
        ),
    },
    "Runtime.backup": {"": lambda w: w.runtime.backup(w.path / f"backup {w.number}")},
    "Runtime.counts": {"": lambda w: w.runtime.counts()},
    "Runtime.export": {"": lambda w: w.runtime.export(w.path / f"export {w.number}.jsonl")},
    "Runtime.import_": {
        "": lambda w: w.runtime.import_(w.path / "export.jsonl", skip_existing=True)
    },
    "Runtime.long_term_statistics": {"": lambda w: w.runtime.long_term_statistics()},
}
"""By verb; ``Class.method``."""


async def _copy_long(w: World) -> None:
    await w.user.import_session(_export(w), session=w.copy.key.session)


async def _new_user(w: World) -> None:
    gone = w.runtime.user(f"gone {w.number}")
    await gone.import_session(_export(w), session="copy")
    await gone.remember(w.texts())
    await w.runtime.settle()


async def _fill_working_memory(w: World) -> None:
    """As full as it gets: what is learned then removes the oldest items."""
    full = 2 * Config().working.max_memory_mb * 2**20
    before = await w.user.inspect()
    while True:
        learned = before.evicted + before.working_items
        await w.user.learn([f"lin saw number {learned + place}" for place in range(w.count)])
        now = await w.user.inspect()
        if 2 * now.working_bytes - before.working_bytes > full:
            return
        before = now


BEFORE: Mapping[str, Call] = {
    "Session.clear": _copy_long,
    "Session.flush": _copy_long,
    "Session.rewind": _copy_long,
    "Session.truncate_to_size": _copy_long,
    "Session.forget": _copy_long,
    "User.forget": _new_user,
    "User.learn": _fill_working_memory,
}
"""What comes before each call of a verb that removes something."""

NOT_MEASURED: Mapping[str, str] = {
    "Agent.memories": "as User's; so are the others of Agent",
    "Agent.delete": "", "Agent.memory": "", "Agent.remembered": "",
    "Agent.update_memory": "",
    "Agent.recall": "", "Agent.recall_many": "", "Agent.record": "", "Agent.record_many": "",
    "Agent.remember": "", "Agent.settle": "",
    "KeyedState.delete": "a key is all that it carries", "KeyedState.get": "one value",
    "Runtime.aclose": "it ends the runtime",
    "Runtime.dead_letters": "there are none, as for those that retry and drop them",
    "Runtime.drop_dead_letters": "", "Runtime.retry_dead_letters": "",
    "Runtime.ready": "it waits for what other threads load",
    "Runtime.reembedded": "there is nothing to embed again",
    "Runtime.retry_erasures": "none waits",
    "Runtime.start": "it begins the runtime",
    "Runtime.settle": "it comes after each call",
    "Runtime.users": "a page at a time, as User.sessions",
    "Session.settle": "", "SharedMember.settle": "", "User.settle": "",
    "SharedMember.claim": "a name is all that it carries, as for the others that grant",
    "SharedMember.forget": "", "SharedMember.grant": "", "SharedMember.members": "",
    "SharedMember.revoke": "",
    "SharedMember.memories": "as User.memories", "SharedMember.memory": "one memory",
    "SharedMember.delete": "", "SharedMember.update_memory": "as User.remember",
    "Turn.load": "as Session.load", "Turn.reply": "as Session.append",
    "User.delete": "ids are all that it carries", "User.memory": "one memory",
    "User.remembered": "a page at a time", "User.update_memory": "as User.remember",
    "User.record_many": "as User.record",
}  # fmt: skip
"""Verbs without a case, and why."""


def largest_calls() -> Iterator[tuple[str, str, Call]]:
    """The verb, what is large, and the call."""
    for verb, cases in CALLS.items():
        for label, call in cases.items():
            yield verb, label, call
