"""The largest calls of every public verb."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from remora import Runtime, Session, User
from remora.messages import ChatDict
from remora.transfer import SessionExport

__all__ = ["CALLS", "NOT_MEASURED", "Call", "World", "prepare"]

MEGABYTE = 1_000_000


class World(msgspec.Struct):
    """A runtime in which there is much of everything.

    Attributes:
        runtime: it.
        path: a directory for files.
        messages: of the long session.
        number: of this call; a call that writes writes something new each time.
        export: the long session's.
        json: `Session.to_json` of the wide session.
    """

    runtime: Runtime
    path: Path
    messages: int
    number: int = 0
    export: SessionExport | None = None
    json: str = ""

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

    def text(self, length: int = 100_000) -> str:
        """English of this length, new in each call."""
        start = f"{self.number} {length} "
        return (start + "lorem ipsum dolor sit amet " * (length // 27 + 1))[:length]

    def texts(self, count: int = 1_000, length: int = 40) -> list[str]:
        """Texts, new in each call."""
        return [f"{place} {self.text(length)}" for place in range(count)]


def said(content: Any, **more: Any) -> ChatDict:
    """A user's message."""
    return {"role": "user", "content": content, **more}


def lines(world: World, count: int = 1_000, **more: Any) -> list[ChatDict]:
    """Messages, new in each call."""
    about = f"of {world.number} on a harbour"
    return [said(f"message {place} {about}", **more) for place in range(count)]


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


async def prepare(world: World) -> None:
    """Fill it."""
    runtime = world.runtime
    for base in range(0, world.messages, 1_000):
        count = min(1_000, world.messages - base)
        await world.long.append(
            [said(f"message {base + place} of a long walk") for place in range(count)]
        )
    await runtime.settle()
    for base in range(0, 1_600, 800):
        await world.wide.append([said(f"w{base + place}") for place in range(800)])
    for _ in range(8):
        await world.heavy.append(picture(15 * MEGABYTE))
    for number in range(4):
        items = [f"fact {number * 1_000 + place} of lin" for place in range(1_000)]
        await world.user.remember(items)
        await world.user.learn(items)
    await runtime.shared("team").as_("owner").claim()
    await runtime.shared("team").as_("owner").remember(items)
    await world.user.agent("cook").remember(items)
    await runtime.settle()
    world.export = await world.long.export()
    world.json = await world.wide.to_json()
    await runtime.export(world.path / "export.jsonl")


Call = Callable[[World], Awaitable[Any]]


async def _delete_many(w: World) -> None:
    await w.copy.append([said(f"w{place}") for place in range(1_000)])
    await w.copy.delete(range(1_000))


async def _append_copy(w: World) -> None:
    await w.user.import_session(_export(w), session=w.copy.key.session)


def _export(w: World) -> SessionExport:
    assert w.export is not None
    return w.export


CALLS: Mapping[str, Mapping[str, Call]] = {
    "Session.append": {
        "1 000 messages": lambda w: w.new.append(lines(w)),
        "1 000 messages with ids": lambda w: w.new.append(
            [{**one, "id": f"{w.number} {place}"} for place, one in enumerate(lines(w))]
        ),
        "1 000 parts": lambda w: w.new.append(parts()),
        "1 000 tool calls": lambda w: w.new.append(with_calls()),
        "1 MB": lambda w: w.new.append(said(w.text(MEGABYTE))),
        "15 MB": lambda w: w.new.append(said(w.text(15 * MEGABYTE))),
        "15 MB of emoji": lambda w: w.new.append(said("🙂" * (15 * MEGABYTE // 4))),
        "15 MB of base64": lambda w: w.new.append(said("iVBORw0K" * (15 * MEGABYTE // 8))),
        "a picture of 15 MB": lambda w: w.new.append(picture(15 * MEGABYTE)),
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
    "Session.get_recent": {"wide": lambda w: w.wide.get_recent(1_000)},
    "Session.get_last_message": {
        "wide": lambda w: w.wide.get_last_message(),
        "of 15 MB pictures": lambda w: w.heavy.get_last_message(),
    },
    "Session.get_context": {
        "wide": lambda w: w.wide.get_context(),
        "of 15 MB pictures": lambda w: w.heavy.get_context(),
    },
    "Session.get_formatted_messages": {
        "wide": lambda w: w.wide.get_formatted_messages(),
        "of 15 MB pictures": lambda w: w.heavy.get_formatted_messages(),
    },
    "Session.contents": {
        "wide": lambda w: w.wide.contents(),
        "of 15 MB pictures": lambda w: w.heavy.contents(),
    },
    "Session.state_dict": {
        "wide": lambda w: w.wide.state_dict(),
        "of 15 MB pictures": lambda w: w.heavy.state_dict(),
    },
    "Session.to_json": {
        "wide": lambda w: w.wide.to_json(),
        "of 15 MB pictures": lambda w: w.heavy.to_json(),
    },
    "Session.load_state_dict": {
        "10 000 messages": lambda w: w.new.load_state_dict({"messages": lines(w, 10_000)}),
    },
    "Session.from_json": {
        "wide": lambda w: w.new.from_json(w.json),
        "10 000 messages": lambda w: w.new.from_json(
            msgspec.json.encode({"messages": lines(w, 10_000)})
        ),
    },
    "Session.search": {
        "query of 100 000 characters": lambda w: w.wide.search(w.text(), k=1_000),
        "by words": lambda w: w.wide.search(w.text(), k=1_000, semantic=False),
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
        "100 texts of 100 000 characters": lambda w: w.user.learn(w.texts(100, 99_000)),
    },
    "User.search_working": {"": lambda w: w.user.search_working(w.text(), k=1_000)},
    "User.synopsis": {"": lambda w: w.user.synopsis(refresh=True)},
    "User.inspect": {"": lambda w: w.user.inspect()},
    "User.stats": {"": lambda w: w.user.stats()},
    "User.remember": {
        "1 000 memories": lambda w: w.user.remember(w.texts()),
        "100 000 characters": lambda w: w.user.remember(w.text()),
        "100 of 100 000 characters": lambda w: w.user.remember(w.texts(100, 99_000)),
    },
    "User.record": {
        "1 000 messages": lambda w: w.user.record(lines(w)),
        "a picture of 15 MB": lambda w: w.user.record(picture(15 * MEGABYTE)),
    },
    "User.recall": {
        "query of 100 000 characters": lambda w: w.user.recall(w.text(), k=1_000),
        "k of 1 000": lambda w: w.user.recall(f"a long walk {w.number}", k=1_000),
    },
    "User.recall_many": {
        "1 000 queries": lambda w: w.user.recall_many(w.texts()),
    },
    "User.memories": {"long": lambda w: w.user.memories(order="importance")},
    "User.forget": {"of a copy": lambda w: w.runtime.user(f"gone {w.number}").forget()},
    "SharedMember.remember": {
        "1 000 memories": lambda w: w.runtime.shared("team").as_("owner").remember(w.texts())
    },
    "SharedMember.recall": {
        "k of 1 000": lambda w: w.runtime.shared("team").as_("owner").recall(w.text(), k=1_000)
    },
    "Runtime.append_many": {
        "1 000 batches": lambda w: w.runtime.append_many(
            [(w.runtime.session(f"{n} {w.number}", "s"), said("hello"), None) for n in range(1_000)]
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


BEFORE: Mapping[str, Call] = {
    "Session.clear": _copy_long,
    "Session.flush": _copy_long,
    "Session.rewind": _copy_long,
    "Session.truncate_to_size": _copy_long,
    "Session.forget": _copy_long,
    "User.forget": _new_user,
}
"""What comes before each call of a verb that removes something."""

NOT_MEASURED: Mapping[str, str] = {
    "Agent.*": "the same methods as User's",
    "User.remember_many": "remember",
}


def largest_calls() -> Iterator[tuple[str, str, Call]]:
    """The verb, what is large, and the call."""
    for verb, cases in CALLS.items():
        for label, call in cases.items():
            yield verb, label, call
