"""Archived originals that are kept for a while: through a runtime, on SQLite and LanceDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Config, Runtime
from remora.runtime.clock import SystemClock
from remora.testing import HashEmbedder
from tests.patience import until

pytestmark = pytest.mark.anyio
DAY_S = 86_400


class Calendar(SystemClock):
    """The system's clock, on another day."""

    def __init__(self) -> None:
        self.days = 0

    def time(self) -> float:
        return super().time() + self.days * DAY_S


def config(retention: dict[str, Any], **long_term: Any) -> Config:
    return Config.from_dict(
        {
            "buffer": {"token_limit": 300, "summary_tokens": 80},
            "long_term": {"batch_ms": 1, **long_term},
            "journal": {"durability": "process"},
            "tokens": {"counter": "heuristic"},
            "retention": {**retention, "interval_s": 3600},
        }
    )


def said(number: int) -> dict[str, Any]:
    return {
        "role": "user",
        "content": f"sentence {number} with words enough for it to be folded away before long",
    }


async def talk(runtime: Runtime, user: str, first: int, count: int) -> None:
    chat = runtime.session(user, "s")
    for number in range(first, first + count):
        await chat.append(said(number), key=f"{user}-{number}")
    await chat.settle()


async def numbers(runtime: Runtime, user: str) -> list[int]:
    return [message.seq or 0 for message in await runtime.session(user, "s").history()]


async def swept(runtime: Runtime) -> None:
    """Have the supervisor make its round."""
    runtime.reschedule("retention", 0.01)
    runs = runtime.statistics().schedule["retention"].runs
    await until(lambda: runtime.statistics().schedule["retention"].runs >= runs + 2, "two rounds")
    runtime.reschedule("retention", 3600)


async def is_recalled(runtime: Runtime, seq: int) -> bool:
    found = await runtime.user("ann").recall(f"sentence {seq}", limit=50)
    return [one.seq for one in found].count(seq) == 1


@pytest.mark.parametrize("enabled", [True, False], ids=["long-term", "without"])
async def test_by_count(tmp_path: Path, enabled: bool) -> None:
    """G6, G7, S3.28: beyond so many of a session the oldest archived originals go; numbers go on,
    what is buffered or recalled stays. The session is exported and imported as what is left of it,
    and long-term memory made anew has the rows of messages that the journal no longer has.
    """
    options: dict[str, Any] = {
        "config": config({"session_messages": 5}, enabled=enabled),
        "embedder": HashEmbedder(),
    }
    async with Runtime(tmp_path / "memory", **options) as runtime:
        await talk(runtime, "ann", 1, 30)
        await talk(runtime, "bob", 1, 3)
        chat = runtime.session("ann", "s")
        if enabled:
            await chat.flush()
            await runtime.settle()
        context = await chat.load()
        assert await numbers(runtime, "ann") == list(range(1, 31))
        await swept(runtime)
        kept = await numbers(runtime, "ann")
        assert 5 <= len(kept) < 30
        assert kept == list(range(kept[0], 31)), "the oldest went"
        assert await numbers(runtime, "bob") == [1, 2, 3]
        assert (await chat.load()).messages == context.messages
        assert (await chat.append(said(30), key="ann-30")).duplicate
        taken = await runtime.user("eve").import_session(await chat.export())
        assert [message.content for message in await taken.history()] == [
            message.content for message in await chat.history()
        ]
        if enabled:
            assert await is_recalled(runtime, 2)
            before = await (await runtime.internals.long_term()).rows("ann")
    if enabled:
        options["embedder"] = HashEmbedder(96)
        async with Runtime(tmp_path / "memory", reembed=True, **options) as runtime:
            await runtime.reembedded()
            rows = await (await runtime.internals.long_term()).rows("ann")
            assert {row.id: row.content for row in rows} == {row.id: row.content for row in before}
            assert await is_recalled(runtime, 2)
    async with Runtime(tmp_path / "memory", **options) as runtime:
        chat = runtime.session("ann", "s")
        assert await numbers(runtime, "ann") == kept
        assert (await chat.load()).messages[0] == context.messages[0]
        assert (await chat.append(said(31))).seqs == (31,)
        await runtime.settle()


async def test_by_age(tmp_path: Path) -> None:
    """G6: what is older goes once it is archived; what still stands in a buffer is as old as it is."""  # noqa: E501
    clock = Calendar()
    async with Runtime(
        tmp_path / "memory", config=config({"age_days": 10}), embedder=HashEmbedder(), clock=clock
    ) as runtime:
        await talk(runtime, "ann", 1, 20)
        await talk(runtime, "bob", 1, 3)
        clock.days += 20
        await talk(runtime, "ann", 21, 10)
        await swept(runtime)
        kept = await numbers(runtime, "ann")
        assert kept[0] > 1
        assert kept[-10:] == list(range(21, 31))
        assert await numbers(runtime, "bob") == [1, 2, 3]


async def test_no_bound_no_round(tmp_path: Path) -> None:
    """G6: by default nothing is ever removed, and nobody looks."""
    async with Runtime(tmp_path / "memory", config=config({}), embedder=HashEmbedder()) as runtime:
        assert "retention" not in runtime.statistics().schedule
