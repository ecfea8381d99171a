"""Tags around what goes into a context, and texts that cannot break out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

__all__ = ["escape_tags"]


def escape_tags(text: str, names: Iterable[str]) -> str:
    """`text`, in which no tag of these names opens or closes: the ``<`` of each becomes ``&lt;``.

    Nothing else is changed: code and other markup reach the model as they were written.
    """
    return _tags(tuple(sorted(set(names)))).sub("&lt;", text)


@lru_cache(maxsize=256)
def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(?=[\s/]*(?:{'|'.join(map(re.escape, names))})\b)", re.IGNORECASE)
