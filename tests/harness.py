"""The kernel and the session actor on any event loop: no SQLite, no LanceDB, no tokenizer."""

from __future__ import annotations

import random
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Self

import anyio

from remora import BufferPolicy, Line
from remora.actors.session.behavior import SessionBehavior
from remora.actors.session.compaction import SUMMARIZE_QUEUE
from remora.actors.session.messages import Append, Inspect
from remora.config import BufferConfig, Config
from remora.ids import key_digest
from remora.jobs.summarize import CompactionDurations, Resummarizer, SummarizeHandler
from remora.messages import Entry, decode_chat, encode_message
from remora.models.breaker import CircuitBreaker
from remora.recall.excerpts import window_rules
from remora.results import SessionView
from remora.runtime.actor import Decision
from remora.runtime.clock import Clock
from remora.runtime.jobs import JobQueue, RetryPolicy
from remora.runtime.passivation import RegistryLimits
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.intake import PlainMessage
from remora.storage.memory import MemoryJournal
from remora.storage.ports import SessionKey, Write
from remora.storage.sqlite.journal import SqliteJournal
from remora.tokens import HeuristicCounter, count_message

COUNTER = HeuristicCounter()
WINDOWS = window_rules(Config(), COUNTER)


class LoopClock:
    """The event loop's own time: virtual where the loop's is."""

    def time(self) -> float:
        return 1_700_000_000 + anyio.current_time()

    def monotonic(self) -> float:
        return anyio.current_time()

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)


class FirstWordsSummarizer:
    """A perfect summary: the first word of every message that it covers."""

    name = "first-words"

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        if self._rng:
            await anyio.sleep(self._rng.choice([0.0, 0.05, 1.0]))
        first_words = (line.text.split()[0] for line in lines)
        return " ".join([*([previous] if previous else []), *first_words])


def user(text: Any, **more: Any) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": text, **more}


def entry(message: PlainMessage, seq: int = 0) -> Entry:
    encoded, chat = encode_message(message)
    return Entry(
        seq,
        encoded.at_us,
        count_message(COUNTER, chat),
        encoded.role,
        encoded.chat,
        encoded.meta,
        encoded.id,
        encoded.calls,
        encoded.answers,
    )


def append(*messages: PlainMessage, key: str | None = None) -> Append:
    entries = tuple(entry(message) for message in messages)
    return Append(entries, key_digest(key) if key else None, sum(e.size for e in entries))


def said(entries: Sequence[Entry]) -> list[str]:
    return [str(decode_chat(e.chat)["content"]) for e in entries]


async def commit_each(
    journal: MemoryJournal | SqliteJournal, records: Sequence[Any], *, commits: int = 1
) -> None:
    """Store each record by a write of its own, in so many group commits; runs the journal."""
    size = max(len(records) // commits, 1)
    failed: list[Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        for first in range(0, len(records), size):
            together = records[first : first + size]
            left, done = [len(together)], anyio.Event()

            def acknowledged(
                error: Exception | None, left: list[int] = left, done: anyio.Event = done
            ) -> None:
                if error is not None:
                    failed.append(error)
                left[0] -= 1
                if not left[0]:
                    done.set()

            for record in together:
                journal.write(Write([record], acknowledged))
            await done.wait()
        tasks.cancel_scope.cancel()
    assert not failed


class CopiedJournal(MemoryJournal):
    """The journal in memory, whose committed rows can be copied."""

    def copied(self) -> CopiedJournal:
        found = CopiedJournal()
        found.take_rows(self)
        return found

    def take_rows(self, source: CopiedJournal) -> None:
        source.copy_into(self._database)
        ((last,),) = self._database.execute("SELECT coalesce(max(sid), 0) FROM actors")
        self.instance, self._numbers = source.instance, count(last + 1)

    def copy_into(self, database: sqlite3.Connection) -> None:
        self._database.backup(database)


class LineCount:
    """Lines of the interpreter that were run in some folders: work, whatever the machine."""

    def __init__(self, *folders: str) -> None:
        self.lines = 0
        self._folders = folders

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not any(folder in frame.f_code.co_filename for folder in self._folders):
            return None
        self.lines += event == "line"
        return self._trace

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


class Kernel:
    """A directory of session actors over a journal, with the summarize lane."""

    def __init__(
        self, journal: MemoryJournal, directory: ActorRegistry, supervisor: Supervisor
    ) -> None:
        self.journal = journal
        self.directory = directory
        self.supervisor = supervisor

    async def ask(self, key: SessionKey, message: Any, **options: Any) -> Any:
        return await self.directory.ask(key, message, **options)


@asynccontextmanager
async def kernel(
    journal: MemoryJournal,
    *,
    clock: Clock | None = None,
    limits: RegistryLimits | None = None,
    fold_above: int = 60,
    summarizer: Any = None,
    fallback: Any = None,
    retry: RetryPolicy | None = None,
    behavior: Any = None,
    owner: Callable[[Any], Hashable] = lambda key: key,
    queues: Sequence[JobQueue] = (),
) -> AsyncIterator[Kernel]:
    clock = clock or LoopClock()
    policy = BufferPolicy(
        above_tokens=fold_above, keep_tokens=fold_above // 2, overdraft_tokens=fold_above * 4
    )
    behavior = behavior or SessionBehavior(
        lambda _: policy, instance="0", flushes=False, windows=WINDOWS
    )
    holder: list[Supervisor] = []

    def decided(turn: Decision) -> None:
        holder[0].cancel(turn.cancel)
        holder[0].submit(turn.jobs)
        holder[0].expedite(turn.expedite)

    directory = ActorRegistry(
        {SessionKey: behavior}, journal, clock, limits or RegistryLimits(), decided, owner
    )
    supervisor = Supervisor(journal, directory.ask_control, clock, random.Random(0))
    holder.append(supervisor)
    summarizer = summarizer or FirstWordsSummarizer()

    async def look(key: SessionKey) -> SessionView:
        view: SessionView = await directory.ask_control(key, Inspect())
        return view

    breaker = CircuitBreaker(clock, failures=5, rest_s=30.0)
    handler = SummarizeHandler(
        journal,
        look,
        summarizer,
        fallback or summarizer,
        breaker=breaker,
        counter=COUNTER,
        buffer=BufferConfig(summary_tokens=100_000, summary_prefix=""),
        resummarizer=Resummarizer(journal, directory.ask_control, breaker),
        durations=CompactionDurations(),
    )
    supervisor.add_queue(
        JobQueue(
            SUMMARIZE_QUEUE, handler, concurrency=2, retry=retry or RetryPolicy(backoff_s=0.01)
        )
    )
    for queue in queues:
        supervisor.add_queue(queue)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(journal.run)
        directory.start(tasks)
        supervisor.start(tasks)
        try:
            yield Kernel(journal, directory, supervisor)
        finally:
            tasks.cancel_scope.cancel()
