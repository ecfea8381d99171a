"""How soon the page shows something, by the size of the memory."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio

from benchmarks.view.browsing import browser_of, config, served
from benchmarks.view.owner import Owner
from remora import Runtime

__all__ = ["measure_paint"]

_SMALL = 10
_AT_ONCE = 200
_WATCH = """
const seen = {};
const wanted = { rows: "#users li a", session: "#context-size" };
function look() {
  for (const [name, selector] of Object.entries(wanted)) {
    if (!(name in seen) && document.querySelector(selector)) seen[name] = performance.now();
  }
  requestAnimationFrame(look);
}
look();
window.seen = seen;
"""
_READ = """() => ({ ...window.seen, paint: performance.getEntriesByName("first-contentful-paint")[0]
  .startTime })"""


async def fill(directory: Path, sessions: int, messages: int) -> None:
    """A user with as many sessions, as many other users, and a session with as many messages."""
    limit = anyio.Semaphore(_AT_ONCE)

    async with Runtime(directory, config=config()) as runtime:

        async def begin(user: str, session: str) -> None:
            async with limit:
                await runtime.session(user, session).append({"role": "user", "content": "Hello."})

        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(begin, "alice", f"chat {number}")
                tasks.start_soon(begin, f"user {number}", "chat")
        long = runtime.session("alice", "long")
        for first in range(0, messages, 1_000):
            texts = [f"Message {one}." for one in range(first, min(first + 1_000, messages))]
            await long.append([{"role": "user", "content": text} for text in texts])
        await runtime.settle()


def measure_paint(sessions: int, messages: int, repeat: int, *, owned: bool) -> dict[str, Any]:
    """Medians in milliseconds, and their ratios.

    Args:
        sessions: of the large memory; it has as many users, too.
        messages: of its longest session.
        repeat: how often each page is opened.
        owned: a process has the memory open: the index of last uses is not complete then.
    """
    figures: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        addresses = {}
        for name, size, long in (("small", _SMALL, _SMALL), ("large", sessions, messages)):
            directory = Path(folder, name)
            anyio.run(fill, directory, size, long)
            if owned:
                stack.enter_context(Owner(directory, sessions=0))
            addresses[name] = stack.enter_context(served(directory))
            figures[name] = {"paint": [], "rows": [], "session": []}
        browser = stack.enter_context(browser_of())
        context = browser.new_context()
        context.add_init_script(_WATCH)
        for address in addresses.values():  # its cookie
            context.new_page().goto(address)
        for turn in range(repeat):
            names = list(addresses) if turn % 2 else list(addresses)[::-1]
            for name in names:
                found = _open(context, addresses[name].partition("?")[0])
                for what, value in found.items():
                    figures[name][what].append(value)
    medians = {
        name: {what: statistics.median(values) for what, values in one.items()}
        for name, one in figures.items()
    }
    return {
        "sessions": sessions,
        "messages": messages,
        "owned": owned,
        "median_ms": medians,
        "slowest_ms": {
            name: {what: max(values) for what, values in one.items()}
            for name, one in figures.items()
        },
        "ratio": {what: medians["large"][what] / medians["small"][what] for what in _WHAT},
    }


_WHAT: Sequence[str] = ("paint", "rows", "session")


def _open(context: Any, home: str) -> dict[str, float]:
    page = context.new_page()
    page.goto(f"{home}#/alice/long")
    page.wait_for_selector("#context-size")
    page.wait_for_selector("#users li a", state="attached")
    page.wait_for_function("window.seen.rows && window.seen.session")
    found: dict[str, float] = page.evaluate(_READ)
    page.close()
    return found
