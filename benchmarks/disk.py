"""A disk that is full, broken, read-only or slow under the journal.

    python -m benchmarks.disk MODE [--most N]

MODE is full-at-each-write, broken-sync, read-only, full-for-a-while or slow. Measured: what is
refused, what is kept, and when service resumes. The faults are real return values of write and
fsync (`faulty_disk.c`, preloaded into a child process), so everything above them is production
code. Needs Linux and a C compiler; `possible` says whether they are there.
"""

from __future__ import annotations

import argparse
import errno
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import msgspec

from benchmarks.witness import Verdict, judged, unit
from remora import Config, Runtime
from remora.errors import CommitFailed, MailboxFull, OutcomeUnknown, StorageError
from remora.ids import SessionKey

__all__ = ["DISK_FAULTS", "DiskReport", "possible", "under"]

ROOT = Path(__file__).resolve().parents[1]
CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "buffer": {"token_limit": 300, "summary_tokens": 80},
    }
)
KEYS = tuple(SessionKey("alice", f"chat-{number}") for number in range(3))
_APPENDS = 8  # of each session, in the fixed schedule
_LASTING_S = 0.5


class DiskReport(msgspec.Struct):
    """What came of one kind of fault.

    Attributes:
        injected: faults that took effect.
        verdict: of all directories together.
        refused: appends that failed, provably without effect.
        uncertain: appends whose outcome was unknown; all were sent again under their key.
        resumed_s: for each fault, seconds from when it was over to the next acknowledgement.
        details: further figures, by name.
    """

    injected: int = 0
    verdict: Verdict = msgspec.field(default_factory=Verdict)
    refused: int = 0
    uncertain: int = 0
    resumed_s: list[float] = msgspec.field(default_factory=list)
    details: dict[str, float] = msgspec.field(default_factory=dict)


def possible() -> str:
    """Why these faults cannot be injected here; empty if they can."""
    if sys.platform != "linux":
        return "needs Linux"
    return "" if shutil.which("cc") else "needs a C compiler (cc)"


def under(fault: str, *, most: int = 0, timeout_s: float = 600) -> DiskReport:
    """Inject one kind of fault, in a child process; `most` bounds how many, 0 for all."""
    with tempfile.TemporaryDirectory(prefix="remora-disk-") as base:
        library, orders = Path(base, "faulty_disk.so"), Path(base, "orders")
        source = ROOT / "benchmarks" / "faulty_disk.c"
        subprocess.run(
            ["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60
        )
        orders.write_bytes(bytes(64))
        environment = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "REMORA_FAULTS": str(orders),
            "REMORA_FAULTY": "journal.db",
        }
        command = [
            sys.executable,
            "-m",
            "benchmarks.disk",
            fault,
            "--most",
            str(most),
            "--base",
            base,
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=timeout_s
        )
        if done.returncode:
            raise RuntimeError(f"{fault}: {done.stderr.decode()[-4_000:]}")
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=DiskReport)


# -- in the child ----------------------------------------------------------------------------------


class Orders:
    """What the preloaded library obeys."""

    def __init__(self) -> None:
        with Path(os.environ["REMORA_FAULTS"]).open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 64)

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("q", self._shared, 8 * place, value)

    def _get(self, place: int) -> int:
        value: int = struct.unpack_from("q", self._shared, 8 * place)[0]
        return value

    @property
    def writes(self) -> int:
        """Writes so far."""
        return self._get(0)

    @property
    def syncs(self) -> int:
        """Syncs so far."""
        return self._get(1)

    def fail(self, what: str, *, after: int = 0, times: int = 1, error: int = errno.ENOSPC) -> None:
        """Of the ``write`` or ``sync`` calls from now on, let `after` pass, and the next `times`
        fail.
        """
        place = 2 if what == "write" else 4
        self._set(6, error)
        self._set(place + 1, times)
        self._set(place, (self.writes if what == "write" else self.syncs) + after + 1)

    def mend(self) -> None:
        """Nothing fails any longer, and nothing is slow."""
        for place in (2, 4, 7):
            self._set(place, 0)

    def slow_down(self, seconds: float) -> None:
        """Each sync takes so much longer."""
        self._set(7, int(seconds * 1_000_000))


class _Talk:
    """The fixed schedule: three sessions, so many appends each, a client that sends again what
    failed, under its key.
    """

    def __init__(self, directory: Path, report: DiskReport) -> None:
        self.directory = directory
        self.report = report
        self.acknowledged: dict[SessionKey, list[tuple[int, ...]]] = {key: [] for key in KEYS}
        self.failed_at: float | None = None
        self._stack = AsyncExitStack()
        self._runtime: Runtime | None = None

    async def open(self) -> Runtime:
        """The runtime; opening it again if that failed."""
        while self._runtime is None:
            try:
                self._runtime = await self._stack.enter_async_context(
                    Runtime(self.directory, config=CONFIG)
                )
            except StorageError:
                self._note()
        return self._runtime

    def _note(self) -> None:
        if self.failed_at is None:
            self.failed_at = time.perf_counter()

    async def append(self, key: SessionKey) -> None:
        """One append, until it succeeds."""
        runtime = await self.open()
        number = len(self.acknowledged[key])
        while True:
            try:
                receipt = await runtime.session(*key).append(unit(number), key=str(number))
                break
            except MailboxFull:
                pass
            except CommitFailed:
                self.report.refused += 1
                self._note()
            except (OutcomeUnknown, StorageError):
                self.report.uncertain += 1
                self._note()
            await anyio.sleep(0.001)
        if self.failed_at is not None:
            self.report.resumed_s.append(time.perf_counter() - self.failed_at)
            self.failed_at = None
        self.acknowledged[key].append(receipt.seqs)

    async def whole(self) -> None:
        """The whole schedule, then the end of the runtime."""
        for _ in range(_APPENDS):
            for key in KEYS:
                await self.append(key)
        await self.close()

    async def close(self) -> None:
        """Close the runtime."""
        await self._stack.aclose()
        self._runtime = None

    async def judge(self) -> None:
        """Open it on a sound disk, and look."""
        async with Runtime(self.directory, config=CONFIG) as runtime:
            self.report.verdict += await judged(runtime, self.acknowledged, long_term=False)
        shutil.rmtree(self.directory)


async def _once_each(base: Path, orders: Orders, what: str, error: int, most: int) -> DiskReport:
    """The schedule again and again, with the first, the second, the third … write or sync of it
    failing once.
    """
    report = DiskReport()
    counting = _Talk(base / "counting", DiskReport())
    before = orders.writes, orders.syncs
    await counting.whole()
    total = orders.writes - before[0] if what == "write" else orders.syncs - before[1]
    chosen = range(total) if not most else range(0, total, max(total // most, 1))
    for number in chosen:
        talk = _Talk(base / f"{number}", report)
        orders.fail(what, after=number, error=error)
        seen = orders.writes if what == "write" else orders.syncs
        await talk.whole()
        report.injected += (orders.writes if what == "write" else orders.syncs) - seen > number
        orders.mend()
        await talk.judge()
    report.details[f"{what}s of the schedule"] = total
    return report


async def _for_a_while(base: Path, orders: Orders, error: int, most: int) -> DiskReport:
    """No write succeeds for half a second, in the middle of a conversation; then all do."""
    report = DiskReport()
    for number in range(most or 20):
        talk = _Talk(base / f"{number}", report)
        for key in KEYS:
            await talk.append(key)
        orders.fail("write", times=1 << 40, error=error)
        report.injected += 1
        refused = report.refused + report.uncertain
        runtime = await talk.open()

        async def mend() -> None:
            await anyio.sleep(_LASTING_S)
            orders.mend()
            talk.failed_at = time.perf_counter()  # noqa: B023 -- it ends before the next round

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(mend)
            context = await runtime.session(*KEYS[0]).load()  # reads go on
            assert context.messages
            for key in KEYS:
                tasks.start_soon(talk.append, key)
        assert report.refused + report.uncertain > refused
        for key in KEYS:
            await talk.append(key)
        await talk.close()
        await talk.judge()
    return report


async def _slow(base: Path, orders: Orders, most: int) -> DiskReport:
    """Each sync takes 200 ms, and 200 sessions talk at once."""
    report = DiskReport()
    sessions = [SessionKey("alice", f"chat-{number}") for number in range(200)]
    acknowledged: dict[SessionKey, list[tuple[int, ...]]] = {key: [] for key in sessions}
    latencies: list[float] = []
    async with Runtime(base / "slow", config=CONFIG) as runtime:

        async def one(key: SessionKey) -> None:
            for number in range(most or 8):
                begun = time.perf_counter()
                receipt = await runtime.session(*key).append(unit(number), key=str(number))
                latencies.append(time.perf_counter() - begun)
                acknowledged[key].append(receipt.seqs)

        await runtime.session(*sessions[0]).load()
        orders.slow_down(0.2)
        before, syncs = runtime.statistics().log, orders.syncs
        async with anyio.create_task_group() as tasks:
            for key in sessions:
                tasks.start_soon(one, key)
        after = runtime.statistics().log
        report.injected = orders.syncs - syncs
        orders.mend()
    async with Runtime(base / "slow", config=CONFIG) as runtime:
        report.verdict = await judged(runtime, acknowledged, long_term=False)
    report.details = {
        "appends": len(latencies),
        "appends a commit": (after.writes - before.writes) / max(after.commits - before.commits, 1),
        "append p50 ms": sorted(latencies)[len(latencies) // 2] * 1000,
        "append max ms": max(latencies) * 1000,
    }
    return report


DISK_FAULTS: dict[str, Callable[[Path, Orders, int], Awaitable[DiskReport]]] = {
    "full-at-each-write": lambda base, orders, most: _once_each(
        base, orders, "write", errno.ENOSPC, most
    ),
    "broken-write": lambda base, orders, most: _once_each(base, orders, "write", errno.EIO, most),
    "broken-sync": lambda base, orders, most: _once_each(base, orders, "sync", errno.EIO, most),
    "full-for-a-while": lambda base, orders, most: _for_a_while(base, orders, errno.ENOSPC, most),
    "read-only": lambda base, orders, most: _for_a_while(base, orders, errno.EROFS, most),
    "slow": _slow,
}
"""By name: what `under` injects."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fault", choices=sorted(DISK_FAULTS))
    parser.add_argument("--most", type=int, default=0)
    parser.add_argument("--base", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.base is None:
        print(
            json.dumps(
                json.loads(msgspec.json.encode(under(arguments.fault, most=arguments.most))),
                indent=1,
            )
        )
        return
    report = anyio.run(DISK_FAULTS[arguments.fault], arguments.base, Orders(), arguments.most)
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
