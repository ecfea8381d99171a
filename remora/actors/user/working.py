"""Working memory: what one user's agents have just seen; the oldest item is evicted first.

Vectors are the rows ``start … start + n`` of one float32 matrix, oldest first. A search is one
product with all of them. An eviction moves `start` on; an addition to a full matrix reuses the
rows before `start`, or else doubles the matrix: both cost amortised constant time. Items are kept
without their vectors, and get them back in results.

Plain data: no lock, no clock, no I/O. It belongs to one actor.
"""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from remora.errors import InvalidInput

if TYPE_CHECKING:  # loaded when the first item comes
    import numpy as np
    import numpy.typing as npt

__all__ = ["WorkingItem", "WorkingMemory", "pack_vector", "unpack_vector"]

_FIRST_ROWS = 8
_SLOTS = 8 + 64  # bytes of an item in a deque and, about, in a set (27 to 107)
_NUMBERS = 64  # bytes of an item's two integers
_LENGTH_TOLERANCE = 1e-3
_TIE = 1e-5  # a float32 product's error is below this


class WorkingItem(msgspec.Struct, frozen=True, gc=False):
    """One item of working memory: a tool's output, something that the user said.

    Attributes:
        id: names it within its user's working memory.
        text: what is to be found.
        source: where it came from, for instance ``"tool:search"``.
        scope: the session that it belongs to, or the empty string for all of the user's.
        at_us: when it came, in microseconds since the epoch.
        tokens: size of the text in a context.
        vector: embedding of the text, float32 little endian, of unit length or all zeros.
    """

    id: str
    text: str
    source: str
    scope: str
    at_us: int
    tokens: int
    vector: bytes


def pack_vector(vector: npt.NDArray[np.float32]) -> bytes:
    """A vector as items and messages hold it: float32, little endian."""
    return vector.astype("<f4", copy=False).tobytes()


def unpack_vector(vector: bytes) -> npt.NDArray[np.float32]:
    """The inverse of `pack_vector`; the array is read-only.

    Raises:
        InvalidInput: it ends within a number.
    """
    import numpy as np  # noqa: PLC0415

    if len(vector) % 4:
        raise InvalidInput(f"a vector of float32 numbers cannot have {len(vector)} bytes")
    return np.frombuffer(vector, dtype="<f4")


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
    def items(self) -> list[WorkingItem]:
        """The items, oldest first, with their vectors."""
        return [self._with_vector(item, i) for i, item in enumerate(self._items)]

    @property
    def size_bytes(self) -> int:
        """Bytes held, with the free rows of the matrix; within 20 % of Python's allocator."""
        if self._rows is None:
            return 0
        return self._rows.nbytes + int(self._sizes(self._rows).sum())

    @property
    def content_bytes(self) -> int:
        """`size_bytes` without the free rows: a function of the items."""
        if self._rows is None:
            return 0
        return len(self) * self._rows.row_bytes + int(self._sizes(self._rows).sum())

    def __contains__(self, id_: object) -> bool:
        return id_ in self._ids

    def validate_items(self, items: Sequence[WorkingItem]) -> None:
        """Check that items may be added.

        Raises:
            InvalidInput: one has a vector of another dimension, or one that is neither of unit
                length nor all zeros.
        """
        import numpy as np  # noqa: PLC0415

        for item in items:
            if len(item.vector) != 4 * self.dimension:
                raise InvalidInput(
                    f"item {item.id!r} has a vector of {len(item.vector) / 4:g} numbers, not "
                    f"{self.dimension}"
                )
        if not items:
            return
        # All at once, for a call may bring a thousand.
        vectors = np.frombuffer(b"".join([item.vector for item in items]), dtype="<f4")
        rows = vectors.reshape(len(items), self.dimension)
        with np.errstate(all="ignore"):  # of an import it may be anything
            lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        wrong = ~((lengths == 0) | (np.abs(lengths - 1) <= _LENGTH_TOLERANCE))
        if wrong.any():
            place = int(wrong.argmax())
            raise InvalidInput(
                f"item {items[place].id!r} has a vector of length {lengths[place]:g}, not 1"
            )

    def cost(self, item: WorkingItem) -> int:
        """Bytes that an item takes, with its row."""
        return _item_bytes(item) + _row_bytes(self.dimension)

    def add(self, item: WorkingItem) -> bool:
        """Add `item` as the newest; returns False and changes nothing if its id is present.

        Raises:
            InvalidInput: see `validate_items`.
        """
        self.validate_items([item])
        return self.restore(item)

    def restore(self, item: WorkingItem) -> bool:
        """`add` an item that was validated before."""
        import numpy as np  # noqa: PLC0415

        if item.id in self._ids:
            return False
        rows = self._ensure_room()
        # Few different sources and scopes: each is held once.
        source, scope = rows.number(item.source), rows.number(item.scope)
        light = WorkingItem(
            item.id, item.text, rows.names[source], rows.names[scope], item.at_us, item.tokens, b""
        )
        row = self._start + len(self._items)
        rows.vectors[row] = np.frombuffer(item.vector, dtype="<f4")
        rows.scopes[row] = scope
        rows.sizes[row] = _item_bytes(light)
        self._items.append(light)
        self._ids.add(item.id)
        return True

    def search(
        self, vector: npt.NDArray[np.float32], k: int = 5, scope: str | None = None
    ) -> list[tuple[WorkingItem, float]]:
        """The `k` items nearest to a unit vector, with their inner products, best first.

        Of equals, the older item comes first.

        Args:
            vector: shape (dimension,). Zeros find nothing.
            k: how many at most.
            scope: a session: only its items and those of no session. None for all of the user's.

        Raises:
            InvalidInput: the vector has another shape, or a number that is not finite.
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
        # The last bits of a product depend on the row's place; summed in one way for all rows,
        # equal vectors get equal scores.
        exact = (rows.vectors[self._start + places] * query.astype(np.float64)).sum(axis=1)
        best = np.argsort(-exact, kind="stable")[:k]
        return [
            (self._with_vector(self._items[places[i]], int(places[i])), float(exact[i]))
            for i in best
        ]

    def excess(self, max_bytes: int, arriving: Sequence[WorkingItem] = ()) -> list[str]:
        """Ids of the oldest items to remove so that `content_bytes` is at most `max_bytes`.

        Args:
            max_bytes: the limit.
            arriving: items that will be added first, and may have to go as well.
        """
        import numpy as np  # noqa: PLC0415

        held = np.empty(0, np.int64) if self._rows is None else self._sizes(self._rows)
        new = np.fromiter(map(_item_bytes, arriving), np.int64)
        costs = np.concatenate([held, new]) + _row_bytes(self.dimension)
        total = int(costs.sum())
        if total <= max_bytes:
            return []
        count = min(int((total - np.cumsum(costs) > max_bytes).sum()) + 1, len(costs))
        return [item.id for item in itertools.islice(itertools.chain(self._items, arriving), count)]

    def shrink_to_fit(self) -> None:
        """Free the unused rows of the matrix; the next addition makes room again."""
        if self._rows is not None and len(self) < len(self._rows.sizes):
            self._resize(len(self))

    def discard(self, ids: Collection[str]) -> int:
        """Remove the items of these ids; returns how many there were.

        Removing the oldest moves no row.
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

    def _sizes(self, rows: _Rows) -> npt.NDArray[np.int64]:
        """What the items take, without their rows."""
        return rows.sizes[self._start : self._start + len(self)]

    def _with_vector(self, item: WorkingItem, index: int) -> WorkingItem:
        """The item at `index`, with its vector."""
        assert self._rows is not None
        vector = self._rows.vectors[self._start + index]
        return msgspec.structs.replace(item, vector=pack_vector(vector))

    def _ensure_room(self) -> _Rows:
        """The rows, with one free behind the newest."""
        if self._rows is None:
            self._rows = _Rows(self.dimension, _FIRST_ROWS)
        n, capacity = len(self), len(self._rows.sizes)
        if self._start + n == capacity:
            doubled = max(2 * capacity, _FIRST_ROWS)
            self._resize(capacity if self._start > capacity // 2 else doubled)
        elif len(self._rows.names) > 4 * capacity:
            self._resize(capacity)  # to drop names that are not used any longer
        return self._rows

    def _shrink_rows(self) -> None:
        if self._rows is not None and (not self._items or len(self) < len(self._rows.sizes) // 4):
            self._resize(2 * len(self))

    def _resize(self, capacity: int) -> None:
        """Move the live rows to the front of a matrix of `capacity` rows; 0 for no matrix."""
        old = self._rows
        assert old is not None
        self._rows = _Rows(self.dimension, capacity) if capacity else None
        if self._rows is not None:
            self._rows.take(old, self._start, self._items)
        self._ids = set(self._ids)  # a set never shrinks by itself
        self._start = 0


def _item_bytes(item: WorkingItem) -> int:
    """Bytes of an item without its row."""
    objects = sys.getsizeof(item) + sys.getsizeof(item.id) + sys.getsizeof(item.text)
    return objects + _NUMBERS + _SLOTS


def _row_bytes(dimension: int) -> int:
    """Bytes of a row: a vector, a scope and a size."""
    return 4 * dimension + 4 + 8


class _Rows:
    """Columns of `capacity` rows: vectors, scopes as numbers, and the sizes of the items."""

    def __init__(self, dimension: int, capacity: int) -> None:
        import numpy as np  # noqa: PLC0415

        self.vectors = np.empty((capacity, dimension), dtype=np.float32)
        self.scopes = np.empty(capacity, dtype=np.int32)
        self.sizes = np.empty(capacity, dtype=np.int64)
        self.names: list[str] = []
        """Sources and scopes; their places are their numbers."""
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
