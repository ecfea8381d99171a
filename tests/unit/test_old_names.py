"""Names that remora's classes had before: they work, they warn, and no document shows them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from remora import Agent, Config, Memory, Runtime, Session, User, quote_memories
from remora.adapters.massgen import ConversationMemory
from remora.adapters.muxi import BufferMemory
from remora.api.tools import MemoryTools
from remora.errors import ConfigError
from remora.testing import HashEmbedder

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
CONFIG = Config.from_dict({"tokens": {"counter": "heuristic"}})
SAID: list[Any] = [{"role": "user", "content": text} for text in ("I keep bees", "I drink tea")]
OLD = {
    f"{kind.__name__}.{name}": member.__deprecated__
    for kind in (Runtime, User, Agent, Session, MemoryTools)
    for name in dir(kind)
    if hasattr(member := getattr(kind, name), "__deprecated__")
}


@pytest.fixture
async def runtime() -> Any:
    async with Runtime.in_memory(config=CONFIG, embedder=HashEmbedder()) as runtime:
        ada = runtime.user("ada")
        await ada.session("chat").append(SAID)
        await ada.remember(["Likes honey", "Prefers green tea"])
        await ada.agent("cook").remember("Bakes bread")
        await ada.learn("The kettle is on", session="chat")
        yield runtime


async def result_of(value: Any) -> Any:
    """What a call returned, to be compared: memories by their texts, messages by their content."""
    value = await value if isinstance(value, Awaitable) else value
    if isinstance(value, list) and value and isinstance(value[0], Memory):
        return [one.text for one in value]
    return getattr(value, "content", value)


async def quoted(found: Awaitable[list[Memory]]) -> str:
    return quote_memories(await found)


async def quoted_each(found: Awaitable[list[list[Memory]]]) -> list[str]:
    return [quote_memories(one) for one in await found]


async def last_content(session: Session) -> Any:
    message = await ConversationMemory(session).get_last_message()
    return message and message["content"]


async def restored(session: Session, *, old: bool) -> Any:
    text = await BufferMemory(session).to_json()
    await (session.from_json(text) if old else BufferMemory.from_json(text, session))
    return (await session.state_dict())["messages"]


Call = Callable[[Any], Any]
CALLS: dict[str, tuple[Call, Call]] = {
    "Session.get_recent": (lambda s: s.get_recent(1), lambda s: s.get_messages(limit=1)),
    "Session.get_last_message": (lambda s: s.get_last_message(), last_content),
    "Session.get_context": (lambda s: s.get_context(), lambda s: BufferMemory(s).get_context()),
    "Session.get_formatted_messages": (
        lambda s: s.get_formatted_messages(),
        lambda s: BufferMemory(s).get_formatted_messages(),
    ),
    "Session.to_json": (lambda s: s.to_json(), lambda s: BufferMemory(s).to_json()),
    "Session.from_json": (lambda s: restored(s, old=True), lambda s: restored(s, old=False)),
    "User.remember_many": (lambda u: u.remember_many(["x"]), lambda u: u.remember(["x"])),
    "User.retrieve": (lambda u: u.retrieve("tea", 2), lambda u: quoted(u.recall("tea", limit=2))),
    "User.retrieve_many": (
        lambda u: u.retrieve_many(["tea"], 2),
        lambda u: quoted_each(u.recall_many(["tea"], limit=2)),
    ),
    "Agent.remember_many": (lambda u: u.remember_many(["x"]), lambda u: u.remember(["x"])),
    "Agent.retrieve": (lambda u: u.retrieve("bread"), lambda u: quoted(u.recall("bread"))),
    "Agent.retrieve_many": (
        lambda u: u.retrieve_many(["bread"]),
        lambda u: quoted_each(u.recall_many(["bread"])),
    ),
    "MemoryTools.record_to_memory": (
        lambda t: t.record_to_memory("", ["x"]),
        lambda t: t.save_to_memory("", ["x"]),
    ),
    "MemoryTools.retrieve_from_memory": (
        lambda t: t.retrieve_from_memory(["tea"], 2),
        lambda t: t.recall_from_memory(["tea"], 2),
    ),
    "MemoryTools.openai_specs": (lambda t: t.openai_specs(), lambda t: t.openai()),
}
"""Each deprecated name, and what stands for it now."""


@pytest.mark.parametrize("name", OLD)
async def test_an_old_name_does_what_it_did(name: str, runtime: Runtime) -> None:
    """S0.14, S0.16, S0.19, S0.20, S2.07, S4.07, S4.15, S4.40, S4.44: it warns at the line that uses
    it, and its result is that of the current name.
    """
    user = runtime.user("ada")
    handles: dict[str, Any] = {
        "Session": user.session("chat"),
        "User": user,
        "Agent": user.agent("cook"),
        "MemoryTools": user.tools(),
    }
    kind, _, method = name.partition(".")
    old, new = CALLS[name]
    with pytest.warns(DeprecationWarning, match=re.escape(OLD[name])) as caught:
        before = await result_of(old(handles[kind]))
    assert [one.filename for one in caught] == [__file__]
    assert before
    assert before == await result_of(new(handles[kind]))
    assert method not in dir(handles[kind])


def test_every_old_name_is_tried() -> None:
    assert sorted(CALLS) == sorted(OLD)


def cook(user: User) -> Any:
    return user.agent("cook")


def chat(user: User) -> Any:
    return user.session("chat")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (lambda u: u.recall("tea", k=2), lambda u: u.recall("tea", limit=2)),
        (lambda u: cook(u).recall("bread", k=1), lambda u: cook(u).recall("bread", limit=1)),
        (lambda u: u.search_working("tea", k=1), lambda u: u.search_working("tea", limit=1)),
        (lambda u: chat(u).search("tea", k=1), lambda u: chat(u).search("tea", limit=1)),
        (lambda u: chat(u).truncate_to_size(size=2), lambda u: chat(u).truncate_to_size(keep=2)),
    ],
)
async def test_old_arguments(old: Call, new: Call, runtime: Runtime) -> None:
    """`k` is `limit` now, and `size` is `keep`."""
    user = runtime.user("ada")
    renamed = r"\((k|size)=…\) is now .*\((limit|keep)=…\)"
    with pytest.warns(DeprecationWarning, match=renamed) as caught:
        before = await result_of(old(user))
    assert [one.filename for one in caught] == [__file__]
    assert before == await result_of(new(user))


async def test_an_argument_by_both_names(runtime: Runtime) -> None:
    user: Any = runtime.user("ada")
    with pytest.raises(TypeError, match="both k= and limit="):
        await user.recall("tea", k=1, limit=1)
    with pytest.warns(DeprecationWarning), pytest.raises(TypeError, match="limit"):  # noqa: PT030
        await user.session("chat").search("tea", 1, k=1)


async def test_old_arguments_of_shared_memory_and_of_many_queries(runtime: Runtime) -> None:
    user: Any = runtime.user("ada")
    member: Any = runtime.shared("team").as_("zoe")
    await member.claim()
    await member.remember(["tea at five", "tea at six"])
    with pytest.warns(DeprecationWarning, match="limit"):
        assert len(await member.recall("tea", k=1)) == 1
    with pytest.warns(DeprecationWarning, match="limit"):
        assert [len(found) for found in await user.recall_many(["tea"], k=1)] == [1]


def test_old_configuration_keys() -> None:
    """A configuration with `recall.k` or `working.k` loads."""
    with pytest.warns(DeprecationWarning, match=r"recall\.k is now recall\.limit"):
        assert Config.from_dict({"recall": {"k": 7}}).recall.limit == 7
    with pytest.warns(DeprecationWarning, match=r"REMORA_WORKING__K is now working\.limit"):
        assert Config.from_environment({"REMORA_WORKING__K": "3"}).working.limit == 3


@pytest.mark.parametrize(
    ("recall", "problem"),
    [
        ({"k": 7, "limit": 8}, r"recall\.k is the older name of recall\.limit: leave it out"),
        ({"k": "many"}, r"recall\.limit \(written as recall\.k\) must be a whole number"),
    ],
)
def test_errors_name_the_key_that_was_written(recall: dict[str, Any], problem: str) -> None:
    with (
        pytest.warns(DeprecationWarning, match="recall"),
        pytest.raises(ConfigError, match=problem),
    ):
        Config.from_dict({"recall": recall})


# -- documents -------------------------------------------------------------------------------------

NAMES = "|".join(sorted({name.partition(".")[2] for name in OLD}))
SHOWN = (
    re.compile(rf"\b(?:[Ss]ession|[Uu]ser|[Aa]gent|chat|conversation|alice|tools)\.({NAMES})\b"),
    re.compile(rf"(?<![.\w])`({NAMES})[`(]"),
    re.compile(r"\b(?:recall|recall_many|search|search_working)\([^()]*\b(k)="),
    re.compile(r"\b(?:recall|working)\.(k)\b"),
)
"""How a document shows an old name."""
OTHERS = {"checklist.md", "migration.md"}
"""Pages that have other libraries' names."""


def old_names_in(text: str) -> Iterator[str]:
    for pattern in SHOWN:
        yield from (found.group() for found in pattern.finditer(text))


@pytest.mark.blocking
def test_no_document_shows_an_old_name() -> None:
    shown = list(old_names_in("`to_json` user.retrieve() recall('x', k=2) `recall.k`"))
    assert shown == ["user.retrieve", "`to_json`", "recall('x', k=", "recall.k"]
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]
    found = [
        f"{path.name}: {one}"
        for path in pages
        for one in old_names_in(path.read_text(encoding="utf-8"))
        if path.name not in OTHERS
    ]
    assert found == []


@pytest.mark.blocking
def test_no_example_uses_an_old_name() -> None:
    """But for the one that shows the adapters, which have other libraries' names."""
    found = {
        path.name
        for path in (ROOT / "examples").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and re.fullmatch(NAMES, node.attr)
    }
    assert found <= {"old_names.py"}


def test_current_names_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Config.from_dict({"recall": {"limit": 7}, "working": {"limit": 3}})
        assert "retrieve" not in dir(Runtime("memory", config=CONFIG).user("ada"))
