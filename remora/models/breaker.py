"""A circuit breaker: after failures in a row, a model is not called for a while (G6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from remora.errors import ModelAnswerInvalid, ModelError, ModelTimeout, ModelUnavailable
from remora.runtime.clock import Clock
from remora.runtime.guard import call_guarded
from remora.runtime.probes import probe

__all__ = ["CircuitBreaker"]

Result = TypeVar("Result")


class CircuitBreaker:
    """Closed until `failures` in a row; then open for `rest_s`; then one trial call decides."""

    def __init__(self, clock: Clock, *, failures: int, rest_s: float) -> None:
        self._clock = clock
        self._limit = failures
        self._rest_s = rest_s
        self._failures = 0
        self._open_until = 0.0
        self._trial = False

    @property
    def open(self) -> bool:
        """Whether calls are refused now."""
        return self._failures >= self._limit and (
            self._trial or self._clock.monotonic() < self._open_until
        )

    @property
    def failing(self) -> bool:
        """Whether the last calls failed, so many in a row that it opened."""
        return self._failures >= self._limit

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Let one call through.

        Raises:
            ModelUnavailable: the breaker is open.
        """
        if self.open:
            probe("breaker_refused")
            raise ModelUnavailable(
                f"the model failed {self._failures} times in a row and is not called for now"
            )
        trial = self._trial = self._failures >= self._limit
        try:
            yield
        except ModelError:
            self._failures += 1
            if self._failures >= self._limit:
                probe("breaker_opened")
                self._open_until = self._clock.monotonic() + self._rest_s
            raise
        else:
            if trial:
                probe("breaker_closed")
            self._failures = 0
        finally:
            if trial:
                self._trial = False

    async def call(
        self, name: str, function: Callable[[], Awaitable[Result]], *, timeout_s: float
    ) -> Result:
        """Let one call of a plugged-in model through; every failure becomes a `ModelError`.

        Args:
            name: the model's, for errors.
            function: makes the call, and reads its answer.
            timeout_s: its deadline: a call that hangs would hold a place that others wait for.

        Raises:
            ModelUnavailable: the breaker is open.
            ModelTimeout: it took too long.
            ModelAnswerInvalid: it raised another exception.
            ModelError: its own.
        """
        with self.guard():
            try:
                with anyio.fail_after(timeout_s):
                    return await call_guarded(function)
            except ModelError:
                raise
            except TimeoutError as e:
                probe("model_hung")
                raise ModelTimeout(f"{name} did not answer within {timeout_s:g} s") from e
            except Exception as e:  # a plugged-in model may raise anything
                raise ModelAnswerInvalid(f"{name} failed: {type(e).__name__}: {e}") from e
