"""Workers and owners of other releases, owners that leave, and frames that nobody should send."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import remora
from remora import Config, Message, Runtime
from remora.cluster import connection, serving
from remora.cluster.calls import CallType, find_call, perform
from remora.cluster.wire import (
    WIRE,
    Call,
    Cancel,
    Frames,
    Hello,
    Raised,
    Returned,
    UnreadableCall,
    Value,
    Welcome,
    WireError,
    decode_replies,
    frame,
)
from remora.errors import MailboxFull, OwnerUnreachable, ProtocolMismatch
from remora.services.answering import WORK
from tests.configs import PLAIN
from tests.harness import user
from tests.remote import Owner, said, spin, whole_turn, workers

pytestmark = pytest.mark.anyio
GOLDEN = Path(__file__).parents[1] / "golden" / "frames-1.json"
FIRST = {name: bytes.fromhex(text) for name, text in json.loads(GOLDEN.read_text()).items()}


class Stranger:
    """A worker that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._frames = Frames()

    def send(self, *requests: Any) -> None:
        self.writer.write(bytes(frame(requests)))

    async def replies(self, count: int) -> dict[int, Value]:
        """The next ones, by the request's number."""
        found: dict[int, Value] = {}
        while len(found) < count:
            data = await self.reader.read(1 << 16)
            assert data, "the owner closed the connection"
            for payload in self._frames.feed(data):
                found |= dict(decode_replies(payload)[1])
        return found


@asynccontextmanager
async def stranger(owner: Owner, name: str = "stranger") -> AsyncIterator[Stranger]:
    made = Stranger(*await asyncio.open_unix_connection(owner.path))
    made.writer.write(WORK)
    made.send(Hello(WIRE, "9.0", worker=name))
    await made.replies(1)
    try:
        yield made
    finally:
        made.writer.transport.abort()


def begin(number: int, session: str) -> Call:
    return Call(number, 0, "turns.begin", msgspec.msgpack.encode([["ann", session], True]))


# -- other releases --------------------------------------------------------------------------------


async def test_a_call_of_another_release_fails_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown one, and one with arguments that cannot be read; it says who must upgrade."""
    stats = msgspec.msgpack.encode([["ann", "one"]])
    async with workers(tmp_path, 0) as (owner, _), stranger(owner) as other:
        with caplog.at_level(logging.INFO, "remora"):
            other.send(
                Call(1, 0, "runtime.later", b"\x90"),
                Call(2, 0, "archive.stats", b"\x01"),
                Call(3, 0, "work.drain", msgspec.msgpack.encode([["a", "b", "c"]])),
                Call(0, 0, "runtime.later", b"\x90"),
                Call(4, 0, "turns.begin", b"\x01"),
                Call(5, 0, "archive.stats", stats),
            )
            found = await other.replies(5)
        for number in (1, 2, 3, 4):
            raised = found[number]
            assert isinstance(raised, Raised)
            assert raised.name == "ProtocolMismatch"
            assert "upgrade the owner's remora" in raised.text
            assert "9.0" in raised.text
        assert isinstance(found[5], Returned)
        assert caplog.text.count("call_unreadable") == 1


@pytest.mark.parametrize("hello", ["hello", "hello-of-shard"])
async def test_a_worker_that_was_not_upgraded_yet(tmp_path: Path, hello: str) -> None:
    """Byte for byte what one of the first release sends: its messages are answered; a call that
    this owner cannot read fails alone, and says who must upgrade.
    """

    def make() -> list[Runtime]:
        return [Runtime(tmp_path / f"{number}", config=PLAIN) for number in range(4)]

    sent, owner = FIRST, Owner(make)
    await owner.start()
    try:
        await owner.shards[3].session("Zoë", "one").append(user("before the upgrade"))
        made = Stranger(*await asyncio.open_unix_connection(owner.path))
        made.writer.write(WORK + sent[hello] + sent["ask"] + sent["post"] + sent["call"])
        found = await made.replies(3)
        assert isinstance(found[0], Welcome)
        assert not isinstance(found[7], Raised)
        assert b"before the upgrade" in msgspec.msgpack.encode(found[7])
        unread = found[8]
        assert isinstance(unread, Raised)
        assert unread.name == "ProtocolMismatch"
        assert "(remora 0.1.0)" in unread.text
        made.writer.write(sent["cancel"] + sent["ask-with-recall"])
        assert b"before the upgrade" in msgspec.msgpack.encode((await made.replies(1))[7])
        made.writer.transport.abort()
    finally:
        await owner.stop()


@pytest.mark.parametrize(
    ("theirs", "advice"),
    [(WIRE + 1, "upgrade the owner's remora"), (0, "upgrade the worker's remora")],
)
async def test_a_worker_of_another_protocol(tmp_path: Path, theirs: int, advice: str) -> None:
    """The owner says both releases, and which to upgrade, and serves others."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        made = Stranger(*await asyncio.open_unix_connection(owner.path))
        made.writer.write(WORK)
        made.send(Hello(theirs, "9.0", worker="other"))
        refused = (await made.replies(1))[0]
        assert isinstance(refused, Raised)
        assert refused.name == "ProtocolMismatch"
        assert advice in refused.text
        assert "remora 9.0" in refused.text
        assert f"remora {remora.__version__}" in refused.text
        made.writer.transport.abort()
        await shard.session("ann", "one").append(user("a"))


async def test_a_figure_that_the_owner_cannot_give_is_missed_by_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner from before `health`; of one that knows no call at all, it says who must upgrade."""

    def known(name: str) -> CallType:
        if name == "runtime.health":
            raise UnreadableCall("there is no call 'runtime.health'")
        return find_call(name)

    def unknown(name: str) -> CallType:
        raise UnreadableCall(f"there is no call {name!r}")

    monkeypatch.setattr(serving, "find_call", known)
    async with workers(tmp_path, 1) as (owner, (shard,)):
        await shard.session("ann", "one").append(user("a"))
        await shard.settle()
        assert shard.statistics().log.writes == 1
        assert shard.erasures() == []
        health = shard.health()
        assert (health.ready, health.degraded) == (True, True)
        assert [one.code for one in health.problems] == ["owner_differs"]
        monkeypatch.setattr(serving, "find_call", find_call)
        await shard.operator.refresh()
        assert "owner_differs" not in [one.code for one in shard.health().problems]
        assert owner.dialed == 1
        monkeypatch.setattr(serving, "find_call", unknown)
        await shard.operator.refresh()
        for figure in (shard.statistics, shard.erasures):
            with pytest.raises(ProtocolMismatch, match="upgrade the owner"):
                figure()
        with pytest.raises(ProtocolMismatch, match="upgrade the owner"):
            await shard.session("ann", "one").history()
        await shard.session("ann", "one").append(user("a"))


async def test_what_ends_every_connection_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With growing pauses, ten lines of the log, and an error to who asked."""
    monkeypatch.setattr(connection, "PAUSE_S", 0.0005)
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")

        def break_off(name: str) -> CallType:
            if name == "archive.history":
                raise WireError("not the protocol")
            return find_call(name)

        monkeypatch.setattr(serving, "find_call", break_off)
        with caplog.at_level(logging.INFO, "remora"), pytest.raises(OwnerUnreachable, match="10"):
            await chat.history()
        await chat.append(user("a"))
        lost = [one.getMessage() for one in caplog.records if "owner_lost" in one.getMessage()]
        assert 10 <= len(lost) < 20
        assert owner.dialed < 20
        monkeypatch.undo()
        assert said(await chat.history()) == ["a"]


async def test_a_recorded_context_has_no_summaries(tmp_path: Path) -> None:
    """Whoever of the workers was shown them, here as a message of the user; also at the next owner,
    which hears of them.
    """
    tree = {
        "buffer": {"token_limit": 120, "summary_tokens": 40},
        "tokens": {"counter": "heuristic"},
    }
    async with workers(tmp_path, 2, Config.from_dict(tree)) as (owner, (first, second)):
        chat = first.session("ann", "one")
        for n in range(30):
            text = f"fact number {n} of many words"
            await chat.append(Message(role="assistant" if n % 2 else "user", content=text))
        await chat.settle()
        await chat.append([{"role": "assistant", "content": "hello"}])
        context = await chat.load(max_tokens=70)
        assert context.summary is not None
        (shown,) = [one for one in context.messages if context.summary in str(one["content"])]
        assert shown["role"] == "user"
        for _ in range(2):
            await second.user("ann").record(list(context.messages))
            texts = [one.text for one in await second.user("ann").remembered()]
            assert "hello" in texts
            assert not any(context.summary in text for text in texts)
            await owner.stop()
            await owner.start()
            await chat.stats()  # it is connected again


# -- an owner that leaves --------------------------------------------------------------------------


async def test_an_owner_that_leaves_does_not_wait_for_turns(tmp_path: Path) -> None:
    """Those that wait behind another, which may take minutes, wait at the next one."""
    async with workers(tmp_path, 2) as (owner, (first, second)):
        async with first.session("ann", "one").turn("q1") as turn:
            waiting = asyncio.create_task(whole_turn(second, "one", "q2"))
            await spin(50)
            await owner.stop(600)
            await owner.start()
            await second.session("bob", "one").append(user("a"))
            await turn.reply("a1")
        await waiting
        texts = said(await first.session("ann", "one").history())
        assert sorted(texts) == ["a1", "q1", "q2", "yes"]


async def test_an_owner_that_leaves_does_not_wait_for_a_slow_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next owner answers it; a second `forget` would find less, so its answer is waited for."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        await chat.append(user("a"))
        release = asyncio.Event()

        async def slow(name: str, arguments: bytes, **rest: Any) -> bytes:
            if name in {"archive.history", "work.forget"}:
                await release.wait()
            return await perform(name, arguments, **rest)

        monkeypatch.setattr(serving, "perform", slow)
        reading = asyncio.create_task(chat.history())
        await spin()
        await owner.stop(600)
        release.set()
        await owner.start()
        assert said(await reading) == ["a"]
        release.clear()
        forgetting = asyncio.create_task(shard.user("ann").forget())
        await spin()
        stopping = asyncio.create_task(owner.stop(600))
        await spin(50)
        assert not stopping.done()
        release.set()
        assert (await forgetting).journal["messages"] == 1
        await stopping
        await owner.start()


# -- many turns, and frames that nobody should send ------------------------------------------------


async def test_turns_that_wait_do_not_keep_out_what_ends_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MOST_OPEN", 4)
    async with workers(tmp_path, 1) as (_, (shard,)):
        async with shard.session("ann", "one").turn("first") as turn:
            waiting = [asyncio.create_task(whole_turn(shard, "one", str(n))) for n in range(12)]
            await spin(50)
            await shard.session("bob", "one").append(user("a"))
            await turn.reply("yes")
        await asyncio.gather(*waiting)
        assert (await shard.session("ann", "one").stats()).messages == 26


async def test_turns_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_WAITING", 2)
    async with workers(tmp_path, 1) as (_, (shard,)):
        async with shard.session("ann", "one").turn("first"):
            waiting = [asyncio.create_task(whole_turn(shard, "one", str(n))) for n in range(2)]
            await spin(50)
            with pytest.raises(MailboxFull, match="nothing ran"):
                await whole_turn(shard, "one", "third")
        await asyncio.gather(*waiting)
        await whole_turn(shard, "one", "third")


async def test_a_number_that_is_used_twice_locks_no_session(tmp_path: Path) -> None:
    async with workers(tmp_path, 1) as (owner, (shard,)):
        for number, frames in enumerate(
            ([[begin(1, "a"), begin(1, "b")]], [[begin(1, "a")], [begin(1, "b")]])
        ):
            async with stranger(owner, f"s{number}") as other:
                for one in frames:
                    other.send(*one)
                    await spin()
                while await other.reader.read(1 << 16):  # until the owner closes it
                    pass
            await whole_turn(shard, "a", "q")
            await whole_turn(shard, "b", "q")


async def test_a_call_that_is_cancelled_before_it_begins(tmp_path: Path) -> None:
    """It leaves nothing behind: pytest fails on a coroutine that was never awaited."""
    stats = msgspec.msgpack.encode([["ann", "one"]])
    async with workers(tmp_path, 0) as (owner, _), stranger(owner) as other:
        other.send(Call(1, 0, "archive.stats", stats), begin(2, "one"), Cancel(1), Cancel(2))
        other.send(Call(3, 0, "archive.stats", stats))
        assert set(await other.replies(1)) == {3}
        gc.collect()
