"""`remora.Client`: its verbs are those of a `Runtime`, and networks lose what they like.

That each verb does over HTTP what it does in a process is in `test_cluster_verbs`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

import remora
from remora import Client, KeyedState, Runtime, SharedMember, SharedScope, errors
from remora.client.client import ClientMember, ClientScope, ClientUser
from remora.client.session import ClientSession, ClientState, ClientTurn
from remora.rest.keys import add_key, read_keys, remove_key
from remora.rest.limits import RateLimit
from remora.rest.problems import Problem, describe
from remora.runtime.clock import SystemClock
from remora.testing import HashEmbedder
from tests.configs import RECALLING
from tests.outcomes import outcome_of
from tests.processes import free_port, http_server
from tests.served import NOT_SERVED, WHO_RUNS_IT, Service, connected
from tests.verbs import ERRORS, MORE, World, fill_world, public_members, said
from tests.workers import end_owner

__all__ = ["connected", "free_port"]  # other tests take them from here

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
PAIRS = (
    (remora.Runtime, Client),
    (remora.User, ClientUser),
    (remora.Session, ClientSession),
    (remora.Turn, ClientTurn),
    (KeyedState, ClientState),
    (SharedScope, ClientScope),
    (SharedMember, ClientMember),
)


def opened() -> Runtime:
    return Runtime.in_memory(config=RECALLING, embedder=HashEmbedder(16))


def test_the_verbs_are_those_of_a_runtime() -> None:
    for kind, served in PAIRS:
        left_out = set(NOT_SERVED.get(kind.__name__, "").split())
        assert public_members(kind) - public_members(served) == left_out
        assert public_members(served) <= public_members(kind)
        for name in public_members(served):
            own, other = getattr(kind, name), getattr(served, name)
            if not inspect.isfunction(own):
                continue
            wanted, given = inspect.signature(own), inspect.signature(other)
            assert list(given.parameters) == list(wanted.parameters), (kind, name)
            for one in given.parameters.values():
                twin = wanted.parameters[one.name]
                assert one.kind == twin.kind, (kind, name)
                if (kind, name, one.name) != (remora.Runtime, "append_many", "concurrency"):
                    assert one.default == twin.default, (kind, name, one.name)
            assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(other), name


async def test_what_is_not_served_is_no_attribute(tmp_path: Path) -> None:
    """So that code finds it out at once, and type checkers before."""
    async with opened() as runtime, connected(runtime, tmp_path) as client:
        world: Any = World(client, tmp_path)  # type: ignore[arg-type]
        await fill_world(world)
        for number, name in enumerate(sorted(WHO_RUNS_IT)):
            outcome = await outcome_of(partial((MORE | ERRORS)[name], world.at(number)))
            assert "AttributeError" in f"{outcome.error} {outcome.text}" or "ExceptionGroup" in (
                outcome.error
            ), name


# -- what networks do ------------------------------------------------------------------------------


class Unreliable(httpx2.AsyncBaseTransport):
    """Loses requests before they run, or the answers of those that ran, as often as it is told."""

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self.transport = transport
        self.lost: list[str] = []
        self.sent = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.sent += 1
        what = self.lost.pop() if self.lost else ""
        if what == "before":
            raise httpx2.ConnectError("refused")
        if what == "failed":
            refusal = describe(errors.OwnerFailed("three owners have died", log=""))
            problem = Problem("", refusal.title, refusal.status, refusal.detail, retry=True)
            kind = {"content-type": "application/problem+json"}
            body = msgspec.json.encode(problem)
            return httpx2.Response(refusal.status, headers=kind, content=body)
        if what == "erased":
            return httpx2.Response(200, content=b"event: erased\ndata: {}\n\n")
        answer = await self.transport.handle_async_request(request)
        if what == "after":
            raise httpx2.ReadError("cut")
        return answer


@asynccontextmanager
async def unreliable(
    path: Path, rate: RateLimit | None = None, **options: Any
) -> AsyncIterator[tuple[Client, Unreliable, Service]]:
    async with opened() as runtime:
        service = Service(runtime, path, rate)
        transport = Unreliable(httpx2.ASGITransport(app=service.app))
        async with httpx2.AsyncClient(transport=transport) as http:
            key = service.key()
            async with Client("http://memory", api_key=key, http=http, **options) as client:
                yield client, transport, service


async def test_what_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async with unreliable(tmp_path) as (client, network, _):
        chat = client.session("alice", "chat")
        for lost in ("before", "after"):
            network.lost = [lost, lost]
            assert not (await chat.append(said(f"lost {lost}"))).duplicate
            network.lost = [lost]
            async with chat.turn(f"asked, lost {lost}", query=False) as turn:
                network.lost = [lost]
                await turn.reply("answered")
                assert [one.content for one in turn.replies] == ["answered"]
            network.lost = [lost]
            (id_,) = await client.user("alice").remember(f"a fact, lost {lost}")
            network.lost = [lost]
            assert (await client.user("alice").memory(id_)) is not None
        assert [one.content for one in await chat.history()] == [
            "lost before",
            "asked, lost before",
            "answered",
            "lost after",
            "asked, lost after",
            "answered",
        ]
        assert len(await client.user("alice").remembered()) == 2


async def test_a_client_waits_for_an_owner_that_dies_again_and_again(tmp_path: Path) -> None:
    async with unreliable(tmp_path) as (client, network, _):
        chat = client.session("alice", "chat")
        network.lost = ["failed", "failed"]
        await chat.append(said("hello"))
        network.lost = ["failed"]
        await chat.clear()  # nothing ran before
        network.lost = ["erased", "failed"]
        assert [message async for message in chat.follow()] == []
        assert network.lost == []
        network.lost = ["failed"] * 100
        with pytest.raises(errors.OwnerFailed, match="Nothing ran"):
            await chat.append(said("never"), timeout_s=0.5)


CHANGES: dict[str, Callable[[ClientSession], Awaitable[object]]] = {
    "clear": lambda chat: chat.clear(),
    "change": lambda chat: chat.state.change({"step": 1}),
    "delete": lambda chat: chat.delete(positions=0),
    "delete a value": lambda chat: chat.state.delete("step"),
    "fork": lambda chat: chat.fork("copy"),
    "rewind": lambda chat: chat.rewind(1),
    "set": lambda chat: chat.state.set("step", 1),
    "truncate": lambda chat: chat.truncate_to_size(1),
}


async def test_what_would_have_another_effect_is_not_sent_again(tmp_path: Path) -> None:
    async with unreliable(tmp_path) as (client, network, _):
        for name, change in CHANGES.items():
            chat = client.session("alice", name)
            await chat.append([said("one"), said("two")])
            network.lost, network.sent = ["after"], 0
            with pytest.raises(errors.OutcomeUnknown, match="may have run"):
                await change(chat)
            assert network.sent == 1, name
            network.lost, network.sent = ["before"], 0
            if name not in {"fork", "rewind"}:
                await change(chat)
                assert network.sent == 2, name
            network.lost = []


async def test_a_service_that_cannot_be_reached(tmp_path: Path) -> None:
    async with unreliable(tmp_path, timeout_s=2) as (client, network, _):
        chat = client.session("alice", "chat")
        network.lost = ["before"] * 100
        with pytest.raises(errors.OwnerUnreachable, match="cannot be reached"):
            await chat.append(said("one"), timeout_s=0.1)
        network.lost = ["after"] * 100
        with pytest.raises(errors.OutcomeUnknown):
            await chat.append(said("two"), key="k2", timeout_s=0.1)
        with pytest.raises(errors.OwnerUnreachable, match="no answer"):
            await chat.history()
        network.lost = ["before"] * 30 + ["after"]
        with pytest.raises(errors.OutcomeUnknown):
            await chat.append(said("three"), key="k3")
        network.lost = []
        assert (await chat.append(said("two"), key="k2", timeout_s=600)).duplicate
        assert [one.content for one in await chat.history()] == ["two", "three"]


async def test_a_server_that_is_none_of_remora() -> None:
    """A proxy in front of it, or another address: an error of remora's own, and no traceback."""
    answers = (
        (502, "text/html", errors.OwnerUnreachable),
        (503, "text/html", errors.OwnerUnreachable),
        (429, "text/html", errors.RateLimited),
        (404, "text/html", errors.InvalidInput),
        (401, "text/html", errors.InvalidInput),
        (500, "application/problem+json", errors.InvalidInput),
        (302, "text/html", errors.InvalidInput),
        (200, "text/html", errors.InvalidInput),
    )
    for status, kind, error in answers:

        def answer(
            request: httpx2.Request, status: int = status, kind: str = kind
        ) -> httpx2.Response:
            headers = {"content-type": kind, "location": "http://elsewhere/"}
            return httpx2.Response(status, headers=headers, text="<html>sorry</html>")

        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            async with Client("http://memory", api_key="k", http=http, timeout_s=0.1) as client:
                outcome = await outcome_of(client.session("alice", "chat").history)
                assert outcome.error == f"remora.errors.{error.__name__}", status


async def test_a_key_that_is_removed(tmp_path: Path) -> None:
    async with unreliable(tmp_path) as (client, _, service):
        await client.users()
        for one in read_keys(service.file):
            remove_key(service.file, one.name)
        with pytest.raises(errors.KeyRefused):
            await client.users()


class StandingClock(SystemClock):
    """Goes on until it is told to stand: what is sent then is too much, however slowly it is."""

    stands_at: float | None = None

    def stand(self) -> None:
        self.stands_at = self.monotonic()

    def monotonic(self) -> float:
        return super().monotonic() if self.stands_at is None else self.stands_at


async def test_a_client_waits_for_its_rate(tmp_path: Path) -> None:
    clock = StandingClock()
    async with unreliable(tmp_path, RateLimit(10, clock)) as (client, _, _):
        chat = client.session("alice", "chat")
        for number in range(24):
            await chat.append(said(str(number)))
        assert len(await chat.history()) == 24
        clock.stand()
        with pytest.raises(errors.RateLimited) as caught:
            for _ in range(24):
                await chat.append(said("more"), timeout_s=0.001)
        assert caught.value.retry_after_s > 0


# -- values ----------------------------------------------------------------------------------------


NAMES = (".", "..", "a/b", "../other/alice", "a%2Fb", "ü 日", "?x=1#", "read", "\\", "a b")


async def test_ids_of_any_text(tmp_path: Path) -> None:
    """They lead to no other user."""
    async with opened() as runtime, connected(runtime, tmp_path) as client:
        for name in NAMES:
            chat = client.session(name, name)
            await chat.append(said(name), key=f"ключ {name}")
            await chat.state.set(name, [name])
            assert await chat.state.get(name) is not None
            assert [one.content for one in await chat.history()] == [name]
            assert await runtime.session(f"shop/{name}", name).size() == 1
        assert len(await client.users(limit=None)) == len(NAMES)
        with pytest.raises(errors.InvalidId, match="blanks"):
            await client.session("a", "b").append(said("x"), key=" k")


async def test_long_lists_come_in_pages(tmp_path: Path) -> None:
    async with opened() as runtime, connected(runtime, tmp_path) as client:
        chat, user = client.session("alice", "long"), client.user("alice")
        own = runtime.session("shop/alice", "long")
        for begin in range(0, 2_500, 500):
            await chat.append([said(str(number)) for number in range(begin, begin + 500)])
        assert await chat.history() == await own.history()
        assert await chat.history(after=7, limit=1_200) == (await own.history())[7:1_207]
        assert await chat.history(at=5) == (await own.history())[:5]
        await user.append_many({f"s{number:04}": said("hi") for number in range(30)})
        listed = await user.sessions(order="name", limit=None)
        assert [one.session for one in listed] == ["long", *(f"s{n:04}" for n in range(30))]
        page = await user.sessions(order="newest", limit=3)
        assert len(await user.sessions(order="newest", after=page[-1].cursor)) == 28
        assert [one.user for one in await client.users(prefix="al")] == ["alice"]
        results = await client.append_many(
            [(chat, said("a"), "k"), (user.session("s0001"), [], None), (chat, said("a"), "k")]
        )
        assert [type(one).__name__ for one in results] == ["Receipt", "InvalidMessage", "Receipt"]


async def test_half_of_an_emoji(tmp_path: Path) -> None:
    """It is replaced in a message and in a memory, and refused in an id, as by a runtime."""
    async with opened() as runtime, connected(runtime, tmp_path) as client:
        handles: Any
        for handles in (runtime, client):
            chat = handles.session("bob", "chat")
            result = {"role": "tool", "tool_call_id": "half \ud83d", "content": "x"}
            with pytest.raises(errors.InvalidMessage, match="half of a surrogate pair") as caught:
                await chat.append([said("whole"), result])
            assert caught.value.index == 1
            await chat.append([said("joined \ud83d\ude00"), said("half \ud83d")])
            texts = [one.content for one in await chat.history()]
            assert texts[-2:] == ["joined \U0001f600", "half \ufffd"]
            with pytest.raises(errors.InvalidInput):
                await handles.user("bob").remember("x", metadata={"a": ["\ud83d"]})
            with pytest.raises(errors.InvalidInput):
                await handles.user("bob").recall("x", session="half \ud83d")
            (id_,) = await handles.user("bob").remember("half \ud83d")
            assert (await handles.user("bob").memory(id_)).text == "half \ufffd"


async def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    """Before anything is sent, and as a runtime refuses it; a text of another class is a text."""
    nan = float("nan")
    async with opened() as runtime, connected(runtime, tmp_path) as client:
        handles: Any
        for handles in (runtime, client):
            user = handles.user("bob")
            chat = user.session("chat")
            for value in (nan, b"abc", {1: 2}, {"x"}, {"a": [float("inf")]}):
                with pytest.raises(errors.InvalidInput):
                    await user.state.set("k", value)
                with pytest.raises(errors.InvalidInput):
                    await chat.state.change({"k": value})
            assert await user.state.get("k") is None
            for memory in (
                {"content": "x", "importance": nan},
                {"content": "x", "metadata": {"a": nan}},
            ):
                with pytest.raises(errors.InvalidInput):
                    await user.remember([memory])
            with pytest.raises(errors.InvalidInput):
                await user.remember("x", importance=nan)
            assert await user.remembered() == []
            pairs: Any = [("role", "user"), ("content", "x")]
            for batch in ([pairs], [said("first"), pairs], pairs):
                with pytest.raises(errors.InvalidMessage):
                    await chat.append(batch)
            assert await chat.history() == []
            shown = await chat.load(override=said("one"))
            assert [one["content"] for one in shown.messages] == ["one"]
            shown = await chat.load(override=[said("one"), said("two")])
            assert [one["content"] for one in shown.messages] == ["one", "two"]
            with pytest.raises(errors.InvalidMessage):
                await chat.load(messages="one")
            assert await user.recall(Text("one")) == []


class Text(str):
    __slots__ = ()


async def test_an_exception_of_the_block_is_raised_as_it_is(tmp_path: Path) -> None:
    async with opened() as runtime:
        with pytest.raises(ZeroDivisionError):
            async with connected(runtime, tmp_path):
                raise ZeroDivisionError


def test_what_a_client_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address, and a key, which is shown nowhere."""
    for url in ("memory", "ftp://memory", "http://", "/tmp/memory", ""):
        with pytest.raises(errors.InvalidInput, match="http://"):
            Client(url, api_key="k")
    monkeypatch.delenv("REMORA_API_KEY", raising=False)
    with pytest.raises(errors.InvalidInput, match="REMORA_API_KEY"):
        Client("http://memory")
    monkeypatch.setenv("REMORA_API_KEY", "remora_secret")
    client = Client("http://memory")
    assert "secret" not in repr(client) + repr(client.session("a", "b")) + str(vars(client))


async def test_a_client_that_is_not_open() -> None:
    client = Client("http://127.0.0.1:1", api_key="k")
    with pytest.raises(errors.RuntimeClosed, match="async with"):
        await client.users()
    async with client:
        pass
    with pytest.raises(errors.RuntimeClosed):
        await client.session("a", "b").append(said("x"))


async def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ImportError, match=r"pip install \"remora\[client\]\""):
        async with Client("http://memory", api_key="k"):
            pass


# -- a server process ------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", ["server", "owner"])
async def test_turns_go_on_when_a_process_is_killed(killed: str, tmp_path: Path) -> None:
    """The one that serves, or the one that owns the memory: nothing is lost or stored twice."""
    keys, port = tmp_path / "keys.txt", free_port()
    key = add_key(keys, "shop")
    begun = anyio.Event()

    async def talk(client: Client, name: str) -> None:
        for number in range(12):
            async with client.session("alice", name).turn(f"q{number}", query=False) as turn:
                await turn.reply(f"a{number}")
            if number == 3:
                begun.set()

    async with Client(f"http://127.0.0.1:{port}", api_key=key, timeout_s=3_600) as client:
        with ExitStack() as servers:
            first, _ = servers.enter_context(http_server(tmp_path / "memory", keys, port))
            async with anyio.create_task_group() as tasks:
                for name in ("one", "two", "three"):
                    tasks.start_soon(talk, client, name)
                await begun.wait()
                if killed == "owner":
                    await anyio.to_thread.run_sync(end_owner, tmp_path / "memory")
                else:
                    first.kill()
                    await anyio.to_thread.run_sync(first.wait)
                    servers.enter_context(http_server(tmp_path / "memory", keys, port))
            wanted = [text for number in range(12) for text in (f"q{number}", f"a{number}")]
            for name in ("one", "two", "three"):
                found = await client.session("alice", name).history()
                assert [one.content for one in found] == wanted


def test_on_trio(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")

    async def model() -> AsyncIterator[str]:
        for part in ("In ", "Porto."):
            yield part

    async def talk(address: str) -> list[Any]:
        async with Client(address, api_key=key) as client:
            chat = client.session("alice", "chat")
            async with chat.turn("Where do I live?", query=False) as turn:
                async for _ in turn.stream(model()):
                    pass
            async with chat.turn("And before?", query=False) as turn:
                stream = turn.stream(model())
                await anext(stream)
                await stream.aclose()
            return [one.content for one in await chat.history()]

    with http_server(tmp_path / "memory", keys) as (_, address):
        wanted = ["Where do I live?", "In Porto.", "And before?", "In "]
        assert anyio.run(talk, address, backend="trio") == wanted
