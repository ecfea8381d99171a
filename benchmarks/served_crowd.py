"""What a crowd of connections costs the other clients of a memory over HTTP.

    python -m benchmarks.served_crowd [--connections 1000] [--seconds 3] [--rounds 5] [--seed 1]
                                      [--json FILE]

Eight connections of one tenant append, one message of 80 characters after the other, with and
without a crowd in turn; so their 99th percentile beside a crowd is a ratio within one run. The
crowd is a process of its own, and of one kind at a time:

- ``idle``: connections that send nothing;
- ``slow bodies``: requests of 1,000 bytes that come one byte a second;
- ``slow readers``: event streams of 3 MB whose clients read nothing; the server ends them after
  30 s.

``memory``: by how much the server's process grew when the crowd came, for each of its connections,
the most of all rounds (later ones use the memory again).

Then as many turns as there are connections are run by clients that leave: half of the requests are
cut off, within the request or before the answer, and sent again with the same key on another
connection. What the sessions hold at the end is compared with what was acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.served import A_TENANT, TEXT, Connection, post, run, serve

PROBES = 8
KINDS = ("idle", "slow bodies", "slow readers")
FOLLOWED = "/v1/users/lin/sessions/long"
_CUT = 0.5
_AT_ONCE = 32
_ROOM = 4_096  # bytes that a slow reader's system takes for it


async def measure_crowd(
    directory: Path, count: int, seconds: float, rounds: int, seed: int
) -> dict[str, Any]:
    """Measure with so many connections; returns the figures of each kind, and of the turns."""
    tenants = ["shop", *(f"crowd-{number}" for number in range(-(-count // A_TENANT)))]
    with serve(directory, tenants) as (pid, port, keys):
        shop, crowd = keys[0], keys[1:]
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for round_ in range(rounds + 1):  # the first one warms up
            for kind in KINDS:
                if kind == "slow readers" and not round_:
                    await _say_much(port, crowd)
                alone = await _probe(port, shop, seconds, pid, f"{round_} {kind} alone")
                before = _resident(pid)
                async with _crowd(kind, port, crowd, count):
                    grown = _resident(pid) - before
                    beside = await _probe(port, shop, seconds, pid, f"{round_} {kind}")
                    grown = max(grown, _resident(pid) - before, 0)
                found[kind].append(
                    {
                        "alone_p99_ms": alone["p99_ms"],
                        "p99_ms": beside["p99_ms"],
                        "ratio": beside["p99_ms"] / alone["p99_ms"],
                        "rate_ratio": beside["rate"] / alone["rate"],
                        "memory_kb": grown / count / 1_000,
                    }
                )
        turns = await _leave(port, crowd, count, random.Random(seed))
    kinds = {}
    for kind, given in found.items():
        medians = {
            name: round(statistics.median(one[name] for one in given[1:]), 2)
            for name in ("alone_p99_ms", "p99_ms", "ratio", "rate_ratio")
        }
        medians["memory_kb"] = round(max(one["memory_kb"] for one in given), 1)
        kinds[kind] = medians
    return {"connections": count, "kinds": kinds, "turns": turns, "rounds": found}


async def _connect(port: int) -> Connection:
    return Connection(*await asyncio.open_connection("127.0.0.1", port))


async def _say_much(port: int, keys: list[str]) -> None:
    """Store what slow readers follow."""
    link = await _connect(port)
    message = {"role": "user", "content": "x" * 200_000}
    for key in keys:
        for _ in range(15):
            await link.ask(post(f"{FOLLOWED}/messages", key, None, {"messages": [message]}))
    link.writer.close()


async def _probe(port: int, key: str, seconds: float, pid: int, name: str) -> dict[str, float]:
    links = [await _connect(port) for _ in range(PROBES)]

    async def append(caller: int, number: int) -> None:
        path = f"/v1/users/u{caller}/sessions/probe/messages"
        message = {"role": "user", "content": TEXT}
        await links[caller].ask(post(path, key, f"{name} {number}", {"messages": [message]}))

    figures = await run(append, PROBES, seconds, pid)
    for one in links:
        one.writer.close()
    return figures


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# -- the crowd, in a process of its own ------------------------------------------------------------


@asynccontextmanager
async def _crowd(kind: str, port: int, keys: list[str], count: int) -> AsyncIterator[None]:
    """Have so many connections open meanwhile."""
    command = [sys.executable, "-m", "benchmarks.served_crowd", "--connect"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    given = {"kind": kind, "port": port, "keys": keys, "count": count}
    process.stdin.write(json.dumps(given).encode() + b"\n")
    try:
        answer = await process.stdout.readline()
        if answer != b"open\n":
            raise RuntimeError(f"the crowd could not connect: {answer!r}")
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def _be_crowd() -> None:
    """Connect as standard input says, say so, and stay until it ends."""
    given = json.loads(sys.stdin.readline())
    kind, port, keys, count = given["kind"], given["port"], given["keys"], given["count"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, count + 100), hard), hard))
    loop = asyncio.get_running_loop()
    sockets = []
    for number in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        one.setblocking(False)
        await loop.sock_connect(one, ("127.0.0.1", port))
        key = keys[number % len(keys)]
        if kind == "slow bodies":
            await loop.sock_sendall(one, _begin_body(key))
        elif kind == "slow readers":
            head = f"GET {FOLLOWED}/events?after=0 HTTP/1.1\r\nHost: memory\r\n"
            await loop.sock_sendall(one, f"{head}Authorization: Bearer {key}\r\n\r\n".encode())
            first = await loop.sock_recv(one, 64)
            if b"200" not in first:
                raise RuntimeError(first.decode("latin-1"))
        sockets.append(one)
    print("open", flush=True)
    ended = loop.run_in_executor(None, sys.stdin.read)
    while not ended.done():
        await asyncio.wait([ended], timeout=1)
        if kind == "slow bodies":
            for one in sockets:
                with suppress(OSError):  # the server ends it after 30 s
                    await loop.sock_sendall(one, b" ")


def _begin_body(key: str) -> bytes:
    path = "/v1/users/slow/sessions/chat/messages"
    return (
        f"POST {path} HTTP/1.1\r\nHost: memory\r\nAuthorization: Bearer {key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    ).encode()


# -- clients that leave ----------------------------------------------------------------------------


async def _leave(port: int, keys: list[str], count: int, seed: random.Random) -> dict[str, int]:
    """Run so many turns in spite of disconnections; returns what was lost and doubled."""
    counts: Counter[str] = Counter()
    room = asyncio.Semaphore(_AT_ONCE)

    async def ask(request: bytes) -> None:
        while True:
            link = await _connect(port)
            try:
                if seed.random() < _CUT:
                    counts["cut"] += 1
                    link.writer.write(
                        request[: seed.choice((len(request), seed.randrange(1, 400)))]
                    )
                    await link.writer.drain()
                    await asyncio.sleep(seed.choice((0, 0.001, 0.01)))
                    continue
                await link.ask(request)
                return
            finally:
                link.writer.transport.abort()

    async def turn(number: int) -> None:
        path, key = f"/v1/users/t{number}/sessions/chat/turns", keys[number % len(keys)]
        async with room:
            said = {"message": f"question {number}", "recall": False}
            await ask(post(path, key, f"turn {number}", said))
            counts["acknowledged"] += 1
            reply = {"message": f"question {number}", "reply": f"reply {number}"}
            await ask(post(f"{path}/replies", key, f"turn {number}", reply))
            counts["acknowledged"] += 1

    await asyncio.gather(*map(turn, range(count)))
    link = await _connect(port)
    for number in range(count):
        head = f"GET /v1/users/t{number}/sessions/chat/messages HTTP/1.1\r\nHost: memory\r\n"
        request = f"{head}Authorization: Bearer {keys[number % len(keys)]}\r\n\r\n".encode()
        page: Any = msgspec.json.decode(await link.ask(request))
        stored = [one["content"] for one in page["messages"]]
        expected = [f"question {number}", f"reply {number}"]
        counts["lost"] += len(set(expected) - set(stored))
        counts["doubled"] += len(stored) - len(set(stored))
        counts["out of order"] += stored != expected
    link.writer.close()
    return {
        name: counts[name] for name in ("acknowledged", "cut", "lost", "doubled", "out of order")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each kind of work a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1, help="of the disconnections")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--connect", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.connect:
        asyncio.run(_be_crowd())
        return
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(
            measure_crowd(
                Path(directory), given.connections, given.seconds, given.rounds, given.seed
            )
        )
    print(
        f"{f'{given.connections:,} connections':18} {'p99 ms':>8} {'alone':>8} {'ratio':>6} "
        f"{'memory kB':>10}"
    )
    for kind, one in found["kinds"].items():
        print(
            f"{kind:18} {one['p99_ms']:8.1f} {one['alone_p99_ms']:8.1f} {one['ratio']:6.2f} "
            f"{one['memory_kb']:10.1f}"
        )
    print("turns of clients that leave:", ", ".join(f"{n} {w}" for w, n in found["turns"].items()))
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
