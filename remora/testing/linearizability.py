"""A check that a history of operations is linearizable.

It is, if in some order that agrees with real time a sequential model gives the same answers.

The search is Wing & Gong's (1993) with Lowe's memoization (2017): try each operation that may come
first, remember the configurations that led nowhere. A configuration is a bit set of the operations
already placed, and the model's state.

An operation of unknown outcome has happened or not. While its process lives, it may happen at any
time after its call; if the process died, before that or never: durable linearizability
(Izraelevitz, Mendes & Scott 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec

State = TypeVar("State", bound=Hashable)


class Operation(msgspec.Struct, frozen=True):
    """One call, as its caller saw it.

    Attributes:
        called: when, in any unit that only grows.
        returned: when it came back; infinity if its outcome was never learned, so that it may still
            happen.
        kind: what was called.
        argument: with what.
        result: what came back; None if that was never learned.
        unknown: its outcome was never learned, and the process died at `returned`: it happened
            before then, or never.
    """

    called: float
    returned: float
    kind: str
    argument: Any
    result: Any
    unknown: bool = False

    @property
    def pending(self) -> bool:
        """Return its outcome was never learned."""
        return self.unknown or self.returned == float("inf")


class Explanation(msgspec.Struct, frozen=True):
    """How far a history could be explained.

    Attributes:
        order: the operations in an order in which the model gives their answers; where `complete`
            is false, the longest found.
        complete: the order has all operations, except those that may never have happened.
        stuck: the operations that could come next; the model would have answered each differently.
        decided: every order was tried; false where there were too many.
    """

    order: tuple[Operation, ...]
    complete: bool
    stuck: tuple[Operation, ...] = ()
    decided: bool = True


def linearizable(
    operations: Sequence[Operation],
    initial: State,
    step: Callable[[State, Operation], State | None],
) -> list[Operation] | None:
    """An order that explains the history, or None if there is none.

    Args:
        operations: the history, in any order.
        initial: the model's first state; states must be hashable.
        step: the state after an operation, or None if the model would not have answered so. For a
            pending operation it is what would happen if it took effect.
    """
    found = explain(operations, initial, step)
    return list(found.order) if found.complete else None


def explain(
    operations: Sequence[Operation],
    initial: State,
    step: Callable[[State, Operation], State | None],
    *,
    most: int | None = None,
) -> Explanation:
    """As `linearizable`; if no order explains the history, also how far the best one goes.

    Args:
        operations: the history, in any order.
        initial: the model's first state.
        step: see `linearizable`.
        most: configurations to try; None for all. Their number may grow with two to the power of
            the number of operations of unknown outcome.
    """
    ordered = sorted(operations, key=lambda operation: (operation.called, operation.returned))
    # The operation that returned first is tried first: mostly that was the order.
    rank = [(one.pending, one.returned) for one in ordered]
    everything = sum(1 << i for i, (pending, _) in enumerate(rank) if not pending)
    returned_before = _returned_before(ordered)
    seen: set[tuple[int, State]] = set()
    # The path to a configuration: the path to the one before, and the operation.
    path: tuple[Any, ...] | None = None
    stack: list[tuple[int, State, tuple[Any, ...] | None]] = [(0, initial, None)]
    furthest, best = -1, path
    stuck: list[int] = []
    while stack and (most is None or len(seen) < most):
        done, state, path = stack.pop()
        if done & everything == everything:
            return Explanation(_path_order(path, ordered), complete=True)
        if (done, state) in seen:
            continue
        seen.add((done, state))
        candidates = _candidates(done, returned_before, everything)
        candidates.sort(key=rank.__getitem__, reverse=True)
        for i in candidates:
            after = step(state, ordered[i])
            if after is not None:
                # a pending operation that returned before this call never happens
                never = returned_before[i] & ~everything
                stack.append((done | 1 << i | never, after, (path, i)))
        reached = (done & everything).bit_count()
        if reached > furthest:
            furthest, best, stuck = reached, path, candidates
    refused = tuple(ordered[i] for i in sorted(stuck) if not rank[i][0])
    return Explanation(_path_order(best, ordered), complete=False, stuck=refused, decided=not stack)


def _returned_before(ordered: Sequence[Operation]) -> list[int]:
    """For each operation, in the order of calls, the bit set of those that returned before it."""
    by_return = sorted(range(len(ordered)), key=lambda i: ordered[i].returned, reverse=True)
    found, before = [], 0
    for one in ordered:
        while by_return and ordered[by_return[-1]].returned < one.called:
            before |= 1 << by_return.pop()
        found.append(before)
    return found


def _candidates(done: int, returned_before: Sequence[int], everything: int) -> list[int]:
    """The operations that may come next, in the order of calls."""
    found, required = [], everything & ~done
    for i in range(((done + 1) & ~done).bit_length() - 1, len(returned_before)):
        if not done >> i & 1:
            if returned_before[i] & required:
                break  # the operations called later must wait for it, too
            found.append(i)
    return found


def _path_order(
    path: tuple[Any, ...] | None, ordered: Sequence[Operation]
) -> tuple[Operation, ...]:
    order: list[Operation] = []
    while path is not None:
        path, i = path[0], path[1]
        order.append(ordered[i])
    return tuple(reversed(order))
