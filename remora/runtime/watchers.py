"""Who waits for an actor to change."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import anyio


class Watchers:
    """Wakes those who watch an actor when the log may hold more of it, or will hold nothing.

    Attributes:
        events: of those who wait, by the actor's key; empty while nobody does.
    """

    def __init__(self) -> None:
        self.events: dict[Hashable, list[anyio.Event]] = {}

    @contextmanager
    def watch(self, key: Hashable) -> Iterator[anyio.Event]:
        """Gives an event that the next change of the actor sets; begin before you look."""
        event = anyio.Event()
        self.events.setdefault(key, []).append(event)
        try:
            yield event
        finally:
            events = self.events[key]
            events.remove(event)
            if not events:
                del self.events[key]

    def wake(self, key: Hashable) -> None:
        """The actor has changed."""
        for event in self.events.get(key, ()):
            event.set()

    def wake_all(self, matches: Callable[[Hashable], bool] = lambda _: True) -> None:
        """Actors that match have changed."""
        for key in self.events:
            if matches(key):
                self.wake(key)
