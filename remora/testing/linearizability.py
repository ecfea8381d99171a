"""Whether a history of operations is linearizable.

Is there an order of these operations, true to real time, in which a sequential model gives the
answers that were given?

The search of Wing & Gong (1993) with Lowe's memoization (2017): try each operation that may come
first, remember the configurations that led nowhere. A configuration is a bit set of the operations
that are dealt with, and the model's state.

An operation whose outcome was never learned has either happened or not. As long as its process
lives, it may happen at any time after its call. Once the process died, it has happened before that,
or never: durable linearizability (Izraelevitz, Mendes & Scott 2016).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec

__all__ = ["Explanation", "Operation", "explain", "linearizable"]

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
        """Its outcome was never learned."""
        return self.unknown or self.returned == float("inf")


class Explanation(msgspec.Struct, frozen=True):
    """How far a history could be explained.

    Attributes:
        order: the operations in an order in which the model gives their answers; where `complete`
            is false, the longest found.
        complete: it is an order of them all, but for those that may never have happened.
        stuck: the operations one of which would have come next, each with an answer that the model
            would not have given.
        decided: every order was looked at; false where that would have been too many.
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
    """An order that explains the history, or None if there is none (G2).

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
    """The same as `linearizable`, and if there is no order, how far one goes, for a report.

    Args:
        operations: the history, in any order.
        initial: the model's first state.
        step: see `linearizable`.
        most: configurations that are looked at; None for all. Their number may grow with two to the
            power of the number of operations of unknown outcome.
    """
    ordered = sorted(operations, key=lambda operation: (operation.called, operation.returned))
    count = len(ordered)
    # Who returned first is tried first, and who never did, last: mostly that is how it was.
    rank = [(one.pending, one.returned) for one in ordered]
    everything = sum(1 << i for i, (pending, _) in enumerate(rank) if not pending)
    # What must be done before operation i, and what has missed its chance when i happens: what
    # returned before it was called.
    needed, missed = [], []
    by_return = sorted(range(count), key=lambda i: ordered[i].returned, reverse=True)
    before = 0
    for one in ordered:
        while by_return and ordered[by_return[-1]].returned < one.called:
            before |= 1 << by_return.pop()
        needed.append(before & everything)
        missed.append(before & ~everything)
    seen: set[tuple[int, State]] = set()
    path: tuple[Any, ...] | None = (
        None  # the way to a configuration: (way to the one before, operation)
    )
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
        candidates = []
        i = ((done + 1) & ~done).bit_length() - 1  # the first that is open
        while i < count:
            if not done >> i & 1:
                if needed[i] & ~done:
                    break  # and so has whatever was called later
                candidates.append(i)
            i += 1
        candidates.sort(key=rank.__getitem__, reverse=True)
        for i in candidates:
            after = step(state, ordered[i])
            if after is not None:
                stack.append((done | 1 << i | missed[i], after, (path, i)))
        reached = (done & everything).bit_count()
        if reached > furthest:
            furthest, best, stuck = reached, path, candidates
    refused = tuple(ordered[i] for i in sorted(stuck) if not rank[i][0])
    return Explanation(_path_order(best, ordered), complete=False, stuck=refused, decided=not stack)


def _path_order(
    path: tuple[Any, ...] | None, ordered: Sequence[Operation]
) -> tuple[Operation, ...]:
    order: list[Operation] = []
    while path is not None:
        path, i = path[0], path[1]
        order.append(ordered[i])
    return tuple(reversed(order))
