"""A memory over HTTP on real connections: clients that are slow, leave, or send no HTTP."""

from __future__ import annotations

import asyncio
import json
import math
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.abc import SocketAttribute, SocketStream

from remora import Runtime
from remora.rest.problems import Problem
from tests.configs import PLAIN
from tests.patience import until
from tests.served import Service

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
CHAT = "/v1/users/alice/sessions/chat"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


class Served:
    """A memory that listens on a port, and the keys of two tenants."""

    def __init__(self, service: Service, port: int, keys: dict[str, str]) -> None:
        self.runtime, self.port, self.keys = service.runtime, port, keys

    def head(self, method: str, path: str, tenant: str = "shop", **more: Any) -> bytes:
        """The head of a request; an underscore in a header's name is a hyphen."""
        lines = [f"{method} {path} HTTP/1.1", "Host: memory"]
        lines.append(f"Authorization: Bearer {self.keys[tenant]}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def post(self, path: str, body: Any, tenant: str = "shop", **more: Any) -> bytes:
        content = json.dumps(body).encode()
        length = {"Content_Length": len(content), "Content_Type": "application/json"}
        return self.head("POST", path, tenant, **length, **more) + content

    async def connect(self, data: bytes, address: str = "127.0.0.1") -> SocketStream:
        stream = await anyio.connect_tcp("127.0.0.1", self.port, local_host=address)
        await stream.send(data)
        return stream

    def has_connection(self, stream: SocketStream) -> bool:
        """Whether the server's end of a connection is open."""
        number = int.from_bytes(IPv4Address("127.0.0.1").packed, sys.byteorder)
        port = stream.extra(SocketAttribute.local_port)
        ends = f":{self.port:04X} {number:08X}:{port:04X} 01 "
        return ends in Path("/proc/net/tcp").read_text()

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send a request; returns the status and the body of the answer."""
        async with await self.connect(data) as stream:
            return await answer_of(stream)

    async def contents(self, tenant: str = "shop") -> list[Any]:
        chat = self.runtime.session(f"{tenant}/alice", "chat")
        return [one.content for one in await chat.history()]


async def answer_of(stream: SocketStream) -> tuple[int, bytes]:
    data = b""
    while True:
        head, found, body = data.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if found and len(body) >= int(length):
            return int(head.split()[1]), body
        data += await stream.receive()


@asynccontextmanager
async def serving(path: Path, **options: Any) -> AsyncIterator[Served]:
    async with Runtime(path / "memory", config=PLAIN) as runtime:
        service = Service(runtime, path, **options)
        keys = {tenant: service.key(tenant) for tenant in ("shop", "other")}
        async with service.listening() as port:
            yield Served(service, port, keys)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as one:
        yield one


def problem_of(answer: tuple[int, bytes]) -> Problem:
    problem = msgspec.json.decode(answer[1], type=Problem)
    assert problem.status == answer[0]
    return problem


# -- what is no HTTP -------------------------------------------------------------------------------


NO_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\xfc\x03\x03" * 20,
    "0.9": b"GET /healthz\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "a space": b"GET /healthz HTTP/1.1\r\nHost: a\r\nAuthorization : x\r\n\r\n",
    "negative": b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "two lengths": (
        b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"
    ),
    "coding": b"POST /v1 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\nx",
    "a long path": b"GET /v1/users/".ljust((64 << 10) + 1, b"a"),
    "a long header": b"GET /healthz HTTP/1.1\r\n".ljust((64 << 10) + 1, b"X"),
}


async def test_what_is_no_http_gets_a_problem_document(served: Served) -> None:
    for name, data in NO_HTTP.items():
        assert problem_of(await served.ask(data)).title == "InvalidRequest", name
        status, _ = await served.ask(served.head("GET", "/v1/users"))
        assert status == 200, name


async def test_what_a_proxy_may_see_otherwise(served: Served) -> None:
    """A body has one length: a proxy may have looked at the other one, and taken the rest for the
    next request. A request for another protocol is answered as what it is in HTTP/1.1.
    """
    hidden = served.post(f"{CHAT}/messages", HELLO)
    both = {"Transfer_Encoding": "chunked", "Content_Length": str(len(hidden) + 5)}
    data = served.head("POST", f"{CHAT}/messages", "other", **both)
    assert "one length" in problem_of(await served.ask(data + b"0\r\n\r\n" + hidden)).detail
    assert await served.contents("shop") == []
    assert await served.contents("other") == []
    key = "AAAAAAAAAAAAAAAAAAAAAA=="
    for name in ("websocket", "h2c"):
        asked = {"Connection": "Upgrade", "Upgrade": name, "Sec_WebSocket_Key": key}
        status, _ = await served.ask(served.head("GET", "/v1/users", **asked))
        assert status == 200


async def test_a_version_of_http_that_there_is_not(served: Served) -> None:
    """It is refused, or answered in HTTP/1.1; the next request is answered."""
    for version in (b"HTTP/3.7", b"HTTP/0.9", b"HTTP/9"):
        data = served.head("GET", "/v1/users").replace(b"HTTP/1.1", version, 1)
        async with await served.connect(data) as stream:
            head = b""
            while b"\r\n" not in head:
                head += await stream.receive()
        assert head.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")), version
        assert (await served.ask(served.head("GET", "/v1/users")))[0] == 200


async def test_a_long_name_is_not_repeated(served: Served) -> None:
    """An error quotes the beginning of what does not exist."""
    name = "x" * 20_000
    for answer in (
        await served.ask(served.head("DELETE", f"/v1/users/{name}")),
        await served.ask(served.head("GET", f"/v1/users/alice/memories/{name}")),
        await served.ask(served.post("/v1/dead-letters/drop", {"ids": [name]})),
    ):
        assert 400 <= problem_of(answer).status < 500
        assert len(answer[1]) < 2_000


async def test_who_reads_an_unknown_user_makes_none(served: Served) -> None:
    """What lists users has those who have something."""
    await served.ask(served.post(f"{CHAT}/messages", HELLO))
    user, chat = "/v1/users/nobody", "/v1/users/nobody/sessions/s"
    reads = ("sessions", "stats", "memories", "erasures", "state", "memories/none", "state/none")
    for path in (*[f"{user}/{one}" for one in reads], f"{chat}/messages", f"{chat}/stats"):
        status, _ = await served.ask(served.head("GET", path))
        assert status < 500, path
    for path in (f"{user}/recall", f"{user}/synopsis", f"{chat}/context"):
        await served.ask(served.post(path, {"query": "tea"}))
    _, body = await served.ask(served.head("GET", "/v1/users"))
    assert b"alice" in body
    assert b"nobody" not in body


async def test_numbers_that_json_lacks_leave_as_null(served: Served, tmp_path: Path) -> None:
    """A program may store them in metadata; what others read is JSON."""
    chat = served.runtime.session("shop/alice", "chat")
    numbers = {"a": math.nan, "b": [math.inf, {"c": -math.inf}]}
    await chat.append({"role": "user", "content": "Hello", "metadata": numbers})
    _, body = await served.ask(served.head("GET", f"{CHAT}/messages"))
    assert msgspec.json.decode(body)
    assert b"NaN" not in body
    assert b"Infinity" not in body
    await served.runtime.export(tmp_path / "all.jsonl")
    lines = (await anyio.Path(tmp_path / "all.jsonl").read_bytes()).splitlines()
    assert all(msgspec.json.decode(line) for line in lines)


# -- clients that leave ----------------------------------------------------------------------------


async def test_a_client_that_leaves_in_a_body_has_written_nothing(served: Served) -> None:
    data = served.post(f"{CHAT}/messages", HELLO)
    for end in (len(data) - 1, len(data) - len(json.dumps(HELLO)), 40):
        await (await served.connect(data[:end])).aclose()
    assert (await served.ask(served.post(f"{CHAT}/messages", HELLO)))[0] == 200
    assert await served.contents() == ["Hello"]


async def test_a_client_that_leaves_in_a_turn_goes_on_with_it(served: Served) -> None:
    """The question is stored though nobody waits for the context; so is the reply; each once."""
    key = {"Idempotency_Key": "turn-1"}
    question = served.post(f"{CHAT}/turns", {"message": "Hello"}, **key)
    answer = {"message": "Hello", "reply": "Hi"}
    reply = served.post(f"{CHAT}/turns/replies", answer, **key)
    async with aclosing(served.runtime.session("shop/alice", "chat").follow(after=0)) as messages:
        for data, said in ((question, "Hello"), (reply, "Hi")):
            await (await served.connect(data)).aclose()
            assert (await anext(messages)).content == said
    for data, answered in ((question, True), (reply, True)):
        status, body = await served.ask(data)
        assert status == 200
        assert json.loads(body)["answered"] is answered
    assert await served.contents() == ["Hello", "Hi"]


# -- clients that are slow -------------------------------------------------------------------------


async def test_a_head_has_a_deadline(tmp_path: Path) -> None:
    """So has what follows an answer: another head, or the rest of a body that nobody reads."""
    async with serving(tmp_path, timeout_s=1.0) as served:
        half = await served.connect(b"GET /healthz HTTP/1.1\r\nX: ")
        assert problem_of(await answer_of(half)).title == "RequestTimeout"
        refused = await served.connect(served.head("POST", "/nothing", Content_Length=1_000))
        assert (await answer_of(refused))[0] == 404
        slow = asyncio.create_task(send_slowly(refused))
        for stream in (half, await served.connect(b""), refused):
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
            await stream.aclose()
        await slow


async def send_slowly(stream: SocketStream) -> None:
    """Send a byte at a time, until the other end has closed."""
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.1)


async def test_connections_of_one_address_take_no_place_of_another(tmp_path: Path) -> None:
    """One that says nothing loses its oldest; others keep theirs, also while they are silent."""
    async with serving(tmp_path, waiting=8) as served:
        own = [await served.connect(b"", "127.0.0.2") for _ in range(3)]
        theirs = [await served.connect(b"GET /heal", "127.0.0.3") for _ in range(40)]
        assert problem_of(await answer_of(theirs[0])).title == "RequestTimeout"
        for path in ("/healthz", "/readyz", "/v1/users"):
            async with await served.connect(served.head("GET", path), "127.0.0.4") as stream:
                assert (await answer_of(stream))[0] == 200
        for stream in own:
            await stream.send(served.post(f"{CHAT}/messages", HELLO))
            assert (await answer_of(stream))[0] == 200
        await theirs[-1].send(b"thz HTTP/1.1\r\nHost: memory\r\n\r\n")
        assert (await answer_of(theirs[-1]))[0] == 200
        for stream in [*own, *theirs]:
            await stream.aclose()


async def test_probes_are_answered_when_nothing_else_is(tmp_path: Path) -> None:
    async with serving(tmp_path, answering=2) as served:
        await served.runtime.ready()
        events = served.head("GET", f"{CHAT}/events")
        busy = [await served.connect(events) for _ in range(2)]
        for stream in busy:
            assert b"event: begun" in await stream.receive()
        for request in (events, served.head("GET", "/v1/users"), served.post(CHAT, HELLO)):
            async with await served.connect(request) as stream:
                head, _, body = (await stream.receive()).partition(b"\r\n\r\n")
            assert problem_of((int(head.split()[1]), body)).title == "Overloaded"
            assert b"application/problem+json" in head
            assert b"retry-after: 1" in head
        for path in ("/healthz", "/readyz"):
            assert (await served.ask(served.head("GET", path)))[0] == 200
        for stream in busy:
            await stream.aclose()
        await until(lambda: _is_answered(served))


async def _is_answered(served: Served) -> bool:
    return (await served.ask(served.head("GET", "/v1/users")))[0] == 200


async def test_slow_bodies_hold_only_their_own_tenant(tmp_path: Path) -> None:
    """They take its places until their time is over; other tenants do not notice."""
    async with serving(tmp_path, at_once=4, timeout_s=1.0) as served:
        head = served.head("POST", f"{CHAT}/messages", Content_Length=1_000)
        slow = [await served.connect(head + b"{") for _ in range(4)]
        status, _ = await served.ask(served.post(f"{CHAT}/messages", HELLO, "other"))
        assert status == 200
        for stream in slow:
            assert problem_of(await answer_of(stream)).title == "RequestTimeout"
            await stream.aclose()
        assert (await served.ask(served.post(f"{CHAT}/messages", HELLO)))[0] == 200
        assert await served.contents() == ["Hello"]


async def test_a_stream_that_is_not_read_ends(tmp_path: Path) -> None:
    """It holds up nothing: appends, an erasure, the end of the server, the tenant's next stream."""
    async with serving(tmp_path, streams=1, timeout_s=1.0) as served:
        asked = served.head("GET", f"{CHAT}/events?after=0")
        deaf = await served.connect(asked)
        assert b"event: begun" in await deaf.receive()
        assert served.has_connection(deaf)
        chat = served.runtime.session("shop/alice", "chat")
        for _ in range(16):  # more than the buffers of both sides
            await chat.append({"role": "user", "content": "x" * 1_000_000})
        assert (await chat.forget()).journal["messages"] == 16
        status = 429
        while status == 429:
            async with await served.connect(asked) as stream:
                status = int((await stream.receive()).split()[1])
        assert status == 200
        await until(lambda: not served.has_connection(deaf))
        await deaf.aclose()
        left = await served.connect(asked)  # the server's end does not wait for it
    await left.aclose()


@pytest.fixture
def few_files() -> Iterator[None]:
    """The process may open few files, as most systems have it, until a server is made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4_096:
        pytest.skip("this system does not let a process open 4,096 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_connections(few_files: None, served: Served) -> None:
    """All open at once, of many that say nothing; each request of theirs is answered."""
    streams = [await anyio.connect_tcp("127.0.0.1", served.port) for _ in range(1_000)]
    for number, stream in enumerate(streams[:200]):
        chat = f"/v1/users/u{number}/sessions/chat/messages"
        await stream.send(served.post(chat, HELLO, ("shop", "other")[number % 2]))
        assert (await answer_of(stream))[0] == 200
    page = await served.ask(served.head("GET", "/v1/users?limit=200"))
    assert len(json.loads(page[1])["users"]) == 100
    for stream in streams:
        await stream.aclose()
