"""How soon a busy thread hands the interpreter to another one.

A thread that runs Python keeps the interpreter for a *switch interval* when another one asks for
it: 5 ms by default. While a thread summarizes, embeds or imports LanceDB, the interval is 0.2 ms.
Measured on an idle machine, with a loop that wakes 530 times a second: while LanceDB is imported it
woke 185 times at 5 ms and 430 at 0.2 ms; while messages were summarized 258 times at 5 ms and 460
at 0.5 ms. Pauses in the computation let the loop wake as often, but made 29 to 49 summaries a
second instead of 225.

While the journal makes plain commits, the interval is short as well: its thread asks for the
interpreter, which the event loop mostly has, nine times a commit. Of 256 sessions a tenth more is
stored, of 16 a twentieth; 0.1 ms brought no more than 0.2. The loop, which is interrupted, is late
by more: p99 8 to 12 ms, not 6 to 7.

The interval belongs to the whole process. So it is restored when the last such work ends, and a
host that has set one of its own keeps it.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

__all__ = [
    "frequent_switches",
    "is_loading",
    "load_module",
    "switch_as_before",
    "switch_often",
    "wait_until_loaded",
]

_DEFAULT_US = 5_000  # the interpreter's own
# 0.2 ms, but no number that a host would choose. CPython truncates: who reads 199 or 200, and sets
# what was read, has another; 198 stays 198.
_SHORT_US = 198

LONGEST_LOAD_S = 30.0

_loading: list[threading.Event] = []
_running: list[None] = []
"""One for each body that runs. Without a lock, because the event loop may be one of the callers:
its changes are single steps of the interpreter, and every last body to end restores the interval.
"""


@contextmanager
def frequent_switches() -> Iterator[None]:
    """Have busy threads hand the interpreter over every 0.2 ms; for the body of a long computation.

    Bodies may run in several threads at once. Where the process has another switch interval than
    the interpreter's default, it stays as it is.
    """
    _running.append(None)
    switch_often()
    try:
        yield
    finally:
        _running.pop()
        switch_as_before()


def switch_often() -> None:
    """Have busy threads hand the interpreter over every 0.2 ms, until `switch_as_before`.

    For many short pieces of work, which are not counted: of several journals, the first that has
    nothing left to commit ends this for the others, too, until their next commit.
    """
    if _interval_us() == _DEFAULT_US:
        sys.setswitchinterval(_SHORT_US / 1e6)


def switch_as_before() -> None:
    """Undo `switch_often`, of all callers, unless a body of `frequent_switches` runs."""
    if not _running and _interval_us() == _SHORT_US:
        sys.setswitchinterval(_DEFAULT_US / 1e6)


def _interval_us() -> int:
    return round(sys.getswitchinterval() * 1e6)


def load_module(name: str) -> ModuleType:
    """Import a module that takes long. It blocks, so call it in a thread.

    A runtime that closes, and a program that ends, wait until it is loaded: an interpreter that is
    taken down while a thread loads native code may abort, and one that Ctrl-C ended may not say so.
    """
    loaded = threading.Event()
    _loading.append(loaded)
    try:
        with frequent_switches():
            return importlib.import_module(name)
    finally:
        _loading.remove(loaded)
        loaded.set()


def is_loading() -> bool:
    """Return whether a `load_module` of another thread has not ended."""
    return bool(_loading)


def wait_until_loaded() -> None:
    """Wait for other threads' `load_module`, half a minute at most."""
    for one in _loading.copy():
        one.wait(LONGEST_LOAD_S)


def _forget_threads() -> None:
    """In a child that was forked: no thread of the parent's goes on there."""
    _loading.clear()
    _running.clear()
    switch_as_before()


def _wait_at_exit() -> None:
    with suppress(KeyboardInterrupt):  # who is not patient need not read a traceback
        wait_until_loaded()


atexit.register(_wait_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
