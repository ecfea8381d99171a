"""Reading a session around its damaged messages."""

from __future__ import annotations

from collections.abc import Sequence

from remora.errors import JournalDamaged
from remora.ids import SessionKey
from remora.messages import Entry
from remora.storage.journal_port import Journal


async def read_undamaged(
    journal: Journal, key: SessionKey, first: int, last: int
) -> tuple[Sequence[Entry], dict[int, JournalDamaged]]:
    """The messages `first`…`last` that can be read, in order; and why each other one cannot."""
    found: list[Entry] = []
    damaged: dict[int, JournalDamaged] = {}
    spans = [(first, last)]
    while spans:
        first, last = spans.pop()
        try:
            found += await journal.read(key, first, last)
        except JournalDamaged as e:
            if first == last:
                damaged[first] = e
            else:
                middle = (first + last) // 2
                spans += [(middle + 1, last), (first, middle)]
    return found, damaged
