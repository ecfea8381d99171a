"""A journal that an earlier release wrote in PostgreSQL: today's code brings it up to date.

`tests/golden/postgres-1.sql` is the dump of one of format 1: 30 messages with NUL and other
letters, half of them with keys, a memory, a tool call that was cleared, and its jobs.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import asyncpg
import pytest

from remora import Message, Runtime
from remora.errors import JournalTooNew
from remora.storage.postgres import PostgresJournal
from remora.storage.postgres.schema import FORMAT
from tests.postgres import Cluster

pytestmark = pytest.mark.anyio
_GOLDEN = Path(__file__).parents[1] / "golden"
_FORMATS = sorted(_GOLDEN.glob("postgres-*.sql"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def restore(cluster: Cluster, dump: Path) -> None:
    text = await anyio.Path(dump).read_text()
    connection = await asyncpg.connect(cluster.dsn())
    await connection.execute("DROP SCHEMA IF EXISTS golden CASCADE")
    await connection.execute(text)
    await connection.close()


async def opened(cluster: Cluster) -> PostgresJournal:
    return await PostgresJournal.open(cluster.dsn(), schema="golden", durability="process")


@pytest.mark.parametrize("dump", _FORMATS, ids=lambda path: path.stem)
async def test_an_earlier_format(cluster: Cluster, dump: Path) -> None:
    """S3.26: every row is read as it was written, its checksum too, and the journal goes on."""
    await restore(cluster, dump)
    journal = await opened(cluster)
    async with Runtime.in_memory(journal=journal) as runtime:
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
    connection = await asyncpg.connect(cluster.dsn())
    assert await connection.fetchval("SELECT format FROM golden.journal") == FORMAT
    await connection.close()


async def test_there_is_a_dump_of_each_earlier_format() -> None:
    """S3.26: whoever adds a format leaves the one before as it was."""
    assert [path.stem for path in _FORMATS] == [f"postgres-{n}" for n in range(1, FORMAT)]


async def test_a_migration_that_fails_changes_nothing(cluster: Cluster) -> None:
    """S3.26: a role that may not change the tables leaves format and rows as they were."""
    await restore(cluster, _FORMATS[0])
    connection = await asyncpg.connect(cluster.dsn())
    await connection.execute(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA golden TO guest;"
        "GRANT ALL ON ALL TABLES IN SCHEMA golden TO guest"
    )
    before = await connection.fetch("SELECT * FROM golden.journal")
    with pytest.raises(Exception, match="CREATE SCHEMA golden AUTHORIZATION"):
        await PostgresJournal.open(cluster.dsn("guest"), schema="golden", durability="process")
    assert await connection.fetch("SELECT * FROM golden.journal") == before
    await connection.execute(f"UPDATE golden.journal SET format = {FORMAT + 1}")
    with pytest.raises(JournalTooNew, match="upgrade remora"):
        await opened(cluster)
    await connection.execute("DROP OWNED BY guest; DROP ROLE guest")
    await connection.close()
