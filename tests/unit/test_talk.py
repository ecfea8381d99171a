"""The judgement of what sessions saw through faults notices each kind of fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from remora import Runtime
from remora.errors import CommitFailed
from tests.failures.talk import Talk, Verdict
from tests.patience import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Chat:
    """A session of a sound memory; each subclass has one fault."""

    def __init__(self, chat: Any) -> None:
        self.chat = chat

    async def append(self, message: dict[str, str], **options: str) -> None:
        await self.chat.append(message, **options)

    async def load(self) -> Any:
        return await self.chat.load()

    async def history(self) -> Any:
        return await self.chat.history()


def is_third(message: dict[str, str]) -> bool:
    return message["content"].endswith(" 3")


class Loses(Chat):
    async def append(self, message: dict[str, str], **options: str) -> None:
        if not is_third(message):
            await super().append(message, **options)


class Doubles(Chat):
    async def append(self, message: dict[str, str], **options: str) -> None:
        await super().append(message, **options)
        if is_third(message):
            await super().append(message)


class StoresWhatItRefuses(Chat):
    async def append(self, message: dict[str, str], **options: str) -> None:
        await super().append(message, **options)
        if not options:
            raise CommitFailed("nothing was kept")


class AnswersFromBefore(Chat):
    def __init__(self, chat: Any) -> None:
        super().__init__(chat)
        self.first: Any = None
        self.asked = asyncio.Event()

    async def append(self, message: dict[str, str], **options: str) -> None:
        await super().append(message, **options)
        self.asked = asyncio.Event()
        await self.asked.wait()  # so that each answer is asked for after the message before

    async def load(self) -> Any:
        self.asked.set()
        self.first = self.first or await super().load()
        return self.first


class Reorders(Chat):
    async def history(self) -> Any:
        return list(reversed(await super().history()))


class Memory:
    def __init__(self, runtime: Runtime, kind: type[Chat]) -> None:
        self.runtime, self.kind = runtime, kind

    def session(self, user: str, session: str) -> Chat:
        return self.kind(self.runtime.session(user, session))


async def talked(kind: type[Chat]) -> Verdict:
    async with Runtime.in_memory() as runtime:
        memory = Memory(runtime, kind)
        talk = Talk(memory, 1, 2)
        talking = asyncio.ensure_future(talk.run())
        await until(lambda: len(talk.times) >= 60, "sixty messages were said")
        talk.ended.set()
        await talking
        return await talk.judge(memory)


async def test_each_fault_is_noticed() -> None:
    """G2, G3, G4: by the figure that is named after it; no fault is found where there is none."""
    verdict = await talked(Chat)
    assert verdict.acknowledged >= 60
    assert verdict.faults == 0
    faulty: dict[str, type[Chat]] = {
        "lost": Loses,
        "doubled": Doubles,
        "stale_rows": StoresWhatItRefuses,
        "stale_loads": AnswersFromBefore,
        "unexplained": Reorders,
    }
    for fault, kind in faulty.items():
        assert getattr(await talked(kind), fault) > 0, fault
