"""Both stores in this process: for tests, for data that need not last, as an example.

`MemoryStore` is long-term memory. The journal is `remora.storage.sqlite.memory`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel
import msgspec

from remora.errors import LongTermError
from remora.faces import publish
from remora.ids import session_key as session_digest
from remora.ids import user_key as user_digest
from remora.runtime.probes import probe
from remora.storage.ports import (
    BLOCK_TYPE,
    EVERYTHING,
    Candidate,
    Finding,
    LongTermStatistics,
    MemoryRow,
    RowOrder,
    Scope,
    Vector,
)
from remora.storage.sqlite.memory import MemoryJournal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["MemoryJournal", "MemoryStore"]

_WORD = re.compile(r"\w+")
_SATURATION, _LENGTH = 1.2, 0.75  # BM25's own


class _Kept(msgspec.Struct, frozen=True):
    """A row with what it is searched by."""

    row: MemoryRow
    vector: npt.NDArray[np.float32] | None
    words: Mapping[str, Counter[str]]


class MemoryStore:
    """Implements `remora.storage.ports.LongTermStore`.

    Nothing survives it, and each search looks at all of a user's rows.

    Args:
        dimension: of the vectors; None for rows without.
    """

    def __init__(self, dimension: int | None) -> None:
        self._dimension = dimension
        self._users: dict[str, dict[str, _Kept]] = {}
        self._commits = self._merges = 0

    async def add(
        self, rows: Sequence[MemoryRow], vectors: Vector | None, *, may_exist: bool
    ) -> None:
        """Store rows; one whose id is there already stays as it is."""
        await anyio.lowlevel.checkpoint()
        if not rows:
            return
        if (vectors is None) != (self._dimension is None):
            raise LongTermError(
                "these rows and this store disagree on whether there are vectors", retryable=False
            )
        if vectors is not None and vectors.shape != (len(rows), self._dimension):
            raise LongTermError(
                f"vectors of shape {vectors.shape} do not fit; nothing was stored", retryable=False
            )
        for row in rows:
            if not (isinstance(row.user, str) and row.user and isinstance(row.content, str)):
                raise LongTermError(
                    f"the row {row.id} has no user or no content; nothing was stored",
                    retryable=False,
                )
        for place, row in enumerate(rows):
            words = {
                name: Counter(_WORD.findall(getattr(row, name).casefold()))
                for name in ("turn", "window")
            }
            kept = _Kept(row, None if vectors is None else vectors[place].copy(), words)
            if row.id in self._users.get(row.user, ()):
                probe("row_exists")
            self._users.setdefault(row.user, {}).setdefault(row.id, kept)
        self._commits += 1
        self._merges += may_exist

    async def search(
        self, user: str, text: str, vector: Vector | None, *, depth: int, scope: Scope = EVERYTHING
    ) -> Sequence[Candidate]:
        await anyio.lowlevel.checkpoint()
        mine = self._within(user, scope)
        lists = {name: _matches(mine, name, text) for name in ("turn", "window")}
        if vector is not None:
            lists["vector"] = {
                one.row.id: float(one.vector @ vector) for one in mine if one.vector is not None
            }
        scores: dict[str, dict[str, float]] = {}
        for name, found in lists.items():
            for id_ in sorted(found, key=lambda one: -found[one])[:depth]:
                scores.setdefault(id_, {})[name] = found[id_]
        return [Candidate(one.row, scores[one.row.id]) for one in mine if one.row.id in scores]

    async def rows(
        self,
        user: str,
        scope: Scope = EVERYTHING,
        *,
        limit: int | None = None,
        by: RowOrder = "created",
    ) -> Sequence[MemoryRow]:
        await anyio.lowlevel.checkpoint()
        rows = [one.row for one in self._within(user, scope)]
        rows.sort(key=lambda row: (row.created_us, row.session, row.seq))
        if by == "importance":
            rows.sort(key=lambda row: -row.importance)
        if limit is None:
            return rows
        return [row for row in rows if row.memory_type != BLOCK_TYPE][:limit]

    async def count(self, user: str) -> int:
        return sum(row.memory_type != BLOCK_TYPE for row in await self.rows(user))

    async def embedded_rows(
        self, user: str, scope: Scope = EVERYTHING
    ) -> tuple[Sequence[MemoryRow], Vector | None]:
        rows = await self.rows(user, scope)
        if self._dimension is None:
            return rows, None
        import numpy as np  # noqa: PLC0415

        kept = self._users.get(user, {})
        vectors = [kept[row.id].vector for row in rows]
        return rows, np.array(vectors, np.float32).reshape(len(rows), self._dimension)

    async def delete(self, user: str, ids: Sequence[str]) -> int:
        await anyio.lowlevel.checkpoint()
        mine = self._users.get(user, {})
        return sum(mine.pop(id_, None) is not None for id_ in ids)

    async def remove(self, user_key: str, session_key: str = "") -> int:
        return await self.erase(user_key, session_key)

    async def erase(self, user_key: str, session_key: str = "") -> int:
        await anyio.lowlevel.checkpoint()
        removed = 0
        for user in [one for one in self._users if user_digest(one) == user_key]:
            mine = self._users[user]
            gone = [
                id_
                for id_, one in mine.items()
                if not session_key or session_digest(user, one.row.session) == session_key
            ]
            for id_ in gone:
                del mine[id_]
            if not mine:
                del self._users[user]
            removed += len(gone)
        return removed

    async def verify(self, *, deep: bool = False) -> Sequence[Finding]:  # noqa: ARG002
        await anyio.lowlevel.checkpoint()
        return ()

    async def compact(self) -> int:
        await anyio.lowlevel.checkpoint()
        return 0

    async def statistics(self) -> LongTermStatistics:
        await anyio.lowlevel.checkpoint()
        return LongTermStatistics(
            sum(map(len, self._users.values())), self._commits, self._merges, 0, 0
        )

    async def row_ids(self) -> Sequence[str]:
        await anyio.lowlevel.checkpoint()
        return [id_ for mine in self._users.values() for id_ in mine]

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()

    def _within(self, user: str, scope: Scope) -> list[_Kept]:
        return [
            one
            for one in self._users.get(user, {}).values()
            if (scope.session is None or one.row.session == scope.session)
            and (scope.agent is None or one.row.agent == scope.agent)
            and (not scope.types or one.row.memory_type in scope.types)
            and (scope.ids is None or one.row.id in scope.ids)
        ]


def _matches(rows: Sequence[_Kept], name: str, text: str) -> dict[str, float]:
    """BM25 of the rows that hold a word of `text`."""
    wanted = set(_WORD.findall(text.casefold()))
    texts = {one.row.id: one.words[name] for one in rows}
    mean = sum(words.total() for words in texts.values()) / len(texts) if texts else 0.0
    scores: dict[str, float] = {}
    for word in wanted:
        holding = {id_: words[word] for id_, words in texts.items() if word in words}
        rarity = math.log(1 + (len(texts) - len(holding) + 0.5) / (len(holding) + 0.5))
        for id_, count in holding.items():
            length = _SATURATION * (1 - _LENGTH + _LENGTH * texts[id_].total() / mean)
            scores[id_] = scores.get(id_, 0.0) + rarity * count * (_SATURATION + 1) / (
                count + length
            )
    return scores


publish(__name__, __all__, globals())
