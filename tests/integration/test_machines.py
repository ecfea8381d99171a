"""Several machines: owners that wait for the lease, and workers that find them over TCP.

What happens when an owner is killed, stopped or told to leave is in `test_failures`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import remora
from remora.cluster.machines import Address, Machines, parse_address, read_machines
from remora.cluster.remote import RemoteMemory
from remora.cluster.target import read_target
from remora.cluster.tcp import RemoteOwner, TcpListener
from remora.config import Config
from remora.errors import ConfigError, InvalidInput, OwnershipLost, OwnerUnreachable
from remora.testing import HashEmbedder
from tests.harness import user
from tests.machines import SECRET, Machine, owner_after, running_owner, write_certificate
from tests.patience import until
from tests.postgres import Cluster
from tests.processes import stop
from tests.programs import run_command_aside
from tests.workers import OWNERS

pytestmark = [pytest.mark.anyio, *OWNERS]


def machines_of(machine: Machine) -> Machines:
    found = read_machines(read_target(machine.file).config)
    assert found is not None
    return found


async def say(memory: Any, number: int) -> None:
    await memory.session("alice", "chat").append(
        {"role": "user", "content": str(number)}, key=f"k{number}"
    )


async def heard(memory: Any) -> list[str]:
    history = await memory.session("alice", "chat").history()
    return [str(one.content) for one in history]


# -- an owner that goes ----------------------------------------------------------------------------


async def test_a_worker_that_knows_the_former_owner_only(cluster: Cluster, tmp_path: Path) -> None:
    """G2: its requests to an owner that stood still get no answer from before."""
    one, two = (
        Machine(tmp_path / name, cluster.dsn(), "unaware", lease_s=2) for name in ("one", "two")
    )
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_owner(one))
        found = await owner_after(cluster, "unaware", 0)
        address = parse_address(found.address, "address")

        async def dial() -> RemoteOwner:
            return RemoteOwner(machines_of(one), address, found.epoch)

        target = read_target(one.file)
        unaware = RemoteMemory([target.runtime], dial, shares_files=False)
        (shard,) = await unaware.open()
        stack.push_async_callback(unaware.aclose)
        chat = shard.session("alice", "chat")

        async def appended() -> bool:
            with suppress(OwnerUnreachable, OwnershipLost):  # of a lease that it renews late
                await chat.append({"role": "user", "content": "0"}, key="0")
                return True
            return False

        await until(appended, "an append")
        await anyio.to_thread.run_sync(stop, first.pid)
        await stack.enter_async_context(running_owner(two))
        memory = await stack.enter_async_context(remora.connect(two.file))
        await say(memory, 1)
        answers: list[object] = []

        async def load() -> None:
            try:
                answers.append((await chat.load()).messages)
            except (OwnerUnreachable, OwnershipLost) as e:
                answers.append(type(e).__name__)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(load)
            await anyio.wait_all_tasks_blocked()
            os.kill(first.pid, signal.SIGCONT)
            await until(lambda: answers, "an answer")
            tasks.cancel_scope.cancel()
        assert set(map(str, answers)) <= {"OwnerUnreachable", "OwnershipLost"}, answers
        assert await heard(memory) == ["0", "1"]


async def test_a_node_without_shards_that_is_told_to_stop(cluster: Cluster, tmp_path: Path) -> None:
    """G12: it ends in order; the other goes on."""
    one, two = (Machine(tmp_path / name, cluster.dsn(), "idle") for name in ("one", "two"))
    async with running_owner(one) as first, running_owner(two) as second:
        await first.said("node_joined")
        await second.said("node_joined")
        found = await owner_after(cluster, "idle", 0)
        idle = second if found.owner.endswith(f":{first.pid}") else first
        os.kill(idle.pid, signal.SIGTERM)
        assert await idle.ended() == 0
        async with remora.connect(one.file) as memory:
            await say(memory, 1)
            assert await heard(memory) == ["1"]


async def test_people_and_workers_of_an_owner(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3.26: `remora owners` of the configuration; files of the owner's machine are refused, and
    commands that are given the node's directory say where the memory is.
    """
    one = Machine(tmp_path / "one", cluster.dsn(), "people", more="shards: 2")
    async with running_owner(one) as owner:
        await owner.said("shard_served", 2)
        assert await run_command_aside("owners", one.file) == 0
        shown = capsys.readouterr().out
        assert f":{owner.pid} " in shown
        assert "127.0.0.1:" in shown
        for command in (["stats"], ["jobs"], ["verify"], ["forget", "alice", "--yes"]):
            words = [*command, "--dir", str(tmp_path / "one" / "memory")]
            assert await run_command_aside(*words) in {1, 2}
            told = " ".join(capsys.readouterr().err.split())
            assert "with journal.dsn it is in PostgreSQL" in told, command
            assert "backup" not in told, command
        async with remora.connect(one.file) as memory:
            with pytest.raises(InvalidInput, match="whose files are others"):
                await memory.export(tmp_path / "all")
        assert not await anyio.Path(tmp_path / "all").exists()


async def test_commands_ask_the_owners(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4.36: users, sessions, messages, figures, dead letters and erasure of a memory in
    PostgreSQL, while a node serves it; a user's page goes on behind its cursor.
    """
    one = Machine(tmp_path / "one", cluster.dsn(), "asked", more="shards: 2")

    async def run(*words: str) -> str:
        code = await run_command_aside(*words, "--config", one.file)
        said = capsys.readouterr()
        return said.out if code == 0 else f"{code}: {' '.join(said.err.split())}"

    async def lines(*words: str) -> list[Any]:
        return [msgspec.json.decode(line) for line in (await run(*words, "--json")).splitlines()]

    async with running_owner(one) as owner:
        await owner.said("shard_served", 2)
        async with remora.connect(one.file) as memory:
            for name in ("alice", "bob", "carol"):
                for chat in ("one", "two"):
                    await memory.session(name, chat).append(user(f"{name} in {chat}"))
        first = await lines("users", "--order", "name", "-n", "2")
        assert [line["user"] for line in first] == ["alice", "bob"]
        rest = await lines("users", "--order", "name", "--after", first[-1]["cursor"])
        assert [line["user"] for line in rest] == ["carol"]
        assert {line["session"] for line in await lines("sessions", "bob")} == {"one", "two"}
        (shown,) = await lines("show", "bob", "two")
        assert [message["content"] for message in shown["messages"]] == ["bob in two"]
        assert "bob has: two, one" in await run("show", "bob", "tow")
        (figures,) = await lines("stats")
        assert (figures["users"], figures["messages"], figures["shards"]) == (3, 6, "2")
        assert "the schema asked in PostgreSQL" in await run("stats")
        (of_bob,) = await lines("stats", "bob")
        assert of_bob["messages"] == 2
        assert "no dead letters" in await run("jobs")
        assert "there are no dead letters" in await run("jobs", "retry", "--all")
        assert "there is no dead letter" in await run("jobs", "drop", "0-flush-1-1", "--yes")
        assert "is erased: " in await run("forget", "bob", "--yes")
        assert [line["user"] for line in await lines("users", "--order", "name")] == [
            "alice",
            "carol",
        ]
        assert "there is no user bob" in await run("stats", "bob")
        assert "leave out --dir" in await run("users", "--dir", str(tmp_path / "one" / "memory"))


def refuse_zebra(text: str) -> str:
    if "zebra" in text:
        raise ValueError("no")
    return text


async def test_dead_letters_of_a_memory_in_postgresql(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S4.36: `remora jobs` lists, retries and drops them while a node serves the memory."""
    one = Machine(tmp_path / "one", cluster.dsn(), "letters")
    tree = {
        "journal": {"dsn": cluster.dsn(), "schema": "letters", "durability": "process"},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_attempts": 1, "jitter": 0.0},
    }
    async with remora.Runtime(
        tmp_path / "before",
        config=Config.from_dict(tree),
        embedder=HashEmbedder(),
        redact_long_term=refuse_zebra,
    ) as runtime:
        for name in ("alice", "bob"):
            session = runtime.session(name, "chat")
            await session.append(user("a zebra"))
            await session.flush()
            await session.settle()
        assert len(await runtime.dead_letters()) == 2

    async def run(*words: str) -> str:
        await run_command_aside("jobs", *words, "--config", one.file)
        said = capsys.readouterr()
        return said.out + said.err

    async with running_owner(one) as owner:
        await owner.said("shard_served")
        dead = [msgspec.json.decode(line) for line in (await run("--json")).splitlines()]
        assert {line["user"] for line in dead} == {"alice", "bob"}
        of_alice, of_bob = (
            next(line["id"] for line in dead if line["user"] == name) for name in ("alice", "bob")
        )
        assert of_bob not in await run("--dead", "--user", "alice")
        assert "confirm with --yes" in " ".join((await run("drop", of_alice)).split())
        assert "1 dead letter dropped" in await run("drop", of_alice, "--yes")
        assert "1 dead letter will run again" in await run("retry", "--all")
        assert of_alice not in await run("--json")


# -- who may connect -------------------------------------------------------------------------------


async def test_tls_and_the_secret(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: an encrypted connection serves, on loopback also who knows of no certificate; another
    secret, none, garbage, and somebody in between with a certificate of his own get nothing.
    """
    more = await write_certificate(tmp_path)
    one = Machine(tmp_path / "one", cluster.dsn(), "tls", more=more)
    plain = Machine(tmp_path / "plain", cluster.dsn(), "tls")
    strangers = [
        Machine(tmp_path / name, cluster.dsn(), "tls", secret="x" * 40, more=keys)
        for name, keys in (("two", more), ("three", ""))
    ]
    async with running_owner(one) as owner:
        await owner.said("shard_served")
        async with remora.connect(one.file) as memory:
            await say(memory, 1)
        async with remora.connect(plain.file) as memory:
            assert await heard(memory) == ["1"]
        for stranger in strangers:
            with pytest.raises(ConfigError, match=r"cluster\.secret must be the same on all"):
                async with remora.connect(stranger.file):
                    pass
        found = await owner_after(cluster, "tls", 0)
        address = parse_address(found.address, "address")
        await knock(address, b"GET / HTTP/1.1\r\n\r\n", encrypted=False)
        await knock(address, b"x" * 64, encrypted=True)
        await knock(address, b"x" * 100_000, encrypted=True)
        await knock(address, b"", encrypted=True)  # it waits no longer for a proof
        await owner.said("another secret")
        other = tmp_path / "other"
        other.mkdir()
        await write_certificate(other)
        await between(machines_of(one), address, other)
        async with remora.connect(one.file) as memory:
            assert await heard(memory) == ["1"]


def anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def knock(address: Address, data: bytes, *, encrypted: bool) -> None:
    """Say something to an owner: the connection ends, and it has said a nonce and no more."""
    context = anybody() if encrypted else None
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)
    answer = b""
    try:
        writer.write(data)
        answer = await reader.read(1 << 20)
        while more := await reader.read(1 << 20):
            answer += more
    except OSError:
        pass
    finally:
        writer.close()
    if encrypted:
        assert answer[:8] in {b"", b"remora1\0"}  # what is reset loses what was on its way
        assert len(answer) <= 40 + 33
        assert answer[40:] in {b"", bytes(33)}


async def between(machines: Machines, address: Address, certificate: Path) -> None:
    """Somebody who forwards everything, and decrypts it with a certificate of his own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(address.host, address.port, ssl=anybody())

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(1 << 16):
                    sink.write(data)
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(copy(reader, ours), copy(theirs, writer))
        for end in (ours, writer):
            end.transport.abort()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        owner = RemoteOwner(machines, Address("127.0.0.1", port), 1)
        with pytest.raises(ConfigError, match=r"cluster\.secret"):
            await owner.connect(asyncio.Protocol())
        await ended.wait()
        await asyncio.sleep(0)  # the connections are closed by then


class Open(asyncio.Protocol):
    """The end of a connection, which says nothing."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def connection_made(self, transport: Any) -> None:
        self.made.append(transport)


@pytest.mark.parametrize("encrypted", [False, True])
async def test_connections_that_say_nothing_keep_nobody_out(
    *, encrypted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S3.26: one more than may have proved nothing ends the oldest of them, and a worker that knows
    the secret comes in all the same; hundreds that are refused are a few lines of the log.
    """
    more = await write_certificate(tmp_path) if encrypted else ""
    machines = machines_of(Machine(tmp_path / "one", "postgresql://nowhere/none", "x", more=more))
    listener = await anyio.to_thread.run_sync(TcpListener, machines)
    accepted, came_in = Open(), Open()
    accepting = asyncio.ensure_future(listener.accept(lambda: accepted))
    silent = []
    try:
        address = listener.address
        silent += [  # each with the handshake of TCP alone
            await asyncio.open_connection(address.host, address.port) for _ in range(200)
        ]
        await RemoteOwner(machines, address, 1).connect(came_in)
        await silent[0][0].read()  # that one has ended
    finally:
        for transport in (
            *(writer.transport for _, writer in silent),
            *accepted.made,
            *came_in.made,
        ):
            transport.abort()
        accepting.cancel()
        await asyncio.gather(accepting, return_exceptions=True)
        await anyio.to_thread.run_sync(listener.close)
    assert 1 <= caplog.text.count("worker_refused") <= 4


async def test_an_owner_that_knows_no_secret(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: a process that says yes and proves nothing gets no message."""
    got = b""
    ended = asyncio.Event()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        writer.write(b"remora1\0" + bytes(32))
        await reader.readexactly(64)
        writer.write(b"\1" + bytes(32))
        with suppress(ConnectionError):  # it closed the connection
            got = await reader.read()
        writer.transport.abort()
        ended.set()

    machine = Machine(tmp_path / "one", cluster.dsn(), "pretended")
    async with await asyncio.start_server(pretend, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        owner = RemoteOwner(machines_of(machine), Address("127.0.0.1", port), 1)
        with pytest.raises(ConfigError, match="does not prove that it knows"):
            await owner.connect(asyncio.Protocol())
        await ended.wait()
        await asyncio.sleep(0)  # the connection is closed by then
    assert got == b""


# -- what is refused -------------------------------------------------------------------------------


def test_configurations_that_cannot_work(tmp_path: Path) -> None:
    """S3.26: refused when a worker or an owner starts; the text says what to do."""
    wrong: tuple[tuple[dict[str, dict[str, object]], str], ...] = (
        ({"cluster": {"listen": "127.0.0.1:1"}, "journal": {}}, "set journal.dsn"),
        ({"cluster": {"secret": "short"}}, "openssl rand -hex 32"),
        ({"cluster": {"standby": True}}, "start `remora serve` on a second one"),
        ({"long_term": {"enabled": True}}, "object store"),
        ({"cluster": {"listen": "10.0.0.5:7731"}}, "certificate and cluster.key are needed"),
        ({"cluster": {"listen": "127.0.0.1:1", "address": "db:7731"}}, "are needed"),
        ({"cluster": {"listen": "0.0.0.0:7731"}}, "say in cluster.address"),
        ({"cluster": {"listen": "7731"}}, "must be like 10.0.0.5:7731"),
        ({"cluster": {"listen": "a:99999"}}, "there is no port 99999: the highest is 65535"),
        ({"cluster": {"certificate": "cert.pem"}}, "go together"),
    )
    for tree, text in wrong:
        whole = {
            "directory": str(tmp_path),
            "journal": tree.get("journal", {"dsn": "postgresql://x@/y"}),
            "long_term": tree.get("long_term", {"enabled": False}),
            "cluster": {"secret": SECRET, **tree.get("cluster", {})},
        }
        with pytest.raises(ConfigError) as refused:
            read_machines(remora.Config.from_dict(whole))
        assert text in str(refused.value)
        assert SECRET not in str(refused.value)


async def test_owners_that_cannot_start(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: no address to listen on, one that is not this machine's, no such certificate, and a
    directory that has a journal of its own.
    """
    for number, (said, more) in enumerate(
        {
            "cluster.listen must say where": 'listen: ""',
            "cannot be listened on": 'listen: "192.0.2.1:7731", certificate: c, key: k',
            "openssl req -x509": 'certificate: "/nowhere/c", key: "/nowhere/k"',
        }.items()
    ):
        machine = Machine(tmp_path / str(number), cluster.dsn(), "never")
        text = machine.file.read_text()
        if "listen" in more:
            text = text.replace('listen: "127.0.0.1:0"', more)
        else:
            text = text.replace("silent_s: 600", f"silent_s: 600, {more}")
        if "192" in more:
            keys = await write_certificate(tmp_path)
            text = text.replace("certificate: c, key: k", keys)
        machine.file.write_text(text)
        async with running_owner(machine) as owner:
            assert await owner.ended() == 1
            assert said in machine.log.read_text().replace("\n", " ")
    machine = Machine(tmp_path / "own", cluster.dsn(), "never")
    async with remora.Runtime(
        tmp_path / "own" / "memory",
        config=remora.Config.from_dict({"long_term": {"enabled": False}}),
    ):
        pass
    async with running_owner(machine) as owner:
        assert await owner.ended() == 1
        assert "has a journal of its own" in machine.log.read_text().replace("\n", " ")
