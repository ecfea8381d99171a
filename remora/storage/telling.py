"""What a user's own actor keeps of one of their sessions, or of another user.

What goes when those are forgotten (G13).

Facets are their owner's own; storage looks into them here and nowhere else.
"""

from __future__ import annotations

import msgspec

__all__ = ["ERROR_REMOVED", "SYNOPSIS_KIND", "WORKING_KIND", "session_of_item"]

SYNOPSIS_KIND, WORKING_KIND = "synopsis", "working"
"""Kinds of facets; `remora.actors.user.state` has them all."""

ERROR_REMOVED = "(removed with the session that it told of)"
"""What is left of a failure's text, which may quote what was said."""


class _Scoped(msgspec.Struct):
    """What of an item of working memory says whose it is."""

    scope: str = ""


_decode_scoped = msgspec.msgpack.Decoder(_Scoped).decode


def session_of_item(item: bytes) -> str:
    """The session that an item of working memory belongs to.

    Empty for all of the user's, or if it cannot be read.
    """
    try:
        return _decode_scoped(item).scope
    except msgspec.DecodeError:
        return ""
