"""``kill -9`` of a served memory, while clients append, run turns, and follow.

    python -m benchmarks.served_kills [--seconds 90] [--seed 1] [--json FILE]

``remora http`` runs as a process on a new directory with the installed defaults. Twelve instances
of `remora.Client` write to twelve sessions, and twelve more follow these from their beginning.
Every few seconds the server is killed and started again, and at times the owner of the memory, at
most every 16 s (after three deaths within 30 s no other is started for a while). At the end each
session's history is compared with what was acknowledged, and with what its follower saw.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import remora
from remora.cluster.control import OwnerGone
from remora.cluster.place import Place
from remora.cluster.watch import open_control
from remora.config import ClusterConfig
from remora.errors import RemoraError
from remora.rest.keys import add_key
from remora.system.sockets import listen_tcp

SESSIONS = 12
_OWNER_S = 16.0
_FOLLOWED_S = 60.0
_END = "end"


class Trial:
    """A served memory, and what its clients know of it.

    Args:
        directory: a new one.
        seed: of the kills.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self.memory, self.keys = directory / "memory", directory / "keys.txt"
        self.key = add_key(self.keys, "shop")
        with listen_tcp("127.0.0.1", 0) as listener:
            self.port = int(listener.getsockname()[1])
        self.random = random.Random(seed)
        self.ended = False
        self.kills: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.acknowledged: list[list[str]] = [[] for _ in range(SESSIONS)]
        self.followed: list[list[tuple[int | None, Any]]] = [[] for _ in range(SESSIONS)]
        self.server = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """The server's process."""
        command = [sys.executable, "-m", "remora", "http", str(self.memory)]
        command += ["--keys", str(self.keys), "--port", str(self.port)]
        output = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=output, stderr=output)

    def client(self) -> remora.Client:
        """A client with connections of its own."""
        return remora.Client(f"http://127.0.0.1:{self.port}", api_key=self.key, timeout_s=120)

    async def write(self, place: int) -> None:
        """Append, and every third time run a turn whose reply is streamed."""
        said = self.acknowledged[place]
        number = 0
        async with self.client() as client:
            session = client.session(*name(place))
            while not self.ended:
                number += 1
                try:
                    if number % 3:
                        await session.append({"role": "user", "content": f"said {number}"})
                        said.append(f"said {number}")
                        continue
                    async with session.turn(f"asked {number}") as turn:
                        async for _ in turn.stream(answer(number)):
                            pass
                    said += [f"asked {number}", f"answered {number}"]
                except RemoraError as e:
                    self.refused[type(e).__name__] += 1
            await session.append({"role": "user", "content": _END})
            said.append(_END)

    async def follow(self, place: int) -> None:
        """Read the session as it grows."""
        async with self.client() as client:
            async for message in client.session(*name(place)).follow(after=0):
                self.followed[place].append((message.seq, message.content))
                if message.content == _END:
                    return

    async def kill(self, until: float) -> None:
        """Kill the server, or the owner, at random moments."""
        spared = time.monotonic() + _OWNER_S
        while time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(1.5, 4.0))
            if self.random.random() < 0.4 and time.monotonic() > spared:
                spared = time.monotonic() + _OWNER_S
                self.kills["owner"] += await asyncio.to_thread(end_owner, self.memory)
            else:
                self.kills["server"] += 1
                self.server.kill()
                self.server.wait()
                self.server = self.start()
        self.ended = True

    async def judge(self, place: int, following: asyncio.Task[None]) -> Counter[str]:
        """What is wrong with a session."""
        with suppress(TimeoutError):
            await asyncio.wait_for(following, _FOLLOWED_S)
        async with self.client() as client:
            history = await client.session(*name(place)).history()
        there = [(message.seq, message.content) for message in history]
        texts = Counter(str(message.content) for message in history)
        return Counter(
            messages=len(there),
            lost=len(set(self.acknowledged[place]) - set(texts)),
            doubled=sum(count - 1 for count in texts.values()),
            followed_otherwise=int(self.followed[place] != there),
        )

    async def run(self, seconds: float) -> dict[str, Any]:
        """Run the trial, and say what came of it."""
        places = range(SESSIONS)
        following = [asyncio.create_task(self.follow(place)) for place in places]
        writing = [asyncio.create_task(self.write(place)) for place in places]
        try:
            await self.kill(time.monotonic() + seconds)
            await asyncio.gather(*writing)
            judged = sum(
                [await self.judge(place, following[place]) for place in places], Counter[str]()
            )
        finally:
            for task in (*following, *writing):
                task.cancel()
            await asyncio.gather(*following, *writing, return_exceptions=True)
            self.server.terminate()
            self.server.wait()
            end_owner(self.memory)
        return {
            "kills": dict(self.kills),
            "acknowledged": sum(map(len, self.acknowledged)),
            "refused": dict(self.refused),
            **{key: judged[key] for key in ("messages", "lost", "doubled", "followed_otherwise")},
        }


def name(place: int) -> tuple[str, str]:
    """The user and the session of a place."""
    return f"user-{place % 3}", f"chat-{place}"


async def answer(number: int) -> AsyncIterator[str]:
    """A streamed reply."""
    for chunk in ("answered", " ", str(number)):
        await asyncio.sleep(0.005)
        yield chunk


def end_owner(memory: Path) -> int:
    """Kill the process that owns a memory; returns how many that were."""
    info = Place(memory).read_owner()
    with suppress(OwnerGone):
        if info is not None:
            with open_control(info, ClusterConfig()) as control:
                os.kill(control.pid, signal.SIGKILL)
                return 1
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="of kills")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--json", type=Path, help="write the figures there")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(Trial(Path(directory), given.seed).run(given.seconds))
    text = json.dumps(found, indent=2)
    print(text)
    if given.json is not None:
        given.json.write_text(text)
    if found["lost"] or found["doubled"] or found["followed_otherwise"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
