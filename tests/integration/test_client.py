"""`remora.Client`: the verbs of a `Runtime`, over HTTP.

The same calls are made of a runtime in this process and of one that is served, and what they return
or raise is compared.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest

import remora
from remora import Client, errors
from remora.api.keyed_state import KeyedState
from remora.api.shards import parts_of
from remora.api.shared import SharedMember, SharedScope
from remora.client.keyed_state import ClientState
from remora.client.session import ClientSession
from remora.client.shared import ClientMember, ClientScope
from remora.client.turn import ClientTurn
from remora.client.user import ClientUser
from remora.rest.app import RestOptions, build_app
from remora.rest.keys import KeyFile, add_key, read_keys, remove_key
from remora.rest.limits import RateLimit
from remora.rest.problems import Problem, describe
from remora.rest.server import make_server
from remora.runtime.clock import SystemClock
from remora.storage.sockets import listen_tcp
from remora.testing.runtimes import Outcome, find_differences, outcome_of
from tests.cluster_calls import ERRORS, MORE
from tests.integration.test_cluster_verbs import OWN, make_runtime
from tests.verbs import CALLS, Call, World, fill_world, said
from tests.workers import end_owner

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
NOT_SERVED = {
    "Runtime": """aclose backup config counts erasures export
        from_file health import_ in_memory internals long_term_statistics message_tokens path ready
        reembedded reembedding reschedule retry_erasures settle start
        statistics""",
    "User": "agent export_arrow import_session inspect record_many settle tools",
    "Session": "exclusive export inspect load_state_dict settle state_dict",
    "SharedMember": "settle",
}
"""What belongs to who runs the memory, or to who holds its process. docs/how-to/http.md says so."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def public(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_")
        and not hasattr(getattr(member, "fget", member), "__deprecated__")
    }


@pytest.mark.parametrize(("kind", "served"), PAIRS, ids=lambda one: one.__name__)
def test_the_verbs_are_those_of_a_runtime(kind: type, served: type) -> None:
    left_out = set(NOT_SERVED.get(kind.__name__, "").split())
    assert public(kind) - public(served) == left_out
    assert public(served) <= public(kind)
    for name in public(served):
        own, other = getattr(kind, name), getattr(served, name)
        if not inspect.isfunction(own):
            continue
        wanted, given = inspect.signature(own), inspect.signature(other)
        assert list(given.parameters) == list(wanted.parameters), name
        for one in given.parameters.values():
            twin = wanted.parameters[one.name]
            assert one.kind == twin.kind
            if (kind, name, one.name) != (remora.Runtime, "append_many", "concurrency"):
                assert one.default == twin.default, (name, one.name)
        assert inspect.iscoroutinefunction(own) == inspect.iscoroutinefunction(other), name


# -- the same calls --------------------------------------------------------------------------------


class Embedded:
    """A runtime whose users and scopes have a tenant's prefix, as they are stored."""

    def __init__(self, runtime: remora.Runtime) -> None:
        self.runtime = runtime

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runtime, name)

    def user(self, user: str) -> remora.User:
        return self.runtime.user(f"shop/{user}")

    def session(self, user: str, session: str) -> remora.Session:
        return self.user(user).session(session)

    def shared(self, name: str) -> SharedScope:
        return self.runtime.shared(f"shop/{name}")

    async def users(self, *, prefix: str = "", limit: int | None = 100) -> Any:
        return await self.runtime.users(prefix=f"shop/{prefix}", limit=limit)


class Settled(Client):
    """A client that can wait for the memory behind it, and export it, as tests need to."""

    behind: remora.Runtime

    async def settle(self) -> None:
        await self.behind.settle()

    async def export(self, path: Path) -> Any:
        return await self.behind.export(path)


@asynccontextmanager
async def connected(
    runtime: remora.Runtime, path: Path, *, tenant: str = "shop", **options: Any
) -> AsyncIterator[Settled]:
    """A client of a service of this process, over a socket: only there an answer is a stream."""
    keys = path / "keys.txt"
    key = add_key(keys, tenant)
    app = build_app(runtime, KeyFile(keys), RateLimit(0, SystemClock()), RestOptions())
    with listen_tcp("127.0.0.1", 0) as listener:
        server = make_server(app)
        serving = asyncio.create_task(server.serve([listener]))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            async with Settled(url, api_key=key, **options) as client:
                client.behind = runtime
                yield client
        finally:
            server.should_exit = True
            await serving


WHO_RUNS_IT = frozenset(
    """
    a backup over something, a context is recorded, a past that was rewritten, a periodic task,
    agents, an agent's memory, an exclusive block, an export of nothing, an import over another,
    another session, figures, listings, no export at all, no interval, no such task,
    no user, nothing to import, sessions that exist, tokens, tools, what is configured
    """.replace("\n    ", " ")
    .strip()
    .split(", ")
)
"""Calls of more than one verb that use one of `NOT_SERVED`."""
OTHERWISE = re.compile(
    r".*: 'Session' is 'ClientSession'"
    r"|.*\.working\[.*\]\.vector: .*"
    r"|messages by metadata .*\.metadata\.a: b'.*"
    r"|a value that is none \.text: .*"
)
"""What differs: names of classes, vectors of working memory, bytes in metadata, one text."""


async def play(world: World, runtime: remora.Runtime, calls: Mapping[str, Call]) -> Any:
    names = {parts_of(runtime).instance: "INSTANCE", str(world.path): "PATH", "shop/": ""}
    filled = await outcome_of(partial(fill_world, world))
    assert not filled.error, filled.text
    outcomes: dict[str, Outcome] = {}
    for number, (name, call) in enumerate(calls.items()):
        await runtime.settle()
        outcomes[name] = await outcome_of(partial(call, world.at(number)), names)
    return outcomes


def is_served(name: str) -> bool:
    kind, _, verb = name.partition(".")
    return not (
        kind in {"Agent", "Runtime"}
        or verb in NOT_SERVED.get(kind, "").split()
        or name in WHO_RUNS_IT
    )


async def test_a_client_does_what_a_runtime_does(tmp_path: Path) -> None:
    calls = {name: call for name, call in (CALLS | MORE | ERRORS).items() if is_served(name)}
    found: list[dict[str, Outcome]] = []
    for kind in ("embedded", "served"):
        path = tmp_path / kind
        path.mkdir()
        async with make_runtime(path) as runtime, connected(runtime, path) as client:
            opened: Any = Embedded(runtime) if kind == "embedded" else client
            found.append(await play(World(opened, path), runtime, calls))
    one, other = found
    differences = [
        difference
        for name in calls
        for difference in find_differences(one[name], other[name], f"{name} ")
        if not OWN.fullmatch(difference.partition(":")[0]) and not OTHERWISE.fullmatch(difference)
    ]
    assert not differences
    assert {name for name in calls if not other[name].error} > {"append again", "grants", "streams"}


async def test_what_is_not_served_is_no_attribute(tmp_path: Path) -> None:
    """So that code finds it out at once, and type checkers before."""
    async with make_runtime(tmp_path) as runtime, connected(runtime, tmp_path) as client:
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
async def unreliable(path: Path, **options: Any) -> AsyncIterator[tuple[Client, Unreliable]]:
    keys = path / "keys.txt"
    key = add_key(keys, "shop")
    async with make_runtime(path) as runtime:
        app = build_app(runtime, KeyFile(keys), RateLimit(0, SystemClock()), RestOptions())
        transport = Unreliable(httpx2.ASGITransport(app=app))
        async with httpx2.AsyncClient(transport=transport) as http:
            async with Client("http://memory", api_key=key, http=http, **options) as client:
                yield client, transport


async def test_what_is_sent_again_is_stored_once(tmp_path: Path) -> None:
    async with unreliable(tmp_path) as (client, network):
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
    async with unreliable(tmp_path) as (client, network):
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
    "delete": lambda chat: chat.delete(0),
    "delete a value": lambda chat: chat.state.delete("step"),
    "fork": lambda chat: chat.fork("copy"),
    "rewind": lambda chat: chat.rewind(1),
    "set": lambda chat: chat.state.set("step", 1),
    "truncate": lambda chat: chat.truncate_to_size(1),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_would_have_another_effect_is_not_sent_again(tmp_path: Path, name: str) -> None:
    async with unreliable(tmp_path) as (client, network):
        chat = client.session("alice", "chat")
        await chat.append([said("one"), said("two")])
        network.lost, network.sent = ["after"], 0
        with pytest.raises(errors.OutcomeUnknown, match="may have run"):
            await CHANGES[name](chat)
        assert network.sent == 1
        network.lost, network.sent = ["before"], 0
        if name not in {"fork", "rewind"}:
            await CHANGES[name](chat)
            assert network.sent == 2


async def test_a_service_that_cannot_be_reached(tmp_path: Path) -> None:
    async with unreliable(tmp_path, timeout_s=0.3) as (client, network):
        chat = client.session("alice", "chat")
        network.lost = ["before"] * 100
        with pytest.raises(errors.OwnerUnreachable, match="cannot be reached"):
            await chat.append(said("one"))
        network.lost = ["after"] * 100
        with pytest.raises(errors.OutcomeUnknown):
            await chat.append(said("two"), key="k2")
        with pytest.raises(errors.OwnerUnreachable, match="no answer"):
            await chat.history()
        network.lost = ["before"] * 30 + ["after"]
        with pytest.raises(errors.OutcomeUnknown):
            await chat.append(said("three"), key="k3")
        network.lost = []
        assert (await chat.append(said("two"), key="k2")).duplicate
        assert [one.content for one in await chat.history()] == ["two", "three"]


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (502, "text/html", errors.OwnerUnreachable),
        (503, "text/html", errors.OwnerUnreachable),
        (429, "text/html", errors.RateLimited),
        (404, "text/html", errors.InvalidInput),
        (401, "text/html", errors.InvalidInput),
        (500, "application/problem+json", errors.InvalidInput),
        (302, "text/html", errors.InvalidInput),
        (200, "text/html", errors.InvalidInput),
    ],
)
async def test_a_server_that_is_none_of_remora(
    status: int, kind: str, error: type[Exception]
) -> None:
    """A proxy in front of it, or another address: an error of remora's own, and no traceback."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": kind, "location": "http://elsewhere/"}
        return httpx2.Response(status, headers=headers, text="<html>sorry</html>")

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        async with Client("http://memory", api_key="k", http=http, timeout_s=0.2) as client:
            with pytest.raises(error):
                await client.session("alice", "chat").history()


async def test_a_key_that_is_removed(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")
    async with make_runtime(tmp_path) as runtime:
        file = KeyFile(keys)
        app = build_app(runtime, file, RateLimit(0, SystemClock()), RestOptions())
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
            async with Client("http://memory", api_key=key, http=http) as client:
                await client.users()
                remove_key(keys, read_keys(keys)[0].digest[:8])
                file.refresh()
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
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")
    clock = StandingClock()
    async with make_runtime(tmp_path) as runtime:
        app = build_app(runtime, KeyFile(keys), RateLimit(10, clock), RestOptions())
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app)) as http:
            async with Client("http://memory", api_key=key, http=http) as client:
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


async def test_ids_of_any_text(tmp_path: Path) -> None:
    async with make_runtime(tmp_path) as runtime, connected(runtime, tmp_path) as client:
        for name in (".", "..", "a/b", "a%2Fb", "ü 日", "?x=1#", "read", "\\", "a b"):
            chat = client.session(name, name)
            await chat.append(said(name), key=f"ключ {name}")
            await chat.state.set(name, [name])
            assert await chat.state.get(name) is not None
            assert [one.content for one in await chat.history()] == [name]
            assert await runtime.session(f"shop/{name}", name).size() == 1
        assert len(await client.users(limit=None)) == 9
        with pytest.raises(errors.InvalidId, match="blanks"):
            await client.session("a", "b").append(said("x"), key=" k")


async def test_long_lists_come_in_pages(tmp_path: Path) -> None:
    async with make_runtime(tmp_path) as runtime, connected(runtime, tmp_path) as client:
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
    """It is refused in a message, and replaced in a memory, as by a runtime."""
    async with make_runtime(tmp_path) as runtime, connected(runtime, tmp_path) as client:
        for opened in (runtime, client):
            handles: Any = opened
            with pytest.raises(
                errors.InvalidMessage, match="message 1 cannot be encoded"
            ) as caught:
                await handles.session("bob", "chat").append([said("whole"), said("half \ud83d")])
            assert caught.value.index == 1
            with pytest.raises(errors.InvalidInput):
                await handles.user("bob").remember("x", metadata={"a": ["\ud83d"]})
            (id_,) = await handles.user("bob").remember("half \ud83d")
            assert (await handles.user("bob").memory(id_)).text == "half ?"


async def test_an_exception_of_the_block_is_raised_as_it_is(tmp_path: Path) -> None:
    async with make_runtime(tmp_path) as runtime:
        with pytest.raises(ZeroDivisionError):
            async with connected(runtime, tmp_path):
                raise ZeroDivisionError


@pytest.mark.parametrize("url", ["memory", "ftp://memory", "http://", "/tmp/memory", ""])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(errors.InvalidInput, match="http://"):
        Client(url, api_key="k")


def test_a_client_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
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


@contextmanager
def serving(directory: Path, keys: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """``remora http`` as a process, once it answers."""
    command = [sys.executable, "-m", "remora", "http", str(directory), "--keys", str(keys)]
    command += ["--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "serving" in process.stdout.readline()
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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

    async with Client(f"http://127.0.0.1:{port}", api_key=key, timeout_s=120) as client:
        with ExitStack() as servers:
            first = servers.enter_context(serving(tmp_path / "memory", keys, port))
            async with anyio.create_task_group() as tasks:
                for name in ("one", "two", "three"):
                    tasks.start_soon(talk, client, name)
                await begun.wait()
                if killed == "owner":
                    await anyio.to_thread.run_sync(end_owner, tmp_path / "memory")
                else:
                    first.kill()
                    await anyio.to_thread.run_sync(first.wait)
                    second = serving(tmp_path / "memory", keys, port)
                    await anyio.to_thread.run_sync(servers.enter_context, second)
            wanted = [text for number in range(12) for text in (f"q{number}", f"a{number}")]
            for name in ("one", "two", "three"):
                found = await client.session("alice", name).history()
                assert [one.content for one in found] == wanted


def test_on_trio(tmp_path: Path) -> None:
    keys, port = tmp_path / "keys.txt", free_port()
    key = add_key(keys, "shop")

    async def model() -> AsyncIterator[str]:
        for part in ("In ", "Porto."):
            yield part

    async def talk() -> list[Any]:
        async with Client(f"http://127.0.0.1:{port}", api_key=key) as client:
            chat = client.session("alice", "chat")
            async with chat.turn("Where do I live?", query=False) as turn:
                async for _ in turn.stream(model()):
                    pass
            async with chat.turn("And before?", query=False) as turn:
                stream = turn.stream(model())
                await anext(stream)
                await stream.aclose()
            return [one.content for one in await chat.history()]

    with serving(tmp_path / "memory", keys, port):
        wanted = ["Where do I live?", "In Porto.", "And before?", "In "]
        assert anyio.run(talk, backend="trio") == wanted
