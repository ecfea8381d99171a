"""Long-term memory that is read-only, full or missing while a runtime serves.

    python -m benchmarks.long_term_faults {read-only | full | moved | in-the-way} [--rounds N]

Appends continue, and all messages are indexed when it is back. The first two faults mount file
systems, which needs root; `possible` says whether that can be done here.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from benchmarks.witness import Verdict, judged, unit
from remora import Config, Runtime
from remora.ids import SessionKey
from remora.testing import HashEmbedder

__all__ = ["LONG_TERM_FAULTS", "LongTermReport", "possible", "talk_through"]

KEYS = tuple(SessionKey(f"user-{number % 3}", f"chat-{number}") for number in range(6))
_BEFORE, _DURING = 12, 12  # appends of each session
_TMPFS = "16m"


class LongTermReport(msgspec.Struct):
    """What came of one kind of fault.

    Attributes:
        injected: how often.
        verdict: of all directories together.
        failed: attempts of flush jobs that failed meanwhile.
        append_ms: of each append while long-term memory was away, milliseconds.
        resumed_s: for each fault, seconds from when it was over until all had arrived.
    """

    injected: int = 0
    verdict: Verdict = msgspec.field(default_factory=Verdict)
    failed: int = 0
    append_ms: list[float] = msgspec.field(default_factory=list)
    resumed_s: list[float] = msgspec.field(default_factory=list)


class Fault:
    """Something that happens to a directory, and is over again.

    Args:
        place: the directory of long-term memory.
    """

    mounts = False

    def __init__(self, place: Path) -> None:
        self.place = place

    def prepare(self) -> None:
        """Before the runtime opens it."""

    def inject(self) -> None:
        """From now on it cannot be written."""
        raise NotImplementedError

    def restore(self) -> None:
        """It is as before."""
        raise NotImplementedError

    def end(self) -> None:
        """Leave nothing behind."""


class _Mounted(Fault):
    """What is mounted is taken away in the end, whatever has happened."""

    mounts = True
    mounted = False

    def mount(self, *options: str | Path) -> None:
        """Mount something there."""
        _run("mount", *options, self.place)
        self.mounted = True

    def unmount(self) -> None:
        """Take it away, though LanceDB may just be reading a file: whoever opens one from now on
        sees what is below.
        """
        _run("umount", "--lazy", self.place)
        self.mounted = False

    def end(self) -> None:
        """Nothing stays mounted."""
        if self.mounted:
            self.unmount()


class ReadOnly(_Mounted):
    """The file system becomes read-only."""

    def inject(self) -> None:
        """Mount the directory over itself, read-only."""
        self.mount("--bind", self.place)
        _run("mount", "-o", "remount,ro,bind", self.place)

    def restore(self) -> None:
        """Take the mount away."""
        self.unmount()


class Full(_Mounted):
    """The file system has no room left."""

    def prepare(self) -> None:
        """A small file system of its own."""
        self.place.mkdir(parents=True)
        self.mount("-t", "tmpfs", "-o", f"size={_TMPFS}", "tmpfs")

    def inject(self) -> None:
        """Fill it."""
        with (self.place / "ballast").open("wb", buffering=0) as ballast:
            size = 1 << 20
            while size:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    size //= 2

    def restore(self) -> None:
        """Make room."""
        (self.place / "ballast").unlink()


class Moved(Fault):
    """Somebody moves the directory away, and back."""

    def inject(self) -> None:
        """Away; a file keeps anybody from making another in its place."""
        self.place.rename(self.place.with_name("elsewhere"))
        self.place.write_text("moved")

    def restore(self) -> None:
        """Back."""
        self.place.unlink()
        self.place.with_name("elsewhere").rename(self.place)


class InTheWay(Fault):
    """Each table's directory is a file for a while."""

    def inject(self) -> None:
        """Put the files there."""
        for table in list(self.place.glob("*.lance")):
            table.rename(table.with_suffix(".aside"))
            table.write_text("in the way")

    def restore(self) -> None:
        """Take them away."""
        for aside in list(self.place.glob("*.aside")):
            aside.with_suffix(".lance").unlink()
            aside.rename(aside.with_suffix(".lance"))


LONG_TERM_FAULTS: dict[str, type[Fault]] = {
    "read-only": ReadOnly,
    "full": Full,
    "moved": Moved,
    "in-the-way": InTheWay,
}
"""By name."""


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True, timeout=20)


def possible(fault: str) -> str:
    """Why this fault cannot be injected here; empty if it can."""
    if not LONG_TERM_FAULTS[fault].mounts:
        return ""
    if sys.platform != "linux" or shutil.which("mount") is None:
        return "needs Linux and mount"
    with tempfile.TemporaryDirectory() as there:
        try:
            _run("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", there)
        except (subprocess.CalledProcessError, OSError) as e:
            return f"may not mount a file system: {e}"
        _run("umount", there)
    return ""


async def talk_through(
    base: Path, fault: str, config: Config, *, rounds: int = 1, outage_s: float = 0.0
) -> LongTermReport:
    """Talk before, while and after long-term memory is away.

    Args:
        base: where directories are made.
        fault: one of `LONG_TERM_FAULTS`.
        config: of the runtime; the buffers are made small.
        rounds: how often, each on a directory of its own.
        outage_s: how long it lasts at least; in any case until a flush job has failed of it.
    """
    report = LongTermReport()
    small = {"buffer": msgspec.structs.replace(config.buffer, token_limit=300, summary_tokens=80)}
    config = msgspec.structs.replace(config, **small)
    for number in range(rounds):
        directory = base / f"{fault}-{number}"
        directory.mkdir(parents=True)
        done = LONG_TERM_FAULTS[fault](directory / "longterm")
        await anyio.to_thread.run_sync(done.prepare)
        try:
            await _round(directory, done, config, report, outage_s)
        finally:
            await anyio.to_thread.run_sync(done.end)
        await anyio.to_thread.run_sync(shutil.rmtree, directory)
    return report


async def _round(
    directory: Path, fault: Fault, config: Config, report: LongTermReport, outage_s: float
) -> None:
    acknowledged: dict[SessionKey, list[tuple[int, ...]]] = {key: [] for key in KEYS}

    async def talk(runtime: Runtime, latencies: list[float], appends: int) -> None:
        async def one(key: SessionKey) -> None:
            for _ in range(appends):
                number, begun = len(acknowledged[key]), time.perf_counter()
                receipt = await runtime.session(*key).append(unit(number), key=str(number))
                latencies.append((time.perf_counter() - begun) * 1000)
                acknowledged[key].append(receipt.seqs)
            await runtime.session(*key).flush()

        async with anyio.create_task_group() as tasks:
            for key in KEYS:
                tasks.start_soon(one, key)

    async with Runtime(directory, config=config, embedder=HashEmbedder(32)) as runtime:
        await talk(runtime, [], _BEFORE)
        await runtime.settle()
        before = runtime.statistics().supervisor.queues["flush"].retried
        await anyio.to_thread.run_sync(fault.inject)
        report.injected += 1
        begun = time.perf_counter()
        await talk(runtime, report.append_ms, _DURING)
        with anyio.fail_after(60):
            while not any(job.error for job in await runtime.internals.journal.jobs()):  # noqa: ASYNC110 -- nobody tells of a failure
                await anyio.sleep(0.01)
        await anyio.sleep(max(begun + outage_s - time.perf_counter(), 0.0))
        await anyio.to_thread.run_sync(fault.restore)
        begun = time.perf_counter()
        with anyio.fail_after(180):
            await runtime.settle()
        report.resumed_s.append(time.perf_counter() - begun)
        report.failed += runtime.statistics().supervisor.queues["flush"].retried - before
        await talk(runtime, [], 1)
        verdict = await judged(runtime, acknowledged)
    async with Runtime(directory, config=config, embedder=HashEmbedder(32)) as runtime:
        again = await judged(runtime, acknowledged)
    report.verdict += verdict + msgspec.structs.replace(again, acknowledged=0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("fault", choices=list(LONG_TERM_FAULTS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if why := possible(arguments.fault):
        sys.exit(f"{arguments.fault}: {why}")
    with tempfile.TemporaryDirectory(prefix="remora-lt-") as base:
        report = anyio.run(
            lambda: talk_through(
                Path(base), arguments.fault, Config(), rounds=arguments.rounds, outage_s=2.0
            )
        )
    print(msgspec.json.format(msgspec.json.encode(report)).decode())


if __name__ == "__main__":
    main()
