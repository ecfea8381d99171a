"""Rewinding, forking, and reading the past: the journal has it all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from remora import BufferPolicy, Config, Runtime, Session
from remora.errors import InvalidId, InvalidInput
from tests.harness import FirstWordsSummarizer, user
from tests.integration.test_buffers import PLAIN, said, session

pytestmark = pytest.mark.anyio
SUMMARY = BufferPolicy.window(3, fold="summary")


async def talk(chat: Session, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await chat.append(user(f"m{number}"))
        await chat.settle()


async def test_rewind() -> None:
    """S4.05, S1.22: going back undoes what came after, summaries included; what is appended next
    carries on from there.
    """
    async with session(SUMMARY, summarizer=FirstWordsSummarizer()) as chat:
        await talk(chat, 1, 9)
        assert (await chat.load()).summary == "m1 m2 m3 m4 m5 m6"
        assert await chat.rewind(5) == 4
        context = await chat.load()
        assert (context.summary, said(context.messages)[1:]) == ("m1 m2", ["m3", "m4", "m5"])
        assert said(await chat.history()) == ["m1", "m2", "m3", "m4", "m5"]
        receipt = await chat.append(user("other"))
        assert receipt.seqs == (10,), "numbers are never used again"
        await chat.settle()
        context = await chat.load()
        assert (context.summary, said(context.messages)[1:]) == ("m1 m2 m3", ["m4", "m5", "other"])
        assert await chat.rewind(10) == 0
        assert await chat.rewind(0) == 10
        assert (await chat.load()).messages == []
        for bad in (-1, 11):
            with pytest.raises(InvalidInput):
                await chat.rewind(bad)


async def test_rewind_survives_a_restart_and_undoes_a_clear(tmp_path: Path) -> None:
    """G12, S4.05: what a rewind left is what a restart finds; what was cleared comes back when one
    goes back before it.
    """
    for start in (0, 1):
        async with session(SUMMARY, where=tmp_path, summarizer=FirstWordsSummarizer()) as chat:
            if start == 0:
                await talk(chat, 1, 5)
                await chat.clear()
                await talk(chat, 6, 7)
                assert await chat.rewind(4) == 3
                assert (await chat.delete(positions=0)).deleted == 1
            context = await chat.load()
            assert (context.summary, said(context.messages)[1:]) == ("m1", ["m3", "m4"])
            assert (await chat.history(at=6))[-1].content == "m6", "it was there then"


async def test_rewind_leaves_long_term_memory(tmp_path: Path) -> None:
    """S4.05, G7: what was rewound or deleted is recalled no more; what stays is there once."""
    config = replace(PLAIN, long_term=Config().long_term)
    async with Runtime(tmp_path, config=config) as runtime:
        chat = runtime.session("alice", "chat")
        await chat.append([user(f"secret number {number} is zebra{number}") for number in range(6)])
        await chat.flush()
        await chat.settle()
        alice = runtime.user("alice")
        assert (await alice.recall("zebra4"))[0].text.endswith("zebra4")
        await chat.rewind(4)
        await chat.delete(positions=0)
        await chat.settle()
        assert await alice.recall("zebra4") == [], "nor in the windows of its neighbours"
        assert await alice.recall("zebra0") == []
        assert (await alice.recall("zebra3"))[0].text.endswith("zebra3")
        ids = await (await runtime.internals.long_term()).row_ids()
        assert len(ids) == len(set(ids)) == 3


async def test_fork() -> None:
    """S4.05, S3.28: a copy goes its own way, from now or from an earlier message; the original
    notices nothing.
    """
    async with session(SUMMARY, summarizer=FirstWordsSummarizer()) as chat:
        await talk(chat, 1, 8)
        await chat.delete(positions=0)  # m6
        copy = await chat.fork("copy")
        assert (await copy.load()).messages == (await chat.load()).messages
        assert said(await copy.history()) == ["m1", "m2", "m3", "m4", "m5", "m7", "m8"]
        assert [message.seq for message in await copy.history()] == [1, 2, 3, 4, 5, 6, 7]
        early = await chat.fork("early", at=6)
        context = await early.load()
        assert (context.summary, said(context.messages)[1:]) == ("m1 m2 m3", ["m4", "m5"])
        await talk(early, 9, 10)
        assert said((await early.load()).messages)[1:] == ["m5", "m9", "m10"]
        assert said((await chat.load()).messages)[1:] == ["m7", "m8"]
        await copy.rewind(5)
        assert said((await copy.load()).messages)[-1] == "m5"
        with pytest.raises(InvalidInput, match="already"):
            await chat.fork("copy")
        with pytest.raises(InvalidInput):
            await chat.fork("later", at=99)
        with pytest.raises(InvalidId):
            await chat.fork("")


async def test_read_at_a_past_message() -> None:
    """S4.05, S1.22: `load(at=n)` is what a load showed when message n was the newest, and changes
    nothing.
    """
    async with session(SUMMARY, summarizer=FirstWordsSummarizer()) as chat:
        shown: dict[int, list[Any]] = {0: []}
        for number in range(1, 10):
            await talk(chat, number, number)
            shown[number] = (await chat.load()).messages
        await chat.clear()
        await talk(chat, 10, 12)
        for number, messages in shown.items():
            if number < 9:  # the clear came right after message 9
                assert (await chat.load(at=number)).messages == messages
        assert (await chat.load(at=9)).messages == []
        assert said((await chat.load()).messages) == ["m10", "m11", "m12"]
        with pytest.raises(InvalidInput):
            await chat.load(at=13)


async def test_override_and_handles_by_id() -> None:
    """S3.05, S3.06, S3.27: a given conversation is shown instead of the stored one, which stays;
    handles are had by id.
    """
    async with Runtime.in_memory(
        config=PLAIN, policy=SUMMARY, summarizer=FirstWordsSummarizer()
    ) as runtime:
        chat = runtime.session("alice", "chat")
        await talk(chat, 1, 5)
        context = await chat.load(
            override=[user("instead"), {"role": "assistant", "content": "of it"}]
        )
        assert said(context.messages) == ["instead", "of it"]
        assert (await chat.load(override=[])).messages == []
        again = runtime.session(chat.key.user, chat.key.session)
        assert said((await again.load()).messages)[1:] == ["m3", "m4", "m5"]


programs = st.lists(
    st.one_of(
        st.integers(1, 3).map(lambda n: ("say", n)),
        st.integers(0, 12).map(lambda n: ("rewind", n)),
        st.integers(0, 3).map(lambda n: ("delete", n)),
        st.integers(0, 3).map(lambda n: ("truncate", n)),
        st.just(("clear", 0)),
    ),
    max_size=12,
)


@given(programs)
def test_any_past_is_replayed(program: list[tuple[str, int]]) -> None:
    """G2, G12, S0.21, S4.05: whatever is said, rewound, deleted, truncated and cleared, buffer and
    history are a model's, and a copy made of the journal's rows is the live session.
    """

    async def check() -> None:
        async with Runtime.in_memory(config=PLAIN, policy=BufferPolicy.keep_all()) as runtime:
            chat = runtime.session("alice", "chat")
            visible: set[int] = set()
            buffer: list[int] = []
            newest = front = 0
            fronts = [(0, 0)]  # the newest message then, and the last that was out of the buffer
            for verb, n in program:
                if verb == "say":
                    for _ in range(n):
                        newest += 1
                        await chat.append(user(f"m{newest}"))
                        visible.add(newest)
                        buffer.append(newest)
                elif verb == "rewind" and (n == 0 or n in visible):
                    await chat.rewind(n)
                    if n < newest:
                        visible = {seq for seq in visible if seq <= n}
                        front = [at for newest_then, at in fronts if newest_then <= n][-1]
                        buffer = sorted(seq for seq in visible if seq > front)
                elif verb == "delete" and n < len(buffer):
                    await chat.delete(positions=n)
                    visible.remove(buffer.pop(n))
                elif verb == "truncate":
                    await chat.truncate_to_size(n)
                    if n < len(buffer):
                        front = buffer[-n - 1]
                        buffer = buffer[len(buffer) - n :]
                elif verb == "clear":
                    await chat.clear()
                    front, buffer = newest if buffer else front, []
                fronts.append((newest, front))
                assert said_numbers(await chat.get_messages()) == buffer
                assert said_numbers(await chat.history()) == sorted(visible)
                (image,) = await runtime.internals.journal.hydrate([chat.key])
                assert not isinstance(image, Exception)
                assert [entry.seq for entry in image.entries] == buffer

    anyio.run(check)


def said_numbers(messages: Any) -> list[int]:
    return [int(text[1:]) for text in said(messages)]
