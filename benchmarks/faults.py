"""The fault table: what each fault loses, doubles or tears, and when service resumes.

    python -m benchmarks.faults [--smoke] [--only NAME …] [--kills 200] [--gigabytes 1]
        [--json FILE]

Markdown goes to standard output, progress to standard error. A fault that cannot be injected here
(no compiler, no right to mount) has a line that says so. `FAULTS` maps each name to a function of a
working directory, of how much is wanted, and of what to call after each injection.
"""

from __future__ import annotations

import argparse
import logging
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import disk, long_term_faults
from benchmarks.killing import kill_again_and_again
from benchmarks.shared import texts
from benchmarks.witness import Verdict, judged, unit
from remora import Config, Runtime
from remora.cli.replay import percentile
from remora.config import Durability
from remora.ids import SessionKey
from remora.testing import HashEmbedder

__all__ = ["FAULTS", "Extent", "Line", "main"]

_OUTAGE_S = 2.0
_LOADED = 400  # messages appended by each call while a large journal is made
_OPENED = 5


class Extent(msgspec.Struct, frozen=True):
    """How much of it.

    Attributes:
        kills: of the whole runtime.
        most: of one kind of disk fault; 0 for each write, or each sync.
        rounds: of each outage of long-term memory.
        gigabytes: size of the large journal.
        states: that a crash could have left, of each level of durability.
    """

    kills: int = 200
    most: int = 0
    rounds: int = 5
    gigabytes: float = 1.0
    states: int = 1_000


class Line(msgspec.Struct, kw_only=True):
    """One line of the table.

    Attributes:
        injected: how many faults took effect.
        verdict: what became of what was acknowledged.
        resumed_s: for each fault, seconds until service resumed.
        resumed_from: what those are counted from.
        note: what else there is to say; why nothing was injected, if nothing was.
        may_lose: what was injected is beyond what was promised, so that a loss is none of ours.
    """

    injected: int = 0
    verdict: Verdict = msgspec.field(default_factory=Verdict)
    resumed_s: list[float] = msgspec.field(default_factory=list)
    resumed_from: str = ""
    note: str = ""
    may_lose: bool = False

    @property
    def wrong(self) -> dict[str, int]:
        """What should have been 0, and is not."""
        return {
            name: count
            for name, count in self.verdict.wrong.items()
            if name != "lost" or not self.may_lose
        }


Done = Callable[[], None]


def _kill_processes(base: Path, extent: Extent, done: Done) -> Line:
    report = kill_again_and_again(base, extent.kills, progress=done)
    note = f"{report.recovering} of them while it recovered from the one before"
    if report.wrong:
        note += "; " + "; ".join(report.wrong)
    return Line(
        injected=report.kills,
        verdict=report.verdict,
        resumed_s=report.resumed_s,
        resumed_from="opening the directory, libraries loaded in it",
        note=note,
    )


def _disk(fault: str) -> Callable[[Path, Extent, Done], Line]:
    def inject(base: Path, extent: Extent, done: Done) -> Line:  # noqa: ARG001 -- it makes its own
        if why := disk.possible():
            return Line(note=f"not injected: {why}")
        report = disk.under(fault, most=extent.most)
        done()
        note = (
            f"{report.refused:,} appends refused provably, {report.uncertain:,} uncertain; "
            "each sent again under its key"
        )
        if report.details:
            note = "; ".join(
                [
                    *([] if fault == "slow" else [note]),
                    *(f"{name}: {value:,.0f}" for name, value in report.details.items()),
                ]
            )
        since = (
            ""
            if fault == "slow"
            else "the fault"
            if "each" in fault or "broken" in fault
            else "the disk's recovery"
        )
        return Line(
            injected=report.injected,
            verdict=report.verdict,
            resumed_s=report.resumed_s,
            resumed_from=since,
            note=note,
        )

    return inject


def _long_term(fault: str) -> Callable[[Path, Extent, Done], Line]:
    def inject(base: Path, extent: Extent, done: Done) -> Line:
        if why := long_term_faults.possible(fault):
            return Line(note=f"not injected: {why}")

        async def rounds() -> long_term_faults.LongTermReport:
            report = await long_term_faults.talk_through(
                base, fault, Config(), rounds=extent.rounds, outage_s=_OUTAGE_S
            )
            done()
            return report

        report = anyio.run(rounds)
        p50, most = percentile(report.append_ms, 0.5), max(report.append_ms)
        note = (
            f"appends during it: p50 {p50:.1f} ms, max {most:.0f} ms; "
            f"{report.failed} attempts of index jobs failed"
        )
        return Line(
            injected=report.injected,
            verdict=report.verdict,
            resumed_s=report.resumed_s,
            resumed_from=f"the end of an outage of {_OUTAGE_S:g} s until all has arrived",
            note=note,
        )

    return inject


def _zero_manifest(base: Path, extent: Extent, done: Done) -> Line:
    """What a power cut does to a table that is not synced: its newest manifest is as long as it
    was, and full of zeros.
    """
    line = Line(resumed_from="opening the directory until all is there again")
    config = Config.from_dict(
        {"long_term": {"shards": 1, "batch_ms": 1}, "tokens": {"counter": "heuristic"}}
    )
    key = SessionKey("alice", "chat")

    async def one(directory: Path) -> None:
        acknowledged: dict[SessionKey, list[tuple[int, ...]]] = {key: []}
        async with Runtime(directory, config=config, embedder=HashEmbedder(32)) as runtime:
            for number in range(24):
                receipt = await runtime.session(*key).append(unit(number), key=str(number))
                acknowledged[key].append(receipt.seqs)
                if number % 4 == 3:
                    await runtime.session(*key).flush()
                    await runtime.settle()
        line.injected += _zero_manifests(directory)
        begun = time.perf_counter()
        async with Runtime(directory, config=config, embedder=HashEmbedder(32)) as runtime:
            await runtime.reembedded()
            await runtime.settle()
            line.resumed_s.append(time.perf_counter() - begun)
            line.verdict += await judged(runtime, acknowledged)

    for number in range(extent.rounds):
        anyio.run(one, base / f"zeroed-{number}")
        done()
    return line


def _zero_manifests(directory: Path) -> int:
    """Fill each table's newest manifest with zeros; returns how many."""
    tables = list(directory.glob("longterm/*.lance/_versions"))
    for versions in tables:
        newest = max(versions.glob("*.manifest"), key=lambda path: path.stat().st_mtime_ns)
        newest.write_bytes(bytes(newest.stat().st_size))
    return len(tables)


def _large_journal(base: Path, extent: Extent, done: Done) -> Line:
    """Open a large journal, as it was closed and as a kill leaves it, and append."""
    directory = base / "large"
    config = Config.from_dict(
        {
            "long_term": {"enabled": False},
            "tokens": {"counter": "heuristic"},
            "buffer": {"policy": "window"},
        }
    )
    wanted = int(extent.gigabytes * (1 << 30))
    pool = [{**one, "content": f"{one['content']} " * 4} for one in texts(_LOADED)]
    sent = 0

    async def fill() -> None:
        nonlocal sent
        async with Runtime(directory, config=config) as runtime:
            while (directory / "journal.db").stat().st_size < wanted:
                async with anyio.create_task_group() as tasks:
                    for _ in range(8):
                        tasks.start_soon(
                            runtime.session(f"user-{sent % 1_000}", f"chat-{sent}").append, pool
                        )
                        sent += 1
                await runtime.internals.journal.checkpoint()

    async def time_open() -> tuple[float, float]:
        begun = time.perf_counter()
        async with Runtime(directory, config=config) as runtime:
            entered = time.perf_counter() - begun
            await runtime.session("user-0", "chat-0").append({"role": "user", "content": "and on"})
            first = time.perf_counter() - begun
            assert (await runtime.session("user-0", "chat-0").inspect()).last_seq > _LOADED
            line.verdict.acknowledged = (await runtime.counts()).messages
            line.verdict.lost = max(sent * _LOADED - line.verdict.acknowledged, 0)
        return entered, first

    anyio.run(fill)
    size = (directory / "journal.db").stat().st_size
    line = Line(resumed_from="opening the directory until the first append")
    cold = _cold()
    for _ in range(_OPENED):
        if cold:
            _drop_caches()
        _, first = anyio.run(time_open)
        line.injected += 1
        line.resumed_s.append(first)
        done()
    place = "read from the disk" if cold else "in the page cache"
    line.note = f"{size / (1 << 30):.2f} GiB, {sent:,} sessions; {place}"
    return line


def _cold() -> bool:
    return Path("/proc/sys/vm/drop_caches").exists() and _drop_caches()


def _drop_caches() -> bool:
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def _crash_states(level: Durability) -> Callable[[Path, Extent, Done], Line]:
    """What a power cut could have left of the journal's files, enumerated."""

    def enumerate_states(_: Path, extent: Extent, done: Done) -> Line:
        try:
            from tests.faults.crash_states import crash_states  # noqa: PLC0415 -- needs apsw, which is for tests
        except ImportError as e:
            return Line(note=f"not enumerated here: {e}")
        figures = anyio.run(partial(crash_states, level, extent.states))
        done()
        verdict = Verdict(acknowledged=figures.acknowledged, lost=figures.lost, torn=figures.torn)
        line = Line(injected=figures.injected, verdict=verdict, may_lose=level != "power")
        if level == "power":
            line.note = f"files malformed: {len(figures.other)}"
        else:
            line.note = (
                f"commits since the last sync are lost in {figures.lost_states} states, as the "
                "level says; the next start says "
                f"so in {figures.named} of them; files malformed: {len(figures.other)}"
            )
        return line

    return enumerate_states


FAULTS: dict[str, tuple[str, Callable[[Path, Extent, Done], Line]]] = {
    "power-cut": ("power cut, states enumerated, durability `power`", _crash_states("power")),
    "power-cut-process": ("the same, `process`", _crash_states("process")),
    "power-cut-none": ("the same, `none`", _crash_states("none")),
    "kill": ("`kill -9`, summaries, indexing and upkeep in flight", _kill_processes),
    "full-at-each-write": ("ENOSPC at each write of a schedule", _disk("full-at-each-write")),
    "broken-write": ("EIO at each write of it", _disk("broken-write")),
    "broken-sync": ("EIO at each fsync of it", _disk("broken-sync")),
    "full-for-a-while": ("disk full for 0.5 s", _disk("full-for-a-while")),
    "read-only": ("disk read-only for 0.5 s", _disk("read-only")),
    "slow": ("slow disk: each fsync takes 200 ms longer", _disk("slow")),
    "long-term-read-only": ("LanceDB directory read-only in mid-run", _long_term("read-only")),
    "long-term-full": ("LanceDB file system full in mid-run", _long_term("full")),
    "long-term-moved": ("LanceDB directory gone in mid-run, and back", _long_term("moved")),
    "long-term-in-the-way": (
        "LanceDB tables replaced by files, and back",
        _long_term("in-the-way"),
    ),
    "manifest-zeroed": ("newest LanceDB manifest full of zeros", _zero_manifest),
    "large-journal": ("a large journal is opened", _large_journal),
}
"""By the name that ``--only`` takes: what the table calls it, and what injects it."""


def rendered(lines: dict[str, Line]) -> str:
    """The table, as markdown."""
    rows = [
        (
            "| fault | injected | acknowledged | lost | doubled | torn | "
            "service resumed, p50 / max | remarks |"
        ),
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for name, line in lines.items():
        verdict = line.verdict
        lost, doubled = (
            verdict.lost + verdict.missing + verdict.unfinished,
            verdict.doubled + verdict.doubled_rows,
        )
        torn = verdict.torn + verdict.split + verdict.disordered
        resumed = "-"
        if line.resumed_s:
            p50, longest = percentile(line.resumed_s, 0.5), max(line.resumed_s)
            resumed = f"{_span(p50)} / {_span(longest)} after {line.resumed_from}"
        figures = (
            f"{line.injected:,} | {verdict.acknowledged:,} | {lost:,} | {doubled:,} | {torn:,}"
            if line.injected
            else "- | - | - | - | -"
        )
        rows.append(f"| {FAULTS[name][0]} | {figures} | {resumed} | {line.note} |")
    return "\n".join(rows)


def _span(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


@contextmanager
def _bar() -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield progress


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="a few of each: does it run?")
    parser.add_argument(
        "--only", nargs="+", choices=list(FAULTS), metavar="NAME", help=f"of {', '.join(FAULTS)}"
    )
    parser.add_argument("--kills", type=int, default=200, help="of the whole runtime (200)")
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the large journal (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there, too")
    arguments = parser.parse_args()
    extent = Extent(kills=arguments.kills, gigabytes=arguments.gigabytes)
    if arguments.smoke:
        extent = Extent(kills=3, most=4, rounds=1, gigabytes=0.02, states=40)
    logging.disable(logging.CRITICAL)  # what goes wrong on purpose is not worth a line each
    lines: dict[str, Line] = {}
    broken: list[str] = []
    with _bar() as progress:
        for name in arguments.only or FAULTS:
            total = {
                "kill": extent.kills,
                "manifest-zeroed": extent.rounds,
                "large-journal": _OPENED,
            }.get(name, 1)
            task = progress.add_task(name, total=total)
            base = Path(tempfile.mkdtemp(prefix="remora-faults-"))
            try:
                lines[name] = FAULTS[name][1](
                    base,
                    extent,
                    lambda task=task: progress.advance(task),  # type: ignore[misc]
                )
            except Exception as e:  # the others' figures took long to get
                lines[name] = Line(note=f"broken off: {type(e).__name__}: {e}")
                broken.append(name)
            finally:
                shutil.rmtree(base, ignore_errors=True)
            progress.update(task, completed=total)
    print(rendered(lines))
    if arguments.json:
        report = {
            "machine": platform.platform(),
            "python": platform.python_version(),
            "extent": extent,
            "faults": lines,
        }
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    wrong = {name: line.wrong for name, line in lines.items() if line.wrong}
    if wrong or broken:
        sys.exit(f"not all is well: {wrong}; broken off: {broken}")


if __name__ == "__main__":
    main()
