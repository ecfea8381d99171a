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
HI = user("hi")
ANSWER: dict[str, Any] = {"role": "assistant", "content": "hello"}
A, B = {**user("a"), "id": "a"}, {**user("b"), "id": "b"}


async def test_what_is_a_repetition(open_runtime: Open) -> None:
    """Only the same messages in the same order; the order of a dict's keys, times, ids and metadata
    make no other message. A key is one of its session.
    """
    async with open_runtime() as runtime:
        chat, again = runtime.session("alice", "one"), {"content": "hi", "role": "user"}
        first = await chat.append([HI, ANSWER], key="r1")
        other: Any
        for other, same in (
            ([HI, ANSWER], True),
            ([{**again, "created_at": 0, "metadata": {"try": 2}}, {**ANSWER, "id": "x"}], True),
            (HI, False),
            (ANSWER, False),
            ([ANSWER, HI], False),
            ([HI, {**ANSWER, "name": "bot"}], False),
            ([HI, ANSWER, user("more")], False),
        ):
            if same:
                receipt = await chat.append(other, key="r1")
                assert (receipt.seqs, receipt.ids) == (first.seqs, first.ids), other
                assert receipt.duplicate, other
            else:
                with pytest.raises(KeyConflict):
                    await chat.append(other, key="r1")
            assert len(await chat.history()) == 2, other
        assert not (await runtime.session("bob", "one").append(HI, key="r1")).duplicate
        await chat.delete(first.ids[0])
        assert (await chat.append([HI, ANSWER], key="r1")).duplicate
        await chat.append(ANSWER, key="r1/reply")
        assert [one.content for one in await chat.history()] == ["hello", "hello"]


async def test_messages_that_were_there_already(open_runtime: Open) -> None:
    """A batch of which some messages were skipped for their ids is recognized, although what it
    skipped was deleted since.
    """
    async with open_runtime() as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(A)
        first = await chat.append([A, B], key="r1")
        again = await chat.append([A, B], key="r1")
        assert (again.seqs, again.duplicate) == (first.seqs, True)
        with pytest.raises(KeyConflict):
            await chat.append([A, B, user("c")], key="r1")
        await chat.delete("a")
        assert (await chat.append([A, B], key="r1")).duplicate
        assert [one.content for one in await chat.history()] == ["b"]


async def test_after_a_restart(tmp_path: Path) -> None:
    """A key is known to the journal, with what it was used for."""
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        await runtime.session("alice", "one").append(HI, key="r1")
    async with Runtime(tmp_path / "memory", config=PLAIN) as runtime:
        chat = runtime.session("alice", "one")
        assert (await chat.append(HI, key="r1")).duplicate
        with pytest.raises(KeyConflict):
            await chat.append(ANSWER, key="r1")


async def test_where_repetitions_are_skipped() -> None:
    """`buffer.dedup_window`: what was skipped is recognized, and a further message is refused."""
    config = Config.from_dict({"buffer": {"dedup_window": 3}, "long_term": {"enabled": False}})
    async with Runtime.in_memory(config=config) as runtime:
        chat = runtime.session("alice", "one")
        await chat.append(user("a"))
        batch: list[Any] = [user("a"), user("b"), user("b")]
        assert (await chat.append(batch, key="r1")).seqs == (1, 2, 2)
        await chat.append([user("c"), user("d"), user("e")])
        assert (await chat.append(batch, key="r1")).duplicate
        for more in (user("c"), ANSWER):
            with pytest.raises(KeyConflict):
                await chat.append([*batch, more], key="r1")
        await chat.clear()
        assert (await chat.append(batch, key="r1")).duplicate
