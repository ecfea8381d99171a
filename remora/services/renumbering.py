"""Numbering a session's messages from 1 without gaps, for a copy or an export of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from remora.storage.records import MessageRange, Summary, find_lost


class Renumbering:
    """New numbers for the messages that are left of a session.

    Args:
        seqs: their present numbers, in order.
        last: the number of the newest message that the session ever had.
    """

    def __init__(self, seqs: Sequence[int], last: int) -> None:
        self._seqs = seqs
        self._last = last
        self.gapless = len(seqs) == last

    def through(self, seq: int) -> int:
        """How many messages are left up to `seq`: the new number of the last of them."""
        return bisect_right(self._seqs, seq)

    def items(self) -> Iterator[tuple[int, int | None]]:
        """Each number up to the last, and its new one; None if the message is gone."""
        new = {seq: number for number, seq in enumerate(self._seqs, start=1)}
        return ((seq, new.get(seq)) for seq in range(1, self._last + 1))

    def summary(self, one: Summary) -> Summary:
        """The summary, of the same messages by their new numbers."""
        through = self.through(one.through)
        first = min(self.through(one.first - 1) + 1, through)
        lost, verbatim = self._ranges(find_lost(one)), self._ranges(one.verbatim)
        return msgspec.structs.replace(
            one, first=first, through=through, lost=lost, verbatim=verbatim
        )

    def _ranges(self, ranges: Sequence[MessageRange]) -> tuple[MessageRange, ...]:
        found = []
        for one in ranges:
            before, last = self.through(one.first - 1), self.through(one.last)
            found.append(MessageRange(before + 1, last, min(last - before, one.count)))
        return tuple(found)
