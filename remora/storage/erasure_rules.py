"""Which state items of a user are erased with one of their sessions (G13).

This is the only place where storage reads the values of state items.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from remora.ids import SessionKey, row_id

ERASED_TABLES = ("actors", "messages", "folds", "facets", "memories", "jobs")
"""Whose removed rows are counted (`Erased.removed`)."""

SYNOPSIS_KIND, WORKING_KIND, ACCESS_KIND = ERASED_KINDS = ("synopsis", "working", "access")
"""Kinds of state items, some of which are erased; `remora.actors.user.state` has them all."""

ERROR_REMOVED = "(removed with the session that it told of)"
"""Replaces the text of a failure, which may quote messages."""


class _Scoped(msgspec.Struct):
    """The part of a working memory item that names its session."""

    scope: str = ""


_decode_scoped = msgspec.msgpack.Decoder(_Scoped).decode


def find_erased(
    key: SessionKey, newest: int, items: Iterable[tuple[str, str, bytes]]
) -> list[tuple[str, str]]:
    """Which state items of a user are erased with one of their sessions, by kind and name.

    The synopsis is, because it may quote any session; a working memory item is if it belongs to the
    session; and so are the access counts of its messages.

    Args:
        key: the session.
        newest: the number of its newest message, at least.
        items: kinds, names and values of the user's state items.
    """
    found = []
    rows: set[str] | None = None
    for kind, name, value in items:
        if kind == ACCESS_KIND:
            if rows is None:
                rows = {row_id(key, seq) for seq in range(1, newest + 1)}
            erased = name in rows
        else:
            erased = kind == SYNOPSIS_KIND or (
                kind == WORKING_KIND and _session_of(value) == key.session
            )
        if erased:
            found.append((kind, name))
    return found


def _session_of(item: bytes) -> str:
    """Empty for all of the user's sessions, or if it cannot be read."""
    try:
        return _decode_scoped(item).scope
    except msgspec.DecodeError:
        return ""
