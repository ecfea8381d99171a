"""Senders at twice the rate of a slow disk, for a minute.

    python -m benchmarks.overload [--seconds 60] [--factor 2] [--loop uvloop] [--seed 1]
        [--json FILE]

Memory must stay bounded, refusals typed, and nothing acknowledged may be lost. The real runtime
runs on the real journal, whose commits are slowed to 20 ms plus 1 ms per record: some 900 messages
a second. Eight busy users send through five sessions each and forty others through one, together at
`--factor` times that rate, whether or not they are answered. A message is acknowledged, refused
(`MailboxFull`: it must not be there), or its outcome is unknown (it may be there). Afterwards the
disk is fast again, and each session's history is compared with its sender's answers. At most 6 MB
may wait; the deadline is 5 s.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import msgspec

from benchmarks.shared import resident, run
from remora import Config, Runtime
from remora.cli.replay import percentile
from remora.errors import MailboxFull, OutcomeUnknown
from remora.ids import SessionKey
from remora.storage.sqlite.connection import Step
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.writer import Rows

__all__ = ["DEADLINE_S", "LATE_S", "TOTAL_BYTES", "Overload", "overload"]

DEADLINE_S = 5.0
TOTAL_BYTES = 6 << 20
COMMIT_S, MESSAGE_S = 0.02, 0.001
_SUSTAINED = 900.0  # messages a second that such a disk takes, some of them in a commit
LATE_S = 1.0  # after the deadline: the sweep's grain, and a busy loop
_GROWTH_MB = 48.0
CONFIG = Config.from_dict(
    {
        "long_term": {"enabled": False},
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 2_000},
        "models": {"summarizer": "tail"},
        "mailbox": {"timeout_s": DEADLINE_S},
    }
)
KEYS = [
    *(SessionKey(f"busy-{user}", f"{number}") for user in range(8) for number in range(5)),
    *(SessionKey(f"user-{user}", "chat") for user in range(40)),
]


class SlowJournal(SqliteJournal):
    """SQLite on a disk that takes its time, while `slow`."""

    slow = True

    async def prepare(self) -> None:
        """Make the disk slow; keep SQLite's caches small: they grow with the file, to 64 MB each,
        and are not what is measured.
        """
        for connection in (self._writer, self._reader):
            await connection.execute("PRAGMA cache_size = -1024")
        await self._writer.create_function("pause", 1, time.sleep)

    def _make_steps(self, rows: Rows) -> list[Step]:
        steps = super()._make_steps(rows)
        if steps and self.slow:
            steps.insert(0, Step("SELECT pause(?)", [(COMMIT_S + MESSAGE_S * rows.records,)]))
        return steps


class Overload(msgspec.Struct):
    """What came of it.

    Attributes:
        seconds: how long.
        bound_kb: how much may wait.
        sent: messages.
        acknowledged: of them.
        refused: provably not run, by the bound that refused them.
        unknown: neither.
        untyped: answered by another error than those two.
        lost: acknowledged, and not in the history.
        ran: refused, and in the history.
        doubled: more than once in the history.
        disordered: sessions whose history is not in the order in which they sent.
        waiting_kb: the most that the runtime had waiting, by its own count, at any look.
        p50_ms: of the acknowledged.
        p99_ms: likewise.
        longest_ms: of all answers.
        lag_ms: the longest that the event loop kept a task waiting that had nothing to do but to
            sleep.
        rss_mb: resident memory, at each tenth of the time.
    """

    seconds: float
    bound_kb: int
    sent: int = 0
    acknowledged: int = 0
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    unknown: int = 0
    untyped: int = 0
    lost: int = 0
    ran: int = 0
    doubled: int = 0
    disordered: int = 0
    waiting_kb: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    longest_ms: float = 0.0
    lag_ms: float = 0.0
    rss_mb: list[float] = msgspec.field(default_factory=list)

    @property
    def wrong(self) -> list[str]:
        """What is not as it should be."""
        found = [
            f"{name}: {value}"
            for name in ("untyped", "lost", "ran", "doubled", "disordered")
            if (value := getattr(self, name))
        ]
        if self.waiting_kb > self.bound_kb:
            found.append(f"{self.waiting_kb} kB were waiting, of {self.bound_kb}")
        if self.longest_ms > (DEADLINE_S + LATE_S) * 1e3:
            found.append(
                f"an answer took {self.longest_ms:.0f} ms, the deadline being {DEADLINE_S:g} s"
            )
        early = self.rss_mb[len(self.rss_mb) // 3 :]  # until then, mailboxes and windows fill
        if early and max(early) - early[0] > _GROWTH_MB:
            found.append(f"memory grew from {early[0]:.0f} to {max(early):.0f} MB")
        return found


class _Senders:
    """All of them, and what they were told of each message: nothing yet, acknowledged, refused or
    unknown (``.aru``).
    """

    def __init__(self, runtime: Runtime, figures: Overload, rng: random.Random) -> None:
        self.told: dict[SessionKey, bytearray] = {key: bytearray() for key in KEYS}
        self.latencies: list[float] = []
        self._runtime = runtime
        self._figures = figures
        self._rng = rng
        self._refused: Counter[str] = Counter()

    async def _send(self, key: SessionKey, number: int) -> None:
        begun, figures, told = time.perf_counter(), self._figures, self.told[key]
        try:
            await self._runtime.session(*key).append(
                {"role": "user", "content": f"{number} {'x' * 200}"}
            )
        except MailboxFull as e:
            self._refused[e.limit] += 1
            told[number : number + 1] = b"r"
        except OutcomeUnknown:
            figures.unknown += 1
            told[number : number + 1] = b"u"
        except Exception:
            figures.untyped += 1
            told[number : number + 1] = b"u"
        else:
            figures.acknowledged += 1
            told[number : number + 1] = b"a"
            self.latencies.append((time.perf_counter() - begun) * 1e3)
        figures.longest_ms = max(figures.longest_ms, (time.perf_counter() - begun) * 1e3)

    async def send(self, per_s: float, seconds: float) -> None:
        """So many messages a second, whatever becomes of them; returns when all are answered."""
        begun = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            while (passed := time.perf_counter() - begun) < seconds:
                for _ in range(int(passed * per_s) - self._figures.sent):
                    key = self._rng.choice(KEYS)
                    self._figures.sent += 1
                    self.told[key] += b"."
                    tasks.start_soon(self._send, key, len(self.told[key]) - 1)
                await anyio.sleep(0.005)
        self._figures.refused = dict(self._refused)

    async def judge(self) -> None:
        """Compare each history with what its sender was told."""
        for key, told in self.told.items():
            history = [
                int(str(message.content).split()[0])
                for message in await self._runtime.session(*key).history()
            ]
            there = Counter(history)
            self._figures.doubled += len(history) - len(there)
            self._figures.disordered += history != sorted(history)
            self._figures.lost += sum(
                one == ord("a") and number not in there for number, one in enumerate(told)
            )
            self._figures.ran += sum(
                one == ord("r") and number in there for number, one in enumerate(told)
            )


async def overload(
    directory: Path,
    *,
    seconds: float,
    factor: float = 2.0,
    seed: int = 1,
    total_bytes: int = TOTAL_BYTES,
) -> Overload:
    """Send too much for a while, and look at what is there.

    Args:
        directory: of the runtime.
        seconds: how long.
        factor: how much, as a multiple of what the disk takes.
        seed: of who sends.
        total_bytes: how much may wait.
    """
    figures, journals = Overload(seconds, total_bytes >> 10), []
    mailbox = msgspec.structs.replace(CONFIG.mailbox, max_total_bytes=total_bytes)
    config = msgspec.structs.replace(CONFIG, mailbox=mailbox)

    async def open_slow_journal() -> SlowJournal:
        journal = await SlowJournal.open(directory / "journal.db", durability="power")
        assert isinstance(journal, SlowJournal)
        await journal.prepare()
        journals.append(journal)
        return journal

    async def look(runtime: Runtime) -> None:
        begun = time.perf_counter()
        while True:
            figures.waiting_kb = max(
                figures.waiting_kb, runtime.statistics().registry.waiting_bytes // 1_024
            )
            if time.perf_counter() - begun >= len(figures.rss_mb) * seconds / 10:
                figures.rss_mb.append(round(resident() / 2**20, 1))
            asleep = time.perf_counter()
            await anyio.sleep(0.02)
            figures.lag_ms = max(figures.lag_ms, (time.perf_counter() - asleep - 0.02) * 1e3)

    await anyio.Path(directory).mkdir(parents=True, exist_ok=True)
    async with Runtime(directory, config=config, journal=open_slow_journal) as runtime:
        for key in KEYS:
            await runtime.session(*key).load()
        senders = _Senders(runtime, figures, random.Random(seed))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look, runtime)
            await senders.send(_SUSTAINED * factor, seconds)
            tasks.cancel_scope.cancel()
        journals[0].slow = False
        await senders.judge()
        if senders.latencies:
            figures.p50_ms, figures.p99_ms = (
                percentile(senders.latencies, 0.5),
                percentile(senders.latencies, 0.99),
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--factor", type=float, default=2.0, help="of what the disk takes (2)")
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--dir", type=Path, help="where the database is made (default: a temporary directory)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # that summaries are extracts, time and again
    with tempfile.TemporaryDirectory(dir=options.dir) as temporary:

        async def whole() -> Overload:
            return await overload(
                Path(temporary) / "memory",
                seconds=options.seconds,
                factor=options.factor,
                seed=options.seed,
            )

        figures: Overload = run(whole, loop=options.loop)
    text = msgspec.json.format(msgspec.json.encode(figures)).decode()
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if figures.wrong:
        sys.exit(f"not all is well: {'; '.join(figures.wrong)}")


if __name__ == "__main__":
    main()
