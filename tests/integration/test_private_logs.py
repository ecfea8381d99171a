"""No log line, at any level and of any library, has what users say, or who they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from remora import Config, Runtime
from remora.errors import ErasureDelayed, LongTermError, RemoraError
from remora.ids import user_key
from remora.storage.lance.store import LanceStore
from remora.storage.ports import SessionKey
from remora.testing import HashEmbedder
from tests.lance import digest_keys

# blocking: at the first use here, numpy may be imported by two threads at once
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CANARY = "qzvkword"
USER, SESSION = "qzvkuser-1", "qzvksession-1"
CONFIG = Config.from_dict(
    {
        "buffer": {"token_limit": 200, "summary_tokens": 60},
        "long_term": {"batch_ms": 1, "shards": 1},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02, "max_attempts": 2},
    }
)


class BrokenModel:
    """Fails as models do."""

    async def complete(self, messages: Any) -> str:
        del messages
        raise RuntimeError("no model")


async def use_all_verbs(runtime: Runtime, directory: Path) -> None:
    who, chat = runtime.user(USER), runtime.session(USER, SESSION)
    for number in range(30):
        await chat.append(
            {"role": "user", "content": f"{CANARY} {number} and words that fill the buffer soon"},
            key=f"qzvkkey-{number}",
        )
    await chat.append({"role": "user", "content": CANARY, "id": "qzvkid"})
    await chat.load(query=CANARY)
    await chat.history()
    await chat.search(CANARY)
    await chat.delete(["qzvkid"])
    await chat.fork("qzvksession-2")
    await who.learn(f"{CANARY} learned", session=SESSION)
    await who.remember(f"{CANARY} remembered")
    await chat.flush()
    await runtime.settle()
    await who.recall(CANARY)
    await who.memories()
    await who.prune(keep=5)
    await who.sessions()
    await who.synopsis()
    await chat.stats()
    await runtime.export(directory / "export.jsonl")
    await runtime.settle()
    await chat.clear()


async def test_at_debug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: the application logs everything at DEBUG, also what SQLite's driver does; the user is
    forgotten, which fails for a while, and asks meanwhile.
    """
    caplog.set_level(logging.DEBUG)
    logging.getLogger("aiosqlite").setLevel(logging.DEBUG)
    remove = LanceStore.remove

    async def away(*_: Any) -> int:
        raise LongTermError("away", retryable=True)

    try:
        async with Runtime(
            tmp_path / "memory", config=CONFIG, embedder=HashEmbedder(), chat_model=BrokenModel()
        ) as runtime:
            await use_all_verbs(runtime, tmp_path)
            monkeypatch.setattr(LanceStore, "remove", away)
            with pytest.raises(ErasureDelayed):
                await runtime.session(USER, "qzvksession-2").forget()
            # its own session is not erased, its user's memories are being
            context = await runtime.session(USER, SESSION).load(query=CANARY)
            assert context.sources["long_term"].status == "failed"
            with pytest.raises(ErasureDelayed):
                await runtime.user(USER).forget()
            for ask in (runtime.session(USER, SESSION).load, runtime.user(USER).synopsis):
                with pytest.raises(RemoraError):
                    await ask()
            monkeypatch.setattr(LanceStore, "remove", remove)
            assert await runtime.retry_erasures() == []
    finally:
        logging.getLogger("aiosqlite").setLevel(logging.INFO)
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert any(user_key(USER) in line for line in lines)
    assert [line for line in lines if "qzvk" in line.lower()] == []
    (key,) = await anyio.to_thread.run_sync(digest_keys, tmp_path / "memory")
    assert [line for line in lines if key in line] == []
    assert [line for line in lines if "tier_failed" in line] == []


async def test_errors_that_quote_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """G13: a failing job's error and traceback are logged without the ids that they quote; at a
    root logger's DEBUG no statement of SQLite's driver is, whose parameters are messages.
    """

    class Quoting:
        name = "quoting"

        async def summarize(self, *_: Any, **__: Any) -> str:
            raise RuntimeError(f"{SessionKey(USER, SESSION)!r} was not summarized")

    caplog.set_level(logging.DEBUG)
    async with Runtime(
        tmp_path / "memory", config=CONFIG, embedder=HashEmbedder(), summarizer=Quoting()
    ) as runtime:
        for number in range(40):
            text = f"{CANARY} {number} fills the buffer soon"
            await runtime.session(USER, SESSION).append({"role": "user", "content": text})
        await runtime.settle()
    await anyio.lowlevel.checkpoint()
    lines = [logging.Formatter().format(record) for record in caplog.records]
    assert any("was not summarized" in line for line in lines)
    assert [line for line in lines if "qzvk" in line.lower()] == []
    assert not [one for one in caplog.records if one.name == "aiosqlite" and one.levelno < 20]


async def test_a_handler_that_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """G11: what the host's logging raises stops no commit, no job and no runtime."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the log is broken")

    async def away(_: str) -> str:
        raise ConnectionError("no model there")

    handler = Broken()
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers, handler])
    monkeypatch.setattr(logging.root, "level", logging.DEBUG)
    async with Runtime(
        tmp_path / "memory", config=CONFIG, embedder=HashEmbedder(), chat_model=away
    ) as runtime:
        session = runtime.session(USER, SESSION)
        for number in range(40):
            await session.append({"role": "user", "content": f"{number} fills the buffer soon"})
        await runtime.settle()
        assert (await session.load()).sources["summary"].status == "degraded"
        assert len(await session.history()) == 40
    assert "the log is broken" in capsys.readouterr().err
