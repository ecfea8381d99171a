"""A conversation on its way to long-term memory, and an image of everything durable at each step of
that way.

One run is enough for a crash at every step: where a process could be killed, what would be left of
it is copied, and the run goes on. Each image is then opened by a new runtime, which must bring
everything to its end.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora import BufferPolicy, Config, Line, Runtime
from remora.ids import memory_id, row_id
from remora.messages import split_tool_calls
from remora.storage.memory import MemoryStore
from remora.storage.pending import pending_flushes
from remora.storage.ports import Journal, LongTermStore, MemoryRow, SessionKey, UserKey, Write
from remora.storage.records import UnflushSpec
from remora.storage.sqlite.journal import SqliteJournal
from remora.testing import HashEmbedder
from tests.harness import CopiedJournal

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "supervisor": {"backoff_s": 0.001, "max_backoff_s": 0.01},
        "long_term": {"batch_ms": 1, "shards": 2},
        "buffer": {"token_flush_size": 40},
    }
)
POLICIES = {
    "running summary": BufferPolicy(above_messages=6, keep_messages=3),
    "entries": BufferPolicy(above_messages=6, batch=4, fold="entry", entries=1),
    "dropped": BufferPolicy.window(5),
}


class Image(msgspec.Struct):
    """What would be left of a process that is killed at a step.

    Attributes:
        step: which.
        acknowledged: the appends that had returned by then: session, and the numbers that they were
            told.
        remembered: likewise what was recorded on purpose.
        removed: likewise messages that were deleted.
        kept: whatever is durable.
    """

    step: str
    acknowledged: tuple[tuple[SessionKey, tuple[int, ...]], ...]
    remembered: tuple[str, ...]
    removed: tuple[tuple[SessionKey, int], ...]
    kept: Any


class Witness:
    """Knows what was acknowledged, and takes the images.

    Args:
        capture: copies what is durable; None takes no images.
    """

    def __init__(self, capture: Callable[[], Any] | None) -> None:
        self.capture = capture
        self.acknowledged: list[tuple[SessionKey, tuple[int, ...]]] = []
        self.remembered: list[str] = []
        self.removed: list[tuple[SessionKey, int]] = []
        self.images: list[Image] = []

    def remember(self, image: Image) -> None:
        """Know what was known when the image was taken."""
        self.acknowledged, self.remembered, self.removed = (
            list(image.acknowledged),
            list(image.remembered),
            list(image.removed),
        )

    def at(self, step: str) -> None:
        """A process might be killed here."""
        if self.capture is not None:
            known = (tuple(self.acknowledged), tuple(self.remembered), tuple(self.removed))
            self.images.append(Image(step, *known, self.capture()))


class Watched:
    """Mixed into a journal: steps before a write and after its commit, when nobody has heard of it
    yet.
    """

    witness: Witness

    def write(self, write: Write) -> None:
        names = ", ".join(type(record).__name__ for record in write.records)
        told = write.acknowledge

        def settled(error: Exception | None) -> None:
            self.witness.at(f"{names} committed")
            told(error)

        write.acknowledge = settled
        self.witness.at(f"{names} asked for")
        super().write(write)  # type: ignore[misc]


class WatchedJournal(Watched, CopiedJournal):
    """The in-memory journal, which can be copied as a crash would leave it: without what is not
    committed.
    """

    def __init__(self, witness: Witness, rows: CopiedJournal | None = None) -> None:
        super().__init__()
        self.witness = witness
        if rows is not None:
            self.take_rows(rows)


class WatchedStore(MemoryStore):
    """The in-memory store, which writes in two halves, and keeps count of what a store without
    unique ids would have doubled.
    """

    def __init__(self, witness: Witness, rows: dict[str, Any] | None = None) -> None:
        super().__init__(64)
        self.witness = witness
        self._users = {user: dict(mine) for user, mine in (rows or {}).items()}
        self.doubled: list[str] = []

    def state(self) -> dict[str, Any]:
        return {user: dict(mine) for user, mine in self._users.items()}

    async def add(self, rows: Sequence[MemoryRow], vectors: Any, *, may_exist: bool) -> None:
        if not may_exist:
            self.doubled += [row.id for row in rows if row.id in self._users.get(row.user, {})]
        half = len(rows) // 2
        self.witness.at("before rows are added")
        await super().add(rows[:half], vectors[:half], may_exist=may_exist)
        self.witness.at("half of the rows are added")
        await super().add(rows[half:], vectors[half:], may_exist=may_exist)
        self.witness.at("all rows are added")

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        self.witness.at("before rows are deleted")
        gone = await super().delete(user, ids[::2]) + await super().delete(user, ids[1::2])
        self.witness.at("rows are deleted")
        return gone


class WatchedSummarizer:
    """A perfect summary, in time."""

    name = "joined"

    def __init__(self, witness: Witness) -> None:
        self.witness = witness

    async def summarize(
        self, previous: str | None, lines: Sequence[Line], *, max_tokens: int
    ) -> str:
        self.witness.at("before the summarizer")
        await anyio.lowlevel.checkpoint()
        self.witness.at("after the summarizer")
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])[
            : max_tokens // 2
        ]


class WatchedEmbedder(HashEmbedder):
    """Steps around the embedding."""

    def __init__(self, witness: Witness) -> None:
        super().__init__()
        self.witness = witness

    async def embed(self, texts: Sequence[str]) -> Any:
        self.witness.at("before rows are embedded")
        return await super().embed(texts)


def turn(number: int) -> list[dict[str, Any]]:
    """One turn of a conversation, tools included."""
    call = {
        "id": f"call-{number}",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }
    return [
        {"role": "user", "content": f"question {number} about gardens and bridges"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call-{number}", "content": f"result {number}"},
        {"role": "assistant", "content": f"answer {number}: seven hundred paces"},
    ]


KEYS = (SessionKey("alice", "one"), SessionKey("bob", "one"))


async def converse(
    runtime: Runtime, witness: Witness, *, turns: int = 3, remove: bool = True
) -> None:
    """Two sessions that fold and flush on their way; something remembered on purpose; something
    deleted again.
    """
    for number in range(turns):
        for key in KEYS:
            receipt = await runtime.session(*key).append(turn(number), key=f"turn-{number}")
            witness.acknowledged.append((key, receipt.seqs))
            witness.at("an append has returned")
        await anyio.lowlevel.checkpoint()
    await runtime.user("alice").remember("Prefers metric units")
    witness.remembered.append(memory_id("alice", "", "Prefers metric units"))
    for key in KEYS:
        await runtime.session(*key).flush()
    await runtime.settle()
    if remove:
        chat = runtime.session(*KEYS[0])
        first = (await chat.get_messages())[0].seq or 0
        left = [
            (key, tuple(seq for seq in seqs if (key, seq) != (KEYS[0], first)))
            for key, seqs in witness.acknowledged
        ]
        witness.acknowledged = left
        await chat.delete(positions=0)
        witness.removed.append((KEYS[0], first))
        await runtime.settle()
    witness.at("the end")


async def mark_claims_no_more_than_there_is(
    journal: Journal, store: LongTermStore, step: str
) -> None:
    """G7: up to the watermark, what is neither owed, pruned nor removed is in long-term memory."""
    jobs = [*await journal.jobs(), *await journal.jobs(dead=True)]
    if any(isinstance(job.payload, UnflushSpec) for job in jobs):
        return  # it writes its neighbours' rows anew
    there = set(await store.row_ids())
    for key, flushed in await journal.indexed_through():
        if isinstance(key, UserKey):
            continue
        claimed = {entry.seq for entry in await journal.read(key, 1, flushed)} - set(
            await journal.pruned_seqs(key)
        )
        claimed = claimed.difference(*pending_flushes(jobs).get(key, ()))
        missing = [seq for seq in claimed if row_id(key, seq) not in there]
        assert not missing, (
            f"killed at {step!r}: the watermark of {key} is {flushed}, and {missing} are not there"
        )


async def brought_to_its_end(runtime: Runtime, image: Image) -> None:
    """G3, G4, G6, G7, G8: after a restart, all that was acknowledged is there, and each message
    once in both stores.
    """
    step = f"killed at {image.step!r}"
    await runtime.settle()
    for key in KEYS:
        await runtime.session(*key).flush()
    await runtime.settle()
    assert list(await runtime.internals.journal.jobs()) == [], step
    assert await runtime.dead_letters() == [], step
    wanted: Counter[str] = Counter(image.remembered)
    for key in KEYS:
        chat = runtime.session(*key)
        history = await chat.history()
        seqs = [message.seq or 0 for message in history]
        assert len(seqs) == len(set(seqs)), step
        told = {seq for owner, some in image.acknowledged if owner == key for seq in some}
        assert told <= set(seqs), f"{step}: {told - set(seqs)} of {key} are lost"
        assert len(seqs) <= len(told) + 5, (
            f"{step}: more than the turn and the deletion that may have been on their way"
        )
        assert not {seq for owner, seq in image.removed if owner == key} & set(seqs), step
        context = await chat.load()
        assert split_tool_calls(context.messages) == 0, step
        assert context.pending == 0, step
        wanted.update(row_id(key, seq) for seq in seqs)
        # a client that did not hear of its last turn sends it again, and so do clients that did
        for number in range(sum(owner == key for owner, _ in image.acknowledged)):
            receipt = await chat.append(turn(number), key=f"turn-{number}")
            assert receipt.duplicate, step
        assert len(await chat.history()) == len(history), step
    store = await runtime.internals.long_term()
    found = Counter(await store.row_ids())
    assert max(found.values(), default=0) <= 1, f"{step}: doubled"
    entries = {
        row.id for key in KEYS for row in await store.rows(key.user) if row.memory_type == "summary"
    }
    recorded = {memory_id("alice", "", "Prefers metric units")}
    assert set(found) - entries - recorded == set(wanted) - recorded, step
    assert recorded & set(wanted) <= set(found), step


@asynccontextmanager
async def in_memory(
    policy: BufferPolicy, image: Image | None = None, *, watch: bool
) -> AsyncIterator[tuple[Runtime, Witness]]:
    """A runtime over in-memory stores, from the beginning or from an image."""
    witness = Witness(None)
    journal_state, rows = image.kept if image is not None else (None, None)
    journal, store = WatchedJournal(witness, journal_state), WatchedStore(witness, rows)
    if image is not None:
        witness.remember(image)
        await mark_claims_no_more_than_there_is(journal, store, image.step)
    if watch:
        witness.capture = lambda: (journal.copied(), store.state())
    models: Any = {"summarizer": WatchedSummarizer(witness), "embedder": WatchedEmbedder(witness)}
    async with Runtime.in_memory(
        config=CONFIG, journal=journal, store=store, policy=policy, **models
    ) as runtime:
        yield runtime, witness
        assert store.doubled == [], (
            f"killed at {image.step if image else None!r}: added though there: {store.doubled}"
        )


# -- on the disk -----------------------------------------------------------------------------------


class WatchedSqliteJournal(Watched, SqliteJournal):
    """The journal on the disk. It never checkpoints: a copy is taken file by file, and the main
    file must stand still.
    """

    async def checkpoint(self) -> None:
        """Not while copies are taken."""


def crash_copy(directory: Path, to: Path) -> None:
    """Copy a memory directory as a killed process would leave it, while LanceDB's threads go on
    writing.

    What a file refers to is there before it; so whatever refers is listed and copied first: the
    manifests, then what they name.
    """
    to.mkdir(parents=True)
    for pattern in ("*.lance/_versions/*", "*"):
        for path in list(directory.rglob(pattern)):
            target = to / path.relative_to(directory)
            kernels = path.name in {"remora.lock", "owner.json", "journal.db-shm"}  # not the disk's
            if path.is_file() and not kernels and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # a temporary file that has its name now
                    shutil.copyfile(path, target)
