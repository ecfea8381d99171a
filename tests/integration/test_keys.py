"""Idempotency keys: one key names one append."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Config, Runtime
from remora.errors import KeyConflict
from tests.harness import user
from tests.integration.conftest import PLAIN, Open

pytestmark = pytest.mark.anyio
ANSWER: dict[str, Any] = {"role": "assistant", "content": "hello"}


async def test_a_key_for_question_and_answer(open_runtime: Open) -> None:
    """The answer is refused; it is not taken for a repetition of the question."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("hi"), key="r1")
        with pytest.raises(KeyConflict):
            await chat.append(ANSWER, key="r1")
        await chat.append(ANSWER, key="r1/reply")
        assert [one.content for one in await chat.history()] == ["hi", "hello"]


@pytest.mark.parametrize(
    "other",
    [
        [user("hi"), ANSWER],
        [user("hi")],
        [ANSWER, user("hi")],
        [user("hi"), {**ANSWER, "name": "bot"}],
        [user("hi"), ANSWER, user("more")],
    ],
)
async def test_other_messages(open_runtime: Open, other: list[dict[str, Any]]) -> None:
    """Only the same messages in the same order are a repetition."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        first = await chat.append([user("hi"), ANSWER], key="r1")
        if other == [user("hi"), ANSWER]:
            again = await chat.append(other, key="r1")
            assert (again.seqs, again.ids, again.duplicate) == (first.seqs, first.ids, True)
        else:
            with pytest.raises(KeyConflict):
                await chat.append(other, key="r1")
        assert len(await chat.history()) == 2
        assert (await runtime.session("bob", "one").append(other, key="r1")).duplicate is False


async def test_the_same_content_in_another_form(open_runtime: Open) -> None:
    """The order of a dict's keys, times, ids and metadata make no other message."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append({"role": "user", "content": "hi", "metadata": {"try": 1}}, key="r1")
        again = await chat.append(
            {"content": "hi", "role": "user", "created_at": 0, "metadata": {"try": 2}}, key="r1"
        )
        assert again.duplicate
        await chat.delete(ids=again.ids[0])
        assert (await chat.append(user("hi"), key="r1")).duplicate


async def test_messages_that_were_there_already(open_runtime: Open) -> None:
    """A batch of which some messages were skipped for their ids is recognized."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append({**user("a"), "id": "a"})
        batch = [{**user("a"), "id": "a"}, {**user("b"), "id": "b"}]
        first = await chat.append(batch, key="r1")
        again = await chat.append(batch, key="r1")
        assert (again.seqs, again.duplicate) == (first.seqs, True)
        with pytest.raises(KeyConflict):
            await chat.append([*batch, user("c")], key="r1")


async def test_messages_that_were_there_and_are_gone(open_runtime: Open) -> None:
    """A retry is a repetition although what it skipped for its id was deleted since."""
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append({**user("a"), "id": "a"})
        batch = [{**user("a"), "id": "a"}, {**user("b"), "id": "b"}]
        await chat.append(batch, key="r1")
        await chat.delete(ids="a")
        assert (await chat.append(batch, key="r1")).duplicate
        assert [one.content for one in await chat.history()] == ["b"]


async def test_after_a_restart(tmp_path: Path) -> None:
    """A key is known to the journal, with what it was used for."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        await runtime.session("alice", "one").append(user("hi"), key="r1")
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        assert (await chat.append(user("hi"), key="r1")).duplicate
        with pytest.raises(KeyConflict):
            await chat.append(ANSWER, key="r1")


async def test_where_repetitions_are_skipped() -> None:
    """`buffer.dedup_window`: what was skipped is recognized, and a further message is refused."""
    config = Config.from_dict({"buffer": {"dedup_window": 3}, "long_term": {"enabled": False}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("a"))
        batch = [user("a"), user("b"), user("b")]
        assert (await chat.append(batch, key="r1")).seqs == (1, 2, 2)
        await chat.append([user("c"), user("d"), user("e")])
        assert (await chat.append(batch, key="r1")).duplicate
        for more in (user("c"), ANSWER):
            with pytest.raises(KeyConflict):
                await chat.append([*batch, more], key="r1")
        await chat.clear()
        assert (await chat.append(batch, key="r1")).duplicate
