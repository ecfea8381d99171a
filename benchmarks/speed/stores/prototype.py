"""Group commit in a hundred lines: dicts, and one writer thread that commits all that is queued in
one transaction.

An append returns when its commit is on the disk. There is nothing else: no bound, no deadline, no
recovery, no order of failures.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.stores.dicts import INSERT, Dicts, connected
from benchmarks.speed.stores.store import Store, rows_in
from benchmarks.speed.text import role_of

Row = tuple[str, int, str, str, int, float]


class Prototype(Dicts):
    def __init__(self, file: Path) -> None:
        super().__init__()
        self._commits = 0
        self._file = file
        self._database = connected(file, "FULL")
        self._loop = asyncio.get_running_loop()
        self._queue: list[tuple[Sequence[Row], asyncio.Future[None]]] = []
        self._wakes = threading.Condition()
        self._closing = False
        self._writer = threading.Thread(target=self._write)
        self._writer.start()

    @property
    def commits(self) -> int:
        return self._commits

    def _write(self) -> None:
        while True:
            with self._wakes:
                self._wakes.wait_for(lambda: self._queue or self._closing)
                taken, self._queue = self._queue, []
            if not taken:
                return
            try:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.executemany(INSERT, [row for rows, _ in taken for row in rows])
                self._database.execute("COMMIT")
            except Exception as e:
                self._loop.call_soon_threadsafe(_settle, taken, e)
                raise
            self._commits += 1
            self._loop.call_soon_threadsafe(_settle, taken, None)

    def _commit(self, rows: Sequence[Row]) -> asyncio.Future[None]:
        future = self._loop.create_future()
        with self._wakes:
            self._queue.append((rows, future))
            self._wakes.notify()
        return future

    async def append(self, session: str, role: str, text: str) -> None:
        messages, tokens = self._sessions[session], self._count(text)
        messages.append(({"role": role, "content": text}, tokens))
        await self._commit([(session, len(messages), role, text, tokens, time.time())])

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        messages, rows = self._sessions[session], []
        for number, text in enumerate(texts):
            role, tokens = role_of(number), self._count(text)
            messages.append(({"role": role, "content": text}, tokens))
            rows.append((session, len(messages), role, text, tokens, time.time()))
        await self._commit(rows)

    async def close(self) -> int:
        with self._wakes:
            self._closing = True
            self._wakes.notify()
        await asyncio.to_thread(self._writer.join)
        self._database.close()
        return rows_in(self._file, "messages")


def _settle(taken: Sequence[tuple[Any, asyncio.Future[None]]], error: Exception | None) -> None:
    for _, future in taken:
        if not future.done():
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    return Prototype(directory / "prototype.db")
