"""`Session.follow`: messages as they become durable, here, through an owner, and over HTTP."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import httpx2
import pytest

import remora
import remora.blocking
from remora import Client, Runtime
from remora.api.session import start_following
from remora.errors import InvalidInput, KeyRefused, RuntimeClosed
from remora.rest.keys import add_key, read_keys, remove_key
from tests.configs import PLAIN
from tests.harness import user
from tests.patience import until
from tests.processes import free_port, http_server
from tests.remote import workers
from tests.served import Service

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
OPENED = ("embedded", "owner")


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[Any]:
    if kind == "embedded":
        async with Runtime(path / "memory", config=PLAIN) as runtime:
            yield runtime
    else:
        async with workers(path, 1) as (_, (shard,)):
            yield shard


class Heard:
    """What a follower has heard, and whether that has ended."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self.ended = anyio.Event()

    async def listen(
        self, session: Any, after: int | None, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        messages = session.follow(after=after)
        if after is None:  # what is appended from now on is heard
            following = start_following(session, None, 0)
            assert await following.read() == []
            messages = following.messages()
        task_status.started()
        async with aclosing(messages):
            async for message in messages:
                self.texts.append(message.content)
        self.ended.set()

    async def wait(self, count: int) -> list[Any]:
        await until(lambda: len(self.texts) >= count, f"{count} messages are heard")
        return self.texts


@pytest.mark.parametrize("kind", OPENED)
async def test_each_message_comes_once_and_in_order(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as memory, anyio.create_task_group() as tasks:
        chat = memory.session("alice", "chat")
        await chat.append([user("a"), user("b")])
        every, later, new = Heard(), Heard(), Heard()
        await tasks.start(every.listen, chat, 0)
        await tasks.start(later.listen, chat, 1)
        await tasks.start(new.listen, chat, None)
        for number in range(30):
            await chat.append(user(str(number)))
        expected = [str(number) for number in range(30)]
        assert await every.wait(32) == ["a", "b", *expected]
        assert await later.wait(31) == ["b", *expected]
        assert await new.wait(30) == expected
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", OPENED)
async def test_what_is_gone_does_not_come(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as memory, anyio.create_task_group() as tasks:
        chat = memory.session("alice", "chat")
        receipt = await chat.append([user("a"), user("b"), user("c"), user("d")])
        await chat.delete([receipt.ids[1]])
        await chat.rewind(3)
        heard = Heard()
        await tasks.start(heard.listen, chat, 0)
        assert await heard.wait(2) == ["a", "c"]
        await chat.clear()
        await chat.append(user("after"))
        assert await heard.wait(3) == ["a", "c", "after"]
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("kind", OPENED)
async def test_an_erasure_ends_it(kind: str, tmp_path: Path) -> None:
    """Of the session or the user; also for who is away while a session of the same id begins.
    Others go on.
    """
    async with opened(kind, tmp_path) as memory, anyio.create_task_group() as tasks:
        other, others = memory.session("bob", "chat"), Heard()
        await other.append(user("mine"))
        await tasks.start(others.listen, other, 0)
        for name in ("alice", "carol"):
            chat = memory.session(name, "chat")
            await chat.append(user("a"))
            waiting, away, empty = Heard(), chat.follow(after=0), Heard()
            await tasks.start(waiting.listen, chat, 0)
            await waiting.wait(1)
            assert (await anext(away)).content == "a"
            await (memory.user(name) if name == "carol" else chat).forget()
            await waiting.ended.wait()
            await chat.append([user("new"), user("newer")])
            assert await anext(away, None) is None
            await tasks.start(empty.listen, chat, 0)
            assert await empty.wait(2) == ["new", "newer"]
            assert waiting.texts == ["a"]
        await other.append(user("too"))
        assert await others.wait(2) == ["mine", "too"]
        tasks.cancel_scope.cancel()


async def test_a_runtime_that_closes(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append(user("a"))
        for after in (-1, 1.5, "1", True):
            with pytest.raises(InvalidInput):
                chat.follow(after=after)  # type: ignore[arg-type]
        messages = chat.follow(after=0)
        assert (await anext(messages)).content == "a"
        async with anyio.create_task_group() as tasks:
            with pytest.raises(RuntimeClosed):
                tasks.start_soon(runtime.aclose)
                await anext(messages)


@pytest.mark.parametrize("kind", OPENED)
async def test_a_follower_that_stops_leaves_nothing_behind(kind: str, tmp_path: Path) -> None:
    """And takes nothing from those who go on."""
    async with opened(kind, tmp_path) as memory:
        chat = memory.session("alice", "chat")
        going_on = chat.follow(after=0)
        for number in range(20):
            with anyio.move_on_after(0):
                await anext(chat.follow(after=number))
            async with anyio.create_task_group() as tasks:
                heard = Heard()
                await tasks.start(heard.listen, chat, number)
                await chat.append(user(str(number)))
                await heard.wait(1)
                tasks.cancel_scope.cancel()
            assert heard.texts == [str(number)]
            assert (await anext(going_on)).content == str(number)
        await going_on.aclose()
        if kind == "embedded":
            assert not memory.internals.registry.watchers.events


async def test_long_messages_come_a_few_at_a_time(tmp_path: Path) -> None:
    """Who reads slowly holds what one call gave: it may not be a hundred messages of 15 MB."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        sizes = [400_000] * 6 + [1_500_000] * 3 + [10] * 30 + [700_000] * 2
        for size in sizes:
            await chat.append({"role": "user", "content": "x" * size})
        following = start_following(chat, 0, 0)
        came: list[int] = []
        while len(came) < len(sizes):
            found = await following.read()
            assert found
            lengths = [len(str(one.content)) for one in found]
            assert len(lengths) == 1 or sum(lengths) < 1_200_000
            came += lengths
        assert came == sizes


async def test_an_owner_that_is_replaced(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (owner, (one, two)), anyio.create_task_group() as tasks:
        heard = Heard()
        await tasks.start(heard.listen, one.session("alice", "chat"), None)
        for number in range(6):
            await two.session("alice", "chat").append(user(str(number)))
            if number % 2:
                await owner.stop(600)
                await owner.start()
        assert await heard.wait(6) == [str(number) for number in range(6)]
        tasks.cancel_scope.cancel()


def test_a_thread_that_follows(tmp_path: Path) -> None:
    heard: list[str] = []
    three = threading.Event()

    def listen(chat: Any) -> None:
        for message in chat.follow(after=0):
            heard.append(message.content)
            if len(heard) == 3:
                three.set()

    with remora.blocking.Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        chat = runtime.session("alice", "chat")
        chat.append(user("a"))
        thread = threading.Thread(target=listen, args=(chat,))
        thread.start()
        chat.append(user("b"))
        chat.append(user("c"))
        three.wait()
        chat.forget()
        thread.join()
    assert heard == ["a", "b", "c"]


# -- over HTTP -------------------------------------------------------------------------------------


async def listen_to(client: Client, heard: list[Any], until: int) -> None:
    async for message in client.session("alice", "chat").follow(after=0):
        heard.append(message.content)
        if len(heard) == until:
            return


async def test_a_server_that_is_killed_and_started_again(tmp_path: Path) -> None:
    """The follower hears everything once; what is said has a character that ends lines."""
    keys, port = tmp_path / "keys.txt", free_port()
    key = add_key(keys, "shop")
    heard: list[Any] = []
    said = [f"{number}\u2028\n\r\x85" for number in range(9)]
    async with Client(f"http://127.0.0.1:{port}", api_key=key, timeout_s=3_600) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen_to, client, heard, len(said))
            for first in range(0, 9, 3):
                with http_server(tmp_path / "memory", keys, port):
                    for one in said[first : first + 3]:
                        await client.session("alice", "chat").append(user(one))
            with http_server(tmp_path / "memory", keys, port):
                await until(lambda: len(heard) == len(said), "the other task hears them")
    assert heard == said


def test_a_server_that_is_told_to_stop_does_not_wait_for_streams(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")
    with http_server(tmp_path / "memory", keys) as (process, server):
        address = f"{server}/v1/users/a/sessions/b/events"
        headers = {"authorization": f"Bearer {key}"}
        with httpx2.stream("GET", address, headers=headers, timeout=None) as answer:
            parts = answer.iter_bytes()
            assert b"event: begun" in next(parts)
            process.send_signal(signal.SIGTERM)
            assert not b"".join(parts)
        assert process.wait() in {0, -signal.SIGTERM}


class Stream:
    """A request for the events of a session, and its answer so far."""

    def __init__(self) -> None:
        self.status, self.body = 0, b""
        self.leave = anyio.CancelScope()

    async def read(self, http: httpx2.AsyncClient, address: str, key: str) -> None:
        headers = {"authorization": f"Bearer {key}"}
        with self.leave:
            async with http.stream("GET", address, headers=headers) as answer:
                self.status = answer.status_code
                async for part in answer.aiter_bytes():
                    self.body += part

    async def wait(self, wanted: bytes) -> None:
        await until(lambda: wanted in self.body, f"{wanted!r} comes")


@asynccontextmanager
async def streaming(
    path: Path, **options: Any
) -> AsyncIterator[tuple[Service, Callable[..., Awaitable[Stream]]]]:
    async with Runtime(path / "memory", config=PLAIN) as runtime:
        service = Service(runtime, path, **options)
        keys = {tenant: service.key(tenant) for tenant in ("shop", "other")}
        async with (
            service.listening(),
            httpx2.AsyncClient(timeout=None) as http,
            anyio.create_task_group() as tasks,
        ):
            events = f"{service.address}/v1/users/alice/sessions/chat/events"

            async def begin(tenant: str, query: str = "") -> Stream:
                stream = Stream()
                tasks.start_soon(stream.read, http, f"{events}?{query}", keys[tenant])
                await stream.wait(b"}")
                return stream

            yield service, begin
            tasks.cancel_scope.cancel()


async def test_a_tenant_hears_its_own_users_only(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (service, begin):
        shop, other = await begin("shop"), await begin("other")
        await service.runtime.session("shop/alice", "chat").append(user("of the shop"))
        await shop.wait(b"of the shop")
        await service.runtime.session("other/alice", "chat").append(user("of the other"))
        await other.wait(b"of the other")
        assert b"of the other" not in shop.body
        assert b"of the shop" not in other.body


async def test_a_stream_goes_on_behind_a_cursor(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (service, begin):
        chat = service.runtime.session("shop/alice", "chat")
        await chat.append([user("a"), user("b"), user("c")])
        stream = await begin("shop", "after=0")
        await stream.wait(b'"c"')
        ids = [line[4:].decode() for line in stream.body.split(b"\n") if line[:4] == b"id: "]
        resumed = await begin("shop", f"cursor={ids[2]}")
        await resumed.wait(b'"c"')
        assert b'"b"' not in resumed.body
        await chat.forget()
        await resumed.wait(b"event: erased")
        await chat.append([user("x"), user("y"), user("z"), user("of another session")])
        late = await begin("shop", f"cursor={ids[-1]}")
        await late.wait(b"event: erased")
        assert b"another" not in late.body


async def test_a_stream_that_is_asked_for_wrongly(tmp_path: Path) -> None:
    async with streaming(tmp_path) as (_, begin):
        for query in ("after=-1", "after=x", "cursor=1", "cursor=1.2.3", "other=1"):
            assert (await begin("shop", query)).status == 400, query


async def test_streams_are_bounded_and_end_with_their_clients(tmp_path: Path) -> None:
    async with streaming(tmp_path, streams=2) as (service, begin):
        one, _two = await begin("shop"), await begin("shop")
        assert (await begin("shop")).status == 429
        assert (await begin("other")).status == 200
        one.leave.cancel()
        while (await begin("shop")).status == 429:  # the server does not know yet that it has left
            await anyio.sleep(0.01)
        assert len(service.runtime.internals.registry.watchers.events) == 2


async def test_a_key_that_is_removed_ends_its_streams(tmp_path: Path) -> None:
    """A client without one that is valid is told so."""
    async with streaming(tmp_path) as (service, begin):
        stream = await begin("shop")
        for one in read_keys(service.file):
            remove_key(service.file, one.name)
        service.keys.refresh()
        async with Client(service.address, api_key="remora_wrong") as client:
            with pytest.raises(KeyRefused):
                await anext(client.session("alice", "chat").follow())
        await service.runtime.session("shop/alice", "chat").append(user("secret"))
        await stream.wait(b"event: problem")
        assert b"KeyRefused" in stream.body
        assert b"secret" not in stream.body
