"""A memory over HTTP against the same memory in the process.

    python -m benchmarks.served [--connections 32] [--seconds 3] [--rounds 5] [--json FILE]

``remora http`` runs as a process, on a new directory with the installed defaults but for long-term
memory, which is off on both sides. The client is this process: it writes requests that are bytes
already and reads of an answer only how long it is, so that its own work is small. Four kinds of
work alternate in each round, each with as many callers at once as there are connections:

- ``nothing``: ``GET /healthz``, what the HTTP server and this client can do at most;
- ``append``: one message of 80 characters, with an idempotency key;
- ``turn``: both requests of a turn;
- ``embedded append`` and ``embedded turn``: the same on a `Runtime` in this process.

Figures: the rate, the median and the 99th percentile of the time, and what the server's process
used of its core for each operation (the memory's owner is another process).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from remora import Config, Runtime
from remora.rest.keys import add_key

TEXT = "I moved to Lisbon last spring, and I still look for a good place to buy cheese. "
CONFIG = {"long_term": {"enabled": False}, "models": {"embedder": "none"}}
A_TENANT = 50  # connections; the server answers 64 requests of a tenant at once
Work = Callable[[int, int], Awaitable[None]]
"""Does one operation; of which caller, and its how-manieth."""


class Connection:
    """One connection; a request is answered before the next one is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, request: bytes) -> bytes:
        """Send a request; returns the body of its answer."""
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode("latin-1"))
        at = head.lower().index(b"content-length:") + 15
        return await self.reader.readexactly(int(head[at : head.index(b"\r\n", at)]))


def post(path: str, key: str, idempotency: str | None, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    again = "" if idempotency is None else f"Idempotency-Key: {idempotency}\r\n"
    return (
        f"POST {path} HTTP/1.1\r\nHost: memory\r\nAuthorization: Bearer {key}\r\n"
        f"{again}Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


def used_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def run(work: Work, callers: int, seconds: float, pid: int | None) -> dict[str, float]:
    """Have each caller work until the time is over."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def call(caller: int) -> None:
        number = 0
        while (begun := time.perf_counter()) < end:
            await work(caller, number)
            took.append(time.perf_counter() - begun)
            number += 1

    before = used_s(pid) if pid is not None else 0.0
    begun = time.perf_counter()
    await asyncio.gather(*(call(number) for number in range(callers)))
    lasted = time.perf_counter() - begun
    cuts = statistics.quantiles(took, n=100)
    used = used_s(pid) - before if pid is not None else 0.0
    return {
        "rate": len(took) / lasted,
        "p50_ms": cuts[49] * 1_000,
        "p99_ms": cuts[98] * 1_000,
        "server_us": used / len(took) * 1e6,
    }


@contextmanager
def serve(directory: Path, tenants: list[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Serve a new memory; gives the server's process id, its port, and a key of each tenant."""
    keys = directory / "keys.txt"
    own = [add_key(keys, tenant) for tenant in tenants]
    file = directory / "remora.yaml"
    file.write_text(json.dumps({"directory": str(directory / "served"), **CONFIG}))
    command = [sys.executable, "-m", "remora", "http", str(file), "--keys", str(keys)]
    with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.pid, int(server.stdout.readline().rpartition(":")[2]), own
        finally:
            server.terminate()


async def measure(given: argparse.Namespace, directory: Path) -> dict[str, list[dict[str, float]]]:
    tenants = [f"shop-{number}" for number in range(-(-given.connections // A_TENANT))]
    found: dict[str, list[dict[str, float]]] = {}
    with serve(directory, tenants) as (server, port, keys):
        async with Runtime(directory / "own", config=Config.from_dict(CONFIG)) as runtime:
            for round_ in range(given.rounds + 1):
                links = [  # of each round: the server closes those that are idle
                    Connection(*await asyncio.open_connection("127.0.0.1", port))
                    for _ in range(given.connections)
                ]
                for name, work in make_ways(links, runtime, keys, round_).items():
                    pid = None if name.startswith("embedded") else server
                    figures = await run(work, given.connections, given.seconds, pid)
                    if round_:  # the first one warms up
                        found.setdefault(name, []).append(figures)
                for one in links:
                    one.writer.close()
    return found


def make_ways(
    links: list[Connection], runtime: Runtime, keys: list[str], round_: int
) -> dict[str, Work]:
    healthz = b"GET /healthz HTTP/1.1\r\nHost: memory\r\n\r\n"
    message = {"role": "user", "content": TEXT}

    def key(caller: int) -> str:
        return keys[caller // A_TENANT]

    def path(caller: int) -> str:
        return f"/v1/users/u{caller}/sessions/r{round_}"

    async def nothing(caller: int, _: int) -> None:
        await links[caller].ask(healthz)

    async def append(caller: int, number: int) -> None:
        name = f"{path(caller)}/messages"
        await links[caller].ask(post(name, key(caller), f"a{number}", {"messages": [message]}))

    async def turn(caller: int, number: int) -> None:
        name, own = f"{path(caller)}t/turns", f"t{number}"
        asked = {"message": TEXT, "recall": False}
        await links[caller].ask(post(name, key(caller), own, asked))
        reply = {"message": TEXT, "reply": "So do I."}
        await links[caller].ask(post(f"{name}/replies", key(caller), own, reply))

    async def embedded_append(caller: int, number: int) -> None:
        chat = runtime.session(f"u{caller}", f"r{round_}")
        await chat.append({"role": "user", "content": TEXT}, key=f"a{number}")

    async def embedded_turn(caller: int, number: int) -> None:
        chat = runtime.session(f"u{caller}", f"r{round_}t")
        async with chat.turn(TEXT, key=f"t{number}", query=False) as turn:
            await turn.reply("So do I.")

    return {
        "nothing": nothing,
        "append": append,
        "turn": turn,
        "embedded append": embedded_append,
        "embedded turn": embedded_turn,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each kind of work a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(measure(given, Path(directory)))
    medians = {
        name: {
            figure: round(statistics.median(one[figure] for one in rounds), 1)
            for figure in rounds[0]
        }
        for name, rounds in found.items()
    }
    print(f"{'':16} {'a second':>9} {'p50 ms':>8} {'p99 ms':>8} {'server µs':>10}")
    for name, one in medians.items():
        print(
            f"{name:16} {one['rate']:9,.0f} {one['p50_ms']:8.1f} {one['p99_ms']:8.1f} "
            f"{one['server_us']:10,.0f}"
        )
    if given.json is not None:
        given.json.write_text(json.dumps({"rounds": found, "median": medians}, indent=2))


if __name__ == "__main__":
    main()
