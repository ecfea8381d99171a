"""Several workers: one process owns a directory, so each worker has a directory and users.

Start ``python -m examples.first_day.t10_several_workers NUMBER`` for the numbers 0 to 2, each on a
port of its own, and let the proxy choose by user: ``hash $user consistent;`` in nginx. A second
process with the same number waits for the first one to leave, and is then refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys

import remora

WORKERS = 3


def worker_of(user: str) -> int:
    return hashlib.sha256(user.encode()).digest()[0] % WORKERS


async def work(number: int, wait_s: float) -> None:
    config = remora.Config(lock_wait_s=wait_s)  # for a handover without a gap: 10 s by default
    async with remora.Runtime(f"memory-{number}", config=config) as runtime:
        for user in ("alice", "bob", "erin", "frank"):
            if worker_of(user) == number:
                await runtime.session(user, "chat").append({"role": "user", "content": "Hello!"})
        print(f"worker {number} has {[found.user for found in await runtime.users()]}", flush=True)
        await asyncio.to_thread(sys.stdin.read)  # a server serves here


try:
    asyncio.run(work(int(sys.argv[1]), float(sys.argv[2])))
except remora.errors.DirectoryLocked as refusal:
    sys.exit(f"refused: {refusal}")
