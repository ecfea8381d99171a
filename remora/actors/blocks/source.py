"""The status of a tier of memory in a context."""

from __future__ import annotations

from typing import Literal

import msgspec

from remora.storage.records import MessageRange


class Source(msgspec.Struct, frozen=True):
    """The share of one tier of memory in a context.

    Attributes:
        status: ``ok``; ``late``: it missed its deadline and was left out; ``failed``: it failed or
            is behind; ``degraded``: of the summary, messages are in none: `degraded` names them,
            and an answer of a model that was too long counts for none; of the synopsis, it is a
            fallback for the configured model's answer; of the messages, the summary or a memory
            block, some were shortened; of long-term memory, the reranker failed, and memories have
            the order that they were found in; ``pending``: it is being made; ``omitted``: some of
            it, or all, did not fit; ``off``: not asked for, disabled, or empty.
        count: messages, summaries, memories or blocks that it gave.
        detail: what went wrong.
        degraded: of the summary: the messages that no summary covers, neither one by a model nor a
            fallback with all their text; None for none.
        omitted: what did not fit: messages, memories or blocks; of the summary, the messages that
            the summaries stand for that did not fit.
        omitted_tokens: the tokens that did not fit, those that a shortened text lost included.
        shortened: messages that are shown in part.
        messages: of the summary, the messages that the shown summaries stand for; of the messages,
            those that are left out, and are not in a summary yet; None for none.
    """

    status: Literal["ok", "late", "failed", "degraded", "pending", "omitted", "off"]
    count: int = 0
    detail: str = ""
    degraded: MessageRange | None = None
    omitted: int = 0
    omitted_tokens: int = 0
    shortened: int = 0
    messages: MessageRange | None = None
