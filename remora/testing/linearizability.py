"""Is there an order of these operations, true to real time, in which a sequential model gives the answers that were given?

The search of Wing & Gong (1993) with Lowe's memoization (2017): try each operation that may come first, remember the
configurations that led nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import msgspec

__all__ = ["Operation", "linearizable"]

State = TypeVar("State", bound=Hashable)


class Operation(msgspec.Struct, frozen=True):
    """One call, as its caller saw it.

    Attributes:
        called: when, in any unit that only grows.
        returned: when it came back; infinity if its outcome was never learned, so that it may still happen.
        kind: what was called.
        argument: with what.
        result: what came back; None if that was never learned.
    """

    called: float
    returned: float
    kind: str
    argument: Any
    result: Any

    @property
    def pending(self) -> bool:
        """Its outcome was never learned."""
        return self.returned == float("inf")


def linearizable(
    operations: Sequence[Operation], initial: State, step: Callable[[State, Operation], State | None]
) -> list[Operation] | None:
    """An order that explains the history, or None if there is none.

    Args:
        operations: the history, in any order.
        initial: the model's first state; states must be hashable.
        step: the state after an operation, or None if the model would not have answered so. For a pending operation
            it is what would happen if it took effect.
    """
    ordered = sorted(operations, key=lambda operation: operation.called)
    everything = sum(1 << i for i, operation in enumerate(ordered) if not operation.pending)
    seen: set[tuple[int, State]] = set()
    stack: list[tuple[int, State, tuple[int, ...]]] = [(0, initial, ())]
    while stack:
        done, state, path = stack.pop()
        if done & everything == everything:
            return [ordered[i] for i in path]
        if (done, state) in seen:
            continue
        seen.add((done, state))
        open_ = [i for i in range(len(ordered)) if not done >> i & 1]
        horizon = min(ordered[i].returned for i in open_)
        for i in open_:
            if ordered[i].called > horizon:
                break
            after = step(state, ordered[i])
            if after is not None:
                stack.append((done | 1 << i, after, (*path, i)))
    return None
