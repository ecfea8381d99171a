"""From a case that fails to the smallest one that still does: fewer callers, calls, messages,
faults and crashes.

Delta debugging (Zeller & Hildebrandt 2002), bounded in tries, since each runs the whole case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tests.checker.history import History, Violation, table
from tests.checker.programs import Call, Caller, Program

__all__ = ["Case", "Shrunk", "counterexample", "shrink"]


class Case(msgspec.Struct, frozen=True):
    """All that a run is decided by.

    Attributes:
        program: what is called.
        seed: decides the schedule, and whatever else is drawn.
        faults: what goes wrong, each fault a plain value that prints as what it is.
        crashes: steps of the run at which the process dies.
        closes: seconds after which the runtime is closed in order, under its callers, and opened
            again: the first, the next …
    """

    program: Program
    seed: int = 0
    faults: tuple[Any, ...] = ()
    crashes: tuple[int, ...] = ()
    closes: tuple[float, ...] = ()

    @property
    def weight(self) -> tuple[int, int, int, int]:
        """What shrinking makes smaller: calls, and crashes and faults; then what calls say.

        Then how late crashes come.
        """
        calls = [call for caller in self.program.callers for call in caller.calls]
        said = sum(_weight(call) for call in calls)
        return (
            len(calls) + len(self.crashes) + len(self.closes) + len(self.faults),
            len(self.program.callers),
            said,
            sum(self.crashes),
        )


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest case that was found to fail.

    Attributes:
        case: the case.
        tries: how many cases were run.
        minimal: nothing that could be tried makes it smaller; false where the tries ran out.
    """

    case: Case
    tries: int
    minimal: bool


def shrink(
    case: Case, fails: Callable[[Case], Any], *, tries: int = 1_000, seeds: Sequence[int] = ()
) -> Shrunk:
    """Make a failing case small.

    Args:
        case: fails.
        fails: runs a case; true, or a list of violations that is not empty, if it fails. What it
            raises is raised.
        tries: cases run at most.
        seeds: tried as well for each smaller case: with fewer calls, another schedule may be the
            one that fails.
    """
    done = 0
    smaller = True
    known = {case}
    while smaller:
        smaller = False
        for candidate in _smaller(case):
            for tried in (
                candidate,
                *(msgspec.structs.replace(candidate, seed=seed) for seed in seeds),
            ):
                if tried in known:
                    continue
                if done >= tries:
                    return Shrunk(case, done, minimal=False)
                known.add(tried)
                done += 1
                if fails(tried):
                    case, smaller = tried, True
                    break
            if smaller:
                break
    return Shrunk(case, done, minimal=True)


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller, the much smaller ones first."""
    replace = msgspec.structs.replace
    callers = case.program.callers
    for kept in _without(callers):
        if kept:
            yield replace(case, program=Program(kept))
    for faults in _without(case.faults):
        yield replace(case, faults=faults)
    for crashes in _without(case.crashes):
        yield replace(case, crashes=crashes)
    for closes in _without(case.closes):
        yield replace(case, closes=closes)
    flat = tuple((caller.number, call) for caller in callers for call in caller.calls)
    for calls in _without(flat):
        program = _joined(callers, calls)
        if program.callers:
            yield replace(case, program=program)
    for place, (number, call) in enumerate(flat):
        for simpler in _simpler(call):
            yield replace(
                case,
                program=_joined(callers, (*flat[:place], (number, simpler), *flat[place + 1 :])),
            )
    for place, step in enumerate(case.crashes):
        for earlier in sorted({0, step // 2, step - 10, step - 1}):
            if 0 <= earlier < step:
                yield replace(
                    case, crashes=(*case.crashes[:place], earlier, *case.crashes[place + 1 :])
                )


def _without(items: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The items without some of them: without half, without a quarter … without one."""
    size = len(items)
    while size:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def _joined(callers: Sequence[Caller], calls: Sequence[tuple[int, Call]]) -> Program:
    kept = (
        Caller(caller.number, tuple(call for number, call in calls if number == caller.number))
        for caller in callers
    )
    return Program(tuple(caller for caller in kept if caller.calls))


def _simpler(call: Call) -> Iterator[Call]:
    """The call with less in it."""
    replace = msgspec.structs.replace
    if len(call.shapes) > 1:
        for place in range(len(call.shapes)):
            yield replace(call, shapes=call.shapes[:place] + call.shapes[place + 1 :])
    for place, shape in enumerate(call.shapes):
        if shape != "user":
            yield replace(call, shapes=(*call.shapes[:place], "user", *call.shapes[place + 1 :]))
    if call.cancel_after_s is not None:
        yield replace(call, cancel_after_s=None)
    if call.timeout_s is not None:
        yield replace(call, timeout_s=None)
    if call.retries:
        yield replace(call, retries=0)
    if call.key is not None:
        yield replace(call, key=None)
    if call.asks:
        yield replace(call, asks=False)
    if call.max_tokens is not None:
        yield replace(call, max_tokens=None)
    if call.words:
        yield replace(call, words=call.words // 2)


def _weight(call: Call) -> int:
    options = (call.cancel_after_s, call.timeout_s, call.key, call.max_tokens)
    told = sum(1 + (shape != "user") for shape in call.shapes) + call.words
    return told + sum(one is not None for one in options) + bool(call.retries) + call.asks


def counterexample(case: Case, history: History, violations: Sequence[Violation]) -> str:
    """What a person needs to understand a failure, and to run it again."""
    faults = [f"  {fault}" for fault in case.faults] or ["  none"]
    return "\n".join(
        [
            f"seed {case.seed}",
            "program",
            *(f"  {line}" for line in str(case.program).splitlines()),
            "faults",
            *faults,
            f"crashes at steps {', '.join(map(str, case.crashes)) or 'none'}",
            *(
                [f"closed and opened again after {', '.join(f'{s:g}' for s in case.closes)} s"]
                if case.closes
                else ()
            ),
            "history (tick, caller)",
            *(f"  {line}" for line in table(history).splitlines()),
            "violations",
            *(f"  {violation}" for violation in violations),
        ]
    )
