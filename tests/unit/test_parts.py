"""Handles stand on narrow ports: with other ports, they are the handles of a runtime elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from remora import Config, User
from remora.errors import RuntimeClosed
from remora.runtime.clock import SystemClock
from remora.services.intake import Intake
from remora.services.parts import Parts, PartsHolder
from remora.tokens import HeuristicCounter

pytestmark = pytest.mark.anyio

MESSAGE: Any = {"role": "user", "content": "hello"}


class Port:
    """Answers every call with a text, and notes it."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def answer(*_: Any, **__: Any) -> str:
            self._calls.append(f"{self._name}.{verb}")
            return "an answer"

        return answer


def elsewhere(calls: list[str]) -> PartsHolder:
    names = "actors appends contexts turns archive recalls work transfers"
    ports: dict[str, Any] = {name: Port(name, calls) for name in names.split()}
    config = Config()
    intake = Intake(config.buffer, HeuristicCounter(), SystemClock(), None, None, None)
    holder = PartsHolder()
    holder.open(Parts(config=config, instance="1", intake=intake, **ports))
    return holder


async def test_a_verb_is_one_call() -> None:
    """Whatever a verb takes together is gathered where the actors are."""
    calls: list[str] = []
    user = User(elsewhere(calls), "alice")
    chat = user.session("one")
    verbs: list[tuple[Awaitable[Any], str]] = [
        (chat.append(MESSAGE), "appends.append"),
        (chat.clear(), "actors.ask"),
        (chat.inspect(), "actors.ask"),
        (chat.load(), "contexts.load"),
        (chat.load("where?", messages=[MESSAGE]), "contexts.load"),
        (chat.load(at=3), "contexts.load"),
        (chat.load(override=[MESSAGE]), "contexts.load"),
        (chat.history(), "archive.history"),
        (chat.stats(), "archive.stats"),
        (chat.fork("copy", at=3), "archive.fork"),
        (chat.export(), "transfers.export_session"),
        (chat.settle(), "work.drain"),
        (chat.forget(), "work.forget"),
        (user.sessions(), "archive.sessions"),
        (user.stats(), "archive.user_stats"),
        (user.synopsis(), "contexts.synopsis"),
        (user.recall("where?"), "recalls.recall"),
        (user.memories(), "recalls.memories"),
        (user.export_arrow(), "recalls.arrow_table"),
        (user.prune(keep=3), "recalls.prune"),
        (user.settle(), "work.drain"),
        (user.forget(), "work.forget"),
    ]
    for verb, call in verbs:
        calls.clear()
        await verb
        assert calls == [call]


async def test_a_handle_outlives_its_runtime() -> None:
    """It may be made before, and says so afterwards."""
    holder = PartsHolder()
    chat = User(holder, "alice").session("one")
    with pytest.raises(RuntimeClosed, match="open the runtime first"):
        await chat.clear()
    holder.open(elsewhere([]).parts)
    assert await chat.clear() == "an answer"  # type: ignore[comparison-overlap]
    for _ in range(2):
        holder.close()
        with pytest.raises(RuntimeClosed, match="the runtime is closed"):
            await chat.clear()
