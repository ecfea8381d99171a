"""A model whose summaries are longer than a summary may be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
import msgspec
import pytest

from remora import Config, Line, Runtime
from remora.actors.session.messages import Resummarize
from remora.config import SupervisorConfig
from remora.jobs.summarize import Resummarizer
from remora.models.breaker import CircuitBreaker
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey
from remora.testing import ScriptedChatModel, VirtualClock, count_probes
from tests.integration.test_lost_messages import (
    TAG,
    Model,
    check,
    fill,
    is_summarized,
    message,
    opened,
)
from tests.patience import until

pytestmark = pytest.mark.anyio


class Verbose(Model):
    """Keeps the tag of every message, and fills its answers up with words.

    Args:
        heeds: which of the calls for one summary obeys the limit; 0 for none.
        name: its own.
    """

    def __init__(self, heeds: int = 0, name: str = "verbose") -> None:
        super().__init__()
        self.name = name
        self.heeds = heeds
        self.limits: list[int] = []

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        self.limits.append(max_tokens)
        tags = await super().summarize(previous, lines, max_tokens=max_tokens)
        if self.heeds and len(self.limits) % self.heeds == 0:
            return tags
        return f"{tags} {'and so on ' * 200}"


async def test_an_answer_that_is_too_long_is_asked_again_with_a_stricter_limit() -> None:
    """G6: nothing is cut, nothing is lost, and the status is ok."""
    model = Verbose(heeds=3)
    async with opened(model) as runtime:
        chat = runtime.session("alice", "chat")
        await fill(chat, 1, 10)
        assert await check(chat) == set()
        assert (await chat.stats()).summaries.degraded == 0
    for first in range(0, len(model.limits), 3):
        asked = model.limits[first : first + 3]
        assert asked == sorted(set(asked), reverse=True)
        assert asked[-1] > 0


@pytest.mark.parametrize("name", ["verbose", "lead", "extractive", "none"])
async def test_a_model_that_never_obeys_leaves_a_fallback_that_names_what_it_lost(
    name: str,
) -> None:
    """G6: also one that is named as an extractor. Each attempt to repair ends, and `settle`
    returns; when it obeys, its next summary has everything.
    """
    model = Verbose(name=name)
    with count_probes() as counts:
        async with opened(model, supervisor={"resummarize_interval_s": 0.01}) as runtime:
            chat = runtime.session("alice", "chat")
            await fill(chat, 1, 25)
            assert len(await check(chat)) > 5
            calls = len(model.calls)
            await until(
                lambda: counts["repair_postponed"] and len(model.calls) >= calls + 3,
                "repairs are attempted",
            )
            await chat.settle()
            assert len(await check(chat)) > 5
            model.heeds = 1
            await fill(chat, 26, 8)
            await fill(chat, 34, 8)
            await until(partial(is_summarized, chat), "the model's summary is there")
            assert await check(chat) == set()
    assert counts["summary_too_long"]


async def test_messages_of_a_dropped_model_summary_count_as_lost(small: Config) -> None:
    """Where a fallback summary has no room for what the model had summarized before, that is named
    as degraded, from the first message on.
    """
    model = ScriptedChatModel([" ".join(f"fact{number}" for number in range(22))])
    impatient = msgspec.structs.replace(small, supervisor=SupervisorConfig(backoff_s=0.01))
    with count_probes() as counts:
        async with Runtime.in_memory(config=impatient, chat_model=model) as runtime:
            chat = runtime.session("alice", "chat")
            for number in range(40):
                text = f"Sentence {number} is about gardens and what grows in them."
                await chat.append({"role": "user", "content": text})
                await chat.settle()
            degraded = (await chat.inspect()).degraded
    assert counts["prose_dropped"]
    assert degraded is not None
    assert degraded.first == 1


async def test_a_burst_that_a_summary_has_no_room_for_is_degraded() -> None:
    """G6: eight senders, and a slow model that keeps every tag, but not within a summary."""
    model = Model()
    model.gate = anyio.Event()

    async def send(chat: Any, first: int) -> None:
        for number in range(first, first + 100):
            await chat.append(message(number))

    async with opened(model, buffer={"token_limit": 4_000, "summary_tokens": 400}) as runtime:
        chat = runtime.session("alice", "chat")
        async with anyio.create_task_group() as tasks:
            for writer in range(8):
                tasks.start_soon(send, chat, 1 + 100 * writer)
        model.gate.set()
        await chat.settle()
        lost = await check(chat)
        assert len(lost) > 100
        assert (await chat.load()).sources["summary"].status == "degraded"
        assert len(TAG.findall(str(await chat.history()))) == 800


async def test_a_session_whose_repairs_fail_is_asked_less_and_less() -> None:
    """G6: what a model costs that answers, but never with a summary, is bounded: some ten attempts
    in a day of runs, and one a day later on.
    """
    asked: list[SessionKey] = []
    known = SessionKey("alice", "long"), SessionKey("bob", "down")

    async def tell(key: SessionKey, _: Resummarize) -> bool:
        asked.append(key)
        if key == known[0]:
            resummarizer.postpone(key)
        resummarizer.report(key)
        return True

    resummarizer = Resummarizer(
        MemoryJournal(), tell, CircuitBreaker(VirtualClock(), failures=1, rest_s=1.0)
    )
    for key in known:
        resummarizer.report(key)
    for _ in range(2_880):
        await resummarizer()
    assert 8 <= asked.count(known[0]) <= 12
    assert asked.count(known[1]) == 2_880
    for _ in range(2_880):
        await resummarizer()
    assert asked.count(known[0]) <= 13


async def test_users_take_turns_at_repairs() -> None:
    """G10: a user with hundreds of sessions that wait does not hold up another's one."""
    asked: list[SessionKey] = []

    async def tell(key: SessionKey, _: Resummarize) -> bool:
        asked.append(key)
        return False

    breaker = CircuitBreaker(VirtualClock(), failures=1, rest_s=1.0)
    resummarizer = Resummarizer(MemoryJournal(), tell, breaker)
    for number in range(500):
        resummarizer.report(SessionKey("mallory", f"s{number}"))
    resummarizer.report(SessionKey("ann", "one"))
    await resummarizer()
    assert asked[:2] == [SessionKey("mallory", "s0"), SessionKey("ann", "one")]
    for _ in range(11):
        await resummarizer()
    assert len(set(asked)) == 501
