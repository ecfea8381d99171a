"""Confirmation of commands that cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Console

from remora.errors import InvalidInput
from remora.runtime.threads import run_in_thread


async def confirm(
    console: Console,
    question: str,
    *,
    without_terminal: str,
    show: Callable[[], None] = lambda: None,
) -> bool:
    """Ask on the terminal, and return whether the answer is yes.

    Args:
        console: prints the question.
        question: the question.
        without_terminal: the error text without a terminal.
        show: prints what has to be seen before the answer.

    Raises:
        InvalidInput: standard input is not a terminal.
    """
    if not sys.stdin.isatty():
        raise InvalidInput(without_terminal)
    show()
    console.print(f"{question} [y/N] ", end="", markup=False, highlight=False)
    answer = await run_in_thread(sys.stdin.readline)
    return answer.strip().casefold() in {"y", "yes"}
