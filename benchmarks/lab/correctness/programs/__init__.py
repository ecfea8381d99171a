"""One program per claim, written once against `benchmarks.lab.correctness.protocol.Subject`.

Needs the standard library only. A program reports its figures as it gets them, so that what was
measured before a time limit is not lost. It does not know which library it talks to.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine

from benchmarks.lab.correctness.programs.appends import (
    concurrent_appends,
    deliveries,
    same_key_twice,
)
from benchmarks.lab.correctness.programs.bench import FULL, SMALL, Bench, Sizes
from benchmarks.lab.correctness.programs.cancelling import cancelled_append
from benchmarks.lab.correctness.programs.privacy import left_on_disk, strangers_secret
from benchmarks.lab.correctness.programs.resources import open_sessions
from benchmarks.lab.correctness.programs.summaries import (
    append_behind_summary,
    loads_meanwhile,
    overflow,
    summarizer_raises,
)

__all__ = ["FULL", "PROGRAMS", "SMALL", "Bench", "Sizes"]

PROGRAMS: dict[str, Callable[[Bench], Coroutine[None, None, None]]] = {
    program.__name__: program
    for program in (
        concurrent_appends,
        deliveries,
        summarizer_raises,
        overflow,
        loads_meanwhile,
        cancelled_append,
        append_behind_summary,
        same_key_twice,
        left_on_disk,
        strangers_secret,
        open_sessions,
    )
}
