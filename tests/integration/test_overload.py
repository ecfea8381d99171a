"""More than the disk takes, through the whole runtime and the real journal."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from benchmarks.overload import overload
from remora import Config, Runtime
from remora.errors import MailboxFull
from remora.storage.memory import MemoryJournal

pytestmark = pytest.mark.anyio


class Held(MemoryJournal):
    """Commits what actors write only while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = anyio.Event()

    async def commit(self) -> None:
        if self.statistics().backlog:
            await self.open.wait()
        await super().commit()


@pytest.mark.blocking  # the benchmark weighs its own process
async def test_more_than_the_disk_takes(tmp_path: Path) -> None:
    """G10, G3, G4: whoever sends too much is refused, in words that say that nothing ran; what was
    acknowledged is there, once and in order, what was refused is not, and what waits is bounded.
    """
    acknowledged = refused = 0
    while acknowledged < 100 or refused < 100:  # however often a busy machine needs for that
        with TemporaryDirectory(dir=tmp_path) as path:
            # so few bytes that a busy machine has them waiting, too
            figures = await overload(Path(path), seconds=0.5, factor=6.0, total_bytes=1 << 20)
        assert (figures.lost, figures.ran, figures.doubled, figures.disordered) == (0, 0, 0, 0)
        assert figures.waiting_kb <= figures.bound_kb
        answered = figures.acknowledged + sum(figures.refused.values()) + figures.unknown
        assert answered == figures.sent
        acknowledged += figures.acknowledged
        refused += figures.refused.get("total", 0)


async def test_the_bound_is_the_configured_one_and_shared_by_users() -> None:
    """G10: `mailbox.max_total_bytes` bounds all sessions together; a user who fills it through many
    leaves room for another.
    """
    journal, refused = Held(), list[MailboxFull]()
    config = Config.from_dict(
        {
            "long_term": {"enabled": False},
            "tokens": {"counter": "heuristic"},
            "mailbox": {"max_total_bytes": 64 << 10, "timeout_s": 600},
        }
    )
    async with Runtime.in_memory(config=config, journal=journal) as runtime:

        async def send(user: str, session: int) -> None:
            message: dict[str, Any] = {"role": "user", "content": "x" * 1_000}
            try:
                await runtime.session(user, f"{session}").append(message)
            except MailboxFull as e:
                refused.append(e)

        async def wait_until_all_wait(sent: int) -> None:
            while runtime.statistics().registry.queued_messages + len(refused) < sent:
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            for session in range(100):
                tasks.start_soon(send, "noisy", session)
            await wait_until_all_wait(100)
            assert runtime.statistics().registry.waiting_bytes <= 32 << 10
            before = len(refused)
            assert before > 50
            tasks.start_soon(send, "quiet", 0)
            await wait_until_all_wait(101)
            assert len(refused) == before
            journal.open.set()
        assert len(await runtime.session("quiet", "0").history()) == 1
        assert (await runtime.counts()).messages == 101 - len(refused)
    assert {error.limit for error in refused} == {"total"}
