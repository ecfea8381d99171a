"""Processes that copy a memory and kill themselves at a step: an export, an import, a division into
shards, and a move into PostgreSQL or back.

python -m tests.faults.copy_kills [--at STEP] WORK DIRECTORY [WORD …]

A step is a file or directory of the base that is opened for writing, made, renamed or removed, an
SQLite file that is opened, a commit of a journal, a step that the work names, or progress that it
tells. Without ``--at`` the process does all of the work, and says how many steps there were.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import msgspec

import remora
from remora.cluster.moving import move_to_database, move_to_directory
from remora.cluster.reshard import reshard
from remora.config import Secret
from remora.storage.sqlite import journal as sqlite_journal
from remora.testing import HashEmbedder
from tests.faults.kills import ROOT, work_and_kill
from tests.filled import CONFIG, PLAIN, poison
from tests.sqlite import BreakableConnection

__all__ = ["count_steps", "in_database", "kill_at", "make"]

_OPENED_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FILE_EVENTS = frozenset(
    {"os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "sqlite3.connect"}
)


# -- the child -------------------------------------------------------------------------------------


class Steps:
    """Counts steps, and kills this process at one.

    Args:
        base: the directory whose files count.
        at: the number of the step; 0 for none.
    """

    def __init__(self, base: Path, at: int) -> None:
        self.count = 0
        self._base = str(base)
        self._at = at
        self._lock = threading.Lock()

    def step(self, *_: object) -> None:
        with self._lock:
            self.count += 1
            if self.count == self._at:
                os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count what Python does to files; for `sys.addaudithook`."""
        if event == "open":
            path, _, flags = arguments
            counted = bool(flags & _OPENED_TO_WRITE)
        elif event in _FILE_EVENTS:
            (path, *_), counted = arguments, True
        else:
            return
        if counted and isinstance(path, str | os.PathLike) and str(path).startswith(self._base):
            self.step()


def make(directory: Path, config: remora.Config) -> remora.Runtime:
    """A runtime of `tests.filled`'s memories."""
    embedder = HashEmbedder(16) if config.long_term.enabled else None
    return remora.Runtime(directory, config=config, embedder=embedder, redact_long_term=poison)


def in_database(config: remora.Config, dsn: str, schema: str, shards: int = 1) -> remora.Config:
    """The configuration with a journal in PostgreSQL, in so many shards.

    The lease of a process that was killed ends in a second.
    """
    there = msgspec.structs.replace(
        config.journal, dsn=Secret(dsn), schema=schema, durability="process", lease_s=1.0
    )
    machines = msgspec.structs.replace(config.cluster, shards=shards if shards > 1 else None)
    return msgspec.structs.replace(config, journal=there, cluster=machines)


async def export(steps: Steps, directory: Path, path: str) -> None:
    async with make(directory, CONFIG) as runtime:
        steps.count = 0  # opening it is not what is tried
        await runtime.export(Path(path), overwrite=True, progress=steps.step)


async def import_(steps: Steps, directory: Path, path: str) -> None:
    async with make(directory, CONFIG) as runtime:
        await runtime.import_(Path(path), skip_existing=True, progress=steps.step)
        await runtime.settle()


async def divide(steps: Steps, directory: Path, shards: str) -> None:
    await reshard(directory, int(shards), CONFIG, progress=steps.step, on_step=steps.step)


async def move(steps: Steps, directory: Path, to: str, shards: str, dsn: str, schema: str) -> None:
    config = PLAIN if int(shards) > 1 else CONFIG
    config = in_database(config, dsn, schema, int(shards))
    there = move_to_database if to == "postgresql" else move_to_directory
    await there(directory, config, progress=steps.step, on_step=steps.step)


WORK: dict[str, Callable[..., Awaitable[None]]] = {
    "export": export,
    "import": import_,
    "reshard": divide,
    "move": move,
}


def main() -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("directory", type=Path)
    parser.add_argument("words", nargs="*")
    asked = parser.parse_args()
    steps = Steps(asked.directory.parent, asked.at)
    sys.addaudithook(steps.audit)
    with (
        mock.patch.object(sqlite_journal, "JournalConnection", BreakableConnection),
        mock.patch.object(BreakableConnection, "before_commit", steps.step),
        mock.patch.object(BreakableConnection, "after_commit", steps.step),
    ):
        anyio.run(partial(WORK[asked.work], steps, asked.directory, *asked.words))
    if asked.at:  # there were fewer steps this time
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdout.write(f"{steps.count}\n")
    return 0


# -- the parent ------------------------------------------------------------------------------------


def count_steps(*words: object) -> int:
    """Do all of the work; returns how many steps it has."""
    command = [sys.executable, "-m", "tests.faults.copy_kills", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return int(done.stdout.splitlines()[-1])


def kill_at(step: int, *words: object) -> None:
    """Do the work up to a step, where the process is killed."""
    work_and_kill("-m", "tests.faults.copy_kills", "--at", step, *words)


if __name__ == "__main__":
    raise SystemExit(main())
