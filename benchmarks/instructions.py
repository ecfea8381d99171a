"""Instructions of the event loop's thread for each append, load, turn and recall, and of all
threads for each flush of a thousand messages, by valgrind's callgrind.

    python -m benchmarks.instructions                    count, and print a table
    python -m benchmarks.instructions --check            … and compare with the recorded figures
    python -m benchmarks.instructions --record           … and record them, after a wanted change
    python -m benchmarks.instructions append-256         only these cases
    python -m benchmarks.instructions --tracing          what OpenTelemetry costs an append

Rates of one machine vary twofold within minutes; instructions hardly do. So a regression of the
code shows here on a noisy machine. Each case runs in two processes, one with few operations, one
with more: the difference is divided by the difference of their numbers, which leaves out whatever
both do. The tokenizer's automaton grows with the first thousands of texts, which both have counted
before. The default configuration is measured, but without long-term memory, whose threads take a
share that varies; a recall and a flush have it. Messages of 300 bytes; the files are in memory
where the system has such a place.

Recorded figures belong to one version of CPython and one kind of machine, both noted in the file:
with another, `--check` says that there is nothing to compare and exits with 3. It exits with 1 if a
case takes more than the tolerance above its figure; if it takes as much less, it says that the
figure wants to be recorded again, and exits with 0. It takes about two minutes. Where other
processes want the processor, too, commits are more and smaller, and an append took up to 12 % more:
so `--check` counts a case that takes more again, twice at most, and takes the least.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import itertools
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.speed.text import texts
from remora import Config, Runtime, Session
from remora.tokens import TiktokenCounter

__all__ = [
    "CASES",
    "FILE",
    "TOLERANCE",
    "Comparison",
    "compare",
    "count",
    "count_least",
    "find_environment",
]

FILE = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.1
"""Group commits differ from run to run: their number, and with it a few hundredths of the work."""
_TOLERANCE_OF_ALL = 0.4
"""Of all threads: what waits for what differs from run to run."""
_MOST_COUNTS = 3
_NOTHING_TO_COMPARE = 3

Operation = Callable[[Runtime, Session, str], Awaitable[object]]


class Case(NamedTuple):
    """What is counted.

    Attributes:
        sessions: how many callers there are, each with a session of its own.
        few: operations of the smaller process.
        many: operations of the larger.
        filled: messages that each session has at the start.
        operation: it.
        prepare: what is done to the runtime before it opens.
        remembers: whether there is long-term memory, which has the messages of the start.
        all_threads: whether all threads are counted, and not the event loop's alone.
    """

    sessions: int
    few: int
    many: int
    filled: int
    operation: Operation
    prepare: Callable[[Runtime], None] | None = None
    remembers: bool = False
    all_threads: bool = False


async def _append(_: Runtime, session: Session, text: str) -> object:
    return await session.append({"role": "user", "content": text})


async def _load(_: Runtime, session: Session, text: str) -> object:  # noqa: ARG001
    return await session.load()


async def _turn(_: Runtime, session: Session, text: str) -> object:
    async with session.turn(text, query=False) as turn:
        return await turn.reply({"role": "assistant", "content": text})


async def _recall(runtime: Runtime, session: Session, text: str) -> object:
    return await runtime.user(session.key.user).recall(text[:60])


async def _flush(_: Runtime, session: Session, text: str) -> object:
    """A thousand messages, their rows, vectors and commit."""
    batch: list[dict[str, Any]] = [
        {"role": "user", "content": f"{number} {text}"} for number in range(1_000)
    ]
    await session.append(batch)
    return await session.flush()


CASES: dict[str, Case] = {
    "append-1": Case(1, 50, 250, 1, _append),
    "append-256": Case(256, 512, 2_560, 1, _append),
    "load-20": Case(1, 50, 450, 20, _load),
    "turn-1": Case(1, 30, 130, 20, _turn),
    "recall-200": Case(1, 50, 250, 200, _recall, remembers=True),
    "flush-1000": Case(1, 1, 4, 1, _flush, remembers=True, all_threads=True),
}


def _load_tracing(_: Runtime) -> None:
    importlib.import_module("remora.adapters.otel")


def _trace(runtime: Runtime) -> None:
    otel = importlib.import_module("remora.adapters.otel")
    otel.trace_calls(runtime)


def _trace_with_sdk(runtime: Runtime) -> None:
    otel = importlib.import_module("remora.adapters.otel")
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    otel.trace_calls(runtime, tracer_provider=sdk.TracerProvider())


TRACING: dict[str, Case] = {
    "not loaded": CASES["append-1"],
    "loaded, off": CASES["append-1"]._replace(prepare=_load_tracing),
    "on, no SDK": CASES["append-1"]._replace(prepare=_trace),
    "on, SDK": CASES["append-1"]._replace(prepare=_trace_with_sdk),
}
"""An append, with more and more of OpenTelemetry; without an exporter."""


async def _run(case: Case, operations: int, directory: Path) -> None:
    config = Config.from_dict(
        {"long_term": {"enabled": case.remembers}, "background": {"process": "never"}}
    )
    supply = texts(1, 2_000)
    pool = itertools.cycle(supply)
    runtime = Runtime(directory, config=config)
    if case.prepare is not None:
        case.prepare(runtime)
    async with runtime:
        await runtime.ready()
        counter = TiktokenCounter()
        for text in supply:
            counter.count(text)
        sessions = [runtime.session(f"user-{n}", "chat") for n in range(case.sessions)]
        for session in sessions:
            batch: list[dict[str, Any]] = [
                {"role": "user", "content": next(pool)} for _ in range(case.filled)
            ]
            await session.append(batch)
            if case.remembers:
                await session.flush()
                await runtime.user(session.key.user).recall("the first one reads the rows")
        await runtime.settle()

        async def call(session: Session) -> None:
            for _ in range(operations // case.sessions):
                await case.operation(runtime, session, next(pool))

        _switch_counting("on")
        await asyncio.gather(*map(call, sessions))
        _switch_counting("off")


def _switch_counting(to: str) -> None:
    """Start is not counted, which makes it ten times as fast."""
    command = ["callgrind_control", f"--instr={to}", str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "OK" not in done.stdout:
        raise SystemExit(f"callgrind_control could not switch counting {to}: {done.stdout}")


def _count_process(name: str, operations: int, *, all_threads: bool) -> int:
    """Instructions of a process of its own: of the main thread, or of all threads."""
    shared = Path("/dev/shm")
    place = shared if shared.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        command = [
            "valgrind",
            "--tool=callgrind",
            "--instr-atstart=no",
            "--separate-threads=yes",
            f"--callgrind-out-file={directory}/out",
            sys.executable,
            "-m",
            "benchmarks.instructions",
            "--child",
            name,
            str(operations),
            f"{directory}/memory",
        ]
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            cwd=Path(__file__).resolve().parent.parent,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name} failed under valgrind:\n{done.stderr[-2_000:]}")
        files = Path(directory).glob("out*-*" if all_threads else "out*-01")
        found = [
            re.search(r"^totals: (\d+)", one.read_text("utf-8"), re.MULTILINE) for one in files
        ]
        totals = [int(one[1]) for one in found if one is not None]
        if not totals:
            raise SystemExit(f"callgrind wrote no total for {name}")
        return sum(totals)


def count(name: str) -> float:
    """Thousands of instructions of an operation."""
    case = (CASES | TRACING)[name]
    more, less = (
        _count_process(name, operations, all_threads=case.all_threads)
        for operations in (case.many, case.few)
    )
    return (more - less) / (case.many - case.few) / 1_000


def count_least(name: str, recorded: Mapping[str, float]) -> float:
    """Thousands of instructions of an operation: the least of some counts, if one is not enough."""
    least = count(name)
    for _ in range(1, _MOST_COUNTS):
        if not compare({name: least}, recorded).slower:
            break
        least = min(least, count(name))
    return least


def find_environment() -> str:
    """Whose figures can be compared with those of this process."""
    return f"CPython {platform.python_version()} {platform.machine()}"


class Comparison(NamedTuple):
    """What the recorded figures say of new ones.

    Attributes:
        slower: cases above their figure by more than the tolerance.
        faster: cases below it by more than the tolerance.
        unknown: cases without a figure.
    """

    slower: Sequence[str]
    faster: Sequence[str]
    unknown: Sequence[str]


def compare(found: Mapping[str, float], recorded: Mapping[str, float]) -> Comparison:
    """Compare thousands of instructions by case."""
    known = {name: found[name] / recorded[name] for name in found if name in recorded}
    allowed = {
        name: _TOLERANCE_OF_ALL if name in CASES and CASES[name].all_threads else TOLERANCE
        for name in known
    }
    return Comparison(
        [name for name, ratio in known.items() if ratio > 1 + allowed[name]],
        [name for name, ratio in known.items() if ratio < 1 - allowed[name]],
        [name for name in found if name not in recorded],
    )


def _read_recorded() -> dict[str, float]:
    """The figures of this environment; none if there are only those of another."""
    everything = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    return dict(everything.get(find_environment(), {}))


def _record(found: Mapping[str, float]) -> None:
    everything = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    figures = everything.setdefault(find_environment(), {})
    figures |= {name: round(value, 1) for name, value in found.items()}
    FILE.write_text(json.dumps(everything, indent=2, sort_keys=True) + "\n", "utf-8")


def _print(
    found: Mapping[str, float], recorded: Mapping[str, float], before_name: str = "recorded"
) -> None:
    table = Table("case", before_name, "now", f"now / {before_name}")
    for name, value in found.items():
        before = recorded.get(name)
        was, ratio = ("", "") if before is None else (f"{before:.1f}", f"{value / before:.3f}")
        table.add_row(name, was, f"{value:.1f}", ratio)
    console = Console()
    console.print(f"thousands of instructions on the event loop's thread, {find_environment()}")
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the recorded figures")
    what.add_argument("--record", action="store_true", help="record what is counted")
    what.add_argument("--tracing", action="store_true", help="count what OpenTelemetry costs")
    what.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, operations, directory = given.cases
        asyncio.run(_run((CASES | TRACING)[name], int(operations), Path(directory)))
        return 0
    names = given.cases or list(CASES)
    if given.tracing and given.cases:
        parser.error("--tracing has cases of its own: name none")
    if given.tracing:
        names = list(TRACING)
    elif wrong := [name for name in names if name not in CASES]:
        parser.error(f"no case {', '.join(wrong)}; there are {', '.join(CASES)}")
    if shutil.which("valgrind") is None:
        parser.error("valgrind is needed; Debian's package is called valgrind")
    recorded = _read_recorded()
    if given.check and not recorded:
        print(f"{FILE.name} has no figures of {find_environment()}: nothing to compare")
        return _NOTHING_TO_COMPARE
    found: dict[str, float] = {}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("counting", total=len(names))
        for name in names:
            found[name] = count_least(name, recorded if given.check else {})
            progress.advance(task)
    if given.tracing:
        _print(found, dict.fromkeys(found, found["not loaded"]), "not loaded")
        return 0
    _print(found, recorded)
    if given.record:
        _record(found)
    if not given.check:
        return 0
    seen = compare(found, recorded)
    for name in seen.slower:
        print(f"{name} takes over {TOLERANCE:.0%} more instructions than recorded")
    for name in (*seen.faster, *seen.unknown):
        print(f"{name}: record its figure: python -m benchmarks.instructions --record {name}")
    return 1 if seen.slower else 0


if __name__ == "__main__":
    sys.exit(main())
