"""The text of an error has no id of a user or a session: who logs it logs none."""

from __future__ import annotations

import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Config, Runtime, errors
from remora.errors import RemoraError
from remora.ids import session_key, user_key
from remora.storage.decoding import row_damage
from remora.storage.ports import SessionKey, UserKey
from remora.testing import FaultyJournal, HashEmbedder
from tests.configs import LEAN_TREE, poison
from tests.harness import user
from tests.verbs import ERRORS, World

# blocking: at the first use here, numpy may be imported by two threads at once
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]
USER, SESSION, OTHER = "qzvkuser-1", "qzvksession-1", "qzvksession-2"
CONFIG = Config.from_dict(
    {
        **LEAN_TREE,
        "buffer": {"token_limit": 100, "summary_tokens": 40, "overdraft": "refuse"},
        "turns": {"wait_s": 0.01},
        "synopsis": {"shown": "always"},
    }
)

BAD: Any = {"role": "nobody"}


class Provoked:
    """A runtime in which everything may fail, and handles of it.

    Attributes:
        faults: of the commits that come next.
        gate: what the chat model waits for.
        reentrant: raised by what it called.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Any] = []
        self.gate = anyio.Event()
        self.reentrant: list[errors.ReentrantAsk] = []

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Provoked]:
        journal = FaultyJournal(lambda: self.faults.pop() if self.faults else None)
        self.runtime = Runtime.in_memory(
            config=CONFIG,
            journal=journal,
            chat_model=self._complete,
            embedder=HashEmbedder(),
            redact=poison,
        )
        async with self.runtime:
            self.user = self.runtime.user(USER)
            self.session = self.runtime.session(USER, SESSION)
            await self.session.append(user("hello") | {"id": "m-1"}, key="used")
            try:
                yield self
            finally:
                self.gate.set()

    async def _complete(self, prompt: str) -> str:
        del prompt
        try:
            await self.session.settle()
        except errors.ReentrantAsk as e:
            self.reentrant.append(e)
        await self.gate.wait()
        return "a summary"

    async def fill(self) -> None:
        for number in range(60):
            await self.session.append(user(f"{number} fills the buffer soon"))


async def _busy(p: Provoked) -> None:
    async with p.session.turn("one", query=False), p.session.turn("two", query=False):
        pass


async def _closed(p: Provoked) -> None:
    async with p.session.turn("one", query=False) as turn:
        await p.session.clear()
        await turn.reply("too late")


async def _another_turn(p: Provoked) -> None:
    async with p.session.turn("one", query=False, key="turn") as turn:
        await turn.reply("yes")
    async with p.session.turn("two", query=False, key="turn"):
        pass


async def _conflict(p: Provoked) -> None:
    await p.session.state.set("step", 1, version=7)


async def _refused(p: Provoked) -> None:
    p.faults.append("refused")
    await p.session.append(user("x"))


async def _not_recorded(p: Provoked) -> None:
    p.faults.append("refused")
    await p.user.remember("x", session=SESSION)


async def _reentrant(p: Provoked) -> None:
    with pytest.raises(errors.OverdraftReached):
        await p.fill()
    p.gate.set()
    await p.session.settle()
    raise p.reentrant[0]


async def _exported_twice(p: Provoked) -> None:
    exported = await p.session.export()
    await p.user.import_session(exported, session=OTHER)
    await p.user.import_session(exported, session=OTHER)


async def _damaged(p: Provoked) -> None:
    del p
    raise row_damage(SessionKey(USER, SESSION), "a row is not as it was written")


async def _damaged_user(p: Provoked) -> None:
    del p
    raise row_damage(UserKey(USER), "a row is not as it was written")


PROVOKED: list[tuple[type[RemoraError], Callable[[Provoked], Awaitable[Any]]]] = [
    (errors.InvalidId, lambda p: p.user.session(f"{OTHER}\n").history()),
    (errors.InvalidId, lambda p: p.runtime.session(f"{USER}\ud800", SESSION).history()),
    (errors.InvalidMessage, lambda p: p.session.append(BAD)),
    (errors.InvalidInput, _exported_twice),
    (errors.InvalidInput, lambda p: p.user.session(OTHER).export()),
    (errors.InvalidInput, lambda p: p.session.rewind(70_000)),
    (errors.InvalidInput, lambda p: p.session.fork(SESSION)),
    (errors.IndexOutOfRange, lambda p: p.session.delete(positions=[77])),
    (errors.KeyConflict, lambda p: p.session.append(user("other"), key="used")),
    (errors.KeyConflict, _another_turn),
    (errors.IdConflict, lambda p: p.session.append(user("other") | {"id": "m-1"})),
    (errors.NotFound, lambda p: p.session.delete(["m-7"])),
    (errors.NoSuchMemory, lambda p: p.user.update_memory("0" * 32, "x")),
    (errors.NotGranted, lambda p: p.runtime.shared(OTHER).as_(USER).recall("x")),
    (errors.RedactionFailed, lambda p: p.session.append(user("poison"))),
    (errors.StateConflict, _conflict),
    (errors.TurnClosed, _closed),
    (errors.SessionBusy, _busy),
    (errors.OverdraftReached, lambda p: p.fill()),
    (errors.ReentrantAsk, _reentrant),
    (errors.CommitFailed, _refused),
    (errors.RecordingFailed, _not_recorded),
    (errors.ModelTimeout, lambda p: p.user.synopsis(refresh=True, timeout_s=0.01)),
    (errors.JournalDamaged, _damaged),
    (errors.JournalDamaged, _damaged_user),
]


@pytest.mark.parametrize(
    ("kind", "provoke"), PROVOKED, ids=lambda one: getattr(one, "__name__", "")
)
async def test_an_error_about_a_session(
    kind: type[RemoraError], provoke: Callable[[Provoked], Awaitable[Any]], tmp_path: Path
) -> None:
    """It has the pseudonyms that logs have, or none; also its traceback."""
    async with Provoked(tmp_path).opened() as one:
        with pytest.raises(kind) as caught:
            await provoke(one)
    shown = "".join(traceback.format_exception(caught.value))
    assert not re.search("qzvk(user|session)", shown), shown
    for digest in re.findall("[0-9a-f]{32}", str(caught.value)):
        assert digest in {
            user_key(USER),
            *(session_key(USER, one) for one in (SESSION, OTHER)),
            "0" * 32,
        }


async def test_errors_of_all_verbs(tmp_path: Path) -> None:
    """What a call refuses is told without names."""
    config = Config.from_dict(LEAN_TREE)
    async with Runtime(tmp_path / "m", config=config, embedder=HashEmbedder()) as runtime:
        world = World(runtime, tmp_path)
        await world.session.append(user("hello"))
        await world.member.claim()
        await runtime.export(tmp_path / "export.jsonl")
        told = []
        for number, (name, call) in enumerate(ERRORS.items()):
            try:
                await call(world.at(number))
            except RemoraError as e:
                told.append(f"{name}: {e}")
    assert len(told) > 25
    shown = re.compile(r"\bada\b|user \d|stranger|\bteam\b")
    assert [one for one in told if shown.search(one.partition(": ")[2])] == []
