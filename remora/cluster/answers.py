"""The promises of requests whose callers are in another process."""

from __future__ import annotations

from time import perf_counter
from typing import Any, Protocol

import msgspec

from remora.cluster.wire import Outcome, to_raised
from remora.ids import SessionKey
from remora.recall.planner import Planner
from remora.runtime.histogram import HistogramMeter

__all__ = ["Answer", "Link", "LoadAnswer", "TimedAnswer"]


class Link(Protocol):
    """A connection to a worker."""

    def answer(self, number: int, value: Outcome) -> None:
        """Send what came of a request."""
        ...


class Answer:
    """The promise of a request whose caller is in another process: no task, no future."""

    __slots__ = ("_link", "_number", "abandoned")

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self._number = number
        self.abandoned = False

    def resolve(self, value: Any) -> None:
        """Send the answer."""
        self._link.answer(self._number, value)

    def reject(self, error: BaseException) -> None:
        """Send the failure."""
        self._link.answer(self._number, to_raised(error))

    def cancel(self) -> None:
        """Nobody reads it."""
        self.abandoned = True


class TimedAnswer(Answer):
    """The answer to what is measured: when it succeeds, the time that it took is counted."""

    __slots__ = ("_began_s", "_meter")

    def __init__(self, link: Link, number: int, meter: HistogramMeter) -> None:
        super().__init__(link, number)
        self._meter = meter
        self._began_s = perf_counter()

    def resolve(self, value: Any) -> None:
        """Send the answer."""
        self._meter.add(perf_counter() - self._began_s)
        super().resolve(value)


class LoadAnswer(TimedAnswer):
    """The answer to a load without a query, which the worker assembles itself.

    Whether the context's front has changed depends on the loads of all workers.
    """

    __slots__ = ("_key", "_planner")

    def __init__(
        self, link: Link, number: int, meter: HistogramMeter, planner: Planner, key: SessionKey
    ) -> None:
        super().__init__(link, number, meter)
        self._planner = planner
        self._key = key

    def resolve(self, value: Any) -> None:
        """Send the snapshot."""
        if self._planner.drop_front(self._key):
            value = msgspec.structs.replace(value, prefix_changed=True)
        super().resolve(value)
