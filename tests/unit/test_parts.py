"""Handles stand on narrow ports: with other ports, they are the handles of a runtime elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from remora import Config, Session, User
from remora.errors import RuntimeClosed
from remora.runtime.clock import SystemClock
from remora.services.intake import Intake
from remora.services.parts import Parts, PartsHolder
from remora.tokens import HeuristicCounter

pytestmark = pytest.mark.anyio

MESSAGE = {"role": "user", "content": "hello"}


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
    ports: dict[str, Any] = {
        name: Port(name, calls)
        for name in (
            "actors",
            "appends",
            "contexts",
            "turns",
            "archive",
            "recalls",
            "work",
            "transfers",
        )
    }
    config = Config()
    intake = Intake(config.buffer, HeuristicCounter(), SystemClock(), None, None, None)
    holder = PartsHolder()
    holder.open(Parts(config=config, instance="1", intake=intake, **ports))
    return holder


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        (lambda user, chat: chat.append(MESSAGE), "appends.append"),
        (lambda user, chat: chat.clear(), "actors.ask"),
        (lambda user, chat: chat.inspect(), "actors.ask"),
        (lambda user, chat: chat.load(), "contexts.load"),
        (lambda user, chat: chat.load("where?", messages=[MESSAGE]), "contexts.load"),
        (lambda user, chat: chat.load(at=3), "contexts.load"),
        (lambda user, chat: chat.load(override=[MESSAGE]), "contexts.load"),
        (lambda user, chat: chat.history(), "archive.history"),
        (lambda user, chat: chat.stats(), "archive.stats"),
        (lambda user, chat: chat.fork("copy", at=3), "archive.fork"),
        (lambda user, chat: chat.export(), "transfers.export_session"),
        (lambda user, chat: chat.settle(), "work.drain"),
        (lambda user, chat: chat.forget(), "work.forget"),
        (lambda user, chat: user.sessions(), "archive.sessions"),
        (lambda user, chat: user.stats(), "archive.user_stats"),
        (lambda user, chat: user.synopsis(), "contexts.synopsis"),
        (lambda user, chat: user.recall("where?"), "recalls.recall"),
        (lambda user, chat: user.memories(), "recalls.memories"),
        (lambda user, chat: user.export_arrow(), "recalls.arrow_table"),
        (lambda user, chat: user.prune(keep=3), "recalls.prune"),
        (lambda user, chat: user.settle(), "work.drain"),
        (lambda user, chat: user.forget(), "work.forget"),
    ],
)
async def test_a_verb_is_one_call(
    verb: Callable[[User, Session], Awaitable[Any]], call: str
) -> None:
    """Whatever a verb takes together is gathered where the actors are."""
    calls: list[str] = []
    user = User(elsewhere(calls), "alice")
    await verb(user, user.session("one"))
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
