"""A disk that fills up, fails to sync or is slow, at every step of a fixed schedule: the real
runtime over a recorded disk.

    python -m tests.faults.disk_faults [--fault full|sync|slow] [--every N]

Each run opens a healthy directory, appends with keys, and meets the fault at one step, for a while.
Whoever is refused, or told that the outcome is not known, tries again with the same key, as an
application does. In the end each message is there once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec

from remora import BufferPolicy, Config, Runtime
from remora.errors import CommitFailed, OutcomeUnknown, SessionQuarantined
from remora.models.ports import Line
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.verify import check_journal
from tests.faults.crash_states import fast_place
from tests.faults.recorded import RecordedDisk, disk_full, exchanged, sync_failed

FaultKind = Literal["full", "sync", "slow"]
"""ENOSPC at a write; EIO at a sync; each sync takes 200 ms."""

MESSAGES = 10
_LASTS = 4  # steps that fail in turn: the first try and some more
_SLOW_S = 0.2
_LEAN = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "tokens": {"counter": "heuristic"},
        "models": {"embedder": "none"},
        "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02},
    }
)


class FaultFigures(msgspec.Struct):
    """What a fault did.

    Attributes:
        fault: which.
        injected: runs, each with the fault at another step.
        failed: steps that failed, in all runs.
        refused: appends that were refused, provably not stored.
        uncertain: appends whose outcome was not known.
        lost: acknowledged messages that are missing in the end.
        doubled: messages that are there twice.
        damaged: what `verify` found afterwards.
        resumed: runs in which service resumed by itself.
        longest_s: how long the longest append took, from the first try on.
        seconds: how long it took.
    """

    fault: str
    injected: int = 0
    failed: int = 0
    refused: int = 0
    uncertain: int = 0
    lost: int = 0
    doubled: int = 0
    damaged: int = 0
    resumed: int = 0
    longest_s: float = 0.0
    seconds: float = 0.0


class _Joined:
    name = "joined"

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


class _Fault:
    """Fails some steps of one kind."""

    def __init__(self, kind: FaultKind, at: int) -> None:
        self.seen = self.failed = 0
        self._kind = kind
        self._at = at

    def __call__(self, what: str, name: str, number: int) -> Exception | None:
        if name.endswith(".mark") or what != ("write" if self._kind == "full" else "sync"):
            return None
        self.seen += 1
        if self._kind == "slow":
            time.sleep(_SLOW_S)
            return None
        if not self._at <= self.seen < self._at + _LASTS:
            return None
        self.failed += 1
        return disk_full() if self._kind == "full" else sync_failed()


async def one_fault(
    kind: FaultKind, at: int, figures: FaultFigures, *, root: Path | None = None
) -> int:
    """One run with the fault at step `at`, counted from 1; returns how many steps of its kind there
    were.
    """
    disk, fault = RecordedDisk(), _Fault(kind, at)
    disk.recording = False
    texts = [f"message {n} {'x' * (n * 400)}" for n in range(MESSAGES)]
    with tempfile.TemporaryDirectory(dir=root or fast_place()) as directory:
        path = Path(directory) / "journal.db"

        async def opened() -> SqliteJournal:
            return await SqliteJournal.open(path, durability="power")

        policy = BufferPolicy.window(4, fold="summary")
        with exchanged(disk, path):
            async with Runtime.in_memory(
                config=_LEAN, journal=opened, policy=policy, summarizer=_Joined()
            ) as runtime:
                chats = [runtime.session(user, "chat") for user in ("alice", "bob")]
                for chat in chats:
                    await chat.append({"role": "user", "content": "before"})
                disk.fault = fault
                for chat in chats:
                    for number, text in enumerate(texts):
                        await _kept_at_it(chat, text, f"k{number}", figures)
                for chat in chats:
                    await chat.settle()
                disk.fault = None
        figures.damaged += len(await anyio.to_thread.run_sync(check_journal, path))
        async with Runtime.in_memory(
            config=_LEAN, journal=opened, policy=policy, summarizer=_Joined()
        ) as runtime:
            for user in ("alice", "bob"):
                there = [
                    message.content for message in await runtime.session(user, "chat").history()
                ]
                figures.lost += sum(text not in there for text in ["before", *texts])
                figures.doubled += len(there) - len(set(there))
    figures.injected += 1
    figures.failed += fault.failed
    figures.resumed += 1
    return fault.seen


async def _kept_at_it(chat: Any, text: str, key: str, figures: FaultFigures) -> None:
    begun = time.monotonic()
    while True:
        try:
            await chat.append({"role": "user", "content": text}, key=key)
            break
        except CommitFailed:
            figures.refused += 1
        except OutcomeUnknown:
            figures.uncertain += 1
        except SessionQuarantined as e:
            await anyio.sleep(e.retry_after_s)
        await anyio.sleep(0.005)
    figures.longest_s = max(figures.longest_s, time.monotonic() - begun)


async def disk_faults(kind: FaultKind, *, every: int = 1, root: Path | None = None) -> FaultFigures:
    """The fault at every step of the schedule, or at one of `every`."""
    begun = time.monotonic()
    figures = FaultFigures(kind)
    if kind == "slow":
        await one_fault(kind, 1, figures, root=root)
    else:
        at, steps = 1, 1
        while at <= steps:
            steps = max(steps, await one_fault(kind, at, figures, root=root))
            at += every
    figures.seconds = time.monotonic() - begun
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fault", choices=["full", "sync", "slow"], action="append")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    kinds: list[FaultKind] = options.fault or ["full", "sync", "slow"]
    for kind in kinds:
        figures = anyio.run(partial(disk_faults, kind, every=options.every))
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(figures)).decode() + "\n")


if __name__ == "__main__":
    main()
