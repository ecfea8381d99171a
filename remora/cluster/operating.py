"""The operator's work on a memory directory: its jobs, dead letters and erasures."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from remora.api.base import BaseRuntime
from remora.api.dead_letters import DeadLetters, no_dead_letter
from remora.api.runtime import Runtime
from remora.cluster.reading import without_long_term
from remora.cluster.sharded import ShardedRuntime, ShardIds
from remora.cluster.sharding import find_shards
from remora.config import Config, Durability
from remora.errors import DirectoryLocked
from remora.ids import SessionKey, UserKey
from remora.maintenance.offline import JOURNAL
from remora.runtime.jobs import Job
from remora.runtime.threads import run_in_thread
from remora.storage.erasure_notes import WaitingErasure
from remora.storage.journal_port import running_journal
from remora.storage.lock import own_directories
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.peek import peek_erasures, peek_jobs


class JobLine(msgspec.Struct, frozen=True):
    """A job as people and scripts read it.

    Attributes:
        state: ``waiting``, ``delayed`` or ``dead``; ``running`` only where the process that runs
            it was asked.
        lane: the job's queue.
        session: empty for a job of the user.
        next_try: when a delayed job runs again; ISO 8601.
        last_try: when a dead letter was last tried, if known.
    """

    id: str
    state: str
    lane: str
    user: str
    session: str
    attempts: int
    next_try: str | None
    last_try: str | None
    error: str


def owner_of(job: Job) -> tuple[str, str]:
    """The user and the session of a job; an empty session for a job of the user."""
    assert isinstance(job.key, (SessionKey, UserKey))
    return (
        (job.key.user, job.key.session) if isinstance(job.key, SessionKey) else (job.key.user, "")
    )


def job_line(job: Job) -> JobLine:
    """A job in words."""
    user, session = owner_of(job)
    due = (
        datetime.fromtimestamp(job.not_before, UTC).isoformat(timespec="milliseconds")
        if job.not_before
        else None
    )
    delayed = not job.dead and job.not_before > time.time()
    return JobLine(
        job.id,
        "dead" if job.dead else "delayed" if delayed else "waiting",
        job.queue,
        user,
        session,
        job.attempts,
        due if delayed else None,
        due if job.dead else None,
        job.error,
    )


@contextmanager
def call_there(verb: str) -> Iterator[None]:
    """Have the error of a directory that a server owns say what the server can call instead."""
    try:
        yield
    except DirectoryLocked as e:
        raise DirectoryLocked(
            f"{e}; or call it there: await runtime.{verb}", path=e.path, pid=e.pid, since=e.since
        ) from e


@asynccontextmanager
async def open_owned(
    directory: Path, config: Config, *, journal_only: bool = False, **options: Any
) -> AsyncIterator[BaseRuntime]:
    """The memory in a directory, opened as its owner; it does not wait for another owner.

    Args:
        directory: of the memory, in one piece or in shards.
        config: of the memory.
        journal_only: without long-term memory and models.
        options: other ones of `remora.Runtime`.

    Raises:
        DirectoryLocked: a server owns the directory.
    """
    config = msgspec.structs.replace(config, lock_wait_s=0.0)
    if journal_only:
        config = without_long_term(config)
    runtime = Runtime(directory, config=config, **options)

    def choose() -> BaseRuntime:
        return runtime if find_shards(directory) == [directory] else ShardedRuntime.of(runtime)

    async with await run_in_thread(choose) as memory:
        yield memory


async def list_jobs(directory: Path) -> list[Job]:
    """The jobs of all shards, whose ids say which. An owner may have the directory open.

    Raises:
        JournalTooNew, JournalDamaged, DirectoryUnusable: a journal cannot be read.
    """
    shards = await run_in_thread(find_shards, directory)
    found = [await run_in_thread(peek_jobs, one / JOURNAL) for one in shards]
    return ShardIds(len(shards)).name(found)


async def list_erasures(directory: Path, user: str | None = None) -> list[WaitingErasure]:
    """The erasures that wait, of one user or all; see `list_jobs`."""
    shards = await run_in_thread(find_shards, directory)
    found = [await run_in_thread(peek_erasures, one / JOURNAL, user) for one in shards]
    return ShardIds(len(shards)).name(found)


async def change_dead_letters(
    directory: Path,
    durability: Durability,
    verb: str,
    change: Callable[[DeadLetters, Sequence[str]], Awaitable[int]],
    ids: Sequence[str],
    *,
    confirmed: Callable[[Sequence[Job]], Awaitable[None]] | None = None,
) -> int:
    """Change the dead letters of a directory that no process has open; no job runs here.

    Args:
        directory: of the memory.
        durability: of the commits.
        verb: what a server calls instead.
        change: changes a shard's.
        ids: which, as `list_jobs` names them.
        confirmed: called with them before anything is changed; raises to change nothing.

    Raises:
        DirectoryLocked: a server owns the directory; the text says what to call there.
        NoDeadLetter: one of `ids` is not a dead letter.
    """
    shards = await run_in_thread(find_shards, directory)
    with call_there(verb):
        async with own_directories(directory, *shards):
            return await _change_of_shards(directory, shards, durability, change, ids, confirmed)


async def _change_of_shards(
    directory: Path,
    shards: Sequence[Path],
    durability: Durability,
    change: Callable[[DeadLetters, Sequence[str]], Awaitable[int]],
    ids: Sequence[str],
    confirmed: Callable[[Sequence[Job]], Awaitable[None]] | None,
) -> int:
    dead = {job.id: job for job in await list_jobs(directory) if job.dead}
    if missing := sorted(set(ids) - dead.keys()):
        raise no_dead_letter(missing)
    if confirmed is not None:
        await confirmed([dead[id_] for id_ in dict.fromkeys(ids)])
    count = 0
    for number, own in ShardIds(len(shards)).split(ids).items():
        opened = await SqliteJournal.open(shards[number] / JOURNAL, durability=durability)
        async with running_journal(opened) as journal:
            count += await change(DeadLetters(journal), own)
    return count
