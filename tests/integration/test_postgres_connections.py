"""Real connections that break during a commit: it was stored, it was not, or nobody can say yet."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from remora import Message, Receipt, Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown
from remora.storage.postgres import PostgresJournal
from tests.postgres import Cluster
from tests.postgres_proxy import running_proxy

pytestmark = pytest.mark.anyio
_SECONDS = 60
_TEXT = "the one whose connection breaks"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
async def test_a_commit_whose_connection_breaks(
    cluster: Cluster, tmp_path: Path, stored: bool, known: bool
) -> None:
    """G3, G4: the sender is told what is true; a retry with the key has one effect."""
    schema = f"broken_{stored:d}{known:d}"
    async with running_proxy(cluster, tmp_path) as network:
        journal = await PostgresJournal.open(
            network.dsn,
            schema=schema,
            durability="process",
            reconnect_s=_SECONDS if known else 0.05,
        )
        async with Runtime.in_memory(journal=journal) as runtime:
            chat = runtime.session("alice", "chat")
            await chat.append(Message(role="user", content="before"))
            network.mark, network.answers_lost = _TEXT.encode(), stored
            network.refuses = not known
            message = Message(role="user", content=_TEXT)
            if known and stored:
                assert not (await chat.append(message, key="k")).duplicate
            else:
                with pytest.raises(CommitFailed if known else OutcomeUnknown):
                    await chat.append(message, key="k")
            network.refuses = False
            assert (await acknowledged(chat, message)).duplicate is stored
            await chat.append(Message(role="user", content="after"))
            found = [one.content for one in await chat.history()]
            assert found == ["before", _TEXT, "after"]


async def test_a_commit_that_the_network_holds_back(cluster: Cluster, tmp_path: Path) -> None:
    """G3, G4: nothing waits longer than `command_timeout_s` and `reconnect_s`. What arrives late is
    stored once or never: the retry decides.
    """
    async with running_proxy(cluster, tmp_path) as network:
        journal = await PostgresJournal.open(
            network.dsn,
            schema="held",
            durability="process",
            command_timeout_s=2.0,
            reconnect_s=0.3,
            lease_s=0,
        )
        async with Runtime.in_memory(journal=journal) as runtime:
            chat = runtime.session("alice", "chat")
            await acknowledged(chat, Message(role="user", content="before"), "before")
            network.freeze()
            message = Message(role="user", content=_TEXT)
            with anyio.fail_after(_SECONDS), pytest.raises(OutcomeUnknown, match="same key"):
                await chat.append(message, key="k")
            network.thaw()
            await acknowledged(chat, message)
            await acknowledged(chat, Message(role="user", content="after"), "after")
            found = [one.content for one in await chat.history()]
            assert found == ["before", _TEXT, "after"]


async def acknowledged(chat: Session, message: Message, key: str = "k") -> Receipt:
    """Append again until it is acknowledged."""
    with anyio.fail_after(_SECONDS):
        while True:
            try:
                return await chat.append(message, key=key)
            except (CommitFailed, OutcomeUnknown):
                await anyio.sleep(0.01)
