"""The status of a tier of memory in a context."""

from __future__ import annotations

from typing import Literal

import msgspec

from remora.storage.records import MessageRange

__all__ = ["Source"]


class Source(msgspec.Struct, frozen=True):
    """What one tier of memory gave to a context.

    Attributes:
        status: ``ok``; ``late``: it missed its deadline and was left out; ``failed``: it failed or
            is behind; ``degraded``: of the summary, messages are in none: `degraded` names them,
            and an answer of a model that was too long counts for none; of the synopsis, it is a
            fallback for the configured model's answer; of a memory block, it was shortened;
            ``pending``: it is being made; ``omitted``: it did not fit; ``off``: not asked for, or
            disabled.
        count: messages, memories or blocks that it gave.
        detail: what went wrong.
        degraded: of the summary: the messages that no summary covers, neither one by a model nor a
            fallback with all their text; None for none.
    """

    status: Literal["ok", "late", "failed", "degraded", "pending", "omitted", "off"]
    count: int = 0
    detail: str = ""
    degraded: MessageRange | None = None
