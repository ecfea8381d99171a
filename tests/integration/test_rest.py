"""A memory over HTTP: what is stored, who may ask, and what bad requests get."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remora import Config, Runtime, errors
from remora.cli.main import main
from remora.rest.keys import KeyFile, add_key, read_keys, remove_key
from remora.rest.limits import AddressLimit, RateLimit
from remora.rest.operation import Operation
from remora.rest.operations import OPERATIONS
from remora.rest.problems import FailureLog, Problem, describe
from remora.rest.streams import EVENTS
from remora.system.sockets import listen_tcp
from remora.testing import HashEmbedder, VirtualClock
from tests.accounts import ANOTHER, require_interpreter_for_another
from tests.integration.test_examples import SERVER_ANSWERS, error_named
from tests.processes import bound
from tests.served import Service

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
CONFIG = Config.from_dict({"tokens": {"counter": "heuristic"}})
CHAT = "/v1/users/alice/sessions/chat"
JSON = {"content-type": "application/json"}
NO_MEMORY = "0" * 32
SECRET = "the violin is under the stairs"
_GROUP = 10_001


@asynccontextmanager
async def serving(
    path: Path,
    rate: RateLimit | None = None,
    embedder: HashEmbedder | None = None,
    config: Config = CONFIG,
    **options: Any,
) -> AsyncIterator[Service]:
    async with Runtime.in_memory(config=config, embedder=embedder or HashEmbedder()) as runtime:
        yield Service(runtime, path, rate, **options)


@asynccontextmanager
async def client_of(service: Service, tenant: str | None) -> AsyncIterator[httpx.AsyncClient]:
    headers = {}
    if tenant is not None:
        headers["authorization"] = f"Bearer {service.key(tenant)}"
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://memory", headers=headers
    ) as client:
        yield client


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(tmp_path) as served:
        yield served


@pytest.fixture
async def shop(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(service, "shop") as client:
        yield client


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def say(client: httpx.AsyncClient, text: str, path: str = CHAT) -> Any:
    answer = await client.post(f"{path}/messages", json={"messages": [user(text)]})
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer: httpx.Response, status: int, title: str) -> Problem:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = msgspec.json.decode(answer.content, type=Problem)
    assert (problem.status, problem.title) == (status, title)
    assert ("retry-after" in answer.headers) == problem.retry
    return problem


async def contents(service: Service, tenant: str = "shop") -> list[Any]:
    session = service.runtime.session(f"{tenant}/alice", "chat")
    return [one.content for one in await session.history()]


# -- sessions and turns ----------------------------------------------------------------------------


async def test_a_turn_that_is_sent_again_is_stored_once(
    service: Service, shop: httpx.AsyncClient
) -> None:
    key = {"idempotency-key": "request-1"}
    for _ in range(2):
        begun = await shop.post(f"{CHAT}/turns", json={"message": "Hello"}, headers=key)
        assert begun.status_code == 200
        assert begun.json()["context"]["messages"] == [user("Hello")]
        assert begun.json()["answered"] is False
    calls = [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    used: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_call_id": "c1"},
    ]
    replies = f"{CHAT}/turns/replies"
    for _ in range(2):
        body = {"message": "Hello", "reply": used}
        answer = (await shop.post(replies, json=body, headers=key)).json()
        assert (len(answer["replies"]), answer["answered"]) == (2, False)
    for _ in range(2):
        said: dict[str, Any] = {"message": "Hello", "reply": "It is noon.", "stored": 2}
        answer = (await shop.post(replies, json=said, headers=key)).json()
        assert (len(answer["replies"]), answer["answered"]) == (3, True)
    again = (await shop.post(f"{CHAT}/turns", json={"message": "Hello"}, headers=key)).json()
    assert (again["answered"], again["context"]) == (True, None)
    assert again["replies"][-1]["content"] == "It is noon."
    other = await shop.post(f"{CHAT}/turns", json={"message": "Bye"}, headers=key)
    refused(other, 409, "KeyConflict")
    said = {"message": "Bye", "reply": "Hi", "stored": 3}  # there are not so many replies
    answer = await shop.post(replies, json=said, headers={"idempotency-key": "request-2"})
    refused(answer, 400, "InvalidInput")
    assert (await contents(service))[:4] == ["Hello", None, "noon", "It is noon."]
    assert "Hi" not in await contents(service)


async def test_appends_and_pages(service: Service, shop: httpx.AsyncClient) -> None:
    """An append that is sent again is stored once; lists come page by page."""
    key = {"idempotency-key": "k1"}
    body = {"messages": [user(f"Message {number}") for number in range(5)]}
    first = (await shop.post(f"{CHAT}/messages", json=body, headers=key)).json()
    again = (await shop.post(f"{CHAT}/messages", json=body, headers=key)).json()
    assert again == {**first, "duplicate": True}
    for name in ("anna", "ben", "carl"):
        for chat in ("one", "two"):
            await say(shop, "Hello", f"/v1/users/{name}/sessions/{chat}")
    messages = await pages(shop, f"{CHAT}/messages", "messages")
    assert [one["content"] for one in messages] == await contents(service)
    assert len(messages) == 5
    users = await pages(shop, "/v1/users", "users")
    assert [one["user"] for one in users] == ["alice", "anna", "ben", "carl"]
    sessions = (await shop.get("/v1/users/ben/sessions")).json()["sessions"]
    assert [one["session"] for one in sessions] == ["one", "two"]


async def pages(client: httpx.AsyncClient, path: str, name: str) -> list[Any]:
    """All of a list, two at a time."""
    found: list[Any] = []
    asked: dict[str, Any] = {"limit": 2}
    while True:
        page = (await client.get(path, params=asked)).json()
        assert len(page[name]) <= 2
        found += page[name]
        if page["after"] is None:
            return found
        asked["after"] = page["after"]


async def test_memories(shop: httpx.AsyncClient) -> None:
    path = "/v1/users/alice/memories"
    stored = await shop.post(path, json={"content": "Alice plays the violin.", "key": "plays"})
    (id_,) = stored.json()["ids"]
    asked = {"query": "What does Alice play?"}
    found = (await shop.post("/v1/users/alice/recall", json=asked)).json()["memories"]
    assert [one["id"] for one in found] == [id_]
    changed = await shop.patch(f"{path}/{id_}", json={"content": "Alice plays the cello."})
    assert changed.json()["text"] == "Alice plays the cello."
    receipt = (await shop.delete(f"{path}/{id_}")).json()
    assert (receipt["deleted"], receipt["missing"]) == (1, [])
    assert (await shop.delete(f"{path}/{id_}")).status_code == 404
    assert (await shop.post("/v1/users/alice/recall", json=asked)).json()["memories"] == []
    refused(await shop.patch(f"{path}/{id_}", json={"content": "x"}), 404, "NoSuchMemory")


async def test_erasure(service: Service, shop: httpx.AsyncClient) -> None:
    await say(shop, SECRET)
    await say(shop, "Another", "/v1/users/alice/sessions/other")
    assert (await shop.delete(CHAT)).json()["journal"]["messages"] == 1
    assert await contents(service) == []
    assert (await shop.delete("/v1/users/alice")).status_code == 200
    assert (await shop.get("/v1/users")).json()["users"] == []


# -- who may ask -----------------------------------------------------------------------------------

BODIES: dict[str, dict[str, Any]] = {
    "append_messages": {"messages": [user("From another")]},
    "load_context": {"query": "violin"},
    "begin_turn": {"message": "violin", "query": "violin"},
    "reply_to_turn": {"message": "violin", "reply": "From another"},
    "recall": {"query": "violin"},
    "delete_messages": {"positions": [0]},
    "read_buffer": {},
    "read_contents": {},
    "search_buffer": {"query": "violin"},
    "rewind_session": {"to": 0},
    "truncate_session": {"keep": 0},
    "fork_session": {"session": "copy"},
    "list_remembered": {},
    "find_memory": {"key": "where"},
    "record": {"messages": [user("From another")]},
    "delete_memories": {"ids": [NO_MEMORY]},
    "prune_memories": {"keep": 0},
    "read_synopsis": {"refresh": True},
    "learn": {"texts": ["From another"]},
    "search_working": {"query": "violin"},
    **{
        f"{name}_of_{owner}": body
        for owner in ("session", "user")
        for name, body in (
            ("change_values", {"put": {"x": 1}, "delete": ["where"]}),
            ("read_values", {"keys": ["where"]}),
            ("set_value", {"value": "From another"}),
        )
    },
    "remember_shared": {"content": "From another"},
    "recall_shared": {"query": "violin"},
    "update_shared": {"content": "From another"},
    "delete_shared": {"ids": [NO_MEMORY]},
    "grant_right": {"to": "boss", "right": "own"},
    "revoke_right": {"to": "boss"},
    "retry_dead_letters": {},
    "drop_dead_letters": {"ids": ["flush-1-1"]},
    "remember": {"content": "From another"},
    "update_memory": {"content": "From another"},
}


Filled = tuple[Service, httpx.AsyncClient, httpx.AsyncClient, str, list[Any]]
REFUSED = {
    "InvalidInput",
    "NoSuchMemory",
    "NotFound",
    "NotGranted",
    "IndexOutOfRange",
    "NoDeadLetter",
}


async def call(
    client: httpx.AsyncClient, operation: Operation, memory: str = NO_MEMORY
) -> httpx.Response:
    names = {"user": "alice", "session": "chat", "scope": "team", "agent": "boss", "key": "where"}
    path = operation.path.format(memory=memory, **names)
    headers = {"idempotency-key": operation.name} if operation.keyed else {}
    body = BODIES.get(operation.name)
    if body is not None and body.get("ids") == [NO_MEMORY]:
        body = {"ids": [memory]}
    return await client.request(operation.method, path, json=body, headers=headers)


async def test_another_tenant_reads_and_changes_nothing(filled: Filled) -> None:
    """Whatever it asks for: it has nothing under these names, and is told nothing else."""
    service, shop, other, memory, before = filled
    assert str(before).count(SECRET) >= 6
    for operation in OPERATIONS:
        answer = await call(other, operation, memory)
        assert SECRET not in answer.text, operation
        if answer.status_code == 200:
            msgspec.json.decode(answer.content, type=operation.answers)
        else:
            problem = msgspec.json.decode(answer.content, type=Problem)
            assert problem.title in REFUSED, operation
            assert "shop" not in answer.text, operation
        await service.runtime.settle()
        assert await everything(shop) == before, operation


STORES = re.compile(
    r"append_messages|begin_turn|reply_to_turn|record|remember|learn|change_values_.*|set_value_.*"
)


async def test_what_stores_nothing_makes_no_user(tmp_path: Path) -> None:
    """A user who has nothing is in no listing, after any request that stores nothing."""
    config = Config.from_dict({"tokens": {"counter": "heuristic"}, "synopsis": {"shown": "always"}})
    async with serving(tmp_path, config=config) as service, client_of(service, "shop") as shop:
        for operation in OPERATIONS:
            if STORES.fullmatch(operation.name):
                continue
            answer = await call(shop, operation)
            assert answer.status_code in {200, 400, 403, 404}, operation
            await service.runtime.settle()
            assert (await shop.get("/v1/users")).json()["users"] == [], operation
        synopsis = await shop.post("/v1/users/alice/synopsis", json={})
        assert synopsis.json()["state"] == "empty"
        await say(shop, "Hello")
        synopsis = await shop.post("/v1/users/alice/synopsis", json={})
        assert synopsis.json()["state"] != "empty"


async def fill(client: httpx.AsyncClient) -> str:
    """Have a tenant store a secret wherever something can be stored; returns a memory's id."""
    await say(client, SECRET)
    content = {"content": f"Know that {SECRET}.", "key": "where"}
    stored = await client.post("/v1/users/alice/memories", json=content)
    for path in (CHAT, "/v1/users/alice"):
        assert (await client.put(f"{path}/state/where", json={"value": SECRET})).status_code == 200
    scope = "/v1/shared/team/as/boss"
    assert (await client.post(f"{scope}/claim")).status_code == 200
    shared = await client.post(f"{scope}/memories", json={"content": SECRET})
    assert shared.status_code == 200
    learned = {"texts": [SECRET]}
    assert (await client.post("/v1/users/alice/working", json=learned)).status_code == 200
    (memory,) = stored.json()["ids"]
    return str(memory)


async def everything(client: httpx.AsyncClient) -> list[Any]:
    """All of it, as the tenant reads it."""
    found = [
        (await client.get(path)).json()
        for path in (
            "/v1/users",
            f"{CHAT}/messages",
            f"{CHAT}/state",
            "/v1/users/alice/state",
            "/v1/users/alice/memories",
            "/v1/shared/team/as/boss/members",
            "/v1/shared/team/as/boss/memories",
        )
    ]
    working = {"query": SECRET}
    answer = await client.post("/v1/users/alice/working/search", json=working)
    return [*found, [one["text"] for one in answer.json()["items"]]]


_MEMORY = "<the other tenant's memory>"
_NAMES = f"""alice chat team boss where shop shop/alice ../shop/alice /alice shop/alice/chat ..
%2e%2e/shop shop%2Falice Shop/alice shop\\alice * {_MEMORY.replace(" ", "_")}"""
_names = st.sampled_from([one.replace("_", " ") for one in _NAMES.split()])


@st.composite
def _requests(draw: st.DrawFn) -> tuple[Operation, dict[str, str], Any, str]:
    """An operation, with any of these names in its path and wherever its body has a text."""
    operation = draw(st.sampled_from(OPERATIONS))
    fields = ("user", "session", "memory", "key", "scope", "agent")
    named = {field: draw(_names) for field in fields}
    body = BODIES.get(operation.name)
    if body is not None:
        body = {field: draw(_renamed(value)) for field, value in body.items()}
    return operation, named, body, draw(_names)


def _renamed(value: Any) -> st.SearchStrategy[Any]:
    if isinstance(value, str):
        return st.just(value) | _names
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return st.just(value) | st.lists(_names, min_size=1, max_size=3)
    return st.just(value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(request=_requests())
async def test_no_name_leads_to_another_tenant(
    filled: Filled,
    request: tuple[Operation, dict[str, str], Any, str],
) -> None:
    """Whatever a request of another tenant names, in its path, its body or its key."""
    service, shop, other, memory, before = filled
    operation, named, body, key = request
    path = operation.path.format(
        **{field: quote(one.replace(_MEMORY, memory), safe="") for field, one in named.items()}
    )
    given_body = json.loads(json.dumps(body).replace(_MEMORY, memory))
    headers = {"idempotency-key": key} if operation.keyed else {}
    answer = await other.request(operation.method, path, json=given_body, headers=headers)
    assert answer.status_code < 500
    assert SECRET not in answer.text
    await service.runtime.settle()
    assert await everything(shop) == before


@pytest.fixture
async def filled(service: Service, shop: httpx.AsyncClient) -> AsyncIterator[Filled]:
    """A tenant with a secret everywhere, another one, the id of a memory, and all that is there."""
    memory = await fill(shop)
    await service.runtime.settle()
    async with client_of(service, "other") as other:
        yield service, shop, other, memory, await everything(shop)


async def test_without_a_key_nothing_runs(service: Service, shop: httpx.AsyncClient) -> None:
    await say(shop, SECRET)
    async with client_of(service, None) as stranger, client_of(service, None) as wrong:
        wrong.headers["authorization"] = "Bearer remora_wrong"
        for operation in OPERATIONS:
            for client in (stranger, wrong):
                answer = await call(client, operation)
                refused(answer, 401, "KeyRefused")
                assert answer.headers["www-authenticate"] == "Bearer"
    assert await contents(service) == [SECRET]


async def test_a_file_of_keys_that_changes_while_it_is_used(
    service: Service, shop: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistake while it is edited locks nobody out: nonsense, no file, one that others may read,
    a pipe, which would stop the server that reads it. It is read again when it was mended, which
    may be by `chmod`, and that changes no time of its content.
    """
    assert (await shop.get("/v1/users")).status_code == 200
    file = service.file
    good = file.read_text()

    def make_readable() -> None:
        file.write_text("")
        file.chmod(0o644)

    def mend() -> None:
        file.unlink()
        file.touch(0o600)
        file.write_text(good)

    for damage, told in (
        (lambda: file.write_text("nonsense"), "keys_unreadable"),
        (file.unlink, "keys_unreadable"),
        (lambda: os.mkfifo(file, 0o600), "not a regular file"),
        (mend, ""),
        (make_readable, "keys_unreadable"),
    ):
        caplog.clear()
        damage()
        assert (await shop.get("/v1/users")).status_code == 200
        assert told in caplog.text
    file.chmod(0o600)
    refused(await shop.get("/v1/users"), 401, "KeyRefused")


def test_a_file_of_keys_in_a_secret_of_kubernetes(tmp_path: Path) -> None:
    """Its files are root's, and the account that runs the server reads them through its group. The
    same file is refused if its group may write, or others may read, or the account owns it.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root")
    require_interpreter_for_another()
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        file = Path(directory) / "keys.txt"
        add_key(file, "shop")
        Path(directory).chmod(0o755)
        program = "import sys, remora.rest.keys; print(remora.rest.keys.read_keys(sys.argv[1]))"
        program = program.replace("sys.argv[1]", "__import__('pathlib').Path(sys.argv[1])")

        def read(mode: int, owner: int) -> str:
            os.chown(file, owner, _GROUP)
            file.chmod(mode)
            command = [sys.executable, "-c", program, str(file)]
            done = subprocess.run(
                command, user=ANOTHER, group=ANOTHER, extra_groups=[_GROUP],
                capture_output=True, text=True, check=False, cwd="/",
            )  # fmt: skip
            return done.stdout or done.stderr

        assert "tenant='shop'" in read(0o440, 0)
        for mode, owner in ((0o460, 0), (0o444, 0), (0o442, 0), (0o440, ANOTHER)):
            assert "can be read or changed by other accounts" in read(mode, owner), (mode, owner)


def test_the_file_of_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.txt"
    assert main(["keys", str(file), "--add", "shop"]) == 0
    key = capsys.readouterr().out.strip()
    assert key not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert KeyFile(file).find_tenant(key) == "shop"
    assert KeyFile(file).find_tenant(key + "x") is None
    assert main(["keys", str(file)]) == 0
    name = capsys.readouterr().out.split()[0]
    assert main(["keys", str(file), "--remove", "nothing"]) == 1
    assert main(["keys", str(file), "--remove", name]) == 0
    assert read_keys(file) == []
    assert main(["keys", str(file), "--add", "a/b"]) == 1
    assert "letters, digits" in capsys.readouterr().err
    file.chmod(0o640)
    with pytest.raises(errors.InvalidInput, match="chmod 600"):
        read_keys(file)
    file.chmod(0o600)
    file.write_text("shop secret\n")
    with pytest.raises(errors.InvalidInput, match="line 1"):
        read_keys(file)


def test_keys_that_several_processes_add_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "shop")
    code = "import sys, pathlib; from remora.rest.keys import add_key\n"
    code += "for tenant in range(10): add_key(pathlib.Path(sys.argv[1]), f't{tenant}')"
    added = [subprocess.Popen(bound(sys.executable, "-c", code, file)) for _ in range(4)]
    assert [process.wait() for process in added] == [0] * 4
    assert len(read_keys(file)) == 41


def test_a_link_to_the_file_of_keys_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "secrets" / "keys.txt", tmp_path / "keys.txt"
    file.parent.mkdir()
    link.symlink_to(file)
    key = add_key(link, "shop")
    assert link.is_symlink()
    assert KeyFile(file).find_tenant(key) == "shop"
    remove_key(link, read_keys(link)[0].digest)
    assert link.is_symlink()
    assert read_keys(file) == []


def test_keys_in_no_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidInput, match="cannot be written: No such"):
        add_key(tmp_path / "nowhere" / "keys.txt", "shop")


async def test_a_tenant_that_asks_too_often(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with serving(tmp_path, RateLimit(2, clock)) as service:
        async with client_of(service, "shop") as shop, client_of(service, "other") as other:
            for _ in range(4):
                assert (await shop.get("/v1/users")).status_code == 200
            refused(await shop.get("/v1/users"), 429, "RateLimited")
            assert (await other.get("/v1/users")).status_code == 200
            await clock.advance(0.5)
            assert (await shop.get("/v1/users")).status_code == 200


async def test_an_address_that_asks_too_often_without_a_key(tmp_path: Path) -> None:
    """It keeps nobody with a key out, nor probes: they may share the address of a proxy."""
    async with serving(tmp_path, keyless_rate=0.001) as service:
        async with client_of(service, "shop") as shop, client_of(service, None) as stranger:
            refused(await stranger.get("/v1/users"), 401, "KeyRefused")
            answer = await stranger.get("/v1/users")
            assert refused(answer, 429, "RateLimited").retry
            assert int(answer.headers["retry-after"]) > 1
            assert answer.headers["connection"] == "close"
            stranger.headers["authorization"] = "Bearer remora_wrong"
            refused(await stranger.get("/v1/users/alice/sessions/chat/events"), 429, "RateLimited")
            refused(await stranger.get("/openapi.json"), 429, "RateLimited")
            assert (await stranger.get("/healthz")).status_code == 200
            assert (await shop.get("/v1/users")).status_code == 200


async def test_many_addresses_take_bounded_memory() -> None:
    limit = AddressLimit(1, VirtualClock())
    refusals = 0
    for number in range(20_000):
        try:
            limit.take(f"10.0.{number >> 8}.{number & 255}")
        except errors.RateLimited:
            refusals += 1
    assert refusals > 0, "they share places"


async def test_addresses_that_are_one_customers() -> None:
    for own in (
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9"),
        ("192.0.2.7", "::ffff:192.0.2.7"),
        ("unix", "unix"),
    ):
        limit = AddressLimit(0.5, VirtualClock())
        limit.take(own[0])
        with pytest.raises(errors.RateLimited):
            limit.take(own[1])


# -- bad requests ----------------------------------------------------------------------------------


def body_of(text: str) -> bytes:
    """An append with this JSON as a message's content."""
    return f'{{"messages": [{{"role": "user", "content": {text}}}]}}'.encode("latin-1")


BAD: tuple[tuple[str, str, dict[str, Any], int, str], ...] = (
    ("GET", "/v2", {}, 404, "NotFound"),
    ("PUT", f"{CHAT}/messages", {}, 405, "MethodNotAllowed"),
    ("POST", "/healthz", {}, 405, "MethodNotAllowed"),
    ("POST", f"{CHAT}/messages", {"content": b"x"}, 415, "UnsupportedMediaType"),
    ("POST", f"{CHAT}/messages", {"json": {"messages": []}}, 400, "InvalidRequest"),
    ("POST", f"{CHAT}/messages", {"json": {"message": []}}, 400, "InvalidRequest"),
    ("POST", f"{CHAT}/messages", {"json": {"messages": [{"role": "x"}]}}, 400, "InvalidMessage"),
    ("POST", f"{CHAT}/turns", {"json": {"message": "x"}}, 400, "InvalidRequest"),
    ("POST", f"{CHAT}/rewind", {}, 400, "InvalidRequest"),
    ("GET", f"{CHAT}/messages?limit=1&limit=2", {}, 400, "InvalidRequest"),
    ("GET", f"{CHAT}/messages?limit=5000", {}, 400, "InvalidRequest"),
    ("GET", f"{CHAT}/messages?limits=5", {}, 400, "InvalidRequest"),
    ("GET", "/v1/users?order=newest&after=nonsense", {}, 400, "InvalidInput"),
    ("GET", "/v1/users/%FF/sessions", {}, 400, "InvalidRequest"),
    ("GET", "/v1/users/a%0Ab/sessions", {}, 400, "InvalidId"),
    ("GET", "/v1/users//sessions", {}, 400, "InvalidId"),
)
NO_JSON = (
    b"[" * 100_000,
    b'{"messages": [{"role": "user", "content": "x", "more": ' + b"[" * 5_000 + b"]" * 5_000,
    body_of('"\xff"'),
    body_of("\xff"),
    body_of("{"),
    body_of("NaN"),
)
"""What no parser takes: some of it is deep, or no UTF-8."""


async def test_bad_requests(
    service: Service, shop: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A problem says which kind of mistake it is; nothing is written, nor told to the log."""
    for method, path, options, status, title in BAD:
        answer = await shop.request(method, path, **options)
        assert (answer.status_code, path) == (status, path)
        refused(answer, status, title)
    for content in NO_JSON:
        answer = await shop.post(f"{CHAT}/messages", content=content, headers=JSON)
        refused(answer, 400, "InvalidRequest")
    body = {"text": "Alice plays the violin."}
    problem = refused(await shop.post("/v1/users/alice/memories", json=body), 400, "InvalidRequest")
    assert "takes content, type" in problem.detail
    assert "rest_failed" not in caplog.text
    assert await contents(service) == []
    # where all of a body has a default, it may be left out
    assert (await shop.post("/v1/users/alice/synopsis")).status_code == 200


async def test_what_a_client_sent_is_not_sent_back_whole(shop: httpx.AsyncClient) -> None:
    """An error does not quote what is too long, names one id of many, and says what to do."""
    long = "x" * 60_000
    jobs, memories = "/v1/dead-letters", "/v1/users/alice/memories"
    ids, many = {"ids": [long]}, {"ids": [f"flush-{number}" for number in range(40)]}
    await say(shop, "Hello")
    found = [
        (await shop.post(f"{jobs}/retry", json=ids), 400, "InvalidId", "at most 512"),
        (await shop.post(f"{jobs}/drop", json=ids), 400, "InvalidId", "at most 512"),
        (await shop.post(f"{jobs}/retry", json=many), 404, "NoDeadLetter", "nor 39 others"),
        (await shop.post(f"{memories}/delete", json=ids), 400, "InvalidId", "at most 512"),
        (await shop.patch(f"{memories}/{long}", json={"content": ""}), 400, "InvalidId", "512"),
        (await shop.post(f"{CHAT}/context", json={long: 1}), 400, "InvalidRequest", "unknown"),
        (await shop.put(f"/v1/users/alice/state/{long}", json={"value": 1}), 400, "InvalidId", ""),
    ]
    for answer, status, title, words in found:
        problem = refused(answer, status, title)
        assert words in problem.detail
        assert len(problem.detail) <= 1_001
        assert long not in answer.text


async def test_whatever_is_stored_can_be_read_again(shop: httpx.AsyncClient) -> None:
    """Of JSON that some parsers take, and others do not."""
    stored = 0
    for text in ('"\\ud800"', '"a\\u0000b"', "1e999"):
        answer = await shop.post(f"{CHAT}/messages", content=body_of(text), headers=JSON)
        assert answer.status_code in {200, 400}
        stored += answer.status_code == 200
        page = await shop.get(f"{CHAT}/messages")
        assert page.status_code == 200
        assert len(page.json()["messages"]) == stored


async def test_half_of_a_surrogate_pair(service: Service, shop: httpx.AsyncClient) -> None:
    """In a text it is replaced. In an id or a name it is refused: the problem says what is wrong,
    and where, also at the end of a body.
    """
    escapes = ("\\ud800", "\\udc00", "\\ud83d\\ud83d", "\\\\\\ud800")
    texts = [f"{one}{rest}" for one in escapes for rest in ("", " and a text that goes on")]
    for text in texts:
        for path, body in (
            (
                f"{CHAT}/messages",
                f'{{"messages": [{{"role": "user", "content": "", "id": "{text}"}}]}}',
            ),
            (f"{CHAT}/state", f'{{"put": {{"{text}": 1}}}}'),
        ):
            answer = await shop.post(path, content=body, headers=JSON)
            detail = refused(answer, 400, "InvalidRequest").detail
            assert re.search(r"surrogate pair \(near byte \d+ of the body\)", detail), body
    body = '{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}]'
    answer = await shop.post(f"{CHAT}/messages", content=body, headers=JSON)
    assert "surrogate" not in refused(answer, 400, "InvalidRequest").detail
    assert await contents(service) == []
    for text in texts:
        for path, body in (
            (f"{CHAT}/messages", f'{{"messages": [{{"role": "user", "content": "{text}"}}]}}'),
            ("/v1/users/alice/memories", f'{{"content": ["{text}"]}}'),
        ):
            answer = await shop.post(path, content=body, headers=JSON)
            assert answer.status_code == 200, body
    stored = await contents(service)
    assert len(stored) == len(texts)
    assert all("\ufffd" in one for one in stored)


async def test_a_header_that_is_given_twice(service: Service, shop: httpx.AsyncClient) -> None:
    """What a proxy has checked must be what counts."""
    given = {
        "authorization": shop.headers["authorization"],
        "idempotency-key": "k1",
        "content-type": "application/json",
    }
    del shop.headers["authorization"]
    body = json.dumps({"messages": [user("Hello")]})
    for name in given:
        other = f"Bearer {service.key('other')}" if name == "authorization" else "k2"
        headers = [*given.items(), (name, other)]
        answer = await shop.post(f"{CHAT}/messages", content=body, headers=headers)
        assert "twice" in refused(answer, 400, "InvalidRequest").detail, name
    assert await contents(service) == []


async def test_a_body_that_is_too_long(tmp_path: Path) -> None:
    async with serving(tmp_path, body=1000) as service:
        async with client_of(service, "shop") as shop:
            body = json.dumps({"messages": [user("x" * 1000)]}).encode()
            answer = await shop.post(f"{CHAT}/messages", content=body, headers=JSON)
            refused(answer, 413, "TooLong")

            async def parts() -> AsyncIterator[bytes]:
                for at in range(0, len(body), 100):
                    yield body[at : at + 100]

            answer = await shop.post(f"{CHAT}/messages", content=parts(), headers=JSON)
            refused(answer, 413, "TooLong")
        assert await contents(service) == []


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = """messages message reply query content max_tokens at stored limit metadata importance
type session key role recall replace ids positions texts keys put value to right agent types where
order prefix version versions delete override by wait strategy keep"""
_fields = st.sampled_from(_FIELDS.split())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    operation=st.sampled_from(OPERATIONS),
    body=st.dictionaries(_fields, _json | st.lists(st.fixed_dictionaries({"role": _json}))) | _json,
    name=st.text(min_size=1, max_size=20),
    key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=10),
)
async def test_no_request_makes_the_server_fail(
    shop: httpx.AsyncClient, operation: Operation, body: Any, name: str, key: str
) -> None:
    name = quote(name.encode("utf-8", "surrogatepass"), safe="")
    named = dict.fromkeys(("user", "session", "memory", "key", "scope", "agent"), name)
    path = operation.path.format(**named)
    headers = {"idempotency-key": key} if operation.keyed else {}
    answer = await shop.request(operation.method, path, json=body, headers=headers)
    assert answer.status_code < 500, answer.text
    kind = operation.answers if answer.status_code == 200 else Problem
    msgspec.json.decode(answer.content, type=kind)


def test_errors_are_answered_as_the_example_answers_them() -> None:
    for name, answered in SERVER_ANSWERS.items():
        refusal = describe(error_named(name))
        assert (refusal.status, refusal.wait_s is not None) == answered, name
        clients_own = refusal.status < 500 or name == "ConfigError"
        assert (refusal.detail == "what went wrong") == clients_own, name
        assert refusal.detail


class Away(HashEmbedder):
    """An embedder whose errors name what is the server's own."""

    async def embed(self, texts: Any) -> Any:
        raise ConnectionError("https://inner.example/embed refused the key")


async def test_why_a_tier_failed_is_told_to_the_log_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, embedder=Away()) as service, client_of(service, "shop") as shop:
        await say(shop, "hello")
        answer = await shop.post(f"{CHAT}/context", json={"query": "hello"})
    sources = answer.json()["sources"]
    assert sources["long_term"]["status"] == "failed"
    assert "log" in sources["long_term"]["detail"]
    assert sources["recent"]["status"] == "ok"
    assert "inner.example" not in answer.text
    assert "inner.example" in caplog.text


def test_how_the_server_failed_is_told_to_its_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the owner's log may name other tenants' users."""
    text = "no owner of /srv/memory could be started; the end of its log:\nuser='other/bob' failed"
    error = errors.OwnerFailed(text, log=text)
    refusal = describe(error)
    assert "log" in refusal.detail
    assert not {"srv", "bob"} & set(re.findall(r"\w+", f"{refusal.detail} {refusal.attributes}"))
    FailureLog(lambda: 0.0).fail(error)
    assert "/srv/memory" in caplog.text


async def test_a_memory_that_is_away_is_logged_once_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its requests may be thousands a second."""
    caplog.set_level("INFO", "remora")
    clock = VirtualClock()
    log = FailureLog(clock.monotonic)
    log.succeed()
    for _ in range(3):
        for error in (errors.OwnerUnreachable("no owner"), errors.InvalidInput("the client's own")):
            log.fail(error)
        await clock.advance(59)
    log.succeed("long_term")
    log.succeed()
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["event=rest_unavailable"] * 2 + ["event=rest_available"]
    assert "failures=3" in caplog.text


async def test_the_log_of_a_server_whose_memory_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as service, client_of(service, "shop") as shop:
        await service.runtime.aclose()
        for _ in range(20):
            refused(await shop.get("/v1/users"), 503, "RuntimeClosed")
    assert caplog.text.count("rest_unavailable") == 1


# -- health and the description --------------------------------------------------------------------


async def test_probes_and_the_description_need_no_key(service: Service) -> None:
    """The description names every operation, and refers to nothing that it does not have."""
    await service.runtime.ready()
    async with client_of(service, None) as stranger:
        for path in ("/healthz", "/readyz"):
            assert (await stranger.get(path)).status_code == 200
        description = (await stranger.get("/openapi.json")).json()
    described = {
        (method.upper(), path)
        for path, methods in description["paths"].items()
        for method in methods
    }
    assert described == {(one.method, one.path) for one in OPERATIONS} | {("GET", EVENTS.path)}
    used = set(_references(description["paths"]))
    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert used <= known
    assert set(_references(description["components"])) <= known


def _references(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if isinstance(tree.get("$ref"), str):
            yield tree["$ref"]
        for value in tree.values():
            yield from _references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _references(value)


# -- the command -----------------------------------------------------------------------------------


def test_a_server_that_cannot_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    memory, keys = str(tmp_path / "memory"), tmp_path / "keys.txt"
    assert main(["http", memory, "--keys", str(keys)]) == 1
    assert "remora keys FILE --add TENANT" in " ".join(capsys.readouterr().err.split())
    add_key(keys, "shop")
    with pytest.raises(SystemExit):
        main(["http", memory, "--keys", str(keys), "--port", "99999"])
    assert "the highest is 65535" in " ".join(capsys.readouterr().err.split())
    assert main(["http", memory, "--keys", str(keys), "--rate", "-1"]) == 1
    assert "--rate" in capsys.readouterr().err
    assert main(["http", memory, "--keys", str(keys), "--timeout", "0"]) == 1
    assert "--timeout" in capsys.readouterr().err


def test_connections_send_each_write_at_once() -> None:
    """Otherwise each answer, which is two writes, waits 40 ms for an acknowledgement."""
    with listen_tcp("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
