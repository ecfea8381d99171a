"""Erasures that cannot end yet: nobody waits for another's, callers are told, operators see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime
from remora.errors import ErasureDelayed, ErasureInProgress, LongTermError
from remora.ids import session_key, user_key
from remora.results import WaitingErasure
from remora.storage.lance.store import LanceStore
from remora.storage.memory import MemoryStore
from remora.storage.sqlite.peek import peek_erasures
from remora.testing import HashEmbedder
from tests.lance import digests_of, lance, put, rows_of
from tests.programs import run_command

EMBEDDER = HashEmbedder()
CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 1},
        "journal": {"durability": "process"},
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02},
    }
)


def runtime_on(directory: Path, **options: Any) -> Runtime:
    return Runtime(directory, config=CONFIG, embedder=EMBEDDER, **options)


def says(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def say(runtime: Runtime, user: str, text: str, session: str = "s") -> None:
    await runtime.session(user, session).append(says(text))
    await runtime.session(user, session).flush()


class PickyStore(MemoryStore):
    """A store that cannot erase some users."""

    def __init__(self, *refused: str) -> None:
        super().__init__(EMBEDDER.dimension)
        self.refused = {user_key(user) for user in refused}
        self.asked: list[str] = []

    async def erase(self, user_key: str, session_key: str = "") -> int:
        self.asked.append(user_key)
        if user_key in self.refused:
            raise LongTermError("it cannot be reached (at secret://place)", retryable=True)
        return await super().erase(user_key, session_key)


# -- hostile texts and ids -------------------------------------------------------------------------

VICTIM = "victim"


@pytest.mark.anyio
async def test_the_digest_of_another(tmp_path: Path) -> None:
    """G13: who writes a victim's digest, as text or as a name, delays nobody's erasure, and loses
    nothing by another's; nor do they delay their own, of a session and of all.
    """
    victims, mallorys = user_key(VICTIM), user_key("mallory")
    hostile = (
        ("mallory", "s", victims),
        (victims, "s", "hi"),
        ("mallory", victims, "hi there"),
        ("mallory", session_key(VICTIM, "s"), session_key(VICTIM, "s")),
        ("mallory", mallorys, mallorys),
        ("mallory", session_key("mallory", "s"), "hello"),
    )
    async with runtime_on(tmp_path / "memory") as runtime:
        for user, session, text in (
            (VICTIM, "s", "hello, I am the victim"),
            ("bob", "s", "I am a bystander"),
            *hostile,
        ):
            await say(runtime, user, text, session)
        await runtime.settle()
        async with anyio.create_task_group() as tasks:
            for forgotten in (VICTIM, "bob"):
                tasks.start_soon(runtime.user(forgotten).forget)
        assert runtime.erasures() == []
        for user, _, text in hostile:
            assert (await runtime.user(user).recall(text))[0].text == text
        await say(runtime, VICTIM, "and back")
        await runtime.session("mallory", "s").forget()
        await runtime.session("mallory", mallorys).forget()
        assert len(await runtime.user("mallory").sessions()) == 3
        for user in ("mallory", victims):
            await runtime.user(user).forget()
            assert await runtime.user(user).sessions() == []


@pytest.mark.anyio
async def test_waiting_erasures_share_a_rewriting(tmp_path: Path) -> None:
    """G13: erasures of one table that wait together rewrite it once, and each counts its rows."""
    users = [f"user-{n}" for n in range(6)]
    gone: dict[str, int] = {}
    async with lance(tmp_path / "lance") as store:
        for number, user in enumerate(users):
            await put(store, rows_of(user, range(3 + number)))

        async def erase(user: str) -> None:
            gone[user] = await store.erase(user_key(user))

        async with anyio.create_task_group() as tasks:
            for user in users[1:]:
                tasks.start_soon(erase, user)
        shared = (await store.statistics()).rewritten_bytes
        assert gone == {user: 3 + number for number, user in enumerate(users) if number}
        assert await store.erase(user_key("nobody")) == 0
        assert (await store.statistics()).rewritten_bytes <= 2 * shared
        assert len(await store.rows("user-0")) == 3


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_failing_one_keeps_nobody_waiting(tmp_path: Path) -> None:
    """G13: of several erasures one cannot end: the others do, its caller is told after some
    attempts, as is who asks again; when the cause is gone it ends. While one session waits to be
    erased, the user's other sessions go on, and the whole user can be forgotten, too.
    """
    store = PickyStore(VICTIM, "mallory")
    async with runtime_on(tmp_path / "memory", store=store) as runtime:
        for user in (VICTIM, "bob", "carol"):
            await say(runtime, user, "something")
        await runtime.settle()

        async def refused() -> None:
            for _ in range(2):
                with pytest.raises(ErasureDelayed, match="retry_erasures") as told:
                    await runtime.user(VICTIM).forget()
                assert told.value.attempts > 1
                assert told.value.retryable
                assert isinstance(told.value.__cause__, LongTermError)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused)
            tasks.start_soon(runtime.user("bob").forget)
            tasks.start_soon(runtime.user("carol").forget)
        await say(runtime, "bob", "again")
        with pytest.raises(ErasureInProgress):
            await runtime.session(VICTIM, "new").append(says("may I?"))
        waiting = runtime.erasures()
        assert [one.user_key for one in waiting] == [user_key(VICTIM)] * 2
        assert all("cannot be reached" in one.error for one in waiting)
        assert "secret" not in str(waiting)
        counted = runtime.statistics().erasures
        assert (counted.waiting, counted.delayed, counted.finished) == (2, 2, 2)
        assert counted.failures >= sum(one.attempts for one in waiting)
        assert len(await runtime.retry_erasures()) == 2

        mallory = runtime.user("mallory")
        for session in ("one", "two"):
            await say(runtime, "mallory", "something", session)
        with pytest.raises(ErasureDelayed):
            await mallory.session("one").forget()
        await mallory.session("two").append(says("goes on"))
        with pytest.raises(ErasureDelayed):
            await mallory.forget()
        with pytest.raises(ErasureInProgress):
            await mallory.session("two").load()
        store.refused.clear()
        assert await runtime.retry_erasures() == []
        assert await mallory.session("two").history() == []
        await say(runtime, VICTIM, "back")


@pytest.mark.anyio
async def test_seen_from_outside_and_after_a_restart(tmp_path: Path) -> None:
    """G13: another process sees what waits and why while the runtime is open; the next start goes
    on with it, and an erasure of that run does not wait for it.
    """
    directory = tmp_path / "memory"

    def peek() -> Sequence[WaitingErasure]:
        return peek_erasures(directory / "journal.db")

    async with runtime_on(directory, store=PickyStore(VICTIM)) as runtime:
        await say(runtime, VICTIM, "something")
        with pytest.raises(ErasureDelayed) as told:
            await runtime.user(VICTIM).forget()
        (seen,) = await anyio.to_thread.run_sync(peek)
        assert (seen.user_key, seen.session_key) == (user_key(VICTIM), "")
        assert seen.attempts >= told.value.attempts
        assert seen.since_us
        assert "cannot be reached" in seen.error
    store = PickyStore(VICTIM)
    async with runtime_on(directory, store=store) as runtime:
        assert runtime.erasures()[0].attempts >= seen.attempts
        await say(runtime, "bob", "something")
        await runtime.user("bob").forget()
        store.refused.clear()
        assert await runtime.retry_erasures() == []
        await runtime.session(VICTIM, "s").append(says("back"))
    assert await anyio.to_thread.run_sync(peek) == []


def test_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """G13: ``remora jobs`` lists waiting erasures by digest, and retries them."""
    directory = tmp_path / "memory"

    async def broken(*_: Any) -> int:
        raise LongTermError("the disk failed", retryable=False)

    async def live() -> None:
        async with runtime_on(directory) as runtime:
            await say(runtime, VICTIM, "something")
            await runtime.settle()
            with pytest.raises(ErasureDelayed):
                await runtime.user(VICTIM).forget()

    where = ["--dir", str(directory)]
    with monkeypatch.context() as patched:
        patched.setattr(LanceStore, "erase", broken)
        anyio.run(live)
        assert run_command("jobs", *where) == 0
        shown = capsys.readouterr().out
        shown_as = digests_of(directory).user(VICTIM)
        assert "erasure-1  erasing  user " + shown_as in shown
        assert user_key(VICTIM) not in shown
        assert run_command("jobs", "--user", VICTIM, *where) == 0
        assert shown_as in capsys.readouterr().out
        assert run_command("jobs", "--user", "bob", *where) == 0
        assert "no background jobs wait" in capsys.readouterr().out
        assert "the disk failed" in shown
        assert VICTIM not in shown
        assert run_command("jobs", "--json", *where) == 0
        line = json.loads(capsys.readouterr().out)
        assert (line["id"], line["state"], line["user_key"]) == (
            "erasure-1",
            "erasing",
            shown_as,
        )
        assert line["attempts"] >= 1
        assert run_command("jobs", "retry", "erasure-1", *where) == 1
        assert "the disk failed" in capsys.readouterr().out
    assert run_command("jobs", "retry", "--all", *where) == 0
    assert "1 erasure finished" in capsys.readouterr().out
    assert run_command("jobs", *where) == 0
    assert "no background jobs wait" in capsys.readouterr().out
