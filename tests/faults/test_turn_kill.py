"""``kill -9`` within turns: each is resumed, replayed, or cleanly absent, and is there once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.faults.turn_kills import ask, expected, open_runtime
from tests.postgres import running_cluster

KILLS = int(os.environ.get("REMORA_KILLS", "2"))
TURNS = 40 + 12 * KILLS


def run_and_kill(directory: Path, after: int, *where: str) -> int:
    """Kill the process when it has done so many turns that are new; returns its last one."""
    command = [sys.executable, "-m", "tests.faults.turn_kills", str(directory), str(TURNS)]
    command += where
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if int(line) == after:
                break
        child.kill()
        return max([after, *map(int, child.stdout)])


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest) -> Iterator[tuple[str, ...]]:
    """Nothing, or the address of a PostgreSQL."""
    if request.param == "sqlite":
        yield ()
    else:
        with running_cluster() as cluster:
            yield (cluster.dsn(),)


@pytest.mark.blocking
def test_kill_within_turns(tmp_path: Path, where: tuple[str, ...]) -> None:
    """G3, G4: what a process heard of is there after any kill, once and whole, and a retry ends
    what was cut.
    """
    rng = random.Random(11)
    heard = -1
    for _ in range(KILLS):
        heard = run_and_kill(tmp_path, heard + rng.randrange(4, 11), *where)

    async def check() -> None:
        async with open_runtime(tmp_path, *where) as runtime:
            chat = runtime.session("alice", "one")
            before = [one.content for one in await chat.history()]
            done = [text for number in range(heard + 1) for text in expected(number)]
            assert before[: len(done)] == done
            for number in range(heard + 3):  # all of them again, and what was cut
                await ask(chat, number)
            wanted = [text for number in range(heard + 3) for text in expected(number)]
            history = await chat.history()
            assert [one.content for one in history] == wanted
            assert not any(one.metadata for one in history)

    anyio.run(check)
