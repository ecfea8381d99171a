"""Working memory.

What one user's agents have just seen, as unit vectors in one matrix, the oldest going first.

The rows ``start … start + n`` of a float32 matrix are the live ones, oldest first. A search is one
product with all of them. An eviction moves `start` on; an addition to a full matrix takes back what
`start` has left behind, or else doubles it: both cost amortised constant time. A vector is held
once, in the matrix: items are kept without theirs, and get it back when they are handed out.

Plain data: no lock, no clock, no I/O. It belongs to one actor.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, overload

import msgspec

from remora.errors import InvalidInput
from remora.models.ports import Embedder, embed_texts

if TYPE_CHECKING:  # loaded when the first item comes
    import numpy as np
    import numpy.typing as npt

__all__ = ["WorkingItem", "WorkingMemory", "embed_items"]

_FIRST_ROWS = 8
_SLOTS = (
    8 + 64
)  # bytes an item takes in a deque and, about, in a set (27 to 107, by how full the set is)
_NUMBERS = 64  # bytes of an item's two integers
_LENGTH_TOLERANCE = 1e-3
_TIE = 1e-5  # a float32 product's error is below this


class WorkingItem(msgspec.Struct, frozen=True, gc=False):
    """Something to have at hand: a tool's output, something that the user told.

    Attributes:
        id: names it within its user's working memory.
        text: what is to be found.
        source: where it came from, for instance ``"tool:search"``.
        scope: the session that it belongs to, or the empty string for all of the user's.
        at_us: when it came, in microseconds since the epoch.
        tokens: size of the text in a context.
        vector: embedding of the text, float32 little endian, of unit length (or all zeros: near to
            nothing).
    """

    id: str
    text: str
    source: str
    scope: str
    at_us: int
    tokens: int
    vector: bytes


async def embed_items(embedder: Embedder, items: Sequence[WorkingItem]) -> tuple[WorkingItem, ...]:
    """The items with vectors of `embedder`.

    Raises:
        ModelError: it failed.
    """
    vectors = await embed_texts(embedder, [item.text for item in items])
    return tuple(
        msgspec.structs.replace(item, vector=vector.astype("<f4").tobytes())
        for item, vector in zip(items, vectors, strict=True)
    )


class WorkingMemory:
    """One user's items, oldest first; age is the order of `add`.

    Args:
        dimension: length of the vectors.

    Raises:
        InvalidInput: `dimension` is less than 1.
    """

    def __init__(self, dimension: int) -> None:
        if dimension < 1:
            raise InvalidInput(
                f"working memory needs vectors of at least 1 number, not {dimension}"
            )
        self.dimension = dimension
        self._items: deque[WorkingItem] = deque()
        self._ids: set[str] = set()
        self._rows: _Rows | None = None
        self._start = 0

    def __len__(self) -> int:
        return len(self._items)

    @property
    def items(self) -> Sequence[WorkingItem]:
        """A view of the items, oldest first, with their vectors.

        To be read before the memory changes.
        """
        return _Items(self._items, self._with_vector)

    @property
    def oldest(self) -> WorkingItem | None:
        """The item that is evicted next."""
        return self._with_vector(self._items[0], 0) if self._items else None

    @property
    def size_bytes(self) -> int:
        """Bytes held, free rows of the matrix included.

        Within 20 % of what Python's allocator counts.
        """
        if self._rows is None:
            return 0
        return self._rows.nbytes + int(
            self._rows.sizes[self._start : self._start + len(self)].sum()
        )

    @property
    def content_bytes(self) -> int:
        """What `size_bytes` would be without free rows: a function of the items alone."""
        return (
            0
            if self._rows is None
            else self.size_bytes - (len(self._rows.sizes) - len(self)) * self._rows.row_bytes
        )

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def validate_item(self, item: WorkingItem) -> npt.NDArray[np.float32]:
        """The vector of an item that may be added.

        Raises:
            InvalidInput: it has another dimension, or is neither of unit length nor all zeros.
        """
        import numpy as np  # noqa: PLC0415

        if len(item.vector) != 4 * self.dimension:
            raise InvalidInput(
                f"item {item.id!r} has a vector of {len(item.vector) / 4:g} numbers, not "
                f"{self.dimension}"
            )
        vector = np.frombuffer(item.vector, dtype="<f4")
        length = float(np.linalg.norm(vector))
        if not (length == 0 or abs(length - 1) <= _LENGTH_TOLERANCE):
            raise InvalidInput(f"item {item.id!r} has a vector of length {length:g}, not 1")
        return vector

    def cost(self, item: WorkingItem) -> int:
        """Bytes that an item takes here, its row included."""
        return _item_bytes(item) + _row_bytes(self.dimension)

    def add(self, item: WorkingItem) -> bool:
        """Hold `item` as the newest; False, and no change, if its id is here already.

        Raises:
            InvalidInput: see `validate_item`.
        """
        vector = self.validate_item(item)
        if item.id in self._ids:
            return False
        rows = self._ensure_room()
        # Sources and scopes are few, and repeat: each is held once.
        source, scope = rows.number(item.source), rows.number(item.scope)
        light = WorkingItem(
            item.id, item.text, rows.names[source], rows.names[scope], item.at_us, item.tokens, b""
        )
        row = self._start + len(self._items)
        rows.vectors[row] = vector
        rows.scopes[row] = scope
        rows.sizes[row] = _item_bytes(light)
        self._items.append(light)
        self._ids.add(item.id)
        return True

    def search(
        self, vector: npt.NDArray[np.float32], k: int = 5, scope: str | None = None
    ) -> list[tuple[WorkingItem, float]]:
        """The `k` items nearest to a unit vector, best first, each with its inner product.

        Of equals the older.

        Args:
            vector: shape (dimension,). Zeros find nothing: they are equally near to everything.
            k: how many at most.
            scope: only what that session may see: its own items and those of no session. None for
                all of the user's.

        Raises:
            InvalidInput: the vector has another shape, or holds what is no number.
        """
        import numpy as np  # noqa: PLC0415

        query = np.asarray(vector, dtype=np.float32)
        if query.shape != (self.dimension,) or not np.isfinite(query).all():
            raise InvalidInput(
                f"working memory is searched with {self.dimension} finite numbers, not with shape "
                f"{query.shape}"
            )
        rows, n = self._rows, len(self)
        if rows is None or k < 1 or not query.any():
            return []
        near = rows.vectors[self._start : self._start + n] @ query
        if scope is None:
            places = np.arange(n)
        else:
            visible = [rows.numbers[one] for one in {scope, ""} if one in rows.numbers]
            places = np.flatnonzero(np.isin(rows.scopes[self._start : self._start + n], visible))
        if len(places) > k:
            found = near[places]
            places = places[found >= np.partition(found, -k)[-k] - _TIE]
        # A product's last bits depend on where a row lies; summed one way for all, equal vectors
        # are equally near.
        exact = (rows.vectors[self._start + places] * query.astype(np.float64)).sum(axis=1)
        best = np.argsort(-exact, kind="stable")[:k]
        return [
            (self._with_vector(self._items[places[i]], int(places[i])), float(exact[i]))
            for i in best
        ]

    def evict(self, max_bytes: int) -> list[WorkingItem]:
        """Remove the oldest items until `size_bytes` is at most `max_bytes`, or none is left.

        Returns them, oldest first.

        Free rows of the matrix are given back before an item goes. That moves all rows, and the
        next addition moves them again: for periodic cleanup, not for every addition.
        """
        if self._rows is None or self.size_bytes <= max_bytes:
            return []
        leaving = self.excess(max_bytes)
        evicted = [
            self._with_vector(item, i)
            for i, item in enumerate(itertools.islice(self._items, len(leaving)))
        ]
        self.discard(leaving)
        if self.size_bytes > max_bytes:
            self.shrink_to_fit()
        return evicted

    def excess(self, max_bytes: int, arriving: Sequence[WorkingItem] = ()) -> list[str]:
        """Ids of the oldest items that must leave so that the others' `content_bytes` are at most
        `max_bytes`.

        Args:
            max_bytes: the limit.
            arriving: items that will be added first; where the limit is too small for them, the
                oldest of these leave as well.
        """
        import numpy as np  # noqa: PLC0415

        held = (
            np.empty(0, np.int64)
            if self._rows is None
            else self._rows.sizes[self._start : self._start + len(self)]
        )
        costs = np.concatenate(
            [held, np.fromiter(map(_item_bytes, arriving), np.int64)]
        ) + _row_bytes(self.dimension)
        total = int(costs.sum())
        if total <= max_bytes:
            return []
        count = min(int((total - np.cumsum(costs) > max_bytes).sum()) + 1, len(costs))
        return [item.id for item in itertools.islice(itertools.chain(self._items, arriving), count)]

    def shrink_to_fit(self) -> None:
        """Give back the free rows of the matrix; the next addition makes room anew."""
        if self._rows is not None and len(self) < len(self._rows.sizes):
            self._resize(len(self))

    def remove(self, ids: Collection[str]) -> list[WorkingItem]:
        """Remove the items of these ids, wherever they are.

        Returns those that were here, oldest first.
        """
        gone = self._ids.intersection(ids)
        if not gone or self._rows is None:
            return []
        removed = [
            self._with_vector(item, i) for i, item in enumerate(self._items) if item.id in gone
        ]
        self.discard(gone)
        return removed

    def discard(self, ids: Collection[str]) -> int:
        """Remove the items of these ids, wherever they are; returns how many were here.

        Of the oldest, nothing has to move.
        """
        gone = self._ids.intersection(ids)
        if not gone or self._rows is None:
            return 0
        if all(item.id in gone for item in itertools.islice(self._items, len(gone))):
            for _ in gone:
                self._items.popleft()
            self._start += len(gone)
        else:
            stay = [self._start + i for i, item in enumerate(self._items) if item.id not in gone]
            self._items = deque(item for item in self._items if item.id not in gone)
            self._rows.keep(stay)
            self._start = 0
        self._ids -= gone
        self._shrink_rows()
        return len(gone)

    def _with_vector(self, item: WorkingItem, index: int) -> WorkingItem:
        """The item at `index`, with its vector."""
        assert self._rows is not None
        vector = self._rows.vectors[self._start + index].astype("<f4", copy=False).tobytes()
        return msgspec.structs.replace(item, vector=vector)

    def _ensure_room(self) -> _Rows:
        """The rows, with one free behind the newest."""
        if self._rows is None:
            self._rows = _Rows(self.dimension, _FIRST_ROWS)
        n, capacity = len(self), len(self._rows.sizes)
        if self._start + n == capacity:
            self._resize(
                capacity if self._start > capacity // 2 else max(2 * capacity, _FIRST_ROWS)
            )
        elif len(self._rows.names) > 4 * capacity:
            self._resize(capacity)  # to forget names that came and went
        return self._rows

    def _shrink_rows(self) -> None:
        if self._rows is not None and (not self._items or len(self) < len(self._rows.sizes) // 4):
            self._resize(2 * len(self))

    def _resize(self, capacity: int) -> None:
        """The live rows at the front of a matrix of `capacity` rows.

        None at all when nothing is held.
        """
        old = self._rows
        assert old is not None
        self._rows = _Rows(self.dimension, capacity) if capacity else None
        if self._rows is not None:
            self._rows.take(old, self._start, self._items)
        self._ids = set(self._ids)  # a set from which much was taken never shrinks
        self._start = 0


def _item_bytes(item: WorkingItem) -> int:
    """Bytes of an item beside its row; its vector, which is in the row, is not counted."""
    return (
        sys.getsizeof(item) + sys.getsizeof(item.id) + sys.getsizeof(item.text) + _NUMBERS + _SLOTS
    )


def _row_bytes(dimension: int) -> int:
    """Bytes of a row: a vector, a scope and a size."""
    return 4 * dimension + 4 + 8


class _Rows:
    """Columns of `capacity` rows: the vectors, each row's scope as a number, and what its item
    takes beside its row.
    """

    def __init__(self, dimension: int, capacity: int) -> None:
        import numpy as np  # noqa: PLC0415

        self.vectors = np.empty((capacity, dimension), dtype=np.float32)
        self.scopes = np.empty(capacity, dtype=np.int32)
        self.sizes = np.empty(capacity, dtype=np.int64)
        # Sources and scopes seen since the matrix was made.
        self.names: list[str] = []
        self.numbers: dict[str, int] = {}
        self.row_bytes = _row_bytes(dimension)

    @property
    def nbytes(self) -> int:
        return len(self.sizes) * self.row_bytes

    def number(self, name: str) -> int:
        number = self.numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number

    def take(self, other: _Rows, start: int, items: Collection[WorkingItem]) -> None:
        """Copy the rows of `items`, which lie from `start` in `other`."""
        n = len(items)
        self.vectors[:n] = other.vectors[start : start + n]
        self.sizes[:n] = other.sizes[start : start + n]
        for item in items:
            self.number(item.source)
        self.scopes[:n] = [self.number(item.scope) for item in items]

    def keep(self, places: list[int]) -> None:
        for column in (self.vectors, self.scopes, self.sizes):
            column[: len(places)] = column[places]


class _Items(Sequence[WorkingItem]):
    """The items of a memory, each made whole when it is looked at."""

    def __init__(
        self, items: Sequence[WorkingItem], whole: Callable[[WorkingItem, int], WorkingItem]
    ) -> None:
        self._items = items
        self._with_vector = whole

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[WorkingItem]:
        return (self._with_vector(item, i) for i, item in enumerate(self._items))

    @overload
    def __getitem__(self, index: int) -> WorkingItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[WorkingItem]: ...
    def __getitem__(self, index: int | slice) -> WorkingItem | Sequence[WorkingItem]:
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self._with_vector(self._items[i], i) for i in places]
        return self._with_vector(self._items[places], places)
