"""Several worker processes with one memory, against one process with the same load.

    python -m benchmarks.workers rates [--rounds 3] [--seconds 3] [--shards 8] [--json FILE]
    python -m benchmarks.workers turns [--rounds 3] [--seconds 10]
    python -m benchmarks.workers takeover [--runs 50] [--standby]
    python -m benchmarks.workers kills [--runs 100]
    python -m benchmarks.workers stops [--runs 20]

Each takes `--owners N`: so many processes own the memory, each some of its shards.

`rates`: four processes with 64 sessions each, through the owner, and one process with 256 sessions,
in turn; one caller a session; texts of 300 characters; `synchronous=FULL`. Operations: a durable
append; `load()` of 20 messages; a turn (append, load, append); `load(query=…)` with long-term
memory. Everything is loaded, and each session was used for a second, before a round begins. The
result is the ratio of a round's two rates, the median over the rounds, and the owner's
processor time for each operation: of all owners together, of the busiest one, and of the workers.
From these follows what a machine with more cores serves: 1 s divided by what the busiest owner
takes, or its cores divided by what all take, whichever is less.

`turns`: what memory costs a streaming FastAPI server; see `benchmarks.worker_turns`.

`takeover`: the owner is killed; the time until the next append is acknowledged, and until a context
has recalled memories again.

`kills`: owner and a worker are killed under load, again and again; each client sends again with its
key. `stops`: the owner is stopped, replaced, and continued. Both count what is lost, doubled, out
of order, or stale: all must be 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import remora
from benchmarks.served import used_s
from benchmarks.shared import texts
from remora.cli.replay import percentile
from remora.cluster.control import OwnerGone
from remora.cluster.place import Place, find_owners
from remora.cluster.watch import open_control
from remora.config import ClusterConfig

__all__ = ["Rate", "main"]

WORKERS, SESSIONS = 4, 64
_WARM_UP_S = 1.0
OPERATIONS = ("append", "load", "turn", "query")
_CLIENT = (sys.executable, "-m", "benchmarks.workers", "client")
_CONFIG = """\
directory: {directory}
long_term: {{enabled: {long_term}}}
buffer: {{policy: keep_all}}
cluster: {{shards: {shards}, owners: {owners}, standby: {standby}, max_deaths: 1000, linger_s: 20}}
"""


class Rate(msgspec.Struct, frozen=True):
    """What clients did in a round.

    Attributes:
        done: operations.
        seconds: the round's.
        milliseconds: of each operation.
        owner_us: each owner's processor time for each operation; nothing in process.
        worker_us: that of all workers, with their callers.
    """

    done: int
    seconds: float
    milliseconds: list[float]
    owner_us: tuple[float, ...] = ()
    worker_us: float = 0.0

    @property
    def per_second(self) -> float:
        """Operations a second."""
        return self.done / self.seconds


def _write_config(
    path: Path, *, shards: int, owners: int = 1, long_term: bool = False, standby: bool = False
) -> Path:
    file = path / "remora.yaml"
    words = {"long_term": str(long_term).lower(), "standby": str(standby).lower()}
    text = _CONFIG.format(directory=path / "memory", shards=shards, owners=owners, **words)
    file.write_text(text)
    return file


# -- clients ---------------------------------------------------------------------------------------


async def _client(file: Path, *, local: bool, operation: str, first: int, sessions: int) -> None:
    """Does one operation again and again; told when by lines on standard input."""
    opened: Any = remora.Runtime.from_file(file) if local else remora.connect(file)
    pool = [message["content"] for message in texts(200, first)]
    async with opened as memory:
        chats = [memory.session(f"user-{first + n}", "s") for n in range(sessions)]
        if operation in {"load", "query"}:
            messages = [{"role": "user", "content": text} for text in pool[:20]]
            await asyncio.gather(*(chat.append(messages, key="begin") for chat in chats))
        await memory.ready()
        await _round(chats, operation, pool, _WARM_UP_S)
        print("ready", flush=True)
        seconds = float(await asyncio.to_thread(sys.stdin.readline))
        spent = time.process_time()
        took = await _round(chats, operation, pool, seconds)
        print(json.dumps([time.process_time() - spent, took]), flush=True)


async def _round(chats: list[Any], operation: str, pool: list[str], seconds: float) -> list[float]:
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def call(chat: Any, number: int) -> None:
        message = {"role": "user", "content": pool[number % len(pool)]}
        if operation == "query":
            await chat.load(query=pool[number % len(pool)][:60])
        if operation in {"append", "turn"}:
            await chat.append(message)
        if operation in {"load", "turn"}:
            await chat.load()
        if operation == "turn":
            await chat.append({"role": "assistant", "content": message["content"]})

    async def caller(chat: Any) -> None:
        number = 0
        while (begun := time.perf_counter()) < end:
            await call(chat, number)
            took.append((time.perf_counter() - begun) * 1_000)
            number += 1

    await asyncio.gather(*map(caller, chats))
    return took


def _measure(file: Path, operation: str, *, local: bool, seconds: float) -> Rate:
    """One round: the clients begin at once."""
    count, sessions = (1, WORKERS * SESSIONS) if local else (WORKERS, SESSIONS)
    kind = "local" if local else "remote"
    clients = [
        subprocess.Popen(
            [*_CLIENT, str(file), kind, operation, str(n * sessions), str(sessions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(count)
    ]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
    owners = [] if local else [one.pid for one in find_owners(file.parent / "memory")]
    before = [used_s(one) for one in owners]
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(f"{seconds}\n")
        client.stdin.flush()
    took: list[float] = []
    in_workers = 0.0
    for client in clients:
        assert client.stdout is not None
        cpu, some = json.loads(client.stdout.readline())
        in_workers += cpu
        took += some
    spent = [used_s(pid) - earlier for pid, earlier in zip(owners, before, strict=True)]
    for client in clients:
        client.communicate()
    each = 1e6 / max(len(took), 1)
    return Rate(len(took), seconds, took, tuple(one * each for one in spent), in_workers * each)


def _owner_pid(memory: Path, number: int = 0) -> int:
    info = Place(memory, number).read_owner()
    assert info is not None
    return info.pid


def _end_owners(memory: Path, number: int = signal.SIGKILL) -> None:
    for info in find_owners(memory):
        with suppress(OwnerGone), open_control(info, ClusterConfig()) as control:
            os.kill(control.pid, number)
            control.wait(30)


def _rates(given: argparse.Namespace) -> list[dict[str, Any]]:
    found = []
    for operation in given.operations:
        ratios, remote, local = [], [], []
        for _ in range(given.rounds):
            pair = []
            for in_process in (True, False):
                with tempfile.TemporaryDirectory() as path:
                    shards = 1 if in_process else given.shards
                    file = _write_config(
                        Path(path),
                        shards=shards,
                        owners=1 if in_process else given.owners,
                        long_term=operation == "query",
                    )
                    pair.append(_measure(file, operation, local=in_process, seconds=given.seconds))
                    _end_owners(Path(path) / "memory", signal.SIGTERM)
            local.append(pair[0])
            remote.append(pair[1])
            ratios.append(pair[1].per_second / pair[0].per_second)
        row = {
            "operation": operation,
            "in_process_per_s": round(statistics.median(one.per_second for one in local)),
            "workers_per_s": round(statistics.median(one.per_second for one in remote)),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(one, 2) for one in ratios],
            "owner_us": round(statistics.median(sum(one.owner_us) for one in remote), 1),
            "worker_us": round(statistics.median(one.worker_us for one in remote), 1),
            "busiest_owner_us": round(statistics.median(max(one.owner_us) for one in remote), 1),
            "p50_ms": round(statistics.median(remote[-1].milliseconds), 2),
            "p99_ms": round(percentile(sorted(remote[-1].milliseconds), 0.99), 2),
        }
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def _turns(given: argparse.Namespace) -> list[dict[str, Any]]:
    from benchmarks.worker_turns import measure_turns  # noqa: PLC0415  # FastAPI

    row = measure_turns(
        owners=given.owners, rounds=given.rounds, seconds=given.seconds, shards=given.shards
    )
    print(json.dumps(row), flush=True)
    return [row]


# -- owners that die -------------------------------------------------------------------------------


def _standby_waits(memory: Path) -> bool:
    inode = (memory / "owner.lock").stat().st_ino
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and f":{inode} " in line for line in lines)


async def _takeover(given: argparse.Namespace) -> list[dict[str, Any]]:
    took, recalled = [], []
    with tempfile.TemporaryDirectory() as path:
        memory = Path(path) / "memory"
        file = _write_config(
            Path(path),
            shards=given.shards,
            owners=given.owners,
            long_term=True,
            standby=given.standby,
        )
        async with remora.connect(file) as worker:
            chat = worker.session("user", "s")
            for run in range(given.runs):
                await chat.append({"role": "user", "content": "before"}, key=f"b{run}")
                await worker.ready()
                while given.standby and not _standby_waits(memory):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                os.kill(_owner_pid(memory), signal.SIGKILL)
                begun = time.perf_counter()
                await chat.append({"role": "user", "content": "after"}, key=f"a{run}")
                took.append(time.perf_counter() - begun)
                status = "late"
                while status == "late":
                    context = await worker.session("user", "other").load(query="before")
                    status = context.sources.long_term.status
                recalled.append(time.perf_counter() - begun)
            assert len(await chat.history()) == 2 * given.runs
        _end_owners(memory, signal.SIGTERM)
    took.sort()
    recalled.sort()
    row = {
        "standby": given.standby,
        "runs": given.runs,
        "p50_s": round(percentile(took, 0.5), 2),
        "p99_s": round(percentile(took, 0.99), 2),
        "recall_p50_s": round(percentile(recalled, 0.5), 2),
        "recall_p99_s": round(percentile(recalled, 0.99), 2),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(row), flush=True)
    return [row]


async def _under_load(
    given: argparse.Namespace, harm: Callable[[Path, Path, int], Awaitable[None]]
) -> list[dict[str, Any]]:
    """Append from 64 sessions while `harm` is done again and again; count what went wrong."""
    sent: dict[str, int] = {f"user-{n}": 0 for n in range(SESSIONS)}
    stale = unknown = 0
    ended = False
    with tempfile.TemporaryDirectory() as path:
        file = _write_config(Path(path), shards=given.shards, owners=given.owners)
        async with remora.connect(file) as worker:

            async def append(name: str) -> None:
                nonlocal stale, unknown
                chat = worker.session(name, "s")
                while not ended:
                    message: dict[str, Any] = {"role": "user", "content": f"{sent[name]}"}
                    try:
                        await chat.append(message, key=f"k{sent[name]}")
                    except remora.errors.RemoraError as e:
                        assert e.retryable  # noqa: PT017
                        unknown += 1
                        continue
                    sent[name] += 1
                    try:
                        last = (await chat.load()).messages[-1]["content"]
                        stale += last != message["content"]
                    except remora.errors.RemoraError as e:
                        assert e.retryable  # noqa: PT017

            tasks = [asyncio.create_task(append(name)) for name in sent]
            for run in range(given.runs):
                goal = {name: count + 3 for name, count in sent.items()}
                while any(sent[name] < goal[name] for name in goal):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await harm(file, Path(path) / "memory", run % given.owners)
            ended = True
            await asyncio.gather(*tasks)
            lost = doubled = reordered = 0
            for name, count in sent.items():
                history = await worker.session(name, "s").history()
                numbers = [int(str(message.content)) for message in history]
                lost += len(set(range(count)) - set(numbers))
                doubled += len(numbers) - len(set(numbers))
                reordered += numbers != sorted(numbers)
        _end_owners(Path(path) / "memory", signal.SIGTERM)
    row = {"runs": given.runs, "acknowledged": sum(sent.values()), "sent_again": unknown}
    row |= {"lost": lost, "doubled": doubled, "reordered": reordered, "stale": stale}
    print(json.dumps(row), flush=True)
    return [row]


async def _kill(file: Path, memory: Path, number: int) -> None:
    """Kill an owner, and a worker in the middle of its appends."""
    worker = subprocess.Popen(  # noqa: ASYNC220  # a moment, in a benchmark
        [*_CLIENT, str(file), "remote", "append", "1000", "4"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    await asyncio.to_thread(worker.stdout.readline)
    worker.stdin.write("60\n")
    worker.stdin.flush()
    os.kill(_owner_pid(memory, number), signal.SIGKILL)
    worker.kill()
    await asyncio.to_thread(worker.communicate)


async def _stop(file: Path, memory: Path, number: int) -> None:
    """Stop an owner; when another one serves, continue it."""
    del file
    first = _owner_pid(memory, number)
    os.kill(first, signal.SIGSTOP)
    while _owner_pid_or(first, memory, number) == first:  # noqa: ASYNC110  # another process decides
        await asyncio.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(first, signal.SIGCONT)


def _owner_pid_or(usual: int, memory: Path, number: int) -> int:
    info = Place(memory, number).read_owner()
    return usual if info is None else info.pid


# -- command line ----------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Run what the arguments name; returns the printed rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("rates", "turns", "takeover", "kills", "stops"):
        command = commands.add_parser(name)
        command.add_argument("--shards", type=int, default=8)
        command.add_argument("--owners", type=int, default=1)
        command.add_argument("--json", type=Path)
    for name, seconds in (("rates", 3.0), ("turns", 10.0)):
        commands.choices[name].add_argument("--rounds", type=int, default=3)
        commands.choices[name].add_argument("--seconds", type=float, default=seconds)
    rates = commands.choices["rates"]
    rates.add_argument("--operations", nargs="+", choices=OPERATIONS, default=list(OPERATIONS))
    for name, runs in (("takeover", 50), ("kills", 100), ("stops", 20)):
        commands.choices[name].add_argument("--runs", type=int, default=runs)
    commands.choices["takeover"].add_argument("--standby", action="store_true")
    client = commands.add_parser("client", help=argparse.SUPPRESS)
    for word in ("file", "kind", "operation", "first", "sessions"):
        client.add_argument(word)
    given = parser.parse_args(argv)
    if given.command == "client":
        first, sessions = int(given.first), int(given.sessions)
        local = given.kind == "local"
        asyncio.run(
            _client(
                Path(given.file),
                local=local,
                operation=given.operation,
                first=first,
                sessions=sessions,
            )
        )
        return []
    if given.command == "rates":
        rows = _rates(given)
    elif given.command == "turns":
        rows = _turns(given)
    elif given.command == "takeover":
        rows = asyncio.run(_takeover(given))
    else:
        harm = _kill if given.command == "kills" else _stop
        rows = asyncio.run(_under_load(given, harm))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
