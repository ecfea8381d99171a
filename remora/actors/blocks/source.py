"""The status of a tier of memory in a context."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Source"]


class Source(msgspec.Struct, frozen=True):
    """What one tier of memory gave to a context.

    Attributes:
        status: ``ok``; ``late``: it missed its deadline and was left out; ``failed``: it failed or
            is behind; ``degraded``: a fallback for the configured model's answer, or a memory block
            was shortened; ``pending``: it is being made; ``omitted``: it did not fit; ``off``: not
            asked for, or disabled.
        count: messages, memories or blocks that it gave.
        detail: what went wrong.
    """

    status: Literal["ok", "late", "failed", "degraded", "pending", "omitted", "off"]
    count: int = 0
    detail: str = ""
