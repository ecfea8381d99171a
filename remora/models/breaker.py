"""A circuit breaker: after failures in a row, a service is left alone for a while (G6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from remora.errors import ModelError, ModelUnavailable
from remora.runtime.clock import Clock

__all__ = ["CircuitBreaker"]


class CircuitBreaker:
    """Closed until `failures` in a row; then open for `rest_s`; then one trial decides."""

    def __init__(self, clock: Clock, *, failures: int, rest_s: float) -> None:
        self._clock = clock
        self._limit = failures
        self._rest_s = rest_s
        self._failures = 0
        self._open_until = 0.0
        self._trial = False

    @property
    def open(self) -> bool:
        """Calls are refused at present."""
        return self._failures >= self._limit and (self._trial or self._clock.monotonic() < self._open_until)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Let one call through.

        Raises:
            ModelUnavailable: the breaker is open.
        """
        if self.open:
            raise ModelUnavailable(f"the model failed {self._failures} times in a row and is left alone for now")
        trial = self._trial = self._failures >= self._limit
        try:
            yield
        except ModelError:
            self._failures += 1
            if self._failures >= self._limit:
                self._open_until = self._clock.monotonic() + self._rest_s
            raise
        else:
            self._failures = 0
        finally:
            if trial:
                self._trial = False
