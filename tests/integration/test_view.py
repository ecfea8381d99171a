"""What the page of ``remora view`` is told, and who may ask."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import msgspec
import pytest

from remora import Config, Runtime, metrics
from remora.api.asking import change_there
from remora.api.changes import Change, ChangeAnswer, Changes
from remora.api.health import of_problems
from remora.api.status import RuntimeStatus
from remora.cli.main import main
from remora.cluster.reshard import reshard
from remora.cluster.sharded import ShardedRuntime
from remora.errors import OwnerUnreachable
from remora.services.answering import start_answering
from remora.services.erasure import ErasureReceipt
from remora.storage.listing import ListingOrder, ListingPage
from remora.storage.sqlite.peek import peek_users
from remora.storage.sqlite.schema import FORMAT
from remora.storage.sqlite.sizes import TABLES, peek_sizes
from remora.view.health import HealthSamples
from remora.view.watching import MAX_PAGES, TooManyPages, Watch
from tests.page import HOME, TOKEN, opened_page

TREE: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "long_term": {"shards": 2, "batch_ms": 1},
    "buffer": {"token_limit": 300, "summary_tokens": 60},
    "supervisor": {"max_attempts": 1},
}
CONFIG = Config.from_dict(TREE)
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


def poison(text: str) -> str:
    if "poison" in text:
        raise ValueError("no")
    return text


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
async def owner(directory: Path) -> AsyncIterator[Runtime]:
    """Owns the memory of Alice, with forty messages, some of them summarized."""
    async with Runtime(directory, config=CONFIG, redact_long_term=poison) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(40):
            await chat.append({"role": "user", "content": f"Message {number} is about Figaro."})
        await chat.flush()
        await runtime.settle()
        yield runtime


async def get(page: httpx.AsyncClient, name: str, **query: Any) -> Any:
    answer = await page.get(f"/api/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- who may ask -----------------------------------------------------------------------------------


async def test_only_the_token_lets_in(owner: Runtime, directory: Path) -> None:
    async with opened_page(directory, CONFIG, token=None) as page:
        for path in ("/", "/assets/app.js", "/api/users", "/api/events"):
            assert (await page.get(path)).status_code == 401
        for wrong in ("x", TOKEN[:-1], TOKEN + "t", "é"):
            assert (await page.get("/", params={"token": wrong})).status_code == 401
            bearer = [(b"authorization", f"Bearer {wrong}".encode())]
            denied = await page.request("GET", "/", headers=bearer)
            assert denied.status_code == 401
        page.cookies.set("remora-view-8700", "of-an-earlier-start", domain="127.0.0.1")
        assert (await page.get("/")).status_code == 401
        entered = await page.get("/", params={"token": TOKEN})
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
        page.cookies.clear()
        page.cookies.set("remora-view-8700", TOKEN, domain="127.0.0.1")
        found = await page.get("/")
        assert found.status_code == 200
        assert TOKEN not in found.text
        stale = await page.get("/", params={"token": "of-an-earlier-start"})
        assert stale.status_code == 401


@pytest.mark.parametrize(
    "other", ['theme={"dark": 1}', "a=b c", "list[0]=1", "a@b=1", "plain", "remora-view-8700=old"]
)
async def test_cookies_of_other_servers_shut_nobody_out(directory: Path, other: str) -> None:
    """A browser sends those of all servers of this machine, of any port, in one line."""
    async with opened_page(directory, CONFIG, token=None) as page:
        for own, status in ((TOKEN, 200), ("x" + TOKEN, 401)):
            cookies = {"cookie": f"{other}; remora-view-8700={own}"}
            assert (await page.get("/", headers=cookies)).status_code == status


async def test_an_address_leads_to_no_other_host(directory: Path) -> None:
    """Also where its path reads as a host, or has the end of a line in it."""
    async with opened_page(directory, CONFIG, token=None) as page:
        for path, place in (
            ("//evil.example/x", "/evil.example/x"),
            ("/%0d%0aX: y", "/%0D%0AX%3A%20y"),
        ):
            answer = await page.get(f"{HOME}{path}?token={TOKEN}")
            assert (answer.status_code, answer.headers["location"]) == (303, place)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8700", 200),
        ("localhost:8700", 200),
        ("[::1]:8700", 200),
        ("memory.internal", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.7:8700", 421),
        ("", 421),
        ("[", 421),
    ],
)
async def test_the_host_must_be_its_own(
    owner: Runtime, directory: Path, host: str, status: int
) -> None:
    """A name that another site makes point here (DNS rebinding) is not answered."""
    async with opened_page(directory, CONFIG, names=frozenset({"memory.internal"})) as page:
        assert (await page.get("/api/about", headers={"host": host})).status_code == status


async def test_any_address_is_no_name(owner: Runtime, directory: Path) -> None:
    async with opened_page(directory, CONFIG, any_address=True) as page:
        for host, status in (("10.0.0.7:8700", 200), ("evil.example", 421)):
            assert (await page.get("/api/about", headers={"host": host})).status_code == status


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
        await runtime.session("alice", "chat").append({"role": "user", "content": "Hello"})
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        body = {"user": "alice"}
        other = await page.post(
            "/api/forget", json=body, headers={"origin": "http://127.0.0.1:9999"}
        )
        assert other.status_code == 403
        form = await page.post("/api/forget", data=body)
        assert form.status_code == 403
        assert [one["user"] for one in await get(page, "users")] == ["alice"]
        own = await page.post("/api/forget", json=body, headers={"origin": HOME})
        assert own.status_code == 200
        assert await get(page, "users") == []


# -- answers ---------------------------------------------------------------------------------------


async def test_a_session_beside_its_owner(owner: Runtime, directory: Path) -> None:
    """Each answer is what the owner has, and no later than what it acknowledged."""
    chat = owner.session("alice", "chat")
    await owner.session("bob", "later").append({"role": "user", "content": "Hi."})
    await chat.delete(ids=[(await chat.history())[-2].id or ""])
    async with opened_page(directory, CONFIG) as page:
        users = await get(page, "users")
        assert [(one["user"], one["sessions"]) for one in users] == [("bob", 1), ("alice", 1)]
        assert [one["user"] for one in await get(page, "users", prefix="al")] == ["alice"]
        (listed,) = await get(page, "sessions", user="alice")
        assert (listed["session"], listed["messages"], listed["live"]) == ("chat", 39, True)

        view = await chat.inspect()
        found = await get(page, "session", user="alice", session="chat")
        assert found["watermarks"] == msgspec.to_builtins(view.watermarks)
        assert found["last_seq"] == view.last_seq == 40
        assert found["buffered_tokens"] == view.buffered_tokens
        assert found["removed"] == [{"first": 39, "last": 39, "count": 1}]
        assert found["token_limit"] == 300

        lines = await get(page, "messages", user="alice", session="chat", first=37, last=40)
        assert [one["seq"] for one in lines] == [37, 38, 40]
        assert lines[0]["text"] == "Message 36 is about Figaro."
        await chat.append({"role": "user", "content": "x" * 5_000})
        query = {"user": "alice", "session": "chat", "first": 41, "last": 41}
        (whole,) = await get(page, "messages", **query)
        assert (len(whole["text"]), whole["cut"]) == (5_000, False)
        query["first"] = 40
        assert (await get(page, "messages", **query))[1]["cut"] is True


async def append_until(chat: Any, begun: anyio.Event) -> None:
    while not begun.is_set():
        await chat.append({"role": "user", "content": "Another message is about Figaro."})
        await anyio.wait_all_tasks_blocked()


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


async def test_a_compaction_while_it_is_made(directory: Path) -> None:
    """Its job runs; then its seconds are known, also in shards, until the process ends."""
    held = Held()
    runtime = Runtime(directory, config=CONFIG, summarizer=held)
    query = {"user": "alice", "session": "chat"}
    async with opened_page(directory, CONFIG) as page:
        async with ShardedRuntime.of(runtime, shards=3) as memory:
            chat = memory.session("alice", "chat")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(append_until, chat, held.begun)
            found = await get(page, "jobs")
            states = {job["lane"]: job["state"] for job in found["jobs"]}
            assert states["summarize"] == "running"
            assert found["queues"]["summarize"]["running"] == 1
            marks = (await get(page, "session", **query))["watermarks"]
            assert marks["summarizing_through"] > marks["archived_through"]
            held.free.set()
            await memory.settle()
            session = await get(page, "session", **query)
            numbers = {str(one["number"]) for one in session["compactions"]}
            assert session["seconds"].keys() == numbers
            assert all(0 < one < 60 for one in session["seconds"].values())
        assert (await get(page, "session", **query))["seconds"] == {}


async def test_listings_beside_an_owner_are_its_own(
    owner: Runtime, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every order and page, whether the uses of all or some of the sessions are written."""
    monkeypatch.setattr("remora.storage.sqlite.journal.MANY_SESSIONS", 0)
    journal: Any = owner.internals.journal
    for number in range(400):
        user, session = f"user {number % 130}", f"chat {number % 7}-{number % 2}"
        await owner.session(user, session).append({"role": "user", "content": "Hi."})
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
            await owner.session(f"user {order}", "chat").append({"role": "user", "content": "Hi."})
            for number in range(30):  # used again, and not written
                chat = owner.session(f"user {number}", f"chat {number % 7}-{number % 2}")
                await chat.append({"role": "user", "content": "Hi again."})


async def test_compactions(owner: Runtime, directory: Path) -> None:
    chat = owner.session("alice", "chat")
    view = await chat.inspect()
    assert view.summary is not None
    async with opened_page(directory, CONFIG) as page:
        found = (await get(page, "session", user="alice", session="chat"))["compactions"]
        assert found[0]["current"] is True
        assert found[0]["summary"]["text"] == view.summary.text
        assert found[0]["summary"]["input_tokens"] == view.summary.input_tokens > 0
        await chat.clear()
        after = (await get(page, "session", user="alice", session="chat"))["compactions"]
        assert after[0]["kind"] == "cleared"
        assert [one["current"] for one in after[1:]] == [False] * len(found)


@pytest.mark.parametrize("at", [None, 10])
@pytest.mark.parametrize("budget", [0, 90, 400])
async def test_what_the_model_sees(
    owner: Runtime, directory: Path, budget: int, at: int | None
) -> None:
    context = await owner.session("alice", "chat").load(max_tokens=budget, at=at)
    more = {} if at is None else {"at": at}
    async with opened_page(directory, CONFIG) as page:
        found = await get(page, "context", user="alice", session="chat", max_tokens=budget, **more)
    assert found["tokens"] == context.tokens == sum(found["parts"].values()) <= budget
    assert found["omitted"] == context.omitted
    sources = {name: one.status for name, one in context.sources.items()}
    assert {name: one["status"] for name, one in found["sources"].items()} == sources
    assert [one["seq"] or None for one in found["messages"]] == [
        None if entry is None else entry.seq for entry in context.entries
    ]


async def test_recall_is_explained(owner: Runtime, directory: Path) -> None:
    recalled = await owner.user("alice").recall("Figaro 7", limit=3)
    async with opened_page(directory, CONFIG) as page:
        found = await get(page, "recall", user="alice", question="Figaro 7", limit=3)
        context = await get(
            page, "context", user="alice", session="other", query="Figaro 7", max_tokens=400
        )
    assert [one["seq"] for one in found["hits"][:3]] == [one.seq for one in recalled]
    assert set(found["hits"][0]["parts"]) >= {"bm25", "bm25_neighbourhood"}
    assert found["hits"][3]["reason"] == "below the limit of 3"
    archived = (await owner.session("alice", "chat").inspect()).watermarks.archived_through
    for one in found["hits"][:3]:
        assert one["reason"].startswith("in the buffer") == (one["seq"] > archived)
    assert context["parts"]["long_term"] == context["tokens"] > 0
    assert context["sources"]["long_term"]["count"] > 0


async def test_deadlines_of_a_server_are_not_those_of_a_page(
    owner: Runtime, directory: Path
) -> None:
    """A page on a busy machine would show a context without what the server recalls at once."""
    config = Config.from_dict(TREE | {"recall": {"deadline_s": 1e-6}})
    async with opened_page(directory, config) as page:
        context = await get(page, "context", user="alice", session="other", query="Figaro 7")
    assert context["sources"]["long_term"]["count"] > 0


async def test_wrong_questions(owner: Runtime, directory: Path) -> None:
    questions: list[tuple[str, dict[str, str | int], str]] = [
        ("session", {"user": "", "session": "chat"}, "user id"),
        ("sessions", {"user": "a\0b"}, "user id"),
        ("users", {"after": "nothing"}, "after must be"),
        ("users", {"order": "random"}, "order"),
        ("messages", {"user": "alice", "session": "chat", "first": 1}, "last must be"),
        (
            "messages",
            {"user": "alice", "session": "chat", "first": 1, "last": 100_000},
            "1 to 200",
        ),
        (
            "context",
            {"user": "alice", "session": "chat", "max_tokens": "9" * 30},
            "whole number",
        ),
        ("context", {"user": "alice", "session": "chat", "at": 99}, "99"),
        ("recall", {"user": "alice", "question": " "}, "question"),
        ("recall", {"user": "alice", "question": "a", "limit": 101}, "1 to 100"),
    ]
    async with opened_page(directory, CONFIG) as page:
        for name, query, text in questions:
            answer = await page.get(f"/api/{name}", params=query)
            assert answer.status_code == 400, (name, query)
            assert text in answer.json()["error"]


async def test_texts_that_are_long_or_no_unicode(owner: Runtime, directory: Path) -> None:
    """A message of ten megabytes is cut, and half of an emoji is a question like others."""
    await owner.session("bob", "chat").append({"role": "user", "content": "Figaro " * 1_500_000})
    query = {"user": "bob", "session": "chat", "first": 1, "last": 1}
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        (line,) = await get(page, "messages", **query)
        assert (len(line["text"]), line["cut"]) == (100_000, True)
        context = await get(page, "context", user="bob", session="chat", max_tokens=9_000_000)
        assert (len(context["messages"][0]["text"]), context["messages"][0]["cut"]) == (400, True)
        half = await page.get("/api/recall?user=bob&question=Figaro%ED%B0%80")
        hits = half.json()["hits"]
        assert hits
        assert all(len(one["text"]) <= 4_000 for one in hits)
        json = {"content-type": "application/json"}
        for body in (b'{"user": "\\ud800"}', b'{"user": "' + b"x" * 600 + b'"}'):
            answer = await page.post("/api/forget", content=body, headers=json)
            assert answer.status_code == 400, answer.text


async def test_a_memory_that_is_resharded_while_the_page_is_open(directory: Path) -> None:
    """It goes on with the shards that there are then; a reshard is not kept from beginning."""
    async with Runtime(directory, config=CONFIG) as runtime:
        for number in range(9):
            chat = runtime.session(f"user {number}", "chat")
            await chat.append({"role": "user", "content": f"I am user {number}."})
            await chat.flush()
        await runtime.settle()
    watch = Watch(directory)
    await watch.look()
    async with opened_page(directory, CONFIG) as page, aclosing(watch.events()) as events:  # type: ignore[type-var]
        before = await anext(events)
        for shards in (3, 1):
            await reshard(directory, shards, CONFIG)
            assert len(await get(page, "users")) == 9
            for number in range(9):
                query = {"user": f"user {number}", "session": "chat", "first": 1, "last": 1}
                (line,) = await get(page, "messages", **query)
                assert line["text"] == f"I am user {number}."
                hits = await get(page, "recall", user=f"user {number}", question="user")
                assert [one["text"] for one in hits["hits"]] == [line["text"]]
            await watch.look()
            after = await anext(events)
            assert after != before
            before = after


async def test_shards(directory: Path) -> None:
    """Users of all shards are listed, and each one's sessions are found in their own."""
    names = ["ada", "bob", "cy", "dora"]
    async with ShardedRuntime.of(Runtime(directory, config=CONFIG), shards=3) as memory:
        for name in names:
            await memory.session(name, "chat").append({"role": "user", "content": f"I am {name}"})
        async with opened_page(directory, CONFIG) as page:
            assert sorted(one["user"] for one in await get(page, "users")) == names
            for name in names:
                query = {"user": name, "session": "chat", "first": 1, "last": 1}
                assert (await get(page, "messages", **query))[0]["text"] == f"I am {name}"
                hits = (await get(page, "recall", user=name, question=name))["hits"]
                assert [one["text"] for one in hits] == [f"I am {name}"]


# -- changes ---------------------------------------------------------------------------------------


async def make_dead_letter(runtime: Any) -> None:
    bad = runtime.session("eve", "bad")
    await bad.append({"role": "user", "content": "poison"})
    await bad.flush()
    await runtime.settle()


async def test_jobs_are_retried_and_dropped(owner: Runtime, directory: Path) -> None:
    await make_dead_letter(owner)
    async with opened_page(directory, CONFIG) as page:
        found = await get(page, "jobs")
        (job,) = found["jobs"]
        assert (job["state"], job["user"], job["session"]) == ("dead", "eve", "bad")
        assert found["queues"]["flush"]["dead"] == 1
        refused = await page.post("/api/jobs/retry", json={"ids": [job["id"]]})
        assert (refused.status_code, "--allow-changes" in refused.text) == (403, True)
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        await owner.aclose()
        for body in (b"", b"[]", b'{"ids": 1}', b'{"ids": [], "more": 1}', b"\xff"):
            headers = {"content-type": "application/json"}
            wrong = await page.post("/api/jobs/retry", content=body, headers=headers)
            assert wrong.status_code == 400
        none = await page.post("/api/jobs/retry", json={"ids": ["flush-99-1"]})
        assert none.status_code == 400
        done = await page.post("/api/jobs/retry", json={"ids": [job["id"]]})
        assert done.json() == {"changed": 1, "open": False}
        assert (await get(page, "jobs"))["jobs"][0]["state"] == "waiting"
        async with Runtime(directory, config=CONFIG, redact_long_term=poison) as runtime:
            await runtime.settle()
        dropped = await page.post("/api/jobs/drop", json={"ids": [job["id"]]})
        assert dropped.json() == {"changed": 1, "open": False}
        assert (await get(page, "jobs"))["queues"].get("flush", {}).get("dead", 0) == 0


async def test_erasure_with_its_receipt(owner: Runtime, directory: Path) -> None:
    await owner.session("bob", "chat").append({"role": "user", "content": "Hi."})
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        await owner.aclose()
        done = await page.post("/api/forget", json={"user": "alice", "session": "chat"})
        receipt = done.json()
        assert receipt["journal"]["messages"] == 40
        assert receipt["long_term"] > 0
        assert await get(page, "session", user="alice", session="chat") is None
        assert [one["user"] for one in await get(page, "users")] == ["bob"]


# -- changes that the owner makes ------------------------------------------------------------------


@pytest.fixture(params=[1, 3])
async def owned(request: pytest.FixtureRequest, directory: Path) -> AsyncIterator[Any]:
    """A memory that is open, in one piece and in shards."""
    runtime = Runtime(directory, config=CONFIG, redact_long_term=poison)
    async with ShardedRuntime.of(runtime, shards=request.param) as memory:
        yield memory


async def test_the_owner_changes_what_the_page_asks_for(owned: Any, directory: Path) -> None:
    """Dead letters and erasures, with the errors that it has for them; it stays open."""
    for name in ("alice", "bob"):
        await owned.session(name, "chat").append({"role": "user", "content": "Hi."})
    await owned.session("bob", "more").append({"role": "user", "content": "Hi."})
    await make_dead_letter(owned)
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        (job,) = (await get(page, "jobs"))["jobs"]
        none = await page.post("/api/jobs/retry", json={"ids": ["0/flush-99-1"]})
        assert (none.status_code, none.json()["kind"]) == (400, "InvalidInput")
        again = await page.post("/api/jobs/retry", json={"ids": [job["id"]]})
        assert again.json() == {"changed": 1, "open": True}
        await owned.settle()  # it ran, and failed again
        assert [one.id for one in await owned.dead_letters()] == [job["id"]]
        dropped = await page.post("/api/jobs/drop", json={"ids": [job["id"]]})
        assert dropped.json() == {"changed": 1, "open": True}
        assert await owned.dead_letters() == []
        session = await page.post("/api/forget", json={"user": "bob", "session": "more"})
        assert session.json()["journal"]["messages"] == 1
        assert [one.session for one in await owned.user("bob").sessions()] == ["chat"]
        user = await page.post("/api/forget", json={"user": "alice"})
        assert user.json()["journal"]["messages"] == 1
        assert sorted(one["user"] for one in await get(page, "users")) == ["bob", "eve"]
        wrong = await page.post("/api/forget", json={"user": "a\0b"})
        assert (wrong.status_code, "user id" in wrong.json()["error"]) == (400, True)
    await owned.session("bob", "chat").append({"role": "user", "content": "Still here."})


async def test_a_change_is_made_once(owner: Runtime, directory: Path) -> None:
    """However often its answer is asked for; one who does not wait for it stops nothing."""
    await owner.session("bob", "chat").append({"role": "user", "content": "Hi."})
    change = Change("an-id", "forget", user="bob")
    with anyio.move_on_after(0) as gone:
        await change_there(directory, change)
    assert gone.cancelled_caught
    first = await change_there(directory, change)
    assert first is not None
    assert first.receipt is not None
    assert first.receipt.journal["messages"] == 1
    assert await change_there(directory, change) == first
    assert [one.user for one in await owner.users()] == ["alice"]


async def test_an_owner_that_changes_nothing_for_others(directory: Path) -> None:
    """An earlier release answers with what it knows, and one that closes not at all."""
    async with Runtime(directory, config=CONFIG):
        pass
    status = msgspec.json.encode(RuntimeStatus(1, "", 0.0, 1, of_problems([])))
    earlier = start_answering(directory, lambda _: status)
    assert earlier is not None
    async with opened_page(directory, CONFIG, allow_changes=True) as page:
        found = await page.post("/api/forget", json={"user": "alice"})
        assert (found.status_code, "earlier release" in found.json()["error"]) == (503, True)
        await anyio.to_thread.run_sync(earlier.stop)
    asked = threading.Event()

    def begin(_: bytes) -> bytes:
        asked.set()
        return msgspec.json.encode(ChangeAnswer(done=False))

    ending = start_answering(directory, begin)
    assert ending is not None

    def end() -> None:
        assert asked.wait(60)
        ending.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, end)
        with pytest.raises(OwnerUnreachable, match="look whether it was done"):
            await change_there(directory, Change("an-id", "retry"))


async def test_so_many_changes_at_once(directory: Path) -> None:
    """More are refused, and what is known of those that are over is bounded."""
    begun = anyio.Event()

    async def wait(_: Any) -> int:
        await begun.wait()
        return 1

    async def forget(_: str, __: str | None) -> ErasureReceipt:
        raise AssertionError

    loop = asyncio.get_running_loop()
    changes = Changes(lambda: loop, retry=wait, drop=wait, forget=forget)
    asked = [changes.ask(Change(str(number), "retry")) for number in range(17)]
    assert [one.done for one in asked] == [False] * 16 + [True]
    assert (asked[-1].kind, "try again" in asked[-1].error) == ("InvalidInput", True)
    begun.set()
    await anyio.wait_all_tasks_blocked()
    assert changes.ask(Change("0", "retry")).changed == 1
    for number in range(17, 200):
        assert not changes.ask(Change(str(number), "drop")).done
        await anyio.wait_all_tasks_blocked()
    assert not changes.ask(Change("0", "retry")).done  # forgotten: asked for anew


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
            await owner.session("alice", "chat").append({"role": "user", "content": "More."})
            await owner.internals.journal.finish_erasure(0)
        tasks.cancel_scope.cancel()
        await owner.internals.journal.finish_erasure(0)
        assert log.stat().st_size == 0


async def test_how_the_owner_does(owner: Runtime, directory: Path) -> None:
    """Its figures, and those of its last seconds; nothing of it is left when it has ended."""
    watch = Watch(directory)
    samples = HealthSamples(directory, watch)
    await samples.take()
    await owner.session("alice", "chat").append({"role": "user", "content": "More."})
    await make_dead_letter(owner)
    await samples.take()
    found = await samples.answer()
    assert found.health == owner.health()
    assert [one.code for one in found.health.problems] == ["dead_letters"]
    (sample,) = found.samples
    assert sample.writes > 0
    assert (sample.live, sample.jobs) == (owner.statistics().registry.live, 0)
    assert sample.append_p99_ms is not None
    assert sample.commit_p99_ms is not None
    assert sample.load_p99_ms is None  # nothing was loaded
    assert found.pid == os.getpid()
    assert found.disk["journal"] >= (directory / "journal.db").stat().st_size
    await owner.aclose()
    await samples.take()
    ended = await samples.answer()
    assert (ended.pid, ended.samples, ended.note) == (0, (), "no process has the memory open")
    async with opened_page(directory, CONFIG) as page:
        assert (await get(page, "health"))["note"] == ended.note
        (listed,) = await get(page, "sessions", user="alice")
        assert listed["live"] is None


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
            await chat.append({"role": "user", "content": f"Message {number} is about Figaro."})
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
        await owner.session("user 0", "chat").append({"role": "user", "content": "More."})
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
    async with opened_page(directory, CONFIG) as page:
        gone = await page.get("/metrics")
        assert (gone.status_code, "no process" in gone.text) == (503, True)
    async with opened_page(directory, CONFIG, token=None) as page:
        assert (await page.get("/metrics")).status_code == 401


async def test_what_was_known_is_shown_until_the_owner_has_answered(
    owner: Runtime, directory: Path
) -> None:
    samples = HealthSamples(directory, Watch(directory))
    await samples.take()
    pids = []
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await owner.session("alice", "chat").append({"role": "user", "content": "More."})
            tasks.start_soon(samples.take)
            while len((await samples.answer()).samples) < 1:
                pids.append((await samples.answer()).pid)
                await anyio.lowlevel.checkpoint()
    assert set(pids) == {os.getpid()}


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
        await owner.session(name, "one").append({"role": "user", "content": f"{name} " * 5_000})
    await owner.user("cy").remember("Cy likes tea.")
    await owner.settle()
    await owner.internals.journal.checkpoint()  # none moves bytes between measuring and looking
    async with opened_page(directory, CONFIG) as page:
        assert (await get(page, "disk"))["at"] is None
        found = await get(page, "disk", measure=1)
        assert found["measuring"] is not None
        while found["measuring"] is not None:
            await anyio.sleep(0.01)
            found = await get(page, "disk")
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


@pytest.mark.parametrize("table", TABLES)
async def test_slices_of_a_table(owner: Runtime, directory: Path, table: str) -> None:
    """However few rows are in one, every row is in exactly one."""
    for number in range(7):
        user = owner.user(f"user {number % 3}")
        await user.remember(f"Fact {number}.")
        await user.state.set(f"key {number}", number)
    await owner.settle()
    journal = directory / "journal.db"
    whole = peek_sizes(journal, table)
    assert whole.last is None
    sums: dict[str, tuple[int, int]] = {}
    after: int | None = 0
    while after is not None:
        one = peek_sizes(journal, table, after, rows=3)
        assert sum(each.rows for each in one.users) <= 3
        for each in one.users:
            rows, size = sums.get(each.user, (0, 0))
            sums[each.user] = (rows + each.rows, size + each.bytes)
        after = one.last
    assert sums == {one.user: (one.rows, one.bytes) for one in whole.users}
    assert sums


async def test_a_memory_that_goes_away_while_it_is_measured(directory: Path) -> None:
    """The page says so, and a measurement can begin again."""
    async with Runtime(directory, config=CONFIG):
        pass
    async with opened_page(directory, CONFIG) as page:
        moved = directory.rename(directory.with_name("elsewhere"))
        for expected in ("there is no memory in", ""):
            found = await get(page, "disk", measure=1)
            while found["measuring"] is not None:
                await anyio.sleep(0.01)
                found = await get(page, "disk")
            assert expected in found["note"]
            assert bool(found["at"]) == (not expected)
            if expected:
                moved.rename(directory)


async def test_pages_are_told_of_changes(owner: Runtime, directory: Path) -> None:
    watch = Watch(directory, interval_s=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        async with aclosing(watch.events()) as events:  # type: ignore[type-var]
            seen = {await anext(events)}
            for _ in range(3):
                await owner.session("alice", "chat").append({"role": "user", "content": "More."})
                event = await anext(events)
                assert event not in seen
                seen.add(event)
        assert watch.pages == 0
        tasks.cancel_scope.cancel()


async def test_a_page_that_leaves_at_once_stops_no_other(owner: Runtime, directory: Path) -> None:
    """Also where it was the first, which a look is taken for."""
    watch = Watch(directory, interval_s=0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as page:
            page.cancel()
            await anext(watch.events())
        assert watch.pages == 0
        async with aclosing(watch.events()) as events:  # type: ignore[type-var]
            first = await anext(events)
            await owner.session("alice", "chat").append({"role": "user", "content": "More."})
            with anyio.fail_after(60):
                assert await anext(events) != first
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


def make_newer(directory: Path) -> None:
    with sqlite3.connect(directory / "journal.db") as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()


def make_earlier(directory: Path) -> None:
    with sqlite3.connect(directory / "journal.db") as database:
        database.execute("PRAGMA user_version = 1")
    database.close()


def damage(directory: Path) -> None:
    (directory / "journal.db").write_bytes(b"SQLite format 3\0" + b"\xee" * 8_000)


def lose(directory: Path) -> None:
    (directory / "journal.db").unlink()


def deny(directory: Path) -> None:
    (directory / "journal.db").chmod(0)


BROKEN = {
    make_newer: "upgrade remora",
    make_earlier: "earlier remora",
    damage: "damaged",
    lose: "is missing",
    deny: "cannot be read",
}


@pytest.mark.parametrize("spoil", BROKEN)
async def test_a_memory_that_cannot_be_read(
    directory: Path, spoil: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so and ends; a page that is open already says so as well."""
    if spoil is deny and os.geteuid() == 0:
        pytest.skip("the administrator may read everything")
    async with Runtime(directory, config=CONFIG) as runtime:
        await runtime.session("alice", "chat").append({"role": "user", "content": "Hi."})
    async with opened_page(directory, CONFIG) as page:
        spoil(directory)
        answer = await page.get("/api/session", params={"user": "alice", "session": "chat"})
        assert answer.status_code in {400, 503}
        assert BROKEN[spoil] in answer.json()["error"]
    assert await anyio.to_thread.run_sync(main, ["view", str(directory)]) == 1
    assert BROKEN[spoil] in " ".join(capsys.readouterr().err.split())


# -- the command -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "there is no memory"),
        (["memory", "--host", "0.0.0.0"], "--token-file"),
        (["memory", "--token-file", "absent"], "cannot be read"),
        (["memory", "--token-file", "open"], "chmod 600"),
        (["memory", "--token-file", "short"], "32 or more"),
        (["memory", "--host", "192.0.2.1", "--token-file", "good"], "cannot be served"),
    ],
)
async def test_wrong_options(
    directory: Path,
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
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
    assert await anyio.to_thread.run_sync(main, ["view", *arguments]) == 1
    assert text in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("missing", ["starlette.routing", "uvicorn"])
async def test_without_the_extra(
    owner: Runtime,
    directory: Path,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("remora.view.serving", "remora.view.app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    assert await anyio.to_thread.run_sync(main, ["view", str(directory)]) == 1
    assert "pip install 'remora[serve]'" in " ".join(capsys.readouterr().err.split())


async def test_the_command_beside_a_server(owner: Runtime, directory: Path) -> None:
    """It prints an address, serves until SIGTERM, and ends without an error."""
    environment = {**os.environ, "REMORA_MODELS__EMBEDDER": "none"}
    environment["REMORA_TOKENS__COUNTER"] = "heuristic"
    command = [sys.executable, "-m", "remora", "view", str(directory), "--json"]
    process = await anyio.open_process(command, env=environment, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = await process.stdout.receive()
        address = msgspec.json.decode(line)["address"]
        async with httpx.AsyncClient(follow_redirects=True, timeout=60) as browser:
            page = await browser.get(address)
            assert (page.status_code, "<title>remora</title>" in page.text) == (200, True)
            found = await browser.get(f"{str(page.url).rstrip('/')}/api/users")
            assert [one["user"] for one in found.json()] == ["alice"]
        process.send_signal(signal.SIGTERM)
        with anyio.fail_after(60):
            assert await process.wait() in {0, -signal.SIGTERM}
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
