"""Users' rows in memory: what a recall needs of them, in columns, searched without LanceDB (G10).

A search of LanceDB costs 10 to 30 ms of both cores, of which next to nothing is the search: its
floor is 3 to 4 ms a list, and there are three. The same over one user's rows in memory takes half a
millisecond. So a user's first recall reads all of the user's rows, which for a few hundred costs no
more than a search of them, and they stay, least recently used out first, within a number of bytes.

*One way of searching for one user.* The first recall waits for the rows and searches them as the
next one will, so no answer depends on what happens to be in memory. Users of more than `max_rows`
rows, or of more bytes than there are, are always searched in the store; who grows beyond that
changes over once.

*Nothing stale.* A read takes time, and a write may land meanwhile. Each write makes a new version
of its user (`Versions`); rows that were read under an older one answer those who asked before the
write, and nobody else. A recall that begins after the write reads anew; of the rows that it finds
unchanged it takes over what the earlier ones had been made into, which was the slow part. What is
pruned or forgotten leaves memory at once.

*No wasted reads.* One user's rows are read once, however many ask. The read belongs to the runtime
and not to who asked first: a deadline ends the waiting, not the reading, or rows that take longer
than it would never be there.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from remora.config import RecallConfig
from remora.logging import get_logger
from remora.recall.bm25 import TextIndex, text_indices, words
from remora.recall.ranking import Ranked, Ranking, ScoreList, Traits, rank, rank_order
from remora.recall.result_cache import Versions
from remora.runtime.probes import probe
from remora.storage.ports import BLOCK_TYPE, MemoryRow, Scope, Vector

if TYPE_CHECKING:  # loaded by those who compute with it, at first use
    import numpy as np
    import numpy.typing as npt

    Rows: TypeAlias = tuple[Sequence[MemoryRow], Vector | None]

__all__ = ["UserIndex", "UserIndexCache", "UserIndexStatistics"]

_logger = get_logger("remora.recall")
_ON_LOOP = (
    5_000  # rows that are searched on the event loop, in 0.8 ms; more would hold it for too long
)
_MADE_ON_LOOP = (
    16  # rows that are made ready on the event loop: half a millisecond, as much as a thread costs
)
_READS = 4  # users whose rows are read at once: more would only take memory
_ROW_BYTES = 480  # of a row's object, its numbers and its dates, beside its texts
_DECIMALS = 6  # of a cosine: a product's last bits depend on where a row lies
_AT_ONCE = 32  # rows that are made of a ranking at a time
_MOST_OUTGROWN = 10_000  # users who are known to be too large


class UserIndexStatistics(msgspec.Struct, frozen=True):
    """What is in memory, and what that saved.

    Attributes:
        hits: recalls that found their user's rows in memory.
        misses: those that had to wait for them.
        passed: those that went to the store, since the user has too many.
        evictions: users who gave way to others.
        users: whose rows are held.
        rows: of them.
        size_bytes: of them; at most the configured bound.
    """

    hits: int = 0
    misses: int = 0
    passed: int = 0
    evictions: int = 0
    users: int = 0
    rows: int = 0
    size_bytes: int = 0


class UserIndex:
    """All rows of a user but those of memory blocks, as they are searched; never changed.

    Slow to make: 30 µs a row.

    Args:
        rows: in any order.
        vectors: theirs, shape (rows, dimension), of any length; None where nothing is embedded.
        earlier: the user's rows as they were: what has not changed since takes a tenth of the time.
    """

    def __init__(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, earlier: UserIndex | None = None
    ) -> None:
        import numpy as np  # noqa: PLC0415

        places = [place for place, row in enumerate(rows) if row.memory_type != BLOCK_TYPE]
        places.sort(key=lambda place: rank_order(rows[place]))
        mine = [rows[place] for place in places]
        # A row is told by all that it says: one whose window was written anew is another.
        self.marks = np.fromiter(map(hash, mine), np.int64, len(mine))
        homes = (
            {}
            if earlier is None
            else {mark: place for place, mark in enumerate(earlier.marks.tolist())}
        )
        kept = np.fromiter(
            (homes.get(mark, -1) for mark in self.marks.tolist()), np.int64, len(mine)
        )
        before = () if earlier is None else tuple(earlier.texts.values())
        made = text_indices(
            [[row.turn for row in mine], [row.window for row in mine]], before, kept
        )
        self.texts: dict[str, TextIndex] = dict(zip(("turn", "window"), made, strict=True))
        self._traits = Traits(mine)
        self._vectors: Vector | None = None
        if vectors is not None:
            self._vectors = np.ascontiguousarray(vectors[places], np.float32)
            lengths = np.linalg.norm(self._vectors, axis=1, keepdims=True)
            self._vectors /= np.where(lengths == 0, 1, lengths)
            # one without a word that the embedder knows is near to nothing
            self._embedded = lengths[:, 0] != 0
        # What is searched is in columns; of names, one copy serves all rows.
        names: dict[str, str] = {}
        self._rows = tuple([_light(row, names) for row in mine])
        self._columns = {
            name: _Coded([getattr(row, name) for row in self._rows])
            for name in ("session", "agent", "memory_type")
        }
        texts = sum(sys.getsizeof(row.content) + sys.getsizeof(row.id) for row in self._rows)
        columns = (
            self.marks.nbytes
            + self._traits.nbytes
            + sum(index.nbytes for index in self.texts.values())
        )
        columns += sum(column.nbytes for column in self._columns.values())
        vector_bytes = self._vectors.nbytes if self._vectors is not None else 0
        self.size_bytes = texts + _ROW_BYTES * len(mine) + columns + vector_bytes

    def __len__(self) -> int:
        return len(self._rows)

    async def ranked(
        self,
        query: str,
        vector: Vector | None,
        scope: Scope,
        config: RecallConfig,
        *,
        gain: float = 1.0,
    ) -> Iterator[Ranked]:
        """Rows that match, best first; see `fuse`.

        Args:
            query: what is asked.
            vector: its unit vector, shape (dimension,); None for the words alone.
            scope: which of the rows are meant.
            config: weights, and how many candidates each list gives.
            gain: see `fuse`.
        """
        search = partial(self._search, query, vector, scope, config, gain)
        ranking = await anyio.to_thread.run_sync(search) if len(self) > _ON_LOOP else search()
        return (
            Ranked(self._rows[place], score, parts)
            for start in range(0, len(ranking.places), _AT_ONCE)
            for place, score, parts in ranking.best(_AT_ONCE, start)
        )

    def _search(
        self, query: str, vector: Vector | None, scope: Scope, config: RecallConfig, gain: float
    ) -> Ranking:
        return rank(
            self._traits, self._lists(query, vector, scope, config.depth), config, query, gain=gain
        )

    def _lists(
        self, query: str, vector: Vector | None, scope: Scope, depth: int
    ) -> dict[str, ScoreList]:
        import numpy as np  # noqa: PLC0415

        mine, stems = self._within(scope), words(query)
        lists = {}
        for name, index in self.texts.items():
            scores = index.scores(stems)
            lists[name] = _best(scores, (scores > 0) & mine, depth)
        if vector is not None and self._vectors is not None:
            # No matrix product: BLAS shares even a small one among threads, and on busy cores waits
            # 10 ms for the last of them.
            near = np.round(np.vecdot(self._vectors, vector).astype(np.float64), _DECIMALS)
            lists["vector"] = _best(near, self._embedded & mine, depth)
        return lists

    def _within(self, scope: Scope) -> npt.NDArray[np.bool_]:
        import numpy as np  # noqa: PLC0415

        mine = np.ones(len(self), np.bool_)
        if scope.session is not None:
            mine &= self._columns["session"].among((scope.session,))
        if scope.agent is not None:
            mine &= self._columns["agent"].among((scope.agent,))
        if scope.types:
            mine &= self._columns["memory_type"].among(scope.types)
        return mine


class UserIndexCache:
    """The rows of the users who recall; for one event loop.

    Args:
        read: all rows of a user, with their vectors.
        max_bytes: of all users' rows together; at least 1.
        max_rows: of a user whose rows are held.
    """

    def __init__(
        self, read: Callable[[str], Awaitable[Rows]], *, max_bytes: int, max_rows: int
    ) -> None:
        self._read = read
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._users: OrderedDict[str, _Held] = OrderedDict()
        self._outgrown: OrderedDict[str, None] = OrderedDict()
        self._versions = Versions(_MOST_OUTGROWN)
        self._fillings: dict[str, _Filling] = {}
        self._reads = anyio.Semaphore(_READS)
        self._tasks: anyio.abc.TaskGroup | None = None
        self._size_bytes = self._hits = self._misses = self._passed = self._evictions = 0

    async def run(self) -> None:
        """Read what recalls ask for, for ever: a task of the runtime's.

        Without it, who asks first reads.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                await anyio.sleep_forever()
        finally:
            self._tasks = None

    async def of(self, user: str) -> UserIndex | None:
        """The user's rows, no older than this call.

        None where the store must be asked: they are too many, or cannot be read.
        """
        version = self._versions.of(user)
        held = self._users.get(user)
        if held is not None and held.version == version:
            self._hits += 1
            self._users.move_to_end(user)
            return held.rows
        if user in self._outgrown:
            probe("hot_rows_too_many")
            self._passed += 1
            self._outgrown.move_to_end(user)
            return None
        self._misses += 1
        filling = self._fillings.get(user)
        if (
            filling is None or filling.version != version
        ):  # one that a write overtook is for those who asked before
            filling = self._fillings[user] = _Filling(version)
            if self._tasks is None:
                await self._fill(user, filling)
            else:
                self._tasks.start_soon(self._fill, user, filling, name="remora.recall.read")
        await filling.done.wait()
        return filling.rows

    def written(self, user: str) -> None:
        """The user's memory changed, or may have.

        What is held of it answers nobody any more, and serves to make it anew.
        """
        self._versions.bump(user)

    def removed(self, user: str) -> None:
        """The same, and some of it is gone: nothing of it stays, and whether it is still too large
        is looked at again.
        """
        self._versions.bump(user)
        self._drop(user)
        self._outgrown.pop(user, None)
        self._fillings.pop(user, None)

    def statistics(self) -> UserIndexStatistics:
        """The present counts."""
        rows = sum(len(held.rows) for held in self._users.values())
        return UserIndexStatistics(
            self._hits,
            self._misses,
            self._passed,
            self._evictions,
            len(self._users),
            rows,
            self._size_bytes,
        )

    async def _fill(self, user: str, filling: _Filling) -> None:
        try:
            async with self._reads:
                rows, vectors = await self._read(user)
                if len(rows) <= self._max_rows:
                    few = len(rows) <= _MADE_ON_LOOP
                    earlier = self._users[user].rows if user in self._users else None
                    make = partial(UserIndex, rows, vectors, earlier)
                    made = make() if few else await anyio.to_thread.run_sync(make)
                    filling.rows = made if made.size_bytes <= self._max_bytes else None
            if self._fillings.get(user) is not filling:
                probe("hot_read_overtaken")
                return  # somebody has asked, or the user's rows were removed, since
            if filling.rows is None:
                self._pass_over(user)
            else:  # of use even if it is old by now: most of it will be the same the next time
                self._hold(user, _Held(filling.rows, filling.version))
        except Exception as e:
            probe("hot_read_failed")
            # The store is asked instead, and says what is wrong with it.
            _logger.warning("rows_not_read", error=f"{type(e).__name__}: {e}")
        finally:
            if self._fillings.get(user) is filling:
                del self._fillings[user]
            filling.done.set()

    def _pass_over(self, user: str) -> None:
        self._drop(user)
        self._outgrown[user] = None
        if len(self._outgrown) > _MOST_OUTGROWN:
            self._outgrown.popitem(last=False)

    def _hold(self, user: str, held: _Held) -> None:
        self._drop(user)
        self._users[user] = held
        self._size_bytes += held.rows.size_bytes
        while self._size_bytes > self._max_bytes:
            _, old = self._users.popitem(last=False)
            self._size_bytes -= old.rows.size_bytes
            probe("hot_user_evicted")
            self._evictions += 1

    def _drop(self, user: str) -> None:
        held = self._users.pop(user, None)
        if held is not None:
            self._size_bytes -= held.rows.size_bytes


class _Held(msgspec.Struct, frozen=True):
    """Rows, and the version of their user that they were read under."""

    rows: UserIndex
    version: int


class _Filling:
    """A read under way."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.done = anyio.Event()
        self.rows: UserIndex | None = None


class _Coded:
    """A column of names, as numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        import numpy as np  # noqa: PLC0415

        self._numbers: dict[str, int] = {}
        numbers = (self._numbers.setdefault(name, len(self._numbers)) for name in names)
        self._column = np.fromiter(numbers, np.int32, len(names))

    @property
    def nbytes(self) -> int:
        return self._column.nbytes

    def among(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these names."""
        import numpy as np  # noqa: PLC0415

        wanted = [self._numbers[name] for name in names if name in self._numbers]
        if len(wanted) == 1:
            return np.asarray(self._column == wanted[0])
        return np.isin(self._column, wanted)


def _best(
    scores: npt.NDArray[np.float64], eligible: npt.NDArray[np.bool_], depth: int
) -> ScoreList:
    """The `depth` best of the eligible, by place; of equals, the first."""
    import numpy as np  # noqa: PLC0415

    places = np.flatnonzero(eligible)
    found = scores[places]
    if len(places) > depth:
        least = np.partition(found, -depth)[-depth]
        equal = np.flatnonzero(found == least)
        above = np.flatnonzero(found > least)
        kept = np.sort(np.concatenate([above, equal[: depth - len(above)]]))
        places, found = places[kept], found[kept]
    return ScoreList(places, found)


def _light(row: MemoryRow, names: dict[str, str]) -> MemoryRow:
    """The row without what it is searched by, its names shared with other rows."""
    same = {
        name: names.setdefault(value, value)
        for name in _NAMES
        if (value := getattr(row, name)) is not None
    }
    return msgspec.structs.replace(row, turn="", window="", **same)


_NAMES = ("user", "session", "role", "speaker", "memory_type", "agent")
