"""Tags around sections of a context, and texts that cannot break out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

__all__ = ["escape_tags"]


def escape_tags(text: str, names: Iterable[str]) -> str:
    """Escape the ``<`` of every tag of these names in `text`; nothing else is changed."""
    return _tags(tuple(sorted(set(names)))).sub("&lt;", text)


@lru_cache(maxsize=256)
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(?=[\s/]*(?:{'|'.join(map(re.escape, names))})\b)", re.IGNORECASE)
