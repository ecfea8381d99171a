"""When a buffer folds and how much of it: the summary-buffer policy (S1, with the trigger of S3)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remora.actors.buffer import cut_to_keep
from remora.messages import Entry

__all__ = ["SummaryBufferPolicy"]


class SummaryBufferPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Fold when the buffer exceeds `fold_above_tokens`, down to `keep_tokens`.

    Attributes:
        fold_above_tokens: the trigger; at equality nothing happens (S1.08, S3.09).
        keep_tokens: what stays verbatim at most, or the newest unit alone (S1.09).
        overdraft_tokens: with a fold on its way, a buffer of more than this asks for it to be hastened (G6).
    """

    fold_above_tokens: int
    keep_tokens: int
    overdraft_tokens: int

    def due(self, tokens: int, count: int) -> bool:
        """Whether a buffer of `count` messages and `tokens` tokens is to be folded; a single message never is."""
        return tokens > self.fold_above_tokens and count > 1

    def amount(self, entries: Sequence[Entry]) -> int:
        """How many entries, from the front, to fold; 0 when no cut is possible yet."""
        return cut_to_keep(entries, self.keep_tokens)
