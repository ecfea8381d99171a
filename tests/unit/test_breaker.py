"""The circuit breaker is for a model that is away, and no user can open it for another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from remora.errors import ModelAnswerInvalid, ModelError, ModelTimeout, ModelUnavailable
from remora.models.breaker import CircuitBreaker
from remora.testing import VirtualClock

pytestmark = pytest.mark.anyio


class StatusError(Exception):
    """As OpenAI's client raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.status_code = status


class APIConnectionError(Exception):
    """By its name: the clients are not needed for it."""


def raising(error: Exception) -> Callable[[], Awaitable[str]]:
    async def call() -> str:
        raise error

    return call


async def answer() -> str:
    return "fine"


async def fail(breaker: CircuitBreaker, error: Exception, owner: str) -> None:
    with pytest.raises(ModelError):
        await breaker.call("m", raising(error), timeout_s=9, owner=owner)


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (ModelUnavailable("x"), True),
        (ModelTimeout("x"), True),
        (ConnectionResetError("x"), True),
        (APIConnectionError("x"), True),
        (StatusError(503), True),
        (StatusError(429), True),
        (StatusError(401), True),
        (StatusError(400), False),
        (StatusError(422), False),
        (ModelAnswerInvalid("x"), False),
        (ValueError("x"), False),
    ],
)
async def test_what_opens_it(error: Exception, *, opens: bool) -> None:
    """G6: what says that the endpoint is away, and no answer, whatever it is."""
    breaker = CircuitBreaker(VirtualClock(), failures=3, rest_s=30)
    for _ in range(3):
        await fail(breaker, error, "mallory")
    assert breaker.open == opens
    if opens:
        with pytest.raises(ModelUnavailable, match="3 times"):
            await breaker.call("m", answer, timeout_s=9, owner="ann")
    else:
        assert await breaker.call("m", answer, timeout_s=9, owner="ann") == "fine"


async def test_one_owner_does_not_open_it_while_others_are_answered() -> None:
    """Until nobody was answered for as long as it rests, or a second owner fails."""
    clock = VirtualClock()
    breaker = CircuitBreaker(clock, failures=3, rest_s=30)
    await breaker.call("m", answer, timeout_s=9, owner="ann")
    for _ in range(20):
        await fail(breaker, ModelTimeout("x"), "mallory")
    assert not breaker.open
    await fail(breaker, ModelTimeout("x"), "bob")
    assert breaker.open


async def test_the_trial_is_another_owners() -> None:
    clock = VirtualClock()
    breaker = CircuitBreaker(clock, failures=2, rest_s=30)
    for owner in ("mallory", "bob"):
        await fail(breaker, ModelTimeout("x"), owner)
    for _ in range(3):
        await clock.advance(31)
        await fail(breaker, ModelTimeout("x"), "mallory")
        assert breaker.open
        with pytest.raises(ModelUnavailable):
            await breaker.call("m", answer, timeout_s=9, owner="ann")
        await clock.advance(31)
        with pytest.raises(ModelUnavailable):
            await breaker.call("m", answer, timeout_s=9, owner="mallory")
        assert await breaker.call("m", answer, timeout_s=9, owner="ann") == "fine"
        assert not breaker.failing
        for owner in ("mallory", "bob"):
            await fail(breaker, ModelTimeout("x"), owner)
