"""Working memory: what one user's agents have just seen; the oldest item is evicted first.

Items are in blocks of at most 8 MB or 8,192 items, oldest first. The vectors of a block are the
rows ``start … start + n`` of a float32 matrix; a search is one product with each. An eviction drops
the oldest blocks, and moves the `start` of the next one on. An addition to a full block doubles it,
or begins another one. So an addition or an eviction copies two blocks at most, however large the
limit is. Items are kept without their vectors, and get them back in results.

Plain data: no lock, no clock, no I/O. It belongs to one actor.
"""

from __future__ import annotations

import itertools
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from remora.errors import InvalidInput

if TYPE_CHECKING:  # loaded when the first item comes
    import numpy as np
    import numpy.typing as npt

_FIRST_ROWS = 8
_BLOCK_ROWS = 8_192
# NumPy asks for huge pages then; in blocks of 1 MB a search takes a third more.
_BLOCK_BYTES = 8 << 20
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
        block_rows: items of a block at most; None for as many as a block's size allows.

    Raises:
        InvalidInput: `dimension` is less than 1.
    """

    def __init__(self, dimension: int, *, block_rows: int | None = None) -> None:
        if dimension < 1:
            raise InvalidInput(
                f"working memory needs vectors of at least 1 number, not {dimension}"
            )
        self.dimension = dimension
        fitting = max(_BLOCK_BYTES // (4 * dimension), _FIRST_ROWS)
        self._block_rows = block_rows or min(fitting, _BLOCK_ROWS)
        self._blocks: list[_Block] = []
        """Oldest first; none of them is empty."""
        self._ids: set[str] = set()

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def items(self) -> list[WorkingItem]:
        """The items, oldest first, with their vectors."""
        return [block.item(place) for block in self._blocks for place in range(len(block))]

    @property
    def size_bytes(self) -> int:
        """Bytes held, with the free rows; within 20 % of Python's allocator."""
        free = sum(block.capacity - len(block) for block in self._blocks)
        return self.content_bytes + free * _row_bytes(self.dimension)

    @property
    def content_bytes(self) -> int:
        """`size_bytes` without the free rows: a function of the items."""
        sizes = sum(int(block.sizes.sum()) for block in self._blocks)
        return len(self) * _row_bytes(self.dimension) + sizes

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
        if item.id in self._ids:
            return False
        self._ensure_room().append(item)
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
        blocks = self._blocks
        if not blocks or k < 1 or not query.any():
            return []
        near = _concatenate([block.vectors @ query for block in blocks])
        if scope is None:
            places = np.arange(len(near))
        else:
            places = np.flatnonzero(_concatenate([block.visible(scope) for block in blocks]))
            near = near[places]
        if len(places) > k:
            places = places[near >= np.partition(near, -k)[-k] - _TIE]
        ends = list(itertools.accumulate(map(len, blocks)))
        # The last bits of a product depend on the row's place; summed in one way for all rows,
        # equal vectors get equal scores.
        exact = (self._vectors_at(places, ends) * query.astype(np.float64)).sum(axis=1)
        best = np.argsort(-exact, kind="stable")[:k]
        return [(self._item_at(int(places[i]), ends), float(exact[i])) for i in best]

    def excess(
        self, max_bytes: int, arriving: Sequence[WorkingItem] = (), *, most: int | None = None
    ) -> list[str]:
        """Ids of the oldest items to remove so that `content_bytes` is at most `max_bytes`.

        Args:
            max_bytes: the limit.
            arriving: items that will be added first, and may have to go as well.
            most: the oldest so many of them; None for all.
        """
        import numpy as np  # noqa: PLC0415

        new = np.fromiter(map(_item_bytes, arriving), np.int64)
        costs = np.concatenate([*(block.sizes for block in self._blocks), new])
        costs += _row_bytes(self.dimension)
        total = int(costs.sum())
        if total <= max_bytes:
            return []
        count = min(int((total - np.cumsum(costs) > max_bytes).sum()) + 1, len(costs))
        count = count if most is None else min(count, most)
        held = itertools.chain.from_iterable(block.items for block in self._blocks)
        return [item.id for item in itertools.islice(itertools.chain(held, arriving), count)]

    def shrink_to_fit(self) -> None:
        """Free what is not used; the next addition makes room again."""
        for place, block in enumerate(self._blocks):
            if len(block) < block.capacity:
                self._blocks[place] = _Block(self.dimension, len(block), [block])
        self._ids = set(self._ids)  # a set never shrinks by itself

    def discard(self, ids: Collection[str]) -> int:
        """Remove the items of these ids; returns how many there were.

        Removing the oldest moves no row.
        """
        gone = self._ids.intersection(ids)
        left = len(gone)
        for block in self._blocks:
            if not left:
                break
            left -= block.discard(gone)
        if gone:
            self._ids -= gone
            if len(self._ids) < len(gone):
                self._ids = set(self._ids)  # see `shrink_to_fit`
            self._join_blocks()
        return len(gone)

    def _vectors_at(
        self, places: npt.NDArray[np.intp], ends: Sequence[int]
    ) -> npt.NDArray[np.float32]:
        """The vectors of these items, which ascend; `ends` is where each block ends."""
        if len(ends) == 1:
            return self._blocks[0].vectors[places]
        bounds = [0, *places.searchsorted(ends).tolist()]
        parts = zip(self._blocks, [0, *ends], itertools.pairwise(bounds), strict=False)
        return _concatenate(
            [block.vectors[places[first:last] - start] for block, start, (first, last) in parts]
        )

    def _item_at(self, place: int, ends: Sequence[int]) -> WorkingItem:
        number = bisect_right(ends, place)
        return self._blocks[number].item(place - (ends[number - 1] if number else 0))

    def _ensure_room(self) -> _Block:
        """The last block, with a free row."""
        last = self._blocks[-1] if self._blocks else None
        if last is None or (not last.free_rows and len(last) > self._block_rows // 2):
            self._blocks.append(_Block(self.dimension, _FIRST_ROWS))
        elif not last.free_rows or last.has_old_names:
            capacity = last.capacity if last.free_rows else 2 * len(last)
            self._blocks[-1] = _Block(self.dimension, capacity, [last])
        return self._blocks[-1]

    def _join_blocks(self) -> None:
        """Drop the blocks that are empty now, join neighbours that are small, and free rows."""
        joined: list[_Block] = []
        for block in filter(len, self._blocks):
            if joined and len(joined[-1]) + len(block) <= self._block_rows // 2:
                pair = [joined[-1], block]
                joined[-1] = _Block(self.dimension, sum(map(len, pair)), pair)
            elif len(block) < block.capacity // 4:
                joined.append(_Block(self.dimension, 2 * len(block), [block]))
            else:
                joined.append(block)
        self._blocks = joined


def _concatenate(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    import numpy as np  # noqa: PLC0415

    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _item_bytes(item: WorkingItem) -> int:
    """Bytes of an item without its row."""
    objects = sys.getsizeof(item) + sys.getsizeof(item.id) + sys.getsizeof(item.text)
    return objects + _NUMBERS + _SLOTS


def _row_bytes(dimension: int) -> int:
    """Bytes of a row: a vector, a scope and a size."""
    return 4 * dimension + 4 + 8


class _Block:
    """Some items, oldest first, with columns: vectors, scopes as numbers, and sizes.

    Args:
        dimension: length of the vectors.
        capacity: rows that it has.
        blocks: whose items it takes, with their rows; names that they do not use are left behind.
    """

    def __init__(self, dimension: int, capacity: int, blocks: Sequence[_Block] = ()) -> None:
        import numpy as np  # noqa: PLC0415

        self.items: deque[WorkingItem] = deque()
        self.capacity = capacity
        self._start = 0
        self._vectors = np.empty((capacity, dimension), dtype=np.float32)
        self._scopes = np.empty(capacity, dtype=np.int32)
        self._sizes = np.empty(capacity, dtype=np.int64)
        self._names: list[str] = []
        """Sources and scopes; their places are their numbers."""
        self._numbers: dict[str, int] = {}
        for block in blocks:
            self._take(block)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def vectors(self) -> npt.NDArray[np.float32]:
        """Shape (items, dimension)."""
        return self._vectors[self._live]

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Return what the items take, without their rows."""
        return self._sizes[self._live]

    @property
    def free_rows(self) -> int:
        """Rows behind the newest item."""
        return self.capacity - self._start - len(self.items)

    @property
    def has_old_names(self) -> bool:
        """Return whether most of the names that it holds are not used any longer."""
        return len(self._names) > 4 * self.capacity

    def item(self, place: int) -> WorkingItem:
        """The item at this place, with its vector."""
        vector = self._vectors[self._start + place]
        return msgspec.structs.replace(self.items[place], vector=pack_vector(vector))

    def visible(self, scope: str) -> npt.NDArray[np.bool_]:
        """Return whether each item is of this session, or of none."""
        scopes = self._scopes[self._live]
        own: npt.NDArray[np.bool_] = scopes == self._numbers.get(scope, -1)
        own |= scopes == self._numbers.get("", -1)
        return own

    def append(self, item: WorkingItem) -> None:
        """Add an item; there is a free row."""
        import numpy as np  # noqa: PLC0415

        # Few different sources and scopes: each is held once.
        source, scope = self._number(item.source), self._number(item.scope)
        names = self._names
        light = WorkingItem(
            item.id, item.text, names[source], names[scope], item.at_us, item.tokens, b""
        )
        row = self._start + len(self.items)
        self._vectors[row] = np.frombuffer(item.vector, dtype="<f4")
        self._scopes[row] = scope
        self._sizes[row] = _item_bytes(light)
        self.items.append(light)

    def discard(self, ids: Collection[str]) -> int:
        """Remove the items of these ids; returns how many there were."""
        stay = [place for place, item in enumerate(self.items) if item.id not in ids]
        count = len(self.items) - len(stay)
        if stay and stay[0] == count:  # the oldest go
            for _ in range(count):
                self.items.popleft()
            self._start += count
        elif count:
            rows = [self._start + place for place in stay]
            for column in (self._vectors, self._scopes, self._sizes):
                column[: len(rows)] = column[rows]
            self.items = deque(item for item in self.items if item.id not in ids)
            self._start = 0
        return count

    @property
    def _live(self) -> slice:
        return slice(self._start, self._start + len(self.items))

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._names))
        if number == len(self._names):
            self._names.append(name)
        return number

    def _take(self, other: _Block) -> None:
        """Add the items of another block, with their rows."""
        rows = slice(len(self.items), len(self.items) + len(other.items))
        self._vectors[rows] = other.vectors
        self._sizes[rows] = other.sizes
        for item in other.items:
            self._number(item.source)
        self._scopes[rows] = [self._number(item.scope) for item in other.items]
        self.items.extend(other.items)
