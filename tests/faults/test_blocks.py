"""``kill -9`` while memory blocks work, on real SQLite and LanceDB: each message that left a buffer
was taken in once.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora import Config, Runtime
from remora.actors.blocks.state import block_progress
from remora.actors.blocks.vector import BLOCK_AGENT
from remora.blocks import BaseMemoryBlock, ChatMessage, VectorMemoryBlock
from remora.testing import HashEmbedder
from remora.tokens import CallableCounter

KILLS = 3
SESSIONS = 6
MESSAGES = 150


class Recording(BaseMemoryBlock[str]):
    seqs: list[int] = []  # noqa: RUF012

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return str(len(self.seqs))

    async def _aput(self, messages: list[ChatMessage]) -> None:
        for one in messages:
            await anyio.lowlevel.checkpoint()
            self.seqs.append(one.seq or 0)


def runtime(directory: Path) -> Runtime:
    config = Config.from_dict(
        {
            "buffer": {"token_limit": 100, "token_flush_size": 20, "summary_tokens": 30},
            "long_term": {"batch_ms": 5},
        }
    )
    blocks = [Recording(name="rec"), VectorMemoryBlock(name="batches")]
    return Runtime(
        directory,
        config=config,
        counter=CallableCounter(str.split),
        embedder=HashEmbedder(64),
        blocks=blocks,
    )


async def talk(directory: Path) -> None:
    async with runtime(directory) as one:

        async def session(number: int) -> None:
            chat = one.session("alice", f"s{number}")
            for n in range(MESSAGES):
                await chat.append(
                    {"role": "user", "content": f"({number}.{n}) bees and honey"}, key=f"k{n}"
                )

        async with anyio.create_task_group() as group:
            for number in range(SESSIONS):
                group.start_soon(session, number)
        await one.settle()


def test_kill_while_blocks_work(tmp_path: Path) -> None:
    """S3.12, S3.15, G7: killed again and again, a block's journalled state and its rows hold each
    message that left, once.
    """
    rng = random.Random(11)
    directory = tmp_path / "memory"
    program = f"import anyio, pathlib; from tests.faults.test_blocks import talk; anyio.run(talk, pathlib.Path({str(directory)!r}))"  # noqa: E501
    command = [sys.executable, "-c", program]
    wal = directory / "journal.db-wal"
    for _ in range(KILLS):
        child = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        before = wal.stat().st_size if wal.exists() else 0
        while (
            child.poll() is None
            and time.monotonic() < deadline
            and (not wal.exists() or wal.stat().st_size <= before)
        ):
            time.sleep(0.01)  # not before it writes: a kill during start-up would prove nothing
        time.sleep(rng.random() * 0.5)
        child.send_signal(signal.SIGKILL)
        child.wait()
    subprocess.run(
        command, cwd=Path(__file__).parents[2], check=True, capture_output=True, timeout=300
    )

    async def check() -> None:
        async with runtime(directory) as one:
            await one.settle()
            rows = await (await one.internals.long_term()).rows("alice")
            for number in range(SESSIONS):
                view = await one.session("alice", f"s{number}").inspect()
                left = list(range(1, view.watermarks.archived_through + 1))
                assert view.last_seq == MESSAGES
                assert len(left) > MESSAGES // 2
                progress = block_progress(view.blocks)
                assert msgspec.msgpack.decode(progress["rec"].state)["seqs"] == left
                mine = [
                    row.content
                    for row in rows
                    if row.agent == BLOCK_AGENT + "batches" and row.session == f"s{number}"
                ]
                found = [
                    int(n) + 1 for text in mine for n in re.findall(rf"\({number}\.(\d+)\)", text)
                ]
                assert sorted(found) == left
            assert (await one.counts()).dead_jobs == 0

    anyio.run(check)
