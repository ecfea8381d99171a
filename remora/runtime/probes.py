"""Probes: named places in rare branches, so that a test can tell whether it was there.

A test of schedules and faults that passes proves nothing about a branch that it never took. So the
branches that only a race, a fault or a crash takes have a name, and a suite that counts them fails
if one was never reached. The idea is FoundationDB's (its coverage macros: Zhou et al., SIGMOD
2021, section 4).

While nobody counts, a probe reads one module variable. None is on the path of an append or a load
that meets nothing rare. `remora.testing.probes` lists all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_counters: tuple[Counter[str], ...] = ()


def probe(name: str) -> None:
    """Count that this branch was taken; `name` is in `remora.testing.probes`."""
    for counts in _counters:
        counts[name] += 1


@contextmanager
def count_probes() -> Iterator[Counter[str]]:
    """Count how often each probe is reached while this is open, by any code in this process."""
    global _counters  # noqa: PLW0603  # a probe may cost no more than reading one global
    counts: Counter[str] = Counter()
    _counters = (*_counters, counts)
    try:
        yield counts
    finally:
        _counters = tuple(one for one in _counters if one is not counts)


@contextmanager
def ignore_probes() -> Iterator[None]:
    """Count nothing while this is open: the code that runs is not what is tested."""
    global _counters  # noqa: PLW0603
    counters, _counters = _counters, ()
    try:
        yield
    finally:
        _counters = counters
