"""A circuit breaker: after failures in a row, a model is not called for a while (G6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from remora.errors import ModelError, ModelTimeout, ModelUnavailable
from remora.runtime.clock import Clock
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe

Result = TypeVar("Result")


class CircuitBreaker:
    """Closed until `failures` in a row; then open for `rest_s`; then one trial call decides.

    It is for a model that is away, so only that counts: an answer that is none, or an endpoint that
    refuses one request, concerns only the owner of the texts. Failures of one owner alone do not
    open it while the model answers others, and the trial call is another owner's than the last, if
    one waits.
    """

    def __init__(self, clock: Clock, *, failures: int, rest_s: float) -> None:
        self._clock = clock
        self._limit = failures
        self._rest_s = rest_s
        self._failures = 0
        self._owners: set[str] = set()
        """Whose calls these were."""
        self._answered: tuple[str, float] = ("", float("-inf"))
        """Whose call was answered last that was of another owner than these, and when."""
        self._open_until = 0.0
        self._trial = False
        self._last_trial = ""
        self._refused = ""
        """Who was refused last, since it opened."""

    @property
    def open(self) -> bool:
        """Return whether calls are refused now."""
        return self.failing and (self._trial or self._clock.monotonic() < self._open_until)

    @property
    def failing(self) -> bool:
        """Return whether the last calls failed, so many in a row that it opened."""
        return self._failures >= self._limit and not self._answers_others()

    def _answers_others(self) -> bool:
        """Return whether one owner's calls alone fail, and another's was answered recently."""
        owner, at = self._answered
        return (
            len(self._owners) == 1
            and owner not in self._owners
            and self._clock.monotonic() - at < self._rest_s
        )

    @contextmanager
    def guard(self, owner: str = "") -> Iterator[None]:
        """Let one call through, on behalf of an owner.

        Raises:
            ModelUnavailable: the breaker is open.
        """
        failing = self.failing
        turn = self._last_trial == owner != "" and self._refused not in {"", owner}
        if self.open or (failing and turn):
            probe("breaker_refused")
            self._refused = owner
            raise ModelUnavailable(
                f"the model failed {self._failures} times in a row and is not called for now"
            )
        trial = self._trial = failing
        if trial:
            self._last_trial, self._refused = owner, ""
        try:
            yield
        except (ModelUnavailable, ModelTimeout):
            self._failures += 1
            self._owners.add(owner)
            if self._failures >= self._limit:
                probe("breaker_opened")
                self._open_until = self._clock.monotonic() + self._rest_s
            raise
        except ModelError:  # it is there, and answered
            self._note_answer(owner, trial=trial)
            raise
        else:
            self._note_answer(owner, trial=trial)
        finally:
            if trial:
                self._trial = False

    def _note_answer(self, owner: str, *, trial: bool) -> None:
        if trial:
            probe("breaker_closed")
        self._failures = 0
        self._owners.clear()
        self._answered = (owner, self._clock.monotonic())

    async def call(
        self,
        name: str,
        function: Callable[[], Awaitable[Result]],
        *,
        timeout_s: float,
        owner: str = "",
    ) -> Result:
        """Let one call of a plugged-in model through; every failure becomes a `ModelError`.

        Args:
            name: the model's, for errors.
            function: makes the call, and reads its answer.
            timeout_s: its deadline: a call that hangs would hold a place that others wait for.
            owner: the user whose texts it is given.

        Raises:
            ModelUnavailable: the breaker is open, or it raised what says that it is away.
            ModelTimeout: it took too long.
            ModelError: its own, or it raised another exception.
        """
        with self.guard(owner):
            try:
                with anyio.fail_after(timeout_s):
                    return await call_guarded(function)
            except ModelError:
                raise
            except TimeoutError as e:
                probe("model_hung")
                raise ModelTimeout(f"{name} did not answer within {timeout_s:g} s") from e
            except Exception as e:  # a plugged-in model may raise anything
                text, cause = describe_failure(e)
                if is_away(e):
                    raise ModelUnavailable(f"{name} is away: {text}") from cause
                raise ModelError(f"{name} failed: {text}") from cause


def describe_failure(error: Exception) -> tuple[str, Exception | None]:
    """Return what an error says of what a plugged-in model raised, and its cause.

    Both are logged. Where a client tells an HTTP status, its text has the endpoint's answer, which
    may repeat what was asked: the class and the status stand for it.
    """
    status = getattr(error, "status_code", getattr(error, "code", None))
    if isinstance(status, int):
        return f"{type(error).__name__}, status {status}", None
    return f"{type(error).__name__}: {error}", error


def says_away(status: int) -> bool:
    """Return whether an HTTP status of an error concerns all who ask, and not what was asked.

    It does if it is 401, 403, 404, 408, 429, or 500 and more.
    """
    return status in _AWAY or status >= _SERVER_ERROR


def is_away(error: Exception) -> bool:
    """Return whether what a model's client raised says that its endpoint is away."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return says_away(status)
    names = {one.__name__ for one in type(error).__mro__}
    return isinstance(error, OSError) or not names.isdisjoint(_CLIENTS)


_AWAY = frozenset({401, 403, 404, 408, 429})
_SERVER_ERROR = 500
_CLIENTS = frozenset(
    {
        "APIConnectionError",
        "APITimeoutError",
        "ConnectError",
        "InternalServerError",
        "RateLimitError",
        "ServerError",
        "ServiceUnavailable",
        "TimeoutException",
        "TransportError",
    }
)
"""Names of exceptions of the clients of OpenAI, Anthropic, Google and of httpx."""
