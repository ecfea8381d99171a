"""What the page of ``remora view`` is told, and who may ask."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import msgspec
import pytest

from remora import Config, MessageDict, Runtime, metrics
from remora.cli.main import main
from remora.cluster.reshard import reshard
from remora.cluster.sharded import ShardedRuntime
from remora.storage.listing import ListingOrder, ListingPage
from remora.storage.sqlite.peek import peek_users
from remora.storage.sqlite.schema import FORMAT
from remora.storage.sqlite.sizes import TABLES, peek_sizes
from remora.view.health import HealthSamples
from remora.view.watch import MAX_PAGES, TooManyPages, Watch
from tests.configs import LEAN_ENVIRONMENT, LEAN_TREE, poison
from tests.copies import copy_memory
from tests.page import HOME, TOKEN, opened_page
from tests.patience import until

TREE: dict[str, Any] = {
    **LEAN_TREE,
    "buffer": {"token_limit": 300, "summary_tokens": 60},
    "supervisor": {"max_attempts": 1},
}
CONFIG = Config.from_dict(TREE)
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners answer late on a busy machine."""
    monkeypatch.setattr("remora.view.health.PATIENCE_S", 600.0)
    monkeypatch.setattr("remora.cluster.connected.PATIENCE_S", 600.0)


def said(text: str) -> MessageDict:
    return {"role": "user", "content": text}


@pytest.fixture
async def owner(directory: Path) -> AsyncIterator[Runtime]:
    """Owns the memory of Alice, with forty messages, some of them summarized."""
    async with Runtime(directory, config=CONFIG, redact_long_term=poison) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(40):
            await chat.append(said(f"Message {number} is about Figaro."))
        await chat.flush()
        await runtime.settle()
        yield runtime


async def get(page: httpx.AsyncClient, name: str, **query: Any) -> Any:
    answer = await page.get(f"/api/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def get_chat(page: httpx.AsyncClient, name: str = "session", **query: Any) -> Any:
    """What is known of the session that the tests begin with."""
    return await get(page, name, user="alice", session="chat", **query)


async def post(page: httpx.AsyncClient, change: str, **body: Any) -> tuple[int, Any]:
    answer = await page.post(f"/api/{change}", json=body)
    return answer.status_code, answer.json()


# -- who may ask -----------------------------------------------------------------------------------


async def test_only_the_token_lets_in(directory: Path) -> None:
    """By an address, a header or a cookie; cookies of other servers shut nobody out."""
    async with opened_page(directory, CONFIG, token=None) as page:

        async def status(path: str, **options: Any) -> int:
            return (await page.get(path, **options)).status_code

        for path in ("/", "/assets/app.js", "/api/users", "/api/events", "/metrics"):
            assert await status(path) == 401
        for wrong in ("x", TOKEN[:-1], TOKEN + "t", "é"):
            assert await status("/", params={"token": wrong}) == 401
            bearer = [(b"authorization", f"Bearer {wrong}".encode())]
            assert await status("/", headers=bearer) == 401
        page.cookies.set("remora-view-8700", "of-an-earlier-start", domain="127.0.0.1")
        assert await status("/") == 401
        entered = await page.get("/", params={"token": TOKEN})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
        page.cookies.clear()
        page.cookies.set("remora-view-8700", TOKEN, domain="127.0.0.1")
        found = await page.get("/")
        assert found.status_code == 200
        assert TOKEN not in found.text
        assert await status("/", params={"token": "of-an-earlier-start"}) == 401
        page.cookies.clear()
        # a browser sends those of all servers of this machine, of any port, in one line
        for other in ('theme={"dark": 1}', "a=b c", "list[0]=1", "a@b=1", "plain"):
            for own, expected in ((TOKEN, 200), ("x" + TOKEN, 401)):
                for before in (other, "remora-view-8700=old"):
                    cookies = {"cookie": f"{before}; remora-view-8700={own}"}
                    assert await status("/", headers=cookies) == expected, cookies
        # an address leads to no other host, where its path reads as one or has the end of a line
        for path, place in (
            ("//evil.example/x", "/evil.example/x"),
            ("/%0d%0aX: y", "/%0D%0AX%3A%20y"),
        ):
            answer = await page.get(f"{HOME}{path}?token={TOKEN}")
            assert (answer.status_code, answer.headers["location"]) == (303, place)


async def test_the_host_must_be_its_own(owner: Runtime, directory: Path) -> None:
    """A name that another site makes point here (DNS rebinding) is not answered."""
    named = {"names": frozenset({"memory.internal"})}
    for options, hosts, expected in (
        (named, ("127.0.0.1:8700", "localhost:8700", "[::1]:8700", "memory.internal"), 200),
        (named, ("evil.example", "127.0.0.1.evil.example", "10.0.0.7:8700", "", "["), 421),
        ({"any_address": True}, ("10.0.0.7:8700",), 200),
        ({"any_address": True}, ("evil.example",), 421),
    ):
        async with opened_page(directory, CONFIG, **options) as page:
            for host in hosts:
                answer = await page.get("/api/about", headers={"host": host})
                assert answer.status_code == expected, host


async def test_a_browser_runs_nothing_else(owner: Runtime, directory: Path) -> None:
    async with opened_page(directory, CONFIG) as page:
        for path in ("/", "/assets/app.js", "/api/users", "/api/session", "/nowhere"):
            headers = (await page.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
        whole = [
            (await page.get(f"/assets/{one.name}")).text
            for one in Path("remora/view/assets").iterdir()
        ]
    assert not re.search(r"innerHTML|insertAdjacent|document\.write|eval\(", "".join(whole))
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", "".join(whole))  # works offline


async def test_other_origins_change_nothing(directory: Path) -> None:
    async with Runtime(directory, config=CONFIG) as runtime:
        await runtime.session("alice", "chat").append(said("Hello"))
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        body = {"user": "alice"}
        other = {"origin": "http://127.0.0.1:9999"}
        assert (await page.post("/api/forget", json=body, headers=other)).status_code == 403
        assert (await page.post("/api/forget", data=body)).status_code == 403
        assert [one["user"] for one in await get(page, "users")] == ["alice"]
        own = await page.post("/api/forget", json=body, headers={"origin": HOME})
        assert own.status_code == 200
        assert await get(page, "users") == []


# -- answers ---------------------------------------------------------------------------------------


async def test_a_session_beside_its_owner(owner: Runtime, directory: Path) -> None:
    """Each answer is what the owner has, and no later than what it acknowledged."""
    chat = owner.session("alice", "chat")
    await owner.session("bob", "later").append(said("Hi."))
    await chat.delete([(await chat.history())[-2].id or ""])
    async with opened_page(directory, CONFIG) as page:
        users = await get(page, "users")
        assert [(one["user"], one["sessions"]) for one in users] == [("bob", 1), ("alice", 1)]
        assert [one["user"] for one in await get(page, "users", prefix="al")] == ["alice"]
        (listed,) = await get(page, "sessions", user="alice")
        assert (listed["session"], listed["messages"], listed["live"]) == ("chat", 39, True)

        view = await chat.inspect()
        found = await get_chat(page)
        assert found["watermarks"] == msgspec.to_builtins(view.watermarks)
        assert found["last_seq"] == view.last_seq == 40
        assert found["buffered_tokens"] == view.buffered_tokens
        assert found["removed"] == [{"first": 39, "last": 39, "count": 1}]
        assert found["token_limit"] == 300

        lines = await get_chat(page, "messages", first=37, last=40)
        assert [one["seq"] for one in lines] == [37, 38, 40]
        assert lines[0]["text"] == "Message 36 is about Figaro."
        await chat.append(said("x" * 5_000))
        (whole,) = await get_chat(page, "messages", first=41, last=41)
        assert (len(whole["text"]), whole["cut"]) == (5_000, False)
        assert (await get_chat(page, "messages", first=40, last=41))[1]["cut"] is True

        compactions = found["compactions"]
        assert view.summary is not None
        assert compactions[0]["current"] is True
        assert compactions[0]["summary"]["text"] == view.summary.text
        assert compactions[0]["summary"]["input_tokens"] == view.summary.input_tokens > 0
        await chat.clear()
        first, *others = (await get_chat(page))["compactions"]
        assert first["kind"] == "cleared"
        assert {one["current"] for one in others} == {False}


class Held:
    """A summarizer that waits until it may go on."""

    name = "held"
    extracts = False

    def __init__(self) -> None:
        self.begun, self.free = anyio.Event(), anyio.Event()

    async def summarize(self, _: str | None, __: Sequence[Any], *, max_tokens: int) -> str:
        self.begun.set()
        await self.free.wait()
        return "They talked about Figaro."


CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": 1}'}}


async def test_tools_and_attachments_of_a_message(directory: Path) -> None:
    """Calls, the call that a result answers, and images are told apart from the text."""
    picture = {"type": "image_url", "image_url": {"url": "https://example.org/sea.png?x=1"}}
    chats: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "Where is it?"}, picture]},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "Lisbon"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Portugal."}]},
                {"type": "answer", "text": "In Lisbon."},
            ],
        },
    ]
    async with Runtime(directory, config=CONFIG) as runtime:
        await runtime.session("alice", "chat").append(chats)
    async with opened_page(directory, CONFIG) as page:
        asked, called, result, answer = await get_chat(page, "messages", first=1, last=4)
    assert (asked["text"], asked["attachments"]) == ("Where is it?", ["image sea.png"])
    assert (called["text"], called["attachments"], called["answers"]) == ("I look.", [], "")
    assert called["calls"] == [{"id": "c1", "name": "look_up", "arguments": '{"city": 1}'}]
    assert (result["text"], result["calls"], result["answers"]) == ("Lisbon", [], "c1")
    assert (answer["text"], answer["attachments"]) == ("In Lisbon.", ["thinking"])


async def test_how_much_a_memory_has(directory: Path) -> None:
    """Users, sessions and messages without those that are deleted, of all shards."""
    async with ShardedRuntime.of(Runtime(directory, config=CONFIG), shards=3) as memory:
        for number in range(6):
            chat = memory.session(f"user {number % 4}", f"chat {number}")
            receipt = await chat.append([said("One."), said("Two.")])
        await chat.delete([receipt.ids[0]])
        await memory.user("only remembers").remember("Likes tea.")
        counted = await memory.counts()
    async with opened_page(directory, CONFIG) as page:
        found = await get(page, "counts")
    assert found == {"users": 5, "sessions": 6, "messages": 11}
    assert (counted.users, counted.sessions) == (5, 6)


async def test_a_compaction_while_it_is_made(directory: Path) -> None:
    """Its job runs; then its seconds are known, also in shards, until the process ends."""
    held = Held()
    runtime = Runtime(directory, config=CONFIG, summarizer=held)
    async with opened_page(directory, CONFIG) as page:
        async with ShardedRuntime.of(runtime, shards=3) as memory:
            chat = memory.session("alice", "chat")
            while not held.begun.is_set():
                await chat.append(said("Another message is about Figaro."))
                await anyio.wait_all_tasks_blocked()
            found = await get(page, "jobs")
            states = {job["lane"]: job["state"] for job in found["jobs"]}
            assert states["summarize"] == "running"
            assert found["queues"]["summarize"]["running"] == 1
            marks = (await get_chat(page))["watermarks"]
            assert marks["summarizing_through"] > marks["archived_through"]
            held.free.set()
            await memory.settle()
            session = await get_chat(page)
            numbers = {str(one["number"]) for one in session["compactions"]}
            assert session["seconds"].keys() == numbers
            assert all(one > 0 for one in session["seconds"].values())
        assert (await get_chat(page))["seconds"] == {}


async def test_listings_beside_an_owner_are_its_own(
    owner: Runtime, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every order and page, whether the uses of all or some of the sessions are written."""
    monkeypatch.setattr("remora.storage.sqlite.journal.MANY_SESSIONS", 0)
    journal: Any = owner.internals.journal
    for number in range(400):
        user, session = f"user {number % 130}", f"chat {number % 7}-{number % 2}"
        await owner.session(user, session).append(said("Hi."))
        if number in {150, 300}:
            await owner.users(order="newest")  # which writes the uses
            assert journal.unwritten_uses() == ()
    async with opened_page(directory, CONFIG) as page:
        orders: tuple[ListingOrder, ...] = ("newest", "oldest", "name")
        for order in orders:
            assert len(journal.unwritten_uses()) > 20
            seen: dict[str, list[str]] = {"users": [], "sessions": []}
            for name, key in (("users", "user"), ("sessions", "session")):
                after: dict[str, str] = {}
                while found := await get(page, name, user="user 3", order=order, **after):
                    seen[name] += [one[key] for one in found]
                    after = {"after": found[-1]["cursor"]}
            begin = peek_users(directory / "journal.db", ListingPage(order, "user 1", 7), ())
            assert len(begin) == 7
            users = await owner.users(order=order, limit=None)
            sessions = await owner.user("user 3").sessions(order=order)
            assert seen["users"] == [one.user for one in users]
            assert seen["sessions"] == [one.session for one in sessions]
            await owner.session(f"user {order}", "chat").append(said("Hi."))
            for number in range(30):  # used again, and not written
                chat = owner.session(f"user {number}", f"chat {number % 7}-{number % 2}")
                await chat.append(said("Hi again."))


async def test_what_the_model_sees_and_recalls(owner: Runtime, directory: Path) -> None:
    """For each budget, at each message; what recall finds, and why it leaves out the rest."""
    chat = owner.session("alice", "chat")
    recalled = await owner.user("alice").recall("Figaro 7", limit=3)
    archived = (await chat.inspect()).watermarks.archived_through
    async with opened_page(directory, CONFIG) as page:
        for budget, at in product((60, 90, 400), (None, 10)):
            await chat.load(max_tokens=budget, at=at)
            await owner.settle()  # a small budget has a summary of its own from then on
            context = await chat.load(max_tokens=budget, at=at)
            more = {} if at is None else {"at": at}
            found = await get_chat(page, "context", max_tokens=budget, **more)
            assert found["tokens"] == context.tokens == sum(found["parts"].values()) <= budget
            assert found["omitted"] == context.omitted
            sources = {name: one.status for name, one in context.sources.items()}
            assert {name: one["status"] for name, one in found["sources"].items()} == sources
            own = [None if entry is None else entry.seq for entry in context.entries]
            assert [one["seq"] or None for one in found["messages"]] == own
            shown = [seq for first, last in found["shown"] for seq in range(first, last + 1)]
            assert shown == [seq for seq in own if seq]
            some = await get_chat(page, "context", max_tokens=budget, messages=2, **more)
            assert some == {**found, "messages": found["messages"][:2]}
        hits = (await get(page, "recall", user="alice", question="Figaro 7", limit=3))["hits"]
        other = {"user": "alice", "session": "other", "query": "Figaro 7"}
        found = await get(page, "context", **other, max_tokens=400)
    assert [one["seq"] for one in hits[:3]] == [one.seq for one in recalled]
    assert set(hits[0]["parts"]) >= {"turn", "window"}
    assert hits[3]["reason"] == "below the limit of 3"
    for one in hits[:3]:
        assert one["reason"].startswith("in the buffer") == (one["seq"] > archived)
    assert found["parts"]["long_term"] == found["tokens"] > 0
    # a deadline of a server is none of a page: on a busy machine it would show less than is there
    config = Config.from_dict(TREE | {"recall": {"deadline_s": 1e-6}})
    async with opened_page(directory, config) as page:
        assert (await get(page, "context", **other))["sources"]["long_term"]["count"] > 0


async def test_each_message_of_a_context_has_its_source(owner: Runtime, directory: Path) -> None:
    """With instructions at the beginning, which stay before the summary; and what is shortened."""
    chat = owner.session("alice", "pinned")
    await chat.append({"role": "system", "content": "Be brief."})
    for number in range(30):
        await chat.append(said(f"Sentence {number} is about Figaro, who likes boxes."))
    await chat.append(said("long " * 400))
    await owner.settle()
    async with opened_page(directory, CONFIG) as page:
        for query in ({}, {"query": "Figaro 7"}):
            asked = {"user": "alice", "session": "pinned", "max_tokens": 280, **query}
            found = await get(page, "context", **asked)
            shown = found["messages"]
            sources = ["recent", "summary", *(["long_term"] if query else []), "recent"]
            assert [one["source"] for one in shown] == sources
            assert shown[0]["seq"] == 1
            assert found["parts"]["summary"] == shown[1]["tokens"] > 0
            assert ("long_term" in found["parts"]) == bool(query)
            newest = next(one for one in shown if one["seq"] == 32)
            assert newest["shortened"] > 100
            assert shown[0]["shortened"] == 0


WRONG: list[tuple[str, dict[str, str | int], str]] = [
    ("session", {"user": "", "session": "chat"}, "user id"),
    ("sessions", {"user": "a\0b"}, "user id"),
    ("users", {"after": "nothing"}, "after must be"),
    ("users", {"order": "random"}, "order"),
    ("messages", {"first": 1}, "last must be"),
    ("messages", {"first": 1, "last": 100_000}, "1 to 200"),
    ("context", {"max_tokens": "9" * 30}, "whole number"),
    ("context", {"at": 99}, "99"),
    ("recall", {"question": " "}, "question"),
    ("recall", {"question": "a", "limit": 101}, "1 to 100"),
]


async def test_wrong_questions(owner: Runtime, directory: Path) -> None:
    async with opened_page(directory, CONFIG) as page:
        for name, query, text in WRONG:
            params = {"user": "alice", "session": "chat"} | query
            answer = await page.get(f"/api/{name}", params=params)
            assert answer.status_code == 400, (name, query)
            assert text in answer.json()["error"]


async def test_texts_that_are_long_or_no_unicode(owner: Runtime, directory: Path) -> None:
    """A message of ten megabytes is cut, and half of an emoji is a question like others."""
    await owner.session("bob", "chat").append(said("Figaro " * 1_500_000))
    query = {"user": "bob", "session": "chat"}
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        (line,) = await get(page, "messages", **query, first=1, last=1)
        assert (len(line["text"]), line["cut"]) == (100_000, True)
        context = await get(page, "context", **query, max_tokens=9_000_000)
        assert (len(context["messages"][0]["text"]), context["messages"][0]["cut"]) == (400, True)
        half = await page.get("/api/recall?user=bob&question=Figaro%ED%B0%80")
        hits = half.json()["hits"]
        assert hits
        assert all(len(one["text"]) <= 4_000 for one in hits)
        json = {"content-type": "application/json"}
        for body in (b'{"user": "\\ud800"}', b'{"user": "' + b"x" * 600 + b'"}'):
            answer = await page.post("/api/forget", content=body, headers=json)
            assert answer.status_code == 400, answer.text


async def check_nine_users(page: httpx.AsyncClient) -> None:
    """All are listed, and each one's messages and memories are found."""
    assert len(await get(page, "users")) == 9
    for number in range(9):
        query = {"user": f"user {number}", "session": "chat", "first": 1, "last": 1}
        (line,) = await get(page, "messages", **query)
        assert line["text"] == f"I am user {number}."
        hits = await get(page, "recall", user=f"user {number}", question="user")
        assert [one["text"] for one in hits["hits"]] == [line["text"]]


async def test_a_memory_that_is_resharded_while_the_page_is_open(directory: Path) -> None:
    """It goes on with the shards that there are then; a reshard is not kept from beginning."""
    async with Runtime(directory, config=CONFIG) as runtime:
        for number in range(9):
            chat = runtime.session(f"user {number}", "chat")
            await chat.append(said(f"I am user {number}."))
            await chat.flush()
        await runtime.settle()
    watch = Watch(directory)
    await watch.look()
    async with opened_page(directory, CONFIG) as page, aclosing(watch.events()) as events:  # type: ignore[type-var]
        before = await anext(events)
        for shards in (3, 1):
            await reshard(directory, shards, CONFIG)
            await check_nine_users(page)
            if shards == 3:
                async with ShardedRuntime.of(Runtime(directory, config=CONFIG)):
                    await check_nine_users(page)
            await watch.look()
            after = await anext(events)
            assert after != before
            before = after


# -- changes ---------------------------------------------------------------------------------------


async def make_dead_letter(runtime: Any) -> None:
    bad = runtime.session("eve", "bad")
    await bad.append(said("poison"))
    await bad.flush()
    await runtime.settle()


async def test_changes_without_an_owner(owner: Runtime, directory: Path) -> None:
    """Jobs are retried and dropped, and a session is erased, which gives a receipt."""
    await make_dead_letter(owner)
    async with opened_page(directory, CONFIG) as page:
        found = await get(page, "jobs")
        (job,) = found["jobs"]
        assert (job["state"], job["user"], job["session"]) == ("dead", "eve", "bad")
        assert found["queues"]["flush"]["dead"] == 1
        refused = await page.post("/api/jobs/retry", json={"ids": [job["id"]]})
        assert (refused.status_code, "--allow-changes" in refused.text) == (403, True)
    await owner.aclose()
    changed = (200, {"changed": 1, "open": False})
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        for body in (b"", b"[]", b'{"ids": 1}', b'{"ids": [], "more": 1}', b"\xff"):
            headers = {"content-type": "application/json"}
            wrong = await page.post("/api/jobs/retry", content=body, headers=headers)
            assert wrong.status_code == 400
        assert (await post(page, "jobs/retry", ids=["flush-99-1"]))[0] == 400
        assert await post(page, "jobs/retry", ids=[job["id"]]) == changed
        assert (await get(page, "jobs"))["jobs"][0]["state"] == "waiting"
        async with Runtime(directory, config=CONFIG, redact_long_term=poison) as runtime:
            await runtime.settle()
        assert await post(page, "jobs/drop", ids=[job["id"]]) == changed
        assert (await get(page, "jobs"))["queues"].get("flush", {}).get("dead", 0) == 0
        line, *_ = await get_chat(page, "messages", first=1, last=9)
        _, done = await post(page, "delete", user="alice", session="chat", ids=[line["id"]])
        assert done["changed"] == 1
        status, wrong = await post(page, "delete", user="alice", session="chat", ids=[line["id"]])
        assert status == 400
        assert "nothing was deleted" in wrong["error"]
        _, receipt = await post(page, "forget", user="alice", session="chat")
        assert receipt["journal"]["messages"] == 40
        assert receipt["long_term"] > 0
        assert await get_chat(page) is None
        assert [one["user"] for one in await get(page, "users")] == ["eve"]


# -- changes that the owner makes ------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 3])
async def test_the_owner_changes_what_the_page_asks_for(directory: Path, shards: int) -> None:
    """Dead letters and erasures, with the errors that it has for them; it stays open."""
    runtime = Runtime(directory, config=CONFIG, redact_long_term=poison)
    async with (
        ShardedRuntime.of(runtime, shards=shards) as owner,
        opened_page(directory, CONFIG, allow_changes=True) as page,
    ):
        for name, session in (("alice", "chat"), ("bob", "chat"), ("bob", "more")):
            await owner.session(name, session).append(said("Hi."))
        await make_dead_letter(owner)
        (job,) = (await get(page, "jobs"))["jobs"]
        status, none = await post(page, "jobs/retry", ids=["0/flush-99-1"])
        assert (status, none["kind"]) == (400, "NoDeadLetter")
        changed = (200, {"changed": 1, "open": True})
        assert await post(page, "jobs/retry", ids=[job["id"]]) == changed
        await owner.settle()  # it ran, and failed again
        assert [one.id for one in await owner.dead_letters()] == [job["id"]]
        assert await post(page, "jobs/drop", ids=[job["id"]]) == changed
        assert await owner.dead_letters() == []
        (line,) = await get(page, "messages", user="bob", session="more", first=1, last=1)
        deleted = await post(page, "delete", user="bob", session="more", ids=[line["id"]])
        assert deleted == (200, {"changed": 1})
        assert await owner.session("bob", "more").history() == []
        _, receipt = await post(page, "forget", user="bob", session="more")
        assert receipt["journal"]["messages"] == 1
        assert [one.session for one in await owner.user("bob").sessions()] == ["chat"]
        _, receipt = await post(page, "forget", user="alice")
        assert receipt["journal"]["messages"] == 1
        assert sorted(one["user"] for one in await get(page, "users")) == ["bob", "eve"]
        status, wrong = await post(page, "forget", user="a\0b")
        assert (status, "user id" in wrong["error"]) == (400, True)
        await owner.session("bob", "chat").append(said("Still here."))


# -- beside the owner ------------------------------------------------------------------------------


async def test_the_owner_empties_its_log(owner: Runtime, directory: Path) -> None:
    """While the page asks all the time, and is told of changes."""
    log = directory / "journal.db-wal"
    async with opened_page(directory, CONFIG) as page, anyio.create_task_group() as tasks:
        asked = 0

        async def ask() -> None:
            nonlocal asked
            while True:
                await get(page, "session", user="alice", session="chat")
                await get(page, "users")
                asked += 1

        tasks.start_soon(ask)
        while asked < 3:
            await owner.session("alice", "chat").append(said("More."))
            await owner.internals.journal.finish_erasure(0)
        tasks.cancel_scope.cancel()
        await owner.internals.journal.finish_erasure(0)
        assert log.stat().st_size == 0


async def test_how_the_owner_does(owner: Runtime, directory: Path) -> None:
    """Its figures, and those of its last seconds; nothing of it is left when it has ended."""
    samples = HealthSamples(directory, Watch(directory))
    await samples.take()
    await owner.session("alice", "chat").append(said("More."))
    await make_dead_letter(owner)
    pids = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(samples.take)
        # what was known is shown until the owner has answered
        while not (await samples.answer()).samples:
            pids.append((await samples.answer()).pid)
            await anyio.lowlevel.checkpoint()
    found = await samples.answer()
    assert {*pids, found.pid} == {os.getpid()}
    assert found.health == owner.health()
    assert [one.code for one in found.health.problems] == ["dead_letters"]
    (sample,) = found.samples
    assert sample.writes > 0
    assert (sample.live, sample.jobs) == (owner.statistics().registry.live, 0)
    assert sample.append_p99_ms is not None
    assert sample.commit_p99_ms is not None
    assert sample.load_p99_ms is None  # nothing was loaded
    assert found.disk["journal"] >= (directory / "journal.db").stat().st_size
    await owner.aclose()
    await samples.take()
    ended = await samples.answer()
    assert (ended.pid, ended.samples, ended.note) == (0, (), "no process has the memory open")
    async with opened_page(directory, CONFIG) as page:
        assert (await get(page, "health"))["note"] == ended.note
        listed = await get(page, "sessions", user="alice")
        assert [one["live"] for one in listed] == [None]
        gone = await page.get("/metrics")
        assert (gone.status_code, "no process" in gone.text) == (503, True)


@pytest.mark.parametrize("shards", [1, 3])
async def test_a_scrape_and_the_page_agree_with_the_owner_and_its_journal(
    directory: Path, shards: int
) -> None:
    """Of a memory in one piece and in shards, whose process another one asks."""
    runtime = Runtime(directory, config=CONFIG, redact_long_term=poison)
    samples = HealthSamples(directory, Watch(directory))
    async with (
        ShardedRuntime.of(runtime, shards=shards) as owner,
        opened_page(directory, CONFIG) as page,
    ):
        for number in range(30):
            chat = owner.session(f"user {number % 5}", "chat")
            await chat.append(said(f"Message {number} is about Figaro."))
            await chat.load()
        await make_dead_letter(owner)
        await owner.settle()
        await samples.take()
        scraped = (await page.get("/metrics")).text
        assert scraped == metrics.render(owner)  # figure by figure: nothing was done in between
        statistics, counts = owner.statistics(), await owner.counts()
        found = await get(page, "jobs")
        users = [one["user"] for one in await get(page, "users")]
        listed = [await get(page, "sessions", user=user) for user in users]
        asked = (await get(page, "health"))["health"]
        await owner.session("user 0", "chat").append(said("More."))
        await samples.take()
        (sample,) = (await samples.answer()).samples
    for line in (
        f"remora_append_seconds_count {counts.messages}",
        'remora_load_seconds_count{query="no"} 30',
        f"remora_actors_live {statistics.registry.live}",
        'remora_dead_letters{queue="flush"} 1',
    ):
        assert line in scraped.splitlines()
    assert statistics.verbs.append_s.count == counts.messages == 31
    assert sum(one["messages"] for sessions in listed for one in sessions) == counts.messages
    assert len(users) == counts.users == 6
    assert found["queues"]["flush"]["dead"] == len(found["jobs"]) == counts.dead_jobs == 1
    assert [one["code"] for one in asked["problems"]] == ["dead_letters"]
    assert sample.live == statistics.registry.live
    assert sample.append_p99_ms is not None


async def test_a_page_that_is_opened_asks_once(owner: Runtime, directory: Path) -> None:
    """Rates of the moment between two questions at its start would be shown as the first ones."""
    watch = Watch(directory)
    samples = HealthSamples(directory, watch, interval_s=3_600)
    async with aclosing(watch.events()) as events:  # type: ignore[type-var]  # a generator
        await anext(events)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(samples.answer)
            tasks.start_soon(samples.answer)
            await samples.answer()
            tasks.start_soon(samples.run)
            await anyio.wait_all_tasks_blocked()
            await samples.take()
            assert len((await samples.answer()).samples) == 1
            tasks.cancel_scope.cancel()


async def test_the_disk_by_table_and_user(owner: Runtime, directory: Path) -> None:
    """Also while the owner has it open, whose log can be emptied afterwards."""
    for name in ("bo", "cy"):
        await owner.session(name, "one").append(said(f"{name} " * 5_000))
    await owner.user("cy").remember("Cy likes tea.")
    await owner.settle()
    await owner.internals.journal.checkpoint()  # none moves bytes between measuring and looking
    async with opened_page(directory, CONFIG) as page:
        assert (await get(page, "disk"))["at"] is None
        found = await measured(page)
    assert [one["user"] for one in found["users"]] == ["cy", "bo", "alice"]
    assert found["all_users"] == 3
    alice = found["users"][-1]
    assert alice["rows"] > 40
    assert 1_000 < alice["bytes"] < 15_000 < found["users"][1]["bytes"] < 16_000
    for one in found["users"]:
        indexed = (await owner.user(one["user"]).stats()).long_term_rows
        assert one["long_term_rows"] == indexed
    assert alice["long_term_rows"] >= 40
    tables = sum(size for name, size in found["files"] if name.endswith(".lance"))
    shares = sum(one["long_term_bytes"] for one in found["users"])
    assert shares == pytest.approx(tables, abs=len(found["users"]))
    kinds = {one["kind"]: one["rows"] for one in found["kinds"]}
    assert kinds["messages"] == (await owner.counts()).messages
    assert kinds["memories"] == 1
    assert kinds["summaries"] == (await owner.counts()).summaries
    files = dict(found["files"])
    assert files["journal.db"] == (directory / "journal.db").stat().st_size
    assert any(name.endswith(".lance") for name in files)
    assert sum(files.values()) == sum(
        one.stat().st_size for one in directory.rglob("*") if one.is_file()
    )
    await owner.internals.journal.finish_erasure(0)
    assert (directory / "journal.db-wal").stat().st_size == 0


async def test_slices_of_a_table(owner: Runtime, directory: Path) -> None:
    """However few rows are in one, every row is in exactly one."""
    for number in range(7):
        user = owner.user(f"user {number % 3}")
        await user.remember(f"Fact {number}.")
        await user.state.set(f"key {number}", number)
    await owner.settle()
    journal = directory / "journal.db"
    for table in TABLES:
        whole = peek_sizes(journal, table)
        assert whole.last is None
        sums: dict[str, tuple[int, int]] = {}
        after: int | None = 0
        while after is not None:
            one = peek_sizes(journal, table, after, rows=3)
            assert sum(each.rows for each in one.users) <= 3, table
            for each in one.users:
                rows, size = sums.get(each.user, (0, 0))
                sums[each.user] = (rows + each.rows, size + each.bytes)
            after = one.last
        assert sums == {one.user: (one.rows, one.bytes) for one in whole.users} != {}, table


async def measured(page: httpx.AsyncClient) -> Any:
    """What is known of the disk when it has been looked at."""
    found = await get(page, "disk", measure=1)
    assert found["measuring"] is not None

    async def is_over() -> Any:
        nonlocal found
        found = await get(page, "disk")
        return found["measuring"] is None

    await until(is_over, "the disk is measured")
    return found


async def test_a_memory_that_goes_away_while_it_is_measured(directory: Path) -> None:
    """The page says so, and a measurement can begin again."""
    async with Runtime(directory, config=CONFIG):
        pass
    async with opened_page(directory, CONFIG) as page:
        moved = directory.rename(directory.with_name("elsewhere"))
        for expected in ("there is no memory in", ""):
            found = await measured(page)
            assert expected in found["note"]
            assert bool(found["at"]) == (not expected)
            if expected:
                moved.rename(directory)


async def test_pages_are_told_of_changes(owner: Runtime, directory: Path) -> None:
    """Also where the first one, for which a look is taken, leaves at once."""
    watch = Watch(directory, interval_s=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as page:
            page.cancel()
            await anext(watch.events())
        assert watch.pages == 0
        async with aclosing(watch.events()) as events:  # type: ignore[type-var]
            seen = {await anext(events)}
            for _ in range(3):
                await owner.session("alice", "chat").append(said("More."))
                event = await anext(events)
                assert event not in seen
                seen.add(event)
        assert watch.pages == 0
        tasks.cancel_scope.cancel()


async def test_so_many_pages_and_no_more(owner: Runtime, directory: Path) -> None:
    """Sixty pages are told, by one look for all; one too many is told that it is not."""
    watch = Watch(directory)
    pages = [watch.events() for _ in range(MAX_PAGES)]
    assert {await anext(page) for page in pages} == {b"event: change\ndata: 1\n\n"}
    with pytest.raises(TooManyPages):
        await anext(watch.events())
    await pages[0].aclose()  # type: ignore[attr-defined]
    more = watch.events()
    assert await anext(more) == b"event: change\ndata: 1\n\n"
    watch.close()
    for page in (*pages[1:], more):
        assert [event async for event in page] == []
    assert watch.pages == 0


# -- what cannot be shown --------------------------------------------------------------------------


def make_format(version: int, directory: Path) -> None:
    with closing(sqlite3.connect(directory / "journal.db")) as database, database:
        database.execute(f"PRAGMA user_version = {version}")


def damage(directory: Path) -> None:
    (directory / "journal.db").write_bytes(b"SQLite format 3\0" + b"\xee" * 8_000)


def lose(directory: Path) -> None:
    (directory / "journal.db").unlink()


def deny(directory: Path) -> None:
    (directory / "journal.db").chmod(0)


BROKEN: dict[str, Callable[[Path], None]] = {
    "upgrade remora": partial(make_format, FORMAT + 1),
    "earlier remora": partial(make_format, 1),
    "damaged": damage,
    "is missing": lose,
    "cannot be read": deny,
}


async def test_a_memory_that_cannot_be_read(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so and ends; a page that is open already says so as well."""
    async with Runtime(directory, config=CONFIG) as runtime:
        await runtime.session("alice", "chat").append(said("Hi."))
    for text, spoil in BROKEN.items():
        if spoil is deny and os.geteuid() == 0:
            continue  # the administrator may read everything
        spoiled = copy_memory(directory, directory.with_name(text))
        async with opened_page(spoiled, CONFIG) as page:
            spoil(spoiled)
            answer = await page.get("/api/session", params={"user": "alice", "session": "chat"})
            assert answer.status_code in {400, 503}
            assert text in answer.json()["error"]
        assert await anyio.to_thread.run_sync(main, ["view", str(spoiled)]) == 1
        assert text in " ".join(capsys.readouterr().err.split())


# -- the command -----------------------------------------------------------------------------------


async def test_wrong_options(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wrong is said; so is what is to be installed."""
    async with Runtime(directory, config=CONFIG):
        pass
    monkeypatch.chdir(directory.parent)
    for name, content, mode in (
        ("open", TOKEN, 0o644),
        ("short", "short", 0o600),
        ("good", TOKEN, 0o600),
    ):
        Path(name).write_text(content)
        Path(name).chmod(mode)
    for arguments, missing, text in (
        (["nowhere"], None, "there is no memory"),
        (["memory", "--host", "0.0.0.0"], None, "--token-file"),
        (["memory", "--token-file", "absent"], None, "cannot be read"),
        (["memory", "--token-file", "open"], None, "chmod 600"),
        (["memory", "--token-file", "short"], None, "32 or more"),
        (["memory", "--host", "192.0.2.1", "--token-file", "good"], None, "cannot be served"),
        (["memory"], "starlette.routing", "pip install 'remora[serve]'"),
        (["memory"], "uvicorn", "pip install 'remora[serve]'"),
    ):
        with monkeypatch.context() as without:
            if missing is not None:
                for name in ("remora.view.app", "remora.view.app"):
                    without.delitem(sys.modules, name, raising=False)
                without.setitem(sys.modules, missing, None)
            assert await anyio.to_thread.run_sync(main, ["view", *arguments]) == 1
        assert text in " ".join(capsys.readouterr().err.split()), arguments


async def test_the_command_beside_a_server(owner: Runtime, directory: Path) -> None:
    """It prints an address, serves until SIGTERM, and ends without an error."""
    command = [sys.executable, "-m", "remora", "view", str(directory), "--json"]
    environment = {**os.environ, **LEAN_ENVIRONMENT}
    process = await anyio.open_process(command, env=environment, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await process.stdout.receive()
        address = msgspec.json.decode(line)["address"]
        async with httpx.AsyncClient(follow_redirects=True, timeout=None) as browser:
            page = await browser.get(address)
            assert (page.status_code, "<title>remora</title>" in page.text) == (200, True)
            found = await browser.get(f"{str(page.url).rstrip('/')}/api/users")
            assert [one["user"] for one in found.json()] == ["alice"]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() in {0, -signal.SIGTERM}
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
