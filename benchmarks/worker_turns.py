"""`python -m benchmarks.workers turns`: what memory costs a streaming FastAPI server.

One server, started twice a round, in turn: uvicorn with four workers, FastAPI, and a handler that
streams a reply of twenty chunks. With memory the handler begins a turn, which stores the question,
recalls and makes the context, and stores the reply; without it, nothing else differs. The client
has 32 connections, each with a conversation of a user of its own, who said forty things before.

Figures: turns a second of both servers and their ratio; processor time of a turn in the workers and
in each owner. The client takes part of the same cores, and the same part of both servers, so the
ratio of rates is too good: the ratio of processor times leaves the client out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

import remora
from benchmarks.served import used_s
from benchmarks.shared import texts
from remora.cluster.place import find_owners
from tests.processes import free_port

__all__ = ["create_app", "measure_turns"]

WORKERS, CONNECTIONS, EARLIER, CHUNKS = 4, 32, 40, 20
_END = b"0\r\n\r\n"
_TARGET = "REMORA_BENCHMARK_TARGET"


class _Question(msgspec.Struct):
    id: str
    content: str


class Turns(msgspec.Struct, frozen=True):
    """What the server did in one round.

    Attributes:
        per_second: turns.
        worker_ms: processor time of a turn, in all workers.
        owner_ms: processor time of a turn, in each owner.
        took_ms: of each turn, as the client sees it.
    """

    per_second: float
    worker_ms: float
    owner_ms: tuple[float, ...]
    took_ms: list[float]


def create_app() -> FastAPI:
    """The server, with the memory that the environment names, or without one."""
    target = os.environ.get(_TARGET)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            app.state.memory = (
                await stack.enter_async_context(remora.connect(target)) if target else None
            )
            if target:
                await app.state.memory.ready()
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/{user}/{session}")
    async def chat(user: str, session: str, question: dict[str, str]) -> StreamingResponse:
        asked = msgspec.convert(question, _Question)
        if app.state.memory is None:
            return StreamingResponse(_think(), media_type="text/plain")
        conversation = app.state.memory.session(user, session)

        async def answer() -> AsyncIterator[str]:
            async with conversation.turn(asked.content, key=asked.id, max_tokens=8_000) as turn:
                async for chunk in turn.stream(_think()):
                    yield chunk

        return StreamingResponse(answer(), media_type="text/plain")

    return app


async def _think() -> AsyncIterator[str]:
    for number in range(CHUNKS):
        yield f"part {number} of the reply. "
        await asyncio.sleep(0)


# -- the client ------------------------------------------------------------------------------------


async def _talk(port: int, number: int, questions: Sequence[str], end: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took: list[float] = []
    count = 0
    while (begun := time.perf_counter()) < end:
        body = {"id": f"{begun}", "content": questions[count % len(questions)]}
        content = json.dumps(body).encode()
        head = (
            f"POST /user-{number}/chat HTTP/1.1\r\nHost: server\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        answer = await reader.readuntil(_END)
        if not answer.startswith(b"HTTP/1.1 200") or b"of the reply" not in answer:
            raise RuntimeError(answer.decode("latin-1"))
        took.append((time.perf_counter() - begun) * 1_000)
        count += 1
    writer.close()
    return took


async def _talk_all(port: int, seconds: float) -> list[float]:
    pool = [message["content"][:120] for message in texts(200, 7)]
    end = time.perf_counter() + seconds
    talks = (_talk(port, n, pool[n:] + pool[:n], end) for n in range(CONNECTIONS))
    return [one for took in await asyncio.gather(*talks) for one in took]


# -- one round -------------------------------------------------------------------------------------


async def _fill(target: Path) -> None:
    """What the users said before, in another conversation; it is all in long-term memory."""
    async with remora.connect(target) as memory:
        for number in range(CONNECTIONS):
            said = [{"role": "user", "content": one["content"]} for one in texts(EARLIER, number)]
            await memory.session(f"user-{number}", "earlier").append(said)
        await memory.settle()


def _processes_of(parent: int) -> list[int]:
    found = []
    for one in Path("/proc").iterdir():
        if one.name.isdecimal():
            try:
                fields = (one / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                found.append(int(one.name))
    return found


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while True:
        if server.poll() is not None:
            raise RuntimeError("the server ended")
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return


def _owners_of(memory: Path | None) -> list[int]:
    return [] if memory is None else [one.pid for one in find_owners(memory)]


def _serve_and_measure(target: Path | None, memory: Path | None, seconds: float) -> Turns:
    port = free_port()
    environment = dict(os.environ)
    environment.pop(_TARGET, None)
    if target is not None:
        environment[_TARGET] = str(target)
    command = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.worker_turns:create_app"]
    command += ["--workers", str(WORKERS), "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, env=environment)
    try:
        _wait_for(port, server)
        asyncio.run(_talk_all(port, 2.0))  # everything is loaded, in each worker
        workers, owners = _processes_of(server.pid), _owners_of(memory)
        before = [used_s(one) for one in workers], [used_s(one) for one in owners]
        took = asyncio.run(_talk_all(port, seconds))
        after = [used_s(one) for one in workers], [used_s(one) for one in owners]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    each = 1_000 / len(took)
    return Turns(
        len(took) / seconds,
        (sum(after[0]) - sum(before[0])) * each,
        tuple((end - start) * each for start, end in zip(before[1], after[1], strict=True)),
        took,
    )


def measure_turns(*, owners: int, rounds: int, seconds: float, shards: int) -> dict[str, Any]:
    """Both servers, in turn, `rounds` times; returns the row of figures."""
    with_memory, without = [], []
    for _ in range(rounds):
        without.append(_serve_and_measure(None, None, seconds))
        with tempfile.TemporaryDirectory() as path:
            target, memory = Path(path) / "remora.yaml", Path(path) / "memory"
            target.write_text(
                f"directory: {memory}\ncluster: {{shards: {shards}, owners: {owners}}}\n"
            )
            anyio.run(_fill, target)
            with_memory.append(_serve_and_measure(target, memory, seconds))
            for one in _owners_of(memory):
                os.kill(one, signal.SIGTERM)
            while _owners_of(memory):
                time.sleep(0.05)
    base_ms = median(one.worker_ms for one in without)
    worker_ms = median(one.worker_ms for one in with_memory)
    owner_ms = [
        round(median(each), 2) for each in zip(*(one.owner_ms for one in with_memory), strict=True)
    ]
    took = sorted(ms for one in with_memory for ms in one.took_ms)
    return {
        "operation": "streamed turn",
        "owners": owners,
        "without_per_s": round(median(one.per_second for one in without)),
        "with_per_s": round(median(one.per_second for one in with_memory)),
        "ratio": round(
            median(a.per_second / b.per_second for a, b in zip(with_memory, without, strict=True)),
            2,
        ),
        "without_ms": round(base_ms, 2),
        "worker_ms": round(worker_ms, 2),
        "memory_in_worker_ms": round(worker_ms - base_ms, 2),
        "owner_ms": owner_ms,
        "ratio_of_processor_time": round(base_ms / (worker_ms + sum(owner_ms)), 2),
        "p50_ms": round(median(took), 1),
        "p99_ms": round(took[len(took) * 99 // 100], 1),
    }
