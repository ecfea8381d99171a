"""The rows of one transaction, as the function `remora.commit` takes them."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import msgspec

from remora.storage.rows import HALF, ROLE_CODES, SEQ_BITS, SHARES, RecordRows, RowKind

__all__ = ["Rows"]

_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
_COLUMNS = 11
_TEXTS: dict[RowKind, tuple[int, ...]] = {
    "prune_entry": (2,),
    "insert_front": (6, 7, 10),
    "retry_job": (2,),
    "dead_letter_job": (1,),
    "drop_state_item": (2,),
    "put_state_item": (2,),
    "insert_memory": (3, 4, 5),
    "put_memory": (3, 4, 5),
}
"""Columns of text that go as bytes."""
_UPDATED_BY: dict[RowKind, int] = {
    "change_message": 5,
    "advance_job": 2,
    "retry_job": 3,
    "dead_letter_job": 2,
}
"""Column of the id where the last of several rows counts: an UPDATE takes any of them."""


class Rows(RecordRows):
    """The rows of one transaction, as PostgreSQL takes them."""

    __slots__ = ()

    def _append(self, sid: int, entries: tuple[Any, ...], key: bytes | None) -> None:
        base = sid << SEQ_BITS
        digest = key
        keyed = len(entries) if key is not None else None
        for e in entries:
            pos, role, meta = base | e.seq, ROLE_CODES[e.role], e.meta or None
            at_us, tokens, chat, id_, importance = e.at_us, e.tokens, e.chat, e.id, e.importance
            share = HALF if importance == 0.5 else int(importance * SHARES)
            crc = crc32(_encode((pos, at_us, tokens, role, chat, meta, id_, share, digest, keyed)))
            self._messages.append(
                (pos, at_us, tokens, role, chat, meta, id_, digest, keyed, importance, crc)
            )
            digest = keyed = None  # the key stands on the first message alone

    @property
    def arguments(self) -> list[Any]:
        """Return what the function takes after epoch and number; empty without any row."""
        kinds, rows = [], []
        for kind, found in self.others():
            kinds.append(kind)
            rows.append(_encode_json(_plain(kind, found)).decode())
        if not kinds and not self._messages:
            return []
        columns = [list(one) for one in zip(*self._messages, strict=True)]
        return [*(columns or [[] for _ in range(_COLUMNS)]), kinds, rows]


def _plain(kind: RowKind, rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows without bytes, each place once where one row must win."""
    texts = _TEXTS.get(kind, ())
    if kind in _UPDATED_BY:
        rows = list({row[_UPDATED_BY[kind]]: row for row in rows}.values())
    elif kind == "remove_message":
        rows = list({row[1]: row for row in reversed(rows)}.values())  # the first removal counts
    return [
        [
            value.hex()
            if isinstance(value, bytes)
            else value.encode().hex()
            if place in texts
            else value
            for place, value in enumerate(row)
        ]
        for row in rows
    ]
