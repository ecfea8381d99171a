"""The state of a user's own actor. Only `apply` changes it: replay equals live.

The journal keeps all of it as state items. A state is restored by applying them in the order in
which they were first put:

=============  ======================  =============================================================
kind           name                    value
=============  ======================  =============================================================
``embedder``   empty                   which embedder made the vectors of working memory
``working``    the item's id           a `WorkingItem`
``access``     the row's id            how often it was retrieved, and when last
``synopsis``   ``identity, context``   a `SynopsisPart`
``grant``      a name                  ``read``, ``write`` or ``own``
``counter``    ``job``                 number of the last job, so that no id of a job is used again
``changed``    empty                   a memory without a key says something else than its id
``keyed``, …   a key, or empty         keyed state: see `remora.storage.keyed_values`
=============  ======================  =============================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from remora.actors.keyed_state import KeyedValues, drop_keyed, put_keyed
from remora.actors.user.working import WorkingItem, WorkingMemory
from remora.ids import UserKey
from remora.runtime.jobs import Job, JobDone
from remora.storage.keyed_values import KEYED_DECODERS, KEYED_KIND
from remora.storage.records import (
    JobAdvanced,
    JobsStarted,
    MemoriesRemoved,
    MemoryChanged,
    MemoryItem,
    Opened,
    Remembered,
    SavedUser,
    StateChanged,
    StateItem,
    SynopsisSpec,
)

_ACCESS_BYTES = 200  # of one row's access counts: its id, two numbers, a place in a dict
_GRANT_BYTES = 150
_encode = msgspec.msgpack.Encoder().encode


class SynopsisPart(msgspec.Struct, frozen=True, gc=False):
    """One part of a synopsis: who the user is, or what they are about.

    Attributes:
        text: what it says.
        expires_at: seconds since the epoch.
        tokens: its size.
        model: what wrote it.
        degraded: a fallback for the configured model's answer.
    """

    text: str
    expires_at: float
    tokens: int
    model: str
    degraded: bool


class Touched(msgspec.Struct, frozen=True):
    """Volatile: these rows were retrieved at that time."""

    rows: tuple[str, ...]
    at_us: int


class SynopsisShown(msgspec.Struct, frozen=True):
    """Volatile: the synopsis was read, and these parts are valid for longer."""

    hit: bool
    extended: tuple[tuple[str, SynopsisPart], ...] = ()


class MemoryFitted(msgspec.Struct, frozen=True):
    """Volatile: working memory frees its unused rows."""


_decode_item = msgspec.msgpack.Decoder(WorkingItem).decode
_decode_figures = msgspec.msgpack.Decoder(tuple[int, int]).decode
_decode_part = msgspec.msgpack.Decoder(SynopsisPart).decode
_decode = msgspec.msgpack.Decoder().decode


def state_item(kind: str, name: str, value: object) -> StateItem:
    """A state item with an encoded value."""
    return StateItem(kind, name, _encode(value))


def value_bytes(items: Sequence[StateItem]) -> int:
    """Bytes of their values."""
    return sum(len(one.value) for one in items)


def opening(state: UserState, at_us: int = 0) -> list[Any]:
    """The record that comes before an actor's first one; none if it is opened."""
    return [] if state.opened else [Opened(state.sid, state.key.user, "", at_us)]


def new_job(state: UserState, queue: str, spec: object) -> tuple[Job, StateItem]:
    """A job under a new id, and the counter to journal with it: a dead letter keeps its id."""
    number = state.number + 1
    job = Job(f"{queue}-{state.sid}-{number}", queue, state.key, spec)
    return job, state_item("counter", "job", number)


class UserState:
    """The state of a user's own actor. Only `apply` changes it.

    Args:
        key: the user.
        image: what the journal has.
        dimension: length of the vectors in working memory; None without an embedder.
        embedder: its name; items of another embedder are ignored.
    """

    __slots__ = (
        "accesses",
        "changed",
        "embedder",
        "evicted",
        "grants",
        "hits",
        "job",
        "key",
        "keyed",
        "learned_with",
        "looked_up",
        "misses",
        "number",
        "opened",
        "parts",
        "pending",
        "sid",
        "stale",
        "terms",
        "working",
    )

    def __init__(
        self, key: UserKey, image: SavedUser, dimension: int | None, embedder: str
    ) -> None:
        self.key = key
        self.sid = image.sid
        self.opened = image.opened
        self.embedder = embedder
        self.learned_with = ""
        """The embedder whose vectors the journal holds."""
        self.working = None if dimension is None else WorkingMemory(dimension)
        self.stale: dict[str, None] = {}
        """Items of another embedder; the journal keeps them until the next item is added."""
        self.accesses: dict[str, tuple[int, int]] = {}
        """Row id -> number of retrievals, and time of the last one in microseconds."""
        self.pending: dict[str, None] = {}
        """Rows whose access counts are newer than the journal's."""
        self.parts: dict[str, SynopsisPart] = {}
        """``identity`` and ``context``, if they were written."""
        self.terms: dict[str, float] = {}
        """When each part expires by the journal; a part that was read is valid for longer."""
        self.grants: dict[str, str] = {}
        self.keyed: KeyedValues | None = None
        """Values that the application keeps; None for none so far."""
        self.changed = False
        """A memory without a key was changed, so a text may not say which memory it is."""
        self.looked_up: tuple[object, Mapping[str, MemoryItem]] | None = None
        """A message, and the memories that were looked up for it."""
        self.number = 0
        """Number of the last job."""
        self.job = next((job.id for job in image.jobs if isinstance(job.payload, SynopsisSpec)), "")
        """The running synopsis job; empty for none."""
        self.evicted = self.hits = self.misses = 0
        for one in image.state_items:
            _put(self, one)

    @property
    def size(self) -> int:
        """Approximate bytes held."""
        parts = sum(len(part.text) for part in self.parts.values())
        working = self.working.size_bytes if self.working is not None else 0
        counts = _ACCESS_BYTES * len(self.accesses) + _GRANT_BYTES * len(self.grants)
        keyed = self.keyed.size if self.keyed is not None else 0
        return 1_024 + working + counts + keyed + 4 * parts

    def accesses_after(self, rows: Sequence[str], at_us: int) -> dict[str, tuple[int, int]]:
        """The access counts of these rows after one more retrieval."""
        known = self.accesses
        figures = {}
        for row in rows:
            count, last = known.get(row, (0, 0))
            figures[row] = (count + 1, max(last, at_us))
        return figures

    @property
    def extended(self) -> Mapping[str, SynopsisPart]:
        """Parts of the synopsis that are valid for longer than the journal says."""
        parts = self.parts.items()
        return {name: part for name, part in parts if part.expires_at != self.terms[name]}


def apply(state: UserState, record: object) -> None:
    """Change the state by one record."""
    match record:
        case Touched(rows=rows, at_us=at_us):
            state.accesses.update(state.accesses_after(rows, at_us))
            state.pending.update(dict.fromkeys(rows))
        case SynopsisShown(hit=hit, extended=extended):
            state.hits += hit
            state.misses += not hit
            state.parts.update(extended)
        case StateChanged(put=put, dropped=dropped):
            for one in put:
                _put(state, one)
            _drop(state, dropped)
        case MemoryFitted():
            if state.working is not None:
                state.working.shrink_to_fit()
        case Opened():
            state.opened = True
        case JobsStarted(jobs=jobs) | Remembered(jobs=jobs):
            started = (job.id for job in jobs if isinstance(job.payload, SynopsisSpec))
            state.job = next(started, state.job)
        case JobDone(id=id_):
            if id_ == state.job:
                state.job = ""
        case MemoryChanged() | MemoriesRemoved() | JobAdvanced():
            pass
        case _:
            raise TypeError(f"a user's actor cannot apply {type(record).__name__}")


def _put(state: UserState, one: StateItem) -> None:
    name = one.name
    match one.kind:
        case "working":
            if state.working is not None and state.learned_with == state.embedder:
                state.working.restore(_decode_item(one.value))
            else:
                state.stale[name] = None
        case "access":
            state.accesses[name] = _decode_figures(one.value)
            state.pending.pop(name, None)
        case "synopsis":
            state.parts[name] = part = _decode_part(one.value)
            state.terms[name] = part.expires_at
        case "grant":
            state.grants[name] = _decode(one.value)
        case "counter":
            state.number = _decode(one.value)
        case "embedder":
            state.learned_with = _decode(one.value)
        case "changed":
            state.changed = True
        case kind if kind in KEYED_DECODERS:
            state.keyed = put_keyed(state.keyed, one)
        case _:
            raise TypeError(f"a user's actor keeps no {one.kind!r}")


def _drop(state: UserState, places: Sequence[tuple[str, str]]) -> None:
    items: list[str] = []
    for kind, name in places:
        if kind == "access":
            state.accesses.pop(name, None)
            state.pending.pop(name, None)
        elif kind == "grant":
            state.grants.pop(name, None)
        elif kind == "synopsis":
            state.parts.pop(name, None)
            state.terms.pop(name, None)
        elif kind == KEYED_KIND:
            drop_keyed(state.keyed, name)
        elif name in state.stale:
            del state.stale[name]
        else:
            items.append(name)
    if items and state.working is not None:
        state.evicted += state.working.discard(items)
        state.working.shrink_to_fit()
