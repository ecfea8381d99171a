"""One user's rows in memory: what a recall needs of them, in columns, searched without a store.

Searching 1,000 rows takes half a millisecond, LanceDB 10 to 30 ms on both cores. Building takes
30 µs a row, so an index takes over from the one before it what did not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from remora.actors.policies.bm25 import TextIndex, text_indices, words
from remora.config import RecallConfig
from remora.recall.ranking import Ranking, ScoreList, rank, size_of_rows
from remora.recall.traits import Traits, rank_order
from remora.runtime.concurrency import run_in_thread_if
from remora.storage.ports import BLOCK_TYPE, MemoryRow, Scope, Vector

if TYPE_CHECKING:  # loaded at first use
    import numpy as np
    import numpy.typing as npt

__all__ = ["MAX_ON_LOOP", "UserIndex", "is_large_search", "top"]

MAX_ON_LOOP = 5_000
"""Rows that are searched on the event loop, in 0.8 ms; more would hold it for too long."""

_LONG_QUERY = 4_000  # characters, whose words take half a millisecond
_DECIMALS = 6  # of a cosine: the last bits of a product depend on the place of the row


def is_large_search(rows: int, query: str) -> bool:
    """Whether searching so many rows would hold the event loop for too long."""
    return rows > MAX_ON_LOOP or len(query) > _LONG_QUERY


class UserIndex:
    """All rows of a user except those of memory blocks, ready to be searched; immutable.

    Args:
        rows: in any order.
        vectors: their vectors, shape (rows, dimension), of any length; None if nothing is embedded.
        earlier: the user's index before: rows that did not change take a tenth of the time.

    Attributes:
        rows: the rows, in the order of their places, without the texts that are searched.
        traits: what the ranking needs to know of them.
        texts: the indices of their words, by list: ``turn`` and ``window``.
        embedded: which rows have a vector; only with vectors.
        size_bytes: bytes that it takes.
    """

    def __init__(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, earlier: UserIndex | None = None
    ) -> None:
        import numpy as np  # noqa: PLC0415

        places = [place for place, row in enumerate(rows) if row.memory_type != BLOCK_TYPE]
        places.sort(key=lambda place: rank_order(rows[place]))
        mine = [rows[place] for place in places]
        # All fields identify a row: with another neighbourhood it is another row.
        self.hashes = np.fromiter(map(hash, mine), np.int64, len(mine))
        before = () if earlier is None else tuple(earlier.texts.values())
        known = [] if earlier is None else earlier.hashes.tolist()
        place_of = {one: place for place, one in enumerate(known)}
        kept = np.fromiter(
            (place_of.get(one, -1) for one in self.hashes.tolist()), np.int64, len(mine)
        )
        made = text_indices(
            [[row.turn for row in mine], [row.window for row in mine]], before, kept
        )
        self.texts: dict[str, TextIndex] = dict(zip(("turn", "window"), made, strict=True))
        self.traits: Traits = Traits(mine, None if earlier is None else earlier.traits, kept)
        self._place_of: dict[str, int] | None = None
        self._vectors: Vector | None = None
        if vectors is not None:
            self._vectors = np.ascontiguousarray(vectors[places], np.float32)
            lengths = np.linalg.norm(self._vectors, axis=1, keepdims=True)
            self._vectors /= np.where(lengths == 0, 1, lengths)
            # a row without a word that the embedder knows is near to nothing
            self.embedded = lengths[:, 0] != 0
        # Columns hold what is searched; rows share one copy of each name.
        names: dict[str, str] = {}
        self.rows = tuple([_without_search_text(row, names) for row in mine])
        self._columns = {
            name: _NameColumn([getattr(row, name) for row in self.rows])
            for name in ("session", "agent", "memory_type")
        }
        vector_bytes = self._vectors.nbytes if self._vectors is not None else 0
        columns = [self.hashes.nbytes, self.traits.nbytes]
        columns += [index.nbytes for index in self.texts.values()]
        columns += [column.nbytes for column in self._columns.values()]
        self.size_bytes = size_of_rows(self.rows) + vector_bytes + sum(columns)

    def __len__(self) -> int:
        return len(self.rows)

    async def rank(
        self,
        query: str,
        vector: Vector | None,
        scope: Scope,
        config: RecallConfig,
        *,
        gain: float = 1.0,
    ) -> Ranking:
        """Rank the rows that match, best first; see `fuse`.

        Args:
            query: the question.
            vector: its unit vector, shape (dimension,); None for the words alone.
            scope: which rows to search.
            config: weights, and how many candidates each list gives.
            gain: see `fuse`.
        """
        search = partial(self._search, query, vector, scope, config, gain)
        return await run_in_thread_if(is_large_search(len(self), query), search)

    def _search(
        self, query: str, vector: Vector | None, scope: Scope, config: RecallConfig, gain: float
    ) -> Ranking:
        lists = self.lists(query, vector, scope, config.depth)
        return rank(self.rows, self.traits, lists, config, query, gain=gain)

    def lists(
        self, query: str, vector: Vector | None, scope: Scope, depth: int
    ) -> dict[str, ScoreList]:
        """The best candidates of each list, by its name: ``turn``, ``window`` and ``vector``.

        Args:
            query: the question.
            vector: its unit vector, shape (dimension,); None for the words alone.
            scope: which rows to search.
            depth: candidates of each list, at most.
        """
        mine, stems = self.within(scope), words(query)
        lists = {}
        for name, index in self.texts.items():
            scores = index.scores(stems)
            lists[name] = top(scores, (scores > 0) & mine, depth)
        if vector is not None and self._vectors is not None:
            lists["vector"] = top(self.cosines(vector), self.embedded & mine, depth)
        return lists

    def cosines(self, vector: Vector) -> npt.NDArray[np.float64]:
        """How near each row is to a unit vector; there must be vectors."""
        import numpy as np  # noqa: PLC0415

        assert self._vectors is not None
        # No matrix product: BLAS splits even a small one among threads, and waits 10 ms for the
        # last of them when cores are busy.
        near: npt.NDArray[np.float64] = np.vecdot(self._vectors, vector).astype(np.float64)
        return np.round(near, _DECIMALS)

    @property
    def has_vectors(self) -> bool:
        """Whether rows are searched by meaning."""
        return self._vectors is not None

    @property
    def place_of(self) -> Mapping[str, int]:
        """The places of the rows, by id."""
        if self._place_of is None:
            self._place_of = {row.id: place for place, row in enumerate(self.rows)}
        return self._place_of

    def within(self, scope: Scope) -> npt.NDArray[np.bool_]:
        """Which rows are in a scope."""
        import numpy as np  # noqa: PLC0415

        mine = np.ones(len(self), np.bool_)
        if scope.session is not None:
            mine &= self._columns["session"].is_any_of((scope.session,))
        if scope.agent is not None:
            mine &= self._columns["agent"].is_any_of((scope.agent,))
        if scope.types:
            mine &= self._columns["memory_type"].is_any_of(scope.types)
        if scope.ids is not None:
            wanted = frozenset(scope.ids)
            mine &= np.fromiter((row.id in wanted for row in self.rows), np.bool_, len(self))
        return mine


class _NameColumn:
    """A column of names, as numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        import numpy as np  # noqa: PLC0415

        self._numbers: dict[str, int] = {}
        numbers = (self._numbers.setdefault(name, len(self._numbers)) for name in names)
        self._column = np.fromiter(numbers, np.int32, len(names))

    @property
    def nbytes(self) -> int:
        return self._column.nbytes

    def is_any_of(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these names."""
        import numpy as np  # noqa: PLC0415

        wanted = [self._numbers[name] for name in names if name in self._numbers]
        if len(wanted) == 1:
            return np.asarray(self._column == wanted[0])
        return np.isin(self._column, wanted)


def top(scores: npt.NDArray[np.float64], eligible: npt.NDArray[np.bool_], depth: int) -> ScoreList:
    """The `depth` best of the eligible rows, by place; of equals, the first."""
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


def _without_search_text(row: MemoryRow, names: dict[str, str]) -> MemoryRow:
    """The row without the text that is searched, its names shared with other rows."""
    same = {
        name: names.setdefault(value, value)
        for name in _NAMES
        if (value := getattr(row, name)) is not None
    }
    return msgspec.structs.replace(row, turn="", window="", **same)


_NAMES = ("user", "session", "role", "speaker", "memory_type", "agent")
