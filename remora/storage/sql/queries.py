"""Queries by name, from a database's `queries.sql`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from remora.storage.decoding import (
    ACTOR,
    DIGEST,
    ENTRY_COLUMNS,
    JOB,
    JOB_COLUMNS,
    MEMORY_COLUMNS,
    MESSAGE,
    SEQ_MASK,
    STATE_ITEM,
    STATE_ITEM_COLUMNS,
    SUMMARY,
    SUMMARY_COLUMNS,
    WITH_IDS,
)

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^-- .*\n", re.MULTILINE)
_FILLED = {
    "{entry}": ENTRY_COLUMNS,
    "{summary}": SUMMARY_COLUMNS,
    "{state_item}": STATE_ITEM_COLUMNS,
    "{memory}": MEMORY_COLUMNS,
    "{job}": JOB_COLUMNS,
    "{mask}": str(SEQ_MASK),
    "{actor_kind}": str(ACTOR),
    "{message_kind}": str(MESSAGE),
    "{summary_kind}": str(SUMMARY),
    "{digest_kind}": str(DIGEST),
    "{with_ids_kind}": str(WITH_IDS),
    "{state_item_kind}": str(STATE_ITEM),
    "{job_kind}": str(JOB),
}


class Query(Protocol):
    """Runs a query of this name, in a transaction of its own.

    A parameter is a value, a list of texts or numbers, or a list of tuples of these.
    """

    async def __call__(self, name: str, /, **parameters: Any) -> list[Any]: ...


def load_queries(path: Path) -> Mapping[str, str]:
    """Read the queries of a file, by their names: each begins with ``-- name: NAME``.

    Column lists and constants, in braces, are filled in.
    """
    text = path.read_text(encoding="utf-8")
    for mark, value in _FILLED.items():
        text = text.replace(mark, value)
    _, *parts = _NAME.split(text)
    names, queries = parts[::2], parts[1::2]
    return {name: _COMMENT.sub("", sql).strip() for name, sql in zip(names, queries, strict=True)}
