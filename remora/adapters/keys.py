"""Names of a framework as parts of the keys of keyed state."""

from __future__ import annotations

import re

_ESCAPED = re.compile("%([0-9a-f]+)-")


def escape(text: str) -> str:
    """A text as a part of a key, which has neither slashes nor what is not printable."""
    return "".join(
        one if one.isprintable() and one not in "%/" else f"%{ord(one):x}-" for one in text
    )


def unescape(part: str) -> str:
    """The text of a part of a key."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part)
