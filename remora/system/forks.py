"""Open files that a forked child is not to keep: locks and connections would last as long as it.

A child shares the open files of its parent. What is noted here is given up in each child: its
descriptors lead to the null device there, so that their numbers mean nothing else when an object
that the child inherited closes them. Nothing is unlocked and no connection is shut down: both are
still the parent's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

_descriptors: set[int] = set()


def give_up_in_children(descriptor: int) -> None:
    """A process that is forked from now on does not keep this open file."""
    _descriptors.add(descriptor)


def keep_in_children(descriptor: int) -> None:
    """The descriptor is about to be closed, and may then be another file's."""
    _descriptors.discard(descriptor)


@contextlib.contextmanager
def closing(descriptor: int) -> Iterator[None]:
    """Close a descriptor at last; until then no child keeps the open file."""
    give_up_in_children(descriptor)
    try:
        yield
    finally:
        keep_in_children(descriptor)
        os.close(descriptor)


def _give_up() -> None:
    if not _descriptors:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    while _descriptors:
        with contextlib.suppress(OSError):
            os.dup2(nothing, _descriptors.pop(), inheritable=False)
    os.close(nothing)


if sys.platform == "win32":

    def run_at_fork(
        *,
        before: Callable[[], object] | None = None,
        in_parent: Callable[[], object] | None = None,
        in_child: Callable[[], object] | None = None,
    ) -> None:
        """Call functions whenever this process is forked: never."""

else:

    def run_at_fork(
        *,
        before: Callable[[], object] | None = None,
        in_parent: Callable[[], object] | None = None,
        in_child: Callable[[], object] | None = None,
    ) -> None:
        """Call functions whenever this process is forked, for as long as it lives."""
        given = {"before": before, "after_in_parent": in_parent, "after_in_child": in_child}
        os.register_at_fork(**{name: one for name, one in given.items() if one is not None})


run_at_fork(in_child=_give_up)
