"""A process that owns a journal in PostgreSQL, and does what it reads on its standard input.

``python -m tests.lease_owner DSN SCHEMA LEASE_S`` says ``open`` when it owns the journal. Then, for
each line ``append TEXT`` or ``load``, it says a line of JSON: the texts of the session, or the name
of an error.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import remora
from remora.errors import RemoraError
from remora.storage.postgres import PostgresJournal, lease

__all__ = ["OwnerProcess", "owner_process"]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _answer(runtime: remora.Runtime, line: str) -> object:
    word, _, text = line.strip().partition(" ")
    chat = runtime.session("alice", "chat")
    try:
        if word == "append":
            await chat.append({"role": "user", "content": text}, key=text)
        return [one["content"] for one in (await chat.load()).messages]
    except RemoraError as e:
        return type(e).__name__


async def _own(dsn: str, schema: str, lease_s: float) -> None:
    lease.MOST_ROUND_TRIP = math.inf  # a busy machine is no slow network
    journal = await PostgresJournal.open(
        dsn,
        schema=schema,
        durability="process",
        lease_s=lease_s,
        command_timeout_s=lease_s or 1_000.0,
    )
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with remora.Runtime.in_memory(journal=journal) as runtime:
        _say("open")
        while line := await reader.readline():
            _say(json.dumps(await _answer(runtime, line.decode())))


class OwnerProcess:
    """The process, as a test talks to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, *lines: str) -> None:
        """Send lines; it need not run to take them."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def hear(self, count: int = 1) -> list[object]:
        """The next answers."""
        assert self.process.stdout is not None
        return [json.loads(await self.process.stdout.readline()) for _ in range(count)]

    async def ask(self, line: str) -> object:
        self.say(line)
        return (await self.hear())[0]

    async def leave(self) -> None:
        """End in order."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.process.wait()


@asynccontextmanager
async def owner_process(dsn: str, schema: str, lease_s: float) -> AsyncIterator[OwnerProcess]:
    """An owner that has opened the journal; it is killed in the end."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.lease_owner", dsn, schema, str(lease_s)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        yield OwnerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    asyncio.run(_own(sys.argv[1], sys.argv[2], float(sys.argv[3])))
