"""Many users talk, and nothing that they say is indexed yet: their recalls must not starve."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from remora import Config, Runtime
from remora.testing import HashEmbedder

pytestmark = pytest.mark.anyio

USERS, MESSAGES = 210, 100
CONFIG = Config.from_dict({"tokens": {"counter": "heuristic"}, "long_term": {"gather_s": 0}})


async def test_what_many_users_said_is_indexed_before_there_is_no_room(tmp_path: Path) -> None:
    """21,000 messages in live buffers: each is found at once, and sessions of which much is not
    indexed are, so that what recall holds of them stays small.
    """
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as runtime:
        await runtime.ready()
        for number in range(USERS):
            said = [f"message {n} of person {number}" for n in range(MESSAGES)]
            session = runtime.session(f"user-{number}", "chat")
            await session.append([{"role": "user", "content": text} for text in said])

        async def ask(number: int) -> None:
            user = runtime.user(f"user-{number}")
            (first,) = await user.recall(f"message 7 of person {number}", limit=1)
            assert first.text == f"message 7 of person {number}"

        before = (await runtime.long_term_statistics()).rows
        assert before == 0, "nothing has left a buffer"
        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                for number in range(USERS):
                    tasks.start_soon(ask, number)
            await runtime.settle()
        assert (await runtime.long_term_statistics()).rows >= MESSAGES
        async with anyio.create_task_group() as tasks:
            for number in range(USERS):
                tasks.start_soon(ask, number)


async def test_what_many_sessions_of_a_user_said_is_indexed(tmp_path: Path) -> None:
    """1,800 messages in thirty live buffers, as an import of old chats brings them: more than one
    recall searches unindexed. The first recall has them indexed.
    """
    async with Runtime(tmp_path / "memory", config=CONFIG, embedder=HashEmbedder()) as runtime:
        user = runtime.user("ann")
        for number in range(30):
            said = [f"message {n} of chat {number}" for n in range(60)]
            await user.session(f"chat-{number}").append(
                [{"role": "user", "content": text} for text in said]
            )
        assert await user.recall("message 7")
        await runtime.settle()
        (first,) = await user.recall("message 0 of chat 0", limit=1)
        assert first.text == "message 0 of chat 0"
        context = await user.session("now").load(query="message 1 of chat 0")
        assert context.sources.long_term.detail == "", "all is searched"
