"""A process that changes keyed state until it kills itself within a commit.

    python -m tests.faults.state_kills DIRECTORY before|after COMMIT

It says which changes it has heard the end of. What a change is depends on its number alone.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from unittest import mock

import anyio

from remora import Config, KeyedState, Runtime
from remora.storage.sqlite import journal
from tests.sqlite import BreakableConnection

__all__ = ["Expected", "change", "open_runtime", "place_of"]

CONFIG = Config.from_dict({"long_term": {"enabled": False}, "models": {"embedder": "none"}})
Expected = dict[tuple[str, str], tuple[int, int]]
"""Value and version, by place and key."""


def open_runtime(directory: Path) -> Runtime:
    return Runtime(directory, config=CONFIG)


def place_of(runtime: Runtime, number: int) -> KeyedState:
    alice = runtime.user("alice")
    return alice.state if number % 2 else alice.session("one").state


async def change(runtime: Runtime, number: int, expected: Expected, used: dict[str, int]) -> None:
    """Do the change of this number, and note it in `expected`."""
    state, place, key = place_of(runtime, number), f"place {number % 2}", f"key {number % 6}"
    _, version = expected.get((place, key), (0, 0))
    if number % 7 == 6 and version:
        assert await state.delete(key, version=version)
        del expected[place, key]
        return
    stored = await state.set(key, number, version=version)
    used[place] = used.get(place, 0) + 1
    assert stored.version == used[place]
    expected[place, key] = (number, stored.version)


async def main(directory: Path, when: str, commit: int) -> None:
    expected: Expected = {}
    used: dict[str, int] = {}
    opened: list[BreakableConnection] = []
    commits = 0

    def connect(path: Path) -> BreakableConnection:
        opened.append(BreakableConnection(path))
        return opened[-1]

    def count() -> None:
        nonlocal commits
        commits += 1
        if commits == commit:
            os.kill(os.getpid(), signal.SIGKILL)

    with mock.patch.object(journal, "JournalConnection", connect):
        async with open_runtime(directory) as runtime:
            if when == "after":
                opened[0].after_commit = count
            else:
                opened[0].before_commit = count
            for number in range(1_000):
                await change(runtime, number, expected, used)
                print(number, flush=True)  # noqa: T201


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
