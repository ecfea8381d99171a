"""Listings of users and sessions: pages, orders, cursors; after a crash, and beside a server."""

from __future__ import annotations

import json
import random
import re
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.errors import InvalidInput
from remora.storage.listing import ListingOrder, prefix_end
from remora.storage.ports import ListingPage, SessionKey
from remora.storage.sqlite import journal as sqlite_journal
from remora.storage.sqlite.peek import peek_sessions, peek_users
from tests.configs import PLAIN_TREE
from tests.copies import copy_memory
from tests.programs import run_command_aside

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

PLAIN = Config.from_dict({**PLAIN_TREE, "journal": {"durability": "none"}})
BEGIN = 1_700_000_000
ORDERS: tuple[ListingOrder, ...] = ("name", "newest", "oldest")


def said(at: float) -> dict[str, Any]:
    return {"role": "user", "content": "hello", "created_at": BEGIN + at}


async def append(runtime: Runtime, user: str, session: str, at: float) -> None:
    await runtime.session(user, session).append(said(at))


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(tmp_path / "memory", config=PLAIN) as opened:
        yield opened


@pytest.fixture(params=["looked up", "indexed"])
async def either(
    request: pytest.FixtureRequest, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> Runtime:
    """A runtime that looks up the last uses of sessions, and one that has an index of them."""
    if request.param == "indexed":
        monkeypatch.setattr(sqlite_journal, "MANY_SESSIONS", 0)
    return runtime


async def all_pages(runtime: Runtime, order: ListingOrder, limit: int) -> list[str]:
    found: list[str] = []
    after = None
    while page := await runtime.users(order=order, limit=limit, after=after):
        found += [one.user for one in page]
        after = page[-1].cursor
    return found


async def test_pages_are_parts_of_the_whole(either: Runtime) -> None:
    """In every order."""
    rng = random.Random(3)
    last: dict[tuple[str, str], float] = {}
    for _ in range(60):
        user, session = f"user {rng.randrange(8)}", f"s{rng.randrange(5)}"
        at = max(last.values(), default=0.0) + rng.randrange(3)
        last[user, session] = at
        await append(either, user, session, at)
        if rng.random() < 0.1:
            await either.users(order="newest", limit=1)  # writes the last uses, if indexed
    used: dict[str, float] = {}
    for (user, _), at in last.items():
        used[user] = max(used.get(user, 0.0), at)
    by_use = sorted(used, key=lambda user: (used[user], user))
    assert await all_pages(either, "name", 3) == sorted(used)
    assert await all_pages(either, "oldest", 3) == by_use
    assert await all_pages(either, "newest", 2) == by_use[::-1]
    for one in await either.users():
        assert one.last_at == datetime.fromtimestamp(BEGIN + used[one.user], UTC)
        assert one.sessions == sum(user == one.user for user, _ in last)
    for user in used:
        mine = sorted((at, session) for (who, session), at in last.items() if who == user)
        names = [session for _, session in mine]
        expected = {"name": sorted(names), "newest": names[::-1], "oldest": names}
        for order in ORDERS:
            found = await either.user(user).sessions(order=order)
            assert [one.key.session for one in found] == expected[order]
            if len(found) > 1:
                behind = await either.user(user).sessions(order=order, after=found[0].cursor)
                assert behind == found[1:]


async def test_a_cursor_holds_while_sessions_come_and_go(either: Runtime) -> None:
    """The page behind it has neither a repeated session nor a hole."""
    for number in range(6):
        await append(either, "alice", f"s{number}", number)
    alice = either.user("alice")
    first = await alice.sessions(order="newest", limit=3)
    assert [one.key.session for one in first] == ["s5", "s4", "s3"]
    await append(either, "alice", "s4", 50)
    await append(either, "alice", "new", 51)
    await alice.session("s3").forget()
    second = await alice.sessions(order="newest", limit=3, after=first[-1].cursor)
    assert [one.key.session for one in second] == ["s2", "s1", "s0"]
    again = await alice.sessions(order="newest", limit=2)
    assert [one.key.session for one in again] == ["new", "s4"]


async def test_who_is_listed(runtime: Runtime) -> None:
    """Deleted and rewound messages do not count; a session without any is not listed; users without
    one come last in the order of use; shared scopes are no users.
    """
    chat = runtime.session("alice", "chat")
    await chat.append([said(n) for n in range(6)])
    await chat.delete(positions=[0, 1])
    await chat.rewind(5)
    (listed,) = await runtime.user("alice").sessions()
    assert listed.messages == len(await chat.history()) == 3
    assert listed.key == SessionKey("alice", "chat")
    assert listed.last_at == datetime.fromtimestamp(BEGIN + 5, UTC)
    await chat.delete(positions=[0, 1, 2])
    assert await runtime.user("alice").sessions() == []
    await runtime.user("alice").forget()
    await runtime.shared("team").as_("bo").grant("cy")
    async with Runtime.in_memory(config=PLAIN) as other:
        for opened in (runtime, other):
            await append(opened, "bob", "chat", 0)
            (found,) = await opened.users(order="newest")
            assert (found.user, found.sessions) == ("bob", 1)


async def test_bad_arguments_are_refused(runtime: Runtime) -> None:
    """With the reason, before anything is read."""
    bad: tuple[dict[str, Any], ...] = (
        {"order": "size"},
        {"limit": 0},
        {"limit": True},
        {"prefix": 3},
        {"prefix": "a\x00"},
        {"order": "name", "after": "a\x00"},
        {"after": 3},
        {"after": ""},
        {"order": "newest", "after": "alice"},
        {"order": "oldest", "after": "1/"},
    )
    for arguments in bad:
        with pytest.raises(InvalidInput):
            await runtime.users(**arguments)
        with pytest.raises(InvalidInput):
            await runtime.user("alice").sessions(**arguments)


async def test_prefixes_are_texts_not_patterns(runtime: Runtime) -> None:
    """Wildcards, quotes and the last characters of Unicode mean themselves."""
    names = ["a%b", "a_b", "aab", "a'b", "a\U0010ffff", "a\U0010ffffz", "b", "\ud7ff1", "\ue0001"]
    for name in names:
        await append(runtime, name, name, 0)
        await append(runtime, "lister", name, 0)
    for prefix in ("a%", "a_", "a'", "a\U0010ffff", "a", "\ud7ff", "zz", ""):
        expected = sorted(name for name in [*names, "lister"] if name.startswith(prefix))
        assert [one.user for one in await runtime.users(prefix=prefix)] == expected
        for order in ORDERS:
            found = await runtime.user("lister").sessions(prefix=prefix, order=order)
            mine = [name for name in expected if name != "lister"]
            assert sorted(one.key.session for one in found) == mine
    assert prefix_end("\U0010ffff") is None


async def test_the_order_is_right_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last uses that were held in memory alone are found again from the messages; how many are held
    is bounded.
    """
    monkeypatch.setattr(sqlite_journal, "MANY_SESSIONS", 0)
    monkeypatch.setattr("remora.storage.sqlite.uses.COMPUTED_AT_ONCE", 2)
    crashed = tmp_path / "crashed"
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        for number in range(5):
            await append(runtime, "alice", f"s{number}", number)
        await runtime.users(order="newest")
        await append(runtime, "alice", "s1", 10)
        copy_memory(tmp_path / "memory", crashed, "*.lock")
    for place in (crashed, tmp_path / "memory", crashed):
        async with Runtime(place, config=PLAIN) as runtime:
            found = await runtime.user("alice").sessions(order="newest")
            assert [one.key.session for one in found] == ["s1", "s4", "s3", "s2", "s0"]
    monkeypatch.setattr("remora.storage.sqlite.writer.MANY_HELD", 3)
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        for number in range(10):
            await append(runtime, "alice", f"s{number}", 20 + number)
        found = await runtime.user("alice").sessions(order="newest", limit=3)
        assert [one.key.session for one in found] == ["s9", "s8", "s7"]


async def test_the_command_line_lists_beside_a_server(
    runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users and sessions, page by page, as text and as JSON, while a server has them open."""

    async def run(*arguments: str) -> tuple[int, str]:
        where = ["--dir", str(tmp_path / "memory")]
        code = await run_command_aside(*arguments, *where)
        return code, capsys.readouterr().out

    for number, (user, session) in enumerate([("alice", "a"), ("alice", "b"), ("bob'; ", "c")]):
        await append(runtime, user, session, number)
    code, out = await run("users", "--json", "--limit", "1")
    (line,) = map(json.loads, out.splitlines())
    assert (code, line["user"], line["sessions"]) == (0, "bob'; ", 1)
    assert line["last_at"] == "2023-11-14T22:13:22Z"
    code, out = await run("users", "--json", "--after", line["cursor"])
    assert [json.loads(one)["user"] for one in out.splitlines()] == ["alice"]
    code, out = await run("sessions", "alice", "--limit", "1")
    assert "b  1 message  2023-11-14 22:13:21" in out
    assert "--after '1700000001000000/b'" in out
    code, out = await run("sessions", "alice", "--json", "--order", "name")
    assert [json.loads(one)["session"] for one in out.splitlines()] == ["a", "b"]
    code, out = await run("users", "--prefix", "zoe")
    assert (code, out) == (0, "there is no user here\n")
    code, out = await run("sessions", "zoe")
    assert code == 1


async def test_a_reader_lists_the_same_with_and_without_the_index(tmp_path: Path) -> None:
    """Beside an owner the index of last uses is behind, so that a reader looks at the messages."""
    journal = tmp_path / "memory" / "journal.db"

    def look() -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for order in ORDERS:
            page = ListingPage(order, limit=2)
            users = [*peek_users(journal, page)]
            rest = ListingPage.behind(users[-1].cursor, order=order, prefix="", limit=2)
            users += peek_users(journal, rest)
            found += [(one, *peek_sessions(journal, one.user, page)) for one in users]
        return found

    async with Runtime(tmp_path / "memory", config=PLAIN) as opened:
        for at, name in enumerate("abcab"):
            await append(opened, f"user {name}", f"chat {at}", at)
        beside = await anyio.to_thread.run_sync(look)
    assert len(beside) == 3 * len(ORDERS)
    assert await anyio.to_thread.run_sync(look) == beside


async def test_a_long_id_leaves_the_table_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody who may choose an id chooses 700 letters: the others' lines stay as short."""
    hostile = "a" * 300 + "\u200b" * 50 + "b" * 20
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        for name in ("bob", hostile):
            await append(runtime, name, "chat", 0)
    arguments = ["users", "--order", "name", "--dir", str(tmp_path / "memory")]
    for terminal in (False, True):
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("NO_COLOR", "1")
        assert await run_command_aside(*arguments) == 0
        long, short = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
        assert len(short) <= 80
        assert short.split() == ["bob", "1", "session", "2023-11-14", "22:13:20"]
        assert ("…" in long and len(long) <= 80) == terminal
        assert long.startswith("a" * (30 if terminal else 300))
        assert ("b" * 20 in long) != terminal


async def test_ids_that_look_alike_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Characters that nobody sees are named, and a shell gives them back in the cursor."""
    names = ["ali\u200bce", "bob", "it's \\\u202eecila"]
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        for name in names:
            await append(runtime, name, "chat", 0)
    where = ["--dir", str(tmp_path / "memory"), "--order", "name"]

    async def listed(*more: str) -> list[str]:
        assert await run_command_aside("users", *where, *more) == 0
        return capsys.readouterr().out.splitlines()

    lines = await listed("--limit", "3")
    assert [one.split("  ")[0] for one in lines[:3]] == [
        "ali<U+200B>ce",
        "bob",
        "it's \\<U+202E>ecila",
    ]
    cursor = lines[3].partition("--after ")[2]
    assert cursor.isprintable()
    command = ["bash", "-c", f"printf %s {cursor}"]
    taken = await anyio.to_thread.run_sync(
        lambda: subprocess.run(  # noqa: PLW0108
            command, env={"LC_ALL": "C.UTF-8"}, capture_output=True, check=True
        ).stdout.decode()
    )
    assert taken == names[2]
