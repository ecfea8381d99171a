"""A whole runtime over a journal in PostgreSQL: connections that break, earlier formats, and what
is refused.
"""

from __future__ import annotations

import math
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import asyncpg
import pytest

from remora import Config, Message, Receipt, Runtime, Session
from remora.errors import (
    CommitFailed,
    ConfigError,
    InvalidInput,
    JournalTooNew,
    OutcomeUnknown,
    OwnerUnreachable,
    SessionBusy,
    StorageError,
)
from remora.storage.journal_port import running_journal
from remora.storage.postgres import PostgresJournal
from remora.storage.postgres.cluster import read_owner
from remora.storage.postgres.connection import Address
from remora.storage.postgres.opening import check_server, open_error
from remora.storage.postgres.schema import FORMAT, MIGRATIONS
from remora.testing import HashEmbedder
from tests.patience import until
from tests.postgres import Cluster, open_journal, running_cluster
from tests.postgres.pooler import running_pooler
from tests.postgres.proxy import running_proxy
from tests.programs import run_command

pytestmark = pytest.mark.anyio
_TEXT = "the one whose connection breaks"
_GOLDEN = Path(__file__).parents[1] / "golden"
_DUMPS = [_GOLDEN / f"postgres-{number}.sql" for number in MIGRATIONS if number]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def durable() -> Iterator[Cluster]:
    with running_cluster(fsync="on") as found:
        yield found


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def test_a_runtime_goes_on_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: append, load, a turn, clear, recall, forget, over several starts."""
    opened = partial(open_journal, cluster.dsn(), "story")
    memory = partial(Runtime, tmp_path / "m", journal=opened, embedder=HashEmbedder())
    async with memory() as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append({"role": "user", "content": "My cat is called Figaro."}, key="k")
        await chat.flush()
        await chat.settle()
        await runtime.session("alice", "cleared").append({"role": "user", "content": "old"})
        assert await runtime.session("alice", "cleared").clear() == 1
        await runtime.session("bob", "chat").append({"role": "user", "content": "stays"})
        with pytest.raises(InvalidInput, match="pg_basebackup"):
            await runtime.backup(tmp_path / "copy")
    async with memory() as runtime:
        chat = runtime.session("alice", "chat")
        again = await chat.append({"role": "user", "content": "My cat is called Figaro."}, key="k")
        assert again.duplicate
        (message,) = (await chat.load()).messages
        assert message["content"] == "My cat is called Figaro."
        assert await runtime.session("alice", "cleared").size() == 0
        assert len(await runtime.session("alice", "cleared").history()) == 1
        found = await runtime.user("alice").recall("What is the cat called?")
        assert "Figaro" in found[0].text
        await runtime.user("alice").forget()
        assert await runtime.user("alice").sessions() == []
    async with memory() as runtime:
        assert await runtime.session("alice", "chat").history() == []
        assert len(await runtime.session("bob", "chat").history()) == 1
    async with connected(cluster.dsn()) as connection:
        assert await connection.fetchval("SELECT count(*) FROM story.messages") == 1


async def test_one_message_is_deleted(cluster: Cluster, tmp_path: Path) -> None:
    """No row has what it said, and no summary of earlier; by an id of its own as well."""
    config = Config.from_dict({"buffer": {"token_limit": 400}, "tokens": {"counter": "heuristic"}})
    opened = partial(open_journal, cluster.dsn(), "deleted")
    memory = partial(Runtime, tmp_path / "m", config=config, journal=opened)
    async with memory(embedder=HashEmbedder()) as runtime:
        alice, chat = runtime.user("alice"), runtime.session("alice", "chat")
        await runtime.ready()
        for number in range(60):
            said: dict[str, Any] = {"role": "user", "content": f"Word qzvkpin{number}x."}
            await chat.append({**said, "id": "own"} if number == 3 else said)
        await chat.settle()
        (found, *_) = await alice.recall("qzvkpin2x")
        assert found.id == (await chat.history())[2].id
        assert (await alice.delete([found, "own"])).deleted == 2
        assert len(await chat.history()) == 58
        await chat.settle()
        context = await chat.load(max_tokens=4_000)
        assert "qzvkpin2x" not in str(context.messages)
        assert await runtime.retry_erasures() == []
        await runtime.settle()
        async with connected(cluster.dsn()) as connection:
            for table, column in (
                ("messages", "chat"),
                ("summaries", "text"),
                ("summaries", "cover"),
            ):
                rows = await connection.fetch(f'SELECT {column} FROM "deleted".{table}')
                for word in (b"qzvkpin2x", b"qzvkpin3x"):
                    assert not any(word in (row[0] or b"") for row in rows), (table, column)
    async with memory(embedder=HashEmbedder()) as runtime:
        assert len(await runtime.session("alice", "chat").history()) == 58


async def test_a_server_that_crashes_under_load(
    durable: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """G3: PostgreSQL is ended as by a crash and started again while sessions append: nothing that
    was acknowledged is lost, and nothing is there twice. The log has events of remora alone.
    """
    opened = partial(open_journal, durable.dsn(), "load")
    acknowledged: dict[str, list[str]] = {f"s{number}": [] for number in range(8)}
    crashed = anyio.Event()

    async def talk(runtime: Runtime, name: str) -> None:
        chat, after = runtime.session("alice", name), 0
        while after < 5:
            text = f"{name} {len(acknowledged[name])}"
            await append_until_acknowledged(chat, text)
            acknowledged[name].append(text)
            after += crashed.is_set()

    def is_said(number: int) -> bool:
        return sum(map(len, acknowledged.values())) > number

    async with Runtime.in_memory(journal=await opened()) as runtime:
        async with anyio.create_task_group() as tasks:
            for name in acknowledged:
                tasks.start_soon(talk, runtime, name)
            for number in (40, 80):
                await until(partial(is_said, number), "sessions append")
                await anyio.to_thread.run_sync(durable.stop, signal.SIGQUIT)
                await anyio.to_thread.run_sync(durable.start)
            crashed.set()
    async with Runtime.in_memory(journal=await opened()) as runtime:
        for name, said in acknowledged.items():
            history = await runtime.session("alice", name).history()
            assert [one.content for one in history] == said
    assert {one.name.partition(".")[0] for one in caplog.records} <= {"remora"}, caplog.text


async def append_until_acknowledged(chat: Session, text: str) -> Receipt:
    """Append with the text as key, again and again."""

    async def append() -> Receipt | None:
        try:
            return await chat.append(Message(role="user", content=text), key=text)
        except (CommitFailed, OutcomeUnknown, OwnerUnreachable, SessionBusy, StorageError):
            return None

    return await until(append, "an append is acknowledged")


# -- connections that break ------------------------------------------------------------------------


async def test_a_connection_that_the_server_ends(cluster: Cluster) -> None:
    """S1.02: reads connect again by themselves, and so does the next write."""
    async with running_journal(await open_journal(cluster.dsn(), "ended")) as journal:
        await journal.change_settings({"colour": "red"})
        async with connected(cluster.dsn()) as connection:
            await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "pid <> pg_backend_pid() AND datname = current_database()"
            )
        assert await journal.setting("colour") == "red"
        with pytest.raises(StorageError):  # it may be told of the break
            for number in range(2):
                await journal.change_settings({"colour": f"blue {number}"})
            raise StorageError("or it may not")
        await journal.change_settings({"colour": "green"})
        assert await journal.setting("colour") == "green"


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_commit_whose_connection_breaks(
    cluster: Cluster, tmp_path: Path, stored: bool, known: bool
) -> None:
    """G3, G4: the sender is told what is true; a retry with the key has one effect."""
    schema, options = f"broken_{stored:d}{known:d}", {} if known else {"reconnect_s": 0.05}
    async with running_proxy(cluster, tmp_path) as network:
        journal = await open_journal(network.dsn, schema, **options)
        async with Runtime.in_memory(journal=journal) as runtime:
            chat = runtime.session("alice", "chat")
            await append_until_acknowledged(chat, "before")
            network.mark, network.answers_lost = _TEXT.encode(), stored
            network.refuses = not known
            message = Message(role="user", content=_TEXT)
            if known and stored:
                assert not (await chat.append(message, key=_TEXT)).duplicate
            else:
                with pytest.raises(CommitFailed if known else OutcomeUnknown):
                    await chat.append(message, key=_TEXT)
            network.refuses = False
            assert (await append_until_acknowledged(chat, _TEXT)).duplicate is stored
            await append_until_acknowledged(chat, "after")
            found = [one.content for one in await chat.history()]
            assert found == ["before", _TEXT, "after"]


async def test_a_commit_that_the_network_holds_back(cluster: Cluster, tmp_path: Path) -> None:
    """G3, G4: nothing waits longer than `command_timeout_s` and `reconnect_s`. What arrives late is
    stored once or never: the retry decides.
    """
    limits = {"command_timeout_s": 2.0, "reconnect_s": 0.3, "lease_s": 0}
    async with running_proxy(cluster, tmp_path) as network:
        journal = await open_journal(network.dsn, "held", **limits)
        async with Runtime.in_memory(journal=journal) as runtime:
            chat = runtime.session("alice", "chat")
            await append_until_acknowledged(chat, "before")
            network.freeze()
            with pytest.raises(OutcomeUnknown, match="same key"):
                await chat.append(Message(role="user", content=_TEXT), key=_TEXT)
            network.thaw()
            await append_until_acknowledged(chat, _TEXT)
            await append_until_acknowledged(chat, "after")
            found = [one.content for one in await chat.history()]
            assert found == ["before", _TEXT, "after"]


# -- journals that an earlier release wrote --------------------------------------------------------


async def restore(cluster: Cluster, dump: Path) -> None:
    text = await anyio.Path(dump).read_text()
    async with connected(cluster.dsn()) as connection:
        await connection.execute("DROP SCHEMA IF EXISTS golden CASCADE")
        await connection.execute(text)


@pytest.mark.parametrize("dump", _DUMPS, ids=lambda path: path.stem)
async def test_an_earlier_format(cluster: Cluster, dump: Path) -> None:
    """S3.26: every row is read as it was written, its checksum too, and the journal goes on, with
    its next owner.

    `tests/golden/postgres-3.sql` is the dump of one of format 3: 30 messages with NUL and other
    letters, half of them with keys, a memory, a tool call that was cleared, and its jobs. Whoever
    adds a format leaves the one before as it was.
    """
    await restore(cluster, dump)
    journal = await open_journal(cluster.dsn(), "golden")
    async with Runtime.in_memory(journal=journal) as runtime:
        owner = await read_owner(cluster.dsn(), "golden")
        assert owner is not None
        assert owner.epoch == 3  # the migration is an owner of its own
        chat = runtime.session("alice", "chat")
        said = [f"message {n} \x00 é 漢" for n in range(30)]
        assert [one.content for one in await chat.history()] == said
        again = await chat.append(Message(role="user", content=said[7]), key="k7")
        assert again.duplicate
        assert again.seqs == (8,)
        (memory,) = await journal.memories("alice")
        assert memory.content == "Alice likes \x00 tea"
        cleared = runtime.session("bob", "other")
        assert [one["content"] for one in (await cleared.load()).messages] == ["after"]
        roles = [one.role for one in await cleared.history()]
        assert roles == ["assistant", "tool", "user"]
        await chat.append(Message(role="user", content="new"))
        assert len(await chat.history()) == 31
    async with connected(cluster.dsn()) as connection:
        assert await connection.fetchval("SELECT format FROM golden.journal") == FORMAT


async def test_an_owner_of_an_earlier_release_goes_on_until_it_leaves(cluster: Cluster) -> None:
    """S3.26: the tables change when its lease has ended, and it stores nothing from then on."""
    await restore(cluster, _DUMPS[0])
    state = "SELECT format, epoch FROM golden.journal"
    async with connected(cluster.dsn()) as connection:
        await connection.execute(
            "UPDATE golden.lease SET owner = 'earlier:1', seconds = 600, "
            "until = clock_timestamp() + interval '10 minutes'"
        )
        before = await connection.fetch(state)
        with pytest.raises(StorageError, match="owned by earlier:1"):
            await open_journal(cluster.dsn(), "golden", wait_s=0)
        assert await connection.fetch(state) == before
        assert await connection.fetchval("SELECT golden.renew(1)")
        await connection.execute("SELECT golden.release(1)")
        await (await open_journal(cluster.dsn(), "golden", wait_s=0)).aclose()
        assert await connection.fetchval("SELECT format FROM golden.journal") == FORMAT
        assert not await connection.fetchval("SELECT golden.renew(1)")


async def test_a_process_of_an_earlier_release_that_waits_gets_no_migrated_journal(
    cluster: Cluster,
) -> None:
    """S3.26: it would store rows under tables that it does not know. This holds for its next call,
    and for one that runs while the tables change.
    """
    await restore(cluster, _DUMPS[0])
    claim = "SELECT epoch FROM golden.claim('earlier:1', '', 600)"
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    async with connected(cluster.dsn()) as connection, connected(cluster.dsn()) as earlier:

        async def is_blocked(count: int) -> bool:
            return bool(await connection.fetchval(blocked) == count)

        async def claim_now() -> None:
            with pytest.raises(asyncpg.PostgresError, match="does not exist"):
                await earlier.execute(claim)

        async def migrate_now() -> None:
            await (await open_journal(cluster.dsn(), "golden", lease_s=0)).aclose()

        async with connected(cluster.dsn()) as reader, anyio.create_task_group() as tasks:
            await reader.execute("BEGIN; LOCK TABLE golden.journal IN SHARE MODE")
            tasks.start_soon(migrate_now)
            await until(partial(is_blocked, 1), "the migration waits for the reader")
            tasks.start_soon(claim_now)
            await until(partial(is_blocked, 2), "the earlier release waits for the migration")
            await reader.execute("COMMIT")
        state = await connection.fetch("SELECT * FROM golden.journal")
        with pytest.raises(asyncpg.PostgresError, match="has format 4: upgrade remora"):
            await earlier.execute(claim)
        assert await connection.fetch("SELECT * FROM golden.journal") == state


async def test_a_process_that_waits_while_a_newer_release_migrates(cluster: Cluster) -> None:
    """S3.26: it is told to upgrade, and does not own what it cannot read."""
    owner = await open_journal(cluster.dsn(), "upgraded", lease_s=1_000)
    async with connected(cluster.dsn()) as connection:

        async def wait_for_it() -> None:
            with pytest.raises(JournalTooNew, match=f"has format {FORMAT + 1}, .* upgrade remora"):
                await open_journal(cluster.dsn(), "upgraded", lease_s=1_000, wait_s=math.inf)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_for_it)
            await anyio.wait_all_tasks_blocked()
            await connection.execute(f"UPDATE upgraded.journal SET format = {FORMAT + 1}")
            await owner.aclose()
        assert await connection.fetchval("SELECT epoch FROM upgraded.journal") == 1


async def test_several_processes_migrate_at_once(cluster: Cluster) -> None:
    """S3.26: one does it, and the others go on with what it made."""
    for _ in range(3):
        await restore(cluster, _DUMPS[0])
        journals: list[PostgresJournal] = []

        async def open_one(found: list[PostgresJournal] = journals) -> None:
            found.append(await open_journal(cluster.dsn(), "golden", lease_s=0))

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(open_one)
        newest = max(journals, key=lambda one: one.epoch)
        assert (await newest.counts()).messages == 33
        for one in journals:
            await one.aclose()


async def test_a_migration_that_fails_changes_nothing(cluster: Cluster) -> None:
    """S3.26: a role that may not change the tables leaves format and rows as they were, and so does
    code that is older than the journal.
    """
    await restore(cluster, _DUMPS[0])
    state = "SELECT * FROM golden.journal"
    async with connected(cluster.dsn()) as connection:
        await connection.execute(
            "CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA golden TO guest;"
            "GRANT ALL ON ALL TABLES IN SCHEMA golden TO guest"
        )
        before = await connection.fetch(state)
        with pytest.raises(ConfigError, match="CREATE SCHEMA golden AUTHORIZATION"):
            await open_journal(cluster.dsn("guest"), "golden")
        assert await connection.fetch(state) == before
        await connection.execute(f"UPDATE golden.journal SET format = {FORMAT + 1}")
        before = await connection.fetch(state)
        with pytest.raises(JournalTooNew, match="upgrade remora"):
            await open_journal(cluster.dsn(), "golden")
        assert await connection.fetch(state) == before
        await connection.execute("DROP OWNED BY guest; DROP ROLE guest")


# -- refusals ------------------------------------------------------------------------------------


async def test_a_schema_of_somebody_else(cluster: Cluster, tmp_path: Path) -> None:
    """S3.26: tables of another program; and of another memory, as `journal.memory` says."""
    async with connected(cluster.dsn()) as connection:
        await connection.execute("CREATE SCHEMA theirs; CREATE TABLE theirs.t (a int)")
    with pytest.raises(ConfigError, match="name another schema"):
        await open_journal(cluster.dsn(), "theirs")

    def runtime(name: str) -> Runtime:
        journal: dict[str, Any] = {"dsn": cluster.dsn(), "schema": "shared"}
        journal |= {"durability": "process", "memory": name, "lease_s": 600}
        config = {"journal": journal, "long_term": {"enabled": False}}
        return Runtime(tmp_path / f"of {name}", config=Config.from_dict(config))

    async with runtime("shop") as shop:
        await append_until_acknowledged(shop.session("alice", "chat"), "hello")
    for name in ("blog", ""):
        with pytest.raises(ConfigError, match="of the memory 'shop', not of "):
            async with runtime(name):
                pass
    async with runtime("shop") as shop:
        assert len(await shop.session("alice", "chat").history()) == 1
        owner = await read_owner(cluster.dsn(), "shared")
        assert owner is not None
        assert owner.epoch == 2, "a refused opener took it over"


async def test_several_openers_make_one_schema(cluster: Cluster) -> None:
    """S1.02: at the same moment: each has an epoch of its own."""
    epochs = []

    async def make() -> None:
        journal = await open_journal(cluster.dsn(), "together")
        epochs.append(journal.epoch)
        await journal.aclose()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(make)
    assert sorted(epochs) == [1, 2, 3, 4]


async def test_a_role_without_rights_and_servers_that_take_no_writes(cluster: Cluster) -> None:
    """S3.26: the text says what to do."""
    async with connected(cluster.dsn()) as connection:
        await connection.execute("CREATE ROLE weak LOGIN; CREATE ROLE reader LOGIN")
        await connection.execute("ALTER ROLE reader SET default_transaction_read_only = on")
    with pytest.raises(ConfigError, match="GRANT CREATE"):
        await PostgresJournal.open(cluster.dsn("weak"), schema="weak", durability="process")
    with pytest.raises(ConfigError, match="takes no writes"):
        await PostgresJournal.open(cluster.dsn("reader"), schema="weak", durability="process")
    with pytest.raises(ConfigError, match="createdb"):
        await PostgresJournal.open(cluster.dsn(database="none"), durability="process")
    with pytest.raises(ConfigError, match='durability="process"'):
        await PostgresJournal.open(cluster.dsn(), schema="weak")  # fsync is off in this cluster
    with pytest.raises(StorageError, match="cannot be reached"):
        await PostgresJournal.open("postgresql://postgres@/x?host=/nowhere")
    for schema in ("", "Upper", "pg_x", "a;b", 7):
        with pytest.raises(InvalidInput, match="schema must be"):
            await PostgresJournal.open(cluster.dsn(), schema=schema)  # type: ignore[arg-type]


async def test_a_database_that_is_not_in_utf_8(cluster: Cluster) -> None:
    """S3.26: it could not hold every text."""
    async with connected(cluster.dsn()) as connection:
        await connection.execute(
            "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        )
    with pytest.raises(ConfigError, match="ENCODING 'UTF8' TEMPLATE template0"):
        await PostgresJournal.open(cluster.dsn(database="latin"), durability="process")


async def test_addresses_with_mistakes(cluster: Cluster) -> None:
    """S3.26: nobody waits for an address that cannot become right; the text has no password."""
    for dsn, said in {
        "postgresql://agent:hidden@localhost:54x2/agents": "cannot be read",
        "agents": "cannot be read",
        f"{cluster.dsn()}&ssl=yes": "an option of the address",
        f"{cluster.dsn()}&sslmodes=require": "an option of the address",
    }.items():
        with pytest.raises(ConfigError, match=said) as refused:
            await PostgresJournal.open(dsn, durability="process")
        assert "hidden" not in str(refused.value)
    address = Address("postgresql://agent:a@word/x@nowhere/agents", "remora", 1.0)
    error = open_error(socket.gaierror(-2, "Name or service not known"), address)
    assert isinstance(error, StorageError), "the name may be known later, when a machine starts"
    assert "is written with %40" in str(error)


async def test_a_password_and_too_few_connections(cluster: Cluster) -> None:
    """S3.26: the text says what to do, and never has the password."""
    async with connected(cluster.dsn()) as connection:
        await connection.execute("CREATE ROLE secured LOGIN PASSWORD 'right' CONNECTION LIMIT 1")
        await connection.execute(f"GRANT CREATE ON DATABASE {cluster.database} TO secured")
        rules = anyio.Path(await connection.fetchval("SHOW hba_file"))
        former = await rules.read_text()
        await rules.write_text(f"local all secured scram-sha-256\n{former}")
        try:
            await connection.execute("SELECT pg_reload_conf()")
            for password in (":wrong", ""):
                dsn = cluster.dsn(f"secured{password}")
                with pytest.raises(ConfigError, match="the role or its password") as refused:
                    await PostgresJournal.open(dsn, durability="process")
                assert "wrong" not in str(refused.value)
            with pytest.raises(StorageError, match="CONNECTION LIMIT"):
                await PostgresJournal.open(cluster.dsn("secured:right"), durability="process")
            await connection.execute("ALTER ROLE secured CONNECTION LIMIT 3")
            journal = await open_journal(cluster.dsn("secured:right"), "secured")
            async with running_journal(journal), anyio.create_task_group() as tasks:
                for _ in range(8):  # reads wait for a connection
                    tasks.start_soon(journal.counts)
        finally:
            await rules.write_text(former)


@pytest.mark.parametrize("limit", ["statement_timeout", "lock_timeout"])
async def test_a_time_limit_of_the_role_is_named(cluster: Cluster, limit: str) -> None:
    """A server that gives up on a statement can be reached: its limit is what to look at."""
    journal = await open_journal(cluster.dsn(), "limited")
    await journal.aclose()
    dsn = f"{cluster.dsn()}&{limit}=1000"
    async with connected(cluster.dsn()) as connection, connection.transaction():
        await connection.execute("LOCK TABLE limited.journal")
        with pytest.raises(StorageError, match=limit) as refused:
            await open_journal(dsn, "limited")
        assert "cannot be reached" not in str(refused.value)
    async with running_journal(await open_journal(dsn, "limited")) as journal:
        async with connected(cluster.dsn()) as connection, connection.transaction():
            await connection.execute("LOCK TABLE limited.journal, limited.settings")
            with pytest.raises(StorageError, match=limit):
                await journal.change_settings({"colour": "red"})
            with pytest.raises(StorageError, match=limit):
                await journal.setting("colour")
        await journal.change_settings({"colour": "red"})


async def test_a_pooler_in_transaction_mode(cluster: Cluster) -> None:
    """S3.26: two clients that share a session of the server, as they do behind such a pooler."""
    async with connected(cluster.dsn()) as shared:
        with pytest.raises(ConfigError, match="pooler in transaction mode"):
            await check_server(shared, shared, "process")


@pytest.mark.blocking
@pytest.mark.parametrize("mode", ["transaction", "statement", "session"])
async def test_a_real_pooler(cluster: Cluster, mode: str) -> None:
    """S3.26: PgBouncer is refused unless it gives each connection a session of its own."""
    with running_pooler(cluster, mode) as dsn:
        if mode == "session":
            await (await PostgresJournal.open(dsn, schema="pooled", durability="process")).aclose()
            return
        with pytest.raises(ConfigError, match="pool in session mode"):
            await PostgresJournal.open(dsn, schema="pooled", durability="process")


def test_commands_that_are_the_administrators(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S3.26: they read files of a directory; of a database they name its own tools."""
    file = tmp_path / "remora.yaml"
    file.write_text(
        f"directory: {tmp_path / 'memory'}\n"
        'journal: {dsn: "postgresql://a:secret@nowhere/x", schema: shop}\n'
    )
    for command in (
        "verify", "backup there", "repair", "export f", "view", "reembed", "reshard --shards 2",
    ):  # fmt: skip
        assert run_command(*command.split(), "--config", file) in {1, 2}, command
        said = " ".join(capsys.readouterr().err.split())
        assert "pg_basebackup or pg_dump --schema shop --schema 'shop_[0-9]*'" in said, command
        assert "pg_amcheck" in said, command
        assert "secret" not in said, command
        assert not (tmp_path / "memory").exists(), command
