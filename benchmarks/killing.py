"""``kill -9`` of a whole runtime at random moments, with jobs and LanceDB's upkeep in flight.

    python -m benchmarks.killing [--kills 200] [--seed 1]

A child process appends to many sessions at once, with small buffers, on real SQLite and LanceDB. It
reports each acknowledgement through a pipe at once, and the parent keeps them as evidence. The
child is killed and started again on the same directory, where it repeats its last appends under
their keys and continues. After each kill a copy of the directory is opened and checked, so that the
next start recovers from the kill itself, and may be killed during recovery.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec

from benchmarks.witness import Verdict, judged, unit
from remora import Config, Runtime
from remora.errors import MailboxFull
from remora.ids import SessionKey
from remora.testing import HashEmbedder

__all__ = ["CONFIG", "KillReport", "kill_again_and_again"]

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 300, "summary_tokens": 80},
        "supervisor": {"backoff_s": 0.01},
        "long_term": {
            "batch_ms": 5,
            "shards": 2,
            "compact_fragments": 12,
            "compact_interval_s": 0.4,
        },
    }
)
SESSIONS = 16
REPEATED = 2  # appends that a child sends again although they were acknowledged
ROOT = Path(__file__).resolve().parents[1]


class KillReport(msgspec.Struct):
    """What came of it.

    Attributes:
        kills: how often.
        recovering: how many of them before the first append after a restart had succeeded.
        verdict: of all directories, as each was after its last kill; losses and doubles of any kill
            are in it.
        resumed_s: for each restart, seconds from opening the directory to the first
            acknowledgement.
        started_s: the same from the start of the process, imports included.
        wrong: of each kill that left something wrong, what.
    """

    kills: int = 0
    recovering: int = 0
    verdict: Verdict = msgspec.field(default_factory=Verdict)
    resumed_s: list[float] = msgspec.field(default_factory=list)
    started_s: list[float] = msgspec.field(default_factory=list)
    wrong: list[str] = msgspec.field(default_factory=list)


def session(number: int) -> SessionKey:
    return SessionKey(f"user-{number % 5}", f"session-{number}")


# -- the child -------------------------------------------------------------------------------------


async def _talk(directory: Path, starts: list[int], seed: int) -> None:
    rng = random.Random(seed)

    def tell(kind: str, *words: object) -> None:
        os.write(
            1, (" ".join(map(str, (kind, *words))) + "\n").encode()
        )  # one write a line: a pipe keeps it whole

    async def one(number: int, runtime: Runtime) -> None:
        chat = runtime.session(*session(number))
        at = max(starts[number] - REPEATED, 0)
        while True:
            try:
                receipt = await chat.append(unit(at), key=str(at))
            except MailboxFull:
                await anyio.sleep(0.01)
                continue
            tell("ack", number, at, time.monotonic() - begun, *receipt.seqs)
            at += 1
            if rng.random() < 0.02:
                await chat.flush()
            await anyio.sleep(rng.random() * 0.03)

    begun = time.monotonic()
    tell("opening")
    async with (
        Runtime(directory, config=CONFIG, embedder=HashEmbedder(32)) as runtime,
        anyio.create_task_group() as tasks,
    ):
        for number in range(SESSIONS):
            tasks.start_soon(one, number, runtime)


# -- the killer ------------------------------------------------------------------------------------


class _Child:
    """The child and what it has said."""

    def __init__(self, directory: Path, starts: list[int], seed: int) -> None:
        self.begun = time.monotonic()
        self.lines: list[list[str]] = []
        self.first_s = 0.0
        self._opening, self._talking = threading.Event(), threading.Event()
        command = [
            sys.executable,
            "-m",
            "benchmarks.killing",
            "--child",
            str(directory),
            "--seed",
            str(seed),
        ]
        self._process = subprocess.Popen(
            [*command, "--starts", json.dumps(starts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as said:
            for line in said:
                if not line.endswith("\n"):
                    break  # torn off by the kill
                self.lines.append(line.split())
                if line.startswith("opening"):
                    self._opening.set()
                elif not self._talking.is_set():
                    self.first_s = time.monotonic() - self.begun
                    self._talking.set()
        self._opening.set()
        self._talking.set()

    def kill(self, *, talking: bool, after_s: float) -> None:
        """Kill it so long after it began to recover, or to talk; everything that it said is known
        on return.
        """
        if not (self._talking if talking else self._opening).wait(60):
            self._process.kill()
            raise TimeoutError("the child did not come up within a minute")
        time.sleep(after_s)
        if self._process.poll() is not None:
            raise RuntimeError(f"the child ended by itself, with {self._process.returncode}")
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._reader.join()


async def _judge(directory: Path, acknowledged: dict[SessionKey, list[tuple[int, ...]]]) -> Verdict:
    async with Runtime(directory, config=CONFIG, embedder=HashEmbedder(32)) as runtime:
        with anyio.fail_after(120):
            return await judged(runtime, acknowledged)


def kill_again_and_again(
    base: Path,
    kills: int,
    *,
    seed: int = 1,
    each: int = 20,
    progress: Callable[[], None] = lambda: None,
) -> KillReport:
    """Kill a runtime `kills` times.

    Args:
        base: where directories are made.
        kills: how often.
        seed: of the moments.
        each: kills of one directory, after which another is begun.
        progress: told of each kill.
    """
    rng, report = random.Random(seed), KillReport()
    base.mkdir(parents=True, exist_ok=True)
    for first in range(0, kills, each):
        directory = base / f"memory-{first}"
        acknowledged: dict[SessionKey, list[tuple[int, ...]]] = {
            session(number): [] for number in range(SESSIONS)
        }
        verdict = Verdict()
        for number in range(first, min(first + each, kills)):
            child = _Child(
                directory,
                [len(acknowledged[session(one)]) for one in range(SESSIONS)],
                rng.randrange(1 << 30),
            )
            talking = rng.random() < 0.8
            child.kill(talking=talking, after_s=rng.random() * (0.9 if talking else 0.3))
            report.kills += 1
            report.recovering += not child.first_s
            repeated = _heard(child.lines, acknowledged)
            if child.first_s and number > first:
                report.started_s.append(child.first_s)
                report.resumed_s.append(
                    next(float(line[3]) for line in child.lines if line[0] == "ack")
                )
            copied = base / "copy"
            shutil.copytree(
                directory,
                copied,
                ignore=shutil.ignore_patterns("remora.lock", "owner.json", "*.sock"),
            )
            verdict = anyio.run(_judge, copied, acknowledged)
            verdict.doubled += repeated
            shutil.rmtree(copied)
            if verdict.wrong:
                report.wrong.append(f"kill {number} (seed {seed}): {verdict.wrong}")
                report.verdict += msgspec.structs.replace(verdict, acknowledged=0, unheard=0)
            progress()
        report.verdict += msgspec.structs.replace(
            Verdict(), acknowledged=verdict.acknowledged, unheard=verdict.unheard
        )
        shutil.rmtree(directory)
    return report


def _heard(lines: list[list[str]], acknowledged: dict[SessionKey, list[tuple[int, ...]]]) -> int:
    """Take in what a child said; returns how many repeated appends were answered otherwise than the
    first time.
    """
    changed = 0
    for kind, *words in lines:
        if kind != "ack":
            continue
        number, at = int(words[0]), int(words[1])
        seqs = tuple(map(int, words[3:]))
        known = acknowledged[session(number)]
        if at < len(known):
            changed += known[at] != seqs
        else:
            assert at == len(known)
            known.append(seqs)
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--starts", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        anyio.run(_talk, arguments.child, arguments.starts, arguments.seed)
        return
    with tempfile.TemporaryDirectory(prefix="remora-kill-") as base:
        report: Any = kill_again_and_again(
            Path(base),
            arguments.kills,
            seed=arguments.seed,
            progress=lambda: print(".", end="", file=sys.stderr, flush=True),
        )
    print(msgspec.json.format(msgspec.json.encode(report)).decode())


if __name__ == "__main__":
    main()
