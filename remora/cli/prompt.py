"""Asking whoever sits there before something is done that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio.to_thread
from rich.console import Console

from remora.errors import InvalidInput

__all__ = ["confirm"]


async def confirm(
    console: Console,
    question: str,
    *,
    without_terminal: str,
    show: Callable[[], None] = lambda: None,
) -> bool:
    """Whether somebody says yes.

    Args:
        console: where the question goes.
        question: what would be done.
        without_terminal: what to tell where nobody can be asked.
        show: prints what whoever is asked has to see first.

    Raises:
        InvalidInput: nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise InvalidInput(without_terminal)
    show()
    console.print(f"{question} [y/N] ", end="", markup=False, highlight=False)
    answer = await anyio.to_thread.run_sync(sys.stdin.readline)
    return answer.strip().casefold() in {"y", "yes"}
