"""Workers at a Unix socket: their turns, bounds, cancellation, and another owner.

That each verb does the same there as in the owner's process is in `test_cluster_verbs`.
"""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest

from remora import Config, Runtime
from remora.actors.session.messages import Load
from remora.cluster.remote import RemoteMemory, RemoteShard
from remora.cluster.wire import WIRE, Ask, Hello, frame
from remora.errors import (
    ConfigError,
    InvalidInput,
    OutcomeUnknown,
    OwnerUnreachable,
    ProtocolMismatch,
    RuntimeClosed,
    SessionBusy,
    TurnClosed,
)
from remora.services.answering import WORK
from tests.harness import user
from tests.integration.conftest import PLAIN, PLAIN_TREE
from tests.remote import remote, said, spin, whole_turn, workers

pytestmark = pytest.mark.anyio


# -- sessions --------------------------------------------------------------------------------------


async def test_a_worker_counts_and_redacts_what_it_sends(tmp_path: Path) -> None:
    """The owner never sees what the hook removed, and stores the worker's count."""

    def make() -> Runtime:
        return Runtime(
            tmp_path / "memory", config=PLAIN, redact=lambda text: text.replace("secret", "…")
        )

    async with remote(make) as shard:
        chat = shard.session("ann", "one")
        await chat.append(user("my secret"))
        (message,) = await chat.history()
        assert message.content == "my …"
        (entry,) = (await chat.inspect()).entries
        assert entry.tokens == shard.message_tokens(user("my …"))


async def test_turns_of_several_workers_run_one_after_the_other(tmp_path: Path) -> None:
    async with workers(tmp_path, 3) as (_, shards):
        begun = []

        async def ask(number: int, shard: RemoteShard) -> None:
            async with shard.session("ann", "one").turn(f"q{number}") as turn:
                begun.append(number)
                await spin()
                await turn.reply(f"a{number}")

        await asyncio.gather(*[ask(n, one) for n, one in enumerate(shards * 2)])
        chat = shards[0].session("ann", "one")
        expected = [text for n in begun for text in (f"q{n}", f"a{n}")]
        assert said(await chat.history()) == expected


async def test_a_turn_is_replayed_to_another_worker(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (_, (first, second)):
        async with first.session("ann", "one").turn("time?", key="r1") as turn:
            await turn.reply("It is noon.")
        async with second.session("ann", "one").turn("time?", key="r1") as turn:
            assert turn.replayed
            assert said(turn.replies) == ["It is noon."]
        with pytest.raises(TurnClosed):
            await turn.reply("again")


async def test_a_worker_that_leaves_ends_its_turns(tmp_path: Path) -> None:
    """It was killed, for instance; another worker's turn waits for that alone."""
    async with workers(tmp_path, 1) as (owner, (second,)):
        memory = owner.worker()
        (first,) = await memory.open()
        turn = first.session("ann", "one").turn("q")
        await turn.__aenter__()
        waiting = asyncio.create_task(whole_turn(second, "one", "q2"))
        await spin(50)
        assert not waiting.done()
        await memory.aclose()
        await waiting


async def test_a_turn_that_is_given_up_does_not_hold_the_line(tmp_path: Path) -> None:
    async with workers(tmp_path, 2) as (_, (first, second)):
        async with first.session("ann", "one").turn("q1"):
            gone = asyncio.create_task(whole_turn(second, "one", "q2"))
            await spin(50)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
        await whole_turn(second, "one", "q3")
        assert said(await first.session("ann", "one").history()) == ["q1", "q3", "yes"]


async def test_too_many_turns(tmp_path: Path) -> None:
    config = Config.from_dict({**PLAIN_TREE, "turns": {"max_waiting": 0}})
    async with workers(tmp_path, 2, config) as (_, (first, second)):
        async with first.session("ann", "one").turn("q1"):
            with pytest.raises(SessionBusy) as caught:
                await whole_turn(second, "one", "q2")
        assert caught.value.waiting == 0


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.blocking  # pytest changes the directory
async def test_the_owner_writes_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And tells how far it is; a path is the worker's, as it is when it calls."""
    async with workers(tmp_path, 0) as (owner, _):
        memory = owner.worker()
        (shard,) = await memory.open()
        await shard.session("ann", "one").append([user("a"), user("b")])
        monkeypatch.chdir(tmp_path)
        told: list[tuple[int, int]] = []
        report = await memory.transfers.export(
            Path("out.jsonl"), overwrite=False, progress=lambda *at: told.append(at)
        )
        assert report.messages == 2
        assert told[-1] == (2, 2)
        with pytest.raises(InvalidInput, match="exists"):
            await memory.transfers.export(Path("out.jsonl"), overwrite=False, progress=None)
        await memory.transfers.backup(Path("copy"), progress=None)
        await memory.aclose()
    async with remote(lambda: Runtime(tmp_path / "copy", config=PLAIN)) as copy:
        assert said(await copy.session("ann", "one").history()) == ["a", "b"]


# -- errors, cancellation, bounds ------------------------------------------------------------------


async def test_a_cancelled_call_ends_at_the_owner(tmp_path: Path) -> None:
    """Here: a search whose embedder never answers."""
    begun, ended = asyncio.Event(), asyncio.Event()

    class Slow:
        name, dimension = "slow", 4

        async def embed(self, texts: list[str]) -> list[list[float]]:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return [[1.0, 0.0, 0.0, 0.0] for _ in texts]

    config = Config.from_dict({"tokens": {"counter": "heuristic"}})
    async with remote(lambda: Runtime(tmp_path / "memory", config=config, embedder=Slow())) as one:
        await one.user("ann").remember("tea")
        asking = asyncio.create_task(one.user("ann").recall("tea"))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_closed_worker_is_closed(tmp_path: Path) -> None:
    async with workers(tmp_path, 1) as (owner, _):
        memory = owner.worker()
        (shard,) = await memory.open()
        assert owner.served is not None
        assert owner.served.links == 2
        await shard.session("ann", "one").append(user("a"))
        await memory.aclose()
        await spin()
        assert owner.served.links == 1
        with pytest.raises(RuntimeClosed):
            await shard.session("ann", "one").load()
        (shard,) = await memory.open()
        assert len((await shard.session("ann", "one").load()).messages) == 1
        await memory.aclose()


async def test_garbage_ends_its_own_connection_alone(tmp_path: Path) -> None:
    async with workers(tmp_path, 1) as (owner, (shard,)):
        hello = bytes(frame([Hello(WIRE)]))
        bad = [
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack("<I", 0),
            bytes(frame(["what"])),
            hello + struct.pack("<I", 5) + b"\xc1\xc1\xc1\xc1\xc1",
            hello + bytes(frame([[203, 0, 0, "turns.begin", b"\x91\x92\xa1a\xa1b"]])),
            hello + bytes(frame([[204, 1], [203, 1, 9, "archive.stats", b"\x90"]])),
        ]
        for one in bad:
            reader, writer = await asyncio.open_unix_connection(owner.path)
            writer.write(WORK + one)
            await reader.read()  # until the owner closes it
            writer.close()
            await shard.session("ann", "one").append(user("still served"))


async def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    """Another version of the protocol, and another number of shards."""
    async with workers(tmp_path, 1) as (owner, _):
        memory = RemoteMemory(owner.make(), owner.dial)
        memory.hello = Hello(WIRE + 1, "9.0")
        with pytest.raises(ProtocolMismatch, match="upgrade the owner"):
            await memory.open()
        memory = RemoteMemory([*owner.make(), *owner.make()], owner.dial)
        with pytest.raises(ConfigError, match="has 1 shard, and this process expects 2"):
            await memory.open()


async def test_a_worker_that_reads_nothing_is_bounded(tmp_path: Path) -> None:
    """The owner stops reading it, and others are served."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        await chat.append([user("x" * 100_000) for _ in range(10)])
        reader, writer = await asyncio.open_unix_connection(owner.path)
        writer.write(WORK + bytes(frame([Hello(WIRE, worker="deaf")])))
        await reader.readexactly(10)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        sent = 0
        asks = [Ask(n, 0, "ann", "one", Load(1_000_000)) for n in range(1, 101)]
        load = bytes(frame(asks))
        while writer.transport.get_write_buffer_size() == 0 and sent < 200:
            writer.write(load)
            sent += 1
            await chat.load(max_tokens=100)
        assert writer.transport.get_write_buffer_size() > 0
        writer.transport.abort()
        await chat.append(user("still served"))


# -- another owner ---------------------------------------------------------------------------------


async def test_a_polite_handover_loses_nothing(tmp_path: Path) -> None:
    """The owner answers what it has; what comes later waits for the next one, key or not."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        await chat.append(user("0"))
        stopping = asyncio.create_task(owner.stop())
        later = [asyncio.create_task(chat.append(user(str(n)))) for n in range(1, 9)]
        await stopping
        await owner.start()
        receipts = await asyncio.gather(*later)
        assert [one.seqs for one in receipts] == [(n + 1,) for n in range(1, 9)]
        assert said(await chat.history()) == [str(n) for n in range(9)]
        assert owner.dialed > 1


async def test_what_was_cut_off_is_sent_again_if_it_has_a_key(tmp_path: Path) -> None:
    """A read as well. An append without a key may have been stored: nobody knows."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        await chat.append(user("0"))
        keyed = asyncio.create_task(chat.append(user("keyed"), key="k"))
        plain = asyncio.create_task(chat.append(user("plain")))
        reading = asyncio.create_task(chat.history())
        await spin(2)
        await owner.stop(0)
        await owner.start()
        (first, second) = await asyncio.gather(keyed, plain, return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert isinstance(second, OutcomeUnknown)
        assert said(await reading)[:2] == ["0", "keyed"]
        stored = said(await chat.history())
        assert stored in (["0", "keyed"], ["0", "keyed", "plain"])
        assert (await chat.append(user("keyed"), key="k")).seqs == first.seqs == (2,)


async def test_a_turn_outlives_its_owner(tmp_path: Path) -> None:
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        async with chat.turn("q", key="r1") as turn:
            await owner.stop()
            await owner.start()
            await turn.reply("a")
        assert said(await chat.history()) == ["q", "a"]
        await whole_turn(shard, "one", "q2")


async def test_no_owner_in_time(tmp_path: Path) -> None:
    """Nothing ran; as soon as there is one, requests go on."""
    async with workers(tmp_path, 1) as (owner, (shard,)):
        chat = shard.session("ann", "one")
        await owner.stop()
        with pytest.raises(OwnerUnreachable):
            await chat.append(user("late"), timeout_s=0.05)
        with pytest.raises(OwnerUnreachable):
            await chat.load(timeout_s=0.05)
        await owner.start()
        await chat.append(user("0"))
        assert said(await chat.history()) == ["0"]
