"""The counters of a runtime's parts, and its state as other processes of the account ask for it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import msgspec

from remora.api.build import Internals
from remora.api.health import Health, merge_health
from remora.errors import DirectoryUnusable, OwnerUnreachable
from remora.ids import SessionKey, UserKey
from remora.jobs.facts import FactStatistics
from remora.models.compression import CompressionStatistics
from remora.recall.index_cache import UserIndexStatistics
from remora.recall.reranking import RerankStatistics
from remora.runtime.log import LogStatistics
from remora.runtime.meters import Histogram, add_histograms
from remora.runtime.passivation import RegistryStatistics
from remora.runtime.schedule import TaskStatistics
from remora.runtime.supervisor import SupervisorStatistics
from remora.runtime.threads import run_in_thread
from remora.services.answering import AnswerThread, socket_name, start_answering
from remora.services.file_erasure import ErasureStatistics
from remora.services.meters import VerbStatistics
from remora.storage.journal_port import IndexesUses
from remora.system.sockets import connect_socket

Figures = TypeVar("Figures", bound=msgspec.Struct)
_LARGEST = frozenset({"last_s", "oldest_s", "wal_held_s"})


class RuntimeStatistics(msgspec.Struct, frozen=True):
    """Every part's own counters.

    Attributes:
        registry: of the actors in memory.
        log: of the journal.
        supervisor: of background jobs.
        schedule: of periodic tasks.
        compression: of summaries, by the name of the strategy that made them.
        user_index: of the users whose rows of long-term memory are held in memory.
        erasures: of what `forget` erases.
        reranking: of what the reranker did; zeros without one.
        facts: of the facts that are extracted; zeros where none are.
        verbs: how long appends, loads and recalls took.
    """

    registry: RegistryStatistics
    log: LogStatistics
    supervisor: SupervisorStatistics
    schedule: dict[str, TaskStatistics]
    compression: dict[str, CompressionStatistics]
    user_index: UserIndexStatistics = UserIndexStatistics()
    erasures: ErasureStatistics = ErasureStatistics()
    reranking: RerankStatistics = RerankStatistics()
    facts: FactStatistics = FactStatistics()
    verbs: VerbStatistics = VerbStatistics()


def statistics_of(parts: Internals) -> RuntimeStatistics:
    """Return those of an open runtime, without I/O; any thread may ask."""
    recall = parts.recall
    return RuntimeStatistics(
        parts.registry.statistics(),
        parts.journal.statistics(),
        parts.supervisor.statistics(),
        parts.schedule.statistics(),
        {meter.name: meter.statistics() for meter in parts.meters},
        UserIndexStatistics() if recall is None else recall.index_statistics(),
        parts.eraser.files.statistics(),
        RerankStatistics() if recall is None else recall.rerank_statistics(),
        FactStatistics() if parts.facts is None else parts.facts.statistics(),
        parts.verbs.figures(Histogram() if recall is None else recall.seconds()),
    )


def add_figures(figures: Sequence[Figures]) -> Figures:
    """Figures of the same kind, added: numbers are, texts stand one after another."""
    names = figures[0].__struct_fields__
    values = [_add(name, [getattr(one, name) for one in figures]) for name in names]
    return type(figures[0])(*values)


def _add(name: str, values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, Histogram):
        return add_histograms(values)
    if isinstance(first, msgspec.Struct):
        return add_figures(values)
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for one in values for key in one)
        return {key: _add(key, [one[key] for one in values if key in one]) for key in keys}
    if isinstance(first, bool):
        return any(values)
    if isinstance(first, str):
        return "; ".join(dict.fromkeys(one for one in values if one))
    if isinstance(first, tuple):
        return tuple(item for one in values for item in one)
    return max(values) if name in _LARGEST else sum(values)


# -- the state that other processes of the same account ask for ------------------------------------

Shown = TypeVar("Shown")
MAX_SESSIONS = 1_000
"""Sessions that may be asked for at once."""
_MOST_MAILBOXES = 20


class StatusQuestion(msgspec.Struct, frozen=True, tag="status"):
    """A question to the process that has a memory open.

    Attributes:
        sessions: are these in memory? User and session of each.
        figures: whether statistics are wanted, and the fullest mailboxes.
        uses: whether `RuntimeStatus.unwritten_uses` is wanted.
        jobs: whether `RuntimeStatus.running` is wanted.
        compactions: the session whose compactions are wanted.
    """

    sessions: tuple[tuple[str, str], ...] = ()
    figures: bool = True
    uses: bool = False
    jobs: bool = False
    compactions: tuple[str, str] | None = None


class FullMailbox(msgspec.Struct, frozen=True):
    """An actor for which messages wait.

    Attributes:
        user: whose it is.
        session: None for the user's own actor.
        messages: how many wait.
    """

    user: str
    session: str | None
    messages: int


class RuntimeStatus(msgspec.Struct, frozen=True):
    """A memory that a process has open, as only that process knows it.

    Attributes:
        pid: of the process.
        since: when it opened the memory (ISO 8601).
        at_s: when it answered, in seconds since some moment: for rates between two answers.
        shards: how many the memory has.
        health: see `remora.Runtime.health`.
        statistics: see `remora.Runtime.statistics`, of all shards; None while it opens or closes.
        mailboxes: the actors for which most messages wait, at most twenty, the fullest first.
        live: those of the sessions in the question that are in memory.
        unwritten_uses: for each shard, the numbers of the sessions whose last use is not in the
            journal's index yet; None if the index of that shard cannot be relied on.
        running: for each shard, the ids of its background jobs that run.
        compactions: the newest compactions of the session in the question: the last message of
            each, the tokens of its summary, and the seconds that it took.
        served: how many of the shards this process has open; None from an older remora.
        share: the numbers of those that it owns; empty for a memory in one piece, and where others
            may be its own later.
    """

    pid: int
    since: str
    at_s: float
    shards: int
    health: Health
    statistics: RuntimeStatistics | None = None
    mailboxes: tuple[FullMailbox, ...] = ()
    live: tuple[tuple[str, str], ...] = ()
    unwritten_uses: tuple[tuple[int, ...] | None, ...] = ()
    running: tuple[tuple[str, ...], ...] = ()
    compactions: tuple[tuple[int, int, float], ...] = ()
    served: int | None = None
    share: tuple[int, ...] = ()


class TellsStatus(Protocol):
    """The port of what answers other processes for a memory (`remora.cluster.control`).

    Attributes:
        status: answers a question, in any thread; None while there is no memory.
    """

    status: Callable[[StatusQuestion], RuntimeStatus] | None


_decode_question = msgspec.json.Decoder(StatusQuestion).decode


@asynccontextmanager
async def answering(
    directory: Path,
    status: Callable[[StatusQuestion], RuntimeStatus],
    control: TellsStatus | None,
) -> AsyncIterator[AnswerThread | None]:
    """Answer other processes for a memory, as long as the context is open.

    Args:
        directory: the memory's.
        status: see `make_status`.
        control: passes it on; None to listen at a socket in the directory.

    Yields:
        The thread that listens; None if there is none, or `control` has one.
    """
    if control is not None:
        control.status = status
        try:
            yield None
        finally:
            control.status = None
        return

    def answer(line: bytes) -> bytes:
        return msgspec.json.encode(status(_decode_question(line)))

    thread = await run_in_thread(start_answering, directory, answer)
    try:
        yield thread
    finally:
        if thread is not None:
            with anyio.CancelScope(shield=True):
                await run_in_thread(thread.stop)


def make_status(
    health: Callable[[], Health],
    opened: Callable[[], Sequence[Internals]],
    *,
    shards: int = 1,
    share: Sequence[int] = (),
) -> Callable[[StatusQuestion], RuntimeStatus]:
    """Return what says how a memory is, in any thread.

    Args:
        health: the memory's.
        opened: the parts of each shard; empty while one of them is not open.
        shards: how many there are.
        share: the numbers of those that the process has open, if they stay the same.
    """
    since = datetime.now(UTC).isoformat(timespec="seconds")

    def status(asked: StatusQuestion) -> RuntimeStatus:
        parts = opened()
        counted = parts if asked.figures else ()
        return RuntimeStatus(
            pid=os.getpid(),
            since=since,
            at_s=time.monotonic(),
            shards=shards,
            health=health(),
            statistics=add_figures([statistics_of(one) for one in counted]) if counted else None,
            mailboxes=_fullest(counted),
            live=tuple(_live(parts, asked.sessions[:MAX_SESSIONS])),
            unwritten_uses=tuple(map(_unwritten_uses, parts)) if asked.uses else (),
            running=tuple(one.supervisor.running for one in parts) if asked.jobs else (),
            compactions=_compactions(parts, asked.compactions),
            served=len(parts),
            share=tuple(share),
        )

    return status


def merge_statuses(found: Sequence[RuntimeStatus]) -> RuntimeStatus:
    """The status of a memory that several processes own, each some of its shards.

    Process and times are of the first. What is said of each shard is left out as long as not all of
    them are said something of.
    """
    first = found[0]
    if len(found) == 1:
        return first
    numbers = [number for one in found for number in one.share]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)

    def of_each(parts: Sequence[Sequence[Shown]]) -> tuple[Shown, ...]:
        every = [one for part in parts for one in part]
        return tuple(every[place] for place in order) if len(every) == first.shards else ()

    figures = [one.statistics for one in found if one.statistics is not None]
    mailboxes = [each for one in found for each in one.mailboxes]
    return msgspec.structs.replace(
        first,
        health=merge_health({min(one.share, default=0): one.health for one in found}, "owner"),
        statistics=add_figures(figures) if figures else None,
        mailboxes=tuple(nlargest(_MOST_MAILBOXES, mailboxes, key=lambda one: one.messages)),
        live=tuple(each for one in found for each in one.live),
        unwritten_uses=of_each([one.unwritten_uses for one in found]),
        running=of_each([one.running for one in found]),
        compactions=tuple(each for one in found for each in one.compactions),
        served=sum(one.served or 0 for one in found),
        share=tuple(sorted(numbers)),
    )


def _fullest(shards: Sequence[Internals]) -> tuple[FullMailbox, ...]:
    waiting = [found for one in shards for found in one.registry.fullest(_MOST_MAILBOXES)]
    return tuple(
        FullMailbox(key.user, key.session if isinstance(key, SessionKey) else None, messages)
        for messages, key in nlargest(_MOST_MAILBOXES, waiting, key=itemgetter(0))
        if isinstance(key, SessionKey | UserKey)
    )


def _live(
    shards: Sequence[Internals], sessions: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Return those of the sessions that are in memory."""
    for user, session in sessions:
        if any(one.registry.is_live(SessionKey(user, session)) for one in shards):
            yield user, session


def _unwritten_uses(shard: Internals) -> tuple[int, ...] | None:
    journal = shard.journal
    return journal.unwritten_uses() if isinstance(journal, IndexesUses) else None


def _compactions(
    shards: Sequence[Internals], session: tuple[str, str] | None
) -> tuple[tuple[int, int, float], ...]:
    if session is None:
        return ()
    key = SessionKey(*session)
    return tuple(found for one in shards for found in one.compactions.of(key))


# -- asking the process that has a memory open -----------------------------------------------------

_PART_BYTES = 64 << 10
_SOCKET = re.compile(r"owner-(\d+)\.sock")
_MOST_BYTES = 8 << 20


def find_answering(directory: Path) -> list[int]:
    """The numbers of the processes that answer for a directory; that of the first always is."""
    try:
        names = [one.name for one in directory.iterdir()]
    except OSError:
        return [0]
    found = [match for one in names if (match := _SOCKET.fullmatch(one))]
    return [0, *sorted(int(one[1]) for one in found)]


def ask_owner(directory: Path, question: bytes, limit_s: float, number: int = 0) -> bytes | None:
    """Ask one line; returns the line that is answered. Blocks, at most for `limit_s`.

    Args:
        directory: the memory's.
        question: without the end of the line.
        limit_s: seconds to wait for the answer.
        number: of the process among those that own the memory together.

    Returns:
        None if no process answers: none has it open, or it is a release of remora that does not.

    Raises:
        DirectoryUnusable: there is no such directory, or this account may not look into it.
        OwnerUnreachable: the process does not answer, or belongs to another account.
    """
    _check_directory(directory)
    try:
        return _exchange(directory / socket_name(number), question + b"\n", limit_s)
    except OwnerUnreachable:  # of another account
        raise
    except (FileNotFoundError, ConnectionRefusedError):  # none, or one that was killed
        return None
    except TimeoutError as e:
        raise OwnerUnreachable(
            f"the process that has {directory} open did not answer within {limit_s:g} s"
        ) from e
    except PermissionError as e:
        raise DirectoryUnusable(
            f"{directory} is not this account's: {e.strerror}", path=directory
        ) from e
    except ConnectionError as e:
        raise OwnerUnreachable(
            f"the process that has {directory} open closed the connection: it is about to close, "
            "or too many ask"
        ) from e
    except OSError as e:
        raise OwnerUnreachable(f"the process that has {directory} open did not answer: {e}") from e


def _check_directory(path: Path) -> None:
    try:
        is_directory = path.is_dir()
        next(path.iterdir(), None)
    except PermissionError as e:
        raise DirectoryUnusable(f"{path} cannot be read: {e.strerror}", path=path) from e
    except OSError:
        is_directory = False
    if not is_directory:
        raise DirectoryUnusable(f"there is no directory {path}", path=path)


def _exchange(path: Path, question: bytes, limit_s: float) -> bytes:
    """Ask one line; returns the line that is answered.

    Raises:
        TimeoutError: not in time.
        OSError: nobody answers.
        OwnerUnreachable: it is another account's process.
    """
    until = time.monotonic() + limit_s
    with connect_socket(path, limit_s) as connection:
        connection.sendall(question)
        parts: list[bytes] = []
        size = 0
        while not parts or not parts[-1].endswith(b"\n"):
            connection.settimeout(max(until - time.monotonic(), 0.001))
            data = connection.recv(_PART_BYTES)
            size += len(data)
            if not data or size > _MOST_BYTES:
                raise ConnectionAbortedError
            parts.append(data)
        return b"".join(parts)


_decode_status = msgspec.json.Decoder(RuntimeStatus).decode


def ask_status(directory: Path, question: StatusQuestion, limit_s: float) -> RuntimeStatus | None:
    """Return what the process says, or several together if each owns a part; blocks.

    See `ask_owner`, also for errors.
    """
    asked = msgspec.json.encode(question)
    said = [ask_owner(directory, asked, limit_s, one) for one in find_answering(directory)]
    try:
        found = [_decode_status(one) for one in said if one is not None]
        return merge_statuses(found) if found else None
    except msgspec.DecodeError as e:
        raise OwnerUnreachable(f"the process that has {directory} open did not answer: {e}") from e
