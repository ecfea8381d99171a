"""Which state items of a user are erased with one of their sessions (G13).

This is the only place where storage reads the values of state items.
"""

from __future__ import annotations

import msgspec

__all__ = ["ERASED_TABLES", "ERROR_REMOVED", "SYNOPSIS_KIND", "WORKING_KIND", "is_erased_with"]

ERASED_TABLES = ("actors", "messages", "folds", "facets", "memories", "jobs")
"""Whose removed rows are counted (`Erased.removed`)."""

SYNOPSIS_KIND, WORKING_KIND = "synopsis", "working"
"""Kinds of state items; `remora.actors.user.state` has them all."""

ERROR_REMOVED = "(removed with the session that it told of)"
"""Replaces the text of a failure, which may quote messages."""


class _Scoped(msgspec.Struct):
    """The part of a working memory item that names its session."""

    scope: str = ""


_decode_scoped = msgspec.msgpack.Decoder(_Scoped).decode


def is_erased_with(session: str, kind: str, value: bytes) -> bool:
    """Whether a state item of a user is erased with one of their sessions.

    The synopsis is, because it may quote any session; a working memory item is if it belongs to
    the session.
    """
    return kind == SYNOPSIS_KIND or (kind == WORKING_KIND and _session_of(value) == session)


def _session_of(item: bytes) -> str:
    """Empty for all of the user's sessions, or if it cannot be read."""
    try:
        return _decode_scoped(item).scope
    except msgspec.DecodeError:
        return ""
