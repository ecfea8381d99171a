"""Context assembly: what a model is shown, within the budget, in an order that keeps provider caches warm.

The stable part goes first: the summary, then the conversation, which only grows at its end until a fold replaces its front
(`prefix_changed` says when). What was recalled for this one question goes last but one, before the newest user message, so
that it disturbs nothing in front of it. Budget: the conversation takes what it needs, leaving a share for recall; recalled
lines fill that share, best first. Every piece is counted by the configured counter before it goes in (G9).
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec

from remora.actors.protocol import Snapshot
from remora.actors.recall import Memory, Recall
from remora.actors.sources import Source
from remora.config import RecallConfig
from remora.errors import LongTermError, ModelError
from remora.identity import SessionKey
from remora.logs import get_logger
from remora.messages import ChatDict, decode_chat
from remora.tokens import TokenCounter, count_message

__all__ = ["Context", "Planner", "Source"]

_logger = get_logger("remora.planner")
_RECALL_HEAD = "Possibly relevant, from earlier conversations with this user:"


class Context(msgspec.Struct, frozen=True):
    """What `load` returns: a snapshot; changing it changes nothing.

    Attributes:
        messages: plain dicts in the OpenAI chat format, ready to send.
        tokens: their size by the configured counter, at most the budget.
        summary: the running summary's text, if it is among them.
        memories: what was recalled into it, best first.
        sources: what each tier gave: ``summary``, ``recent``, ``long_term``.
        prefix_changed: the front of `messages` is not the one that the last load of this session began with.
        pending: messages among them that are folded and wait for their summary.
        omitted: messages of the buffer, the oldest, that did not fit.
        awaiting: ids of tool calls without a result; they and what was answered are withheld until they are whole.
        orphans: tool calls and results that lost their counterpart, left out.
    """

    messages: list[ChatDict]
    tokens: int
    summary: str | None
    memories: tuple[Memory, ...]
    sources: dict[str, Source]
    prefix_changed: bool
    pending: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int


class Planner:
    """Gathers, ranks, fits.

    Args:
        recall: search in long-term memory, or None where there is none.
        counter: the configured counter.
        config: shares and deadlines.
    """

    def __init__(self, recall: Recall | None, counter: TokenCounter, config: RecallConfig) -> None:
        self._recall = recall
        self._counter = counter
        self._config = config

    def conversation_tokens(self, max_tokens: int, *, query: bool) -> int:
        """What the conversation may take of the budget, so that a share is left for recall."""
        if not query or self._recall is None:
            return max_tokens
        return max_tokens - int(max_tokens * self._config.context_share)

    async def assemble(self, key: SessionKey, snapshot: Snapshot, query: str | None, max_tokens: int) -> Context:
        """Build the context; waits for long-term memory up to its deadline, and only if there is a query."""
        messages: list[ChatDict] = []
        sources: dict[str, Source] = {"summary": Source("off"), "long_term": Source("off")}
        summary = None
        if snapshot.summary is not None:
            summary = snapshot.summary.text
            messages.append({"role": "system", "content": snapshot.summary.prefix + summary})
            sources["summary"] = Source("degraded" if snapshot.summary.degraded else "ok", 1)
        messages.extend(decode_chat(entry.chat) for entry in snapshot.entries)
        sources["recent"] = Source("ok", len(snapshot.entries))
        tokens = snapshot.tokens
        memories: Sequence[Memory] = ()
        if query is not None and self._recall is not None:
            found, sources["long_term"] = await self._recalled(key, snapshot, query)
            share = int(max_tokens * self._config.context_share)
            message, memories, cost = self._fitted(found, min(max_tokens - tokens, share))
            if message is not None:
                at = len(messages)
                if messages and messages[-1]["role"] == "user":
                    at -= 1
                messages.insert(at, message)
                tokens += cost
                sources["long_term"] = Source("ok", len(memories))
        return Context(
            messages=messages,
            tokens=tokens,
            summary=summary,
            memories=tuple(memories),
            sources=sources,
            prefix_changed=snapshot.prefix_changed,
            pending=snapshot.pending,
            omitted=snapshot.omitted,
            awaiting=snapshot.awaiting,
            orphans=snapshot.orphans,
        )

    async def _recalled(self, key: SessionKey, snapshot: Snapshot, query: str) -> tuple[list[Memory], Source]:
        assert self._recall is not None
        shown = {(key.session, entry.seq) for entry in snapshot.entries}
        try:
            with anyio.fail_after(self._config.deadline_s):
                return await self._recall(key.user, query, k=self._config.k, without=shown), Source("ok")
        except TimeoutError:
            return [], Source("late", detail=f"no answer within {self._config.deadline_s:g} s")
        except Exception as e:  # whatever became of it, the conversation itself can be shown
            if not isinstance(e, (LongTermError, ModelError)):
                _logger.exception("recall_failed", session=key)
            return [], Source("failed", detail=str(e))

    def _fitted(self, memories: Sequence[Memory], room: int) -> tuple[ChatDict | None, list[Memory], int]:
        """As many memories as fit, best first; the message's exact size is counted once it stands."""
        overhead = self._counter.message_overhead + self._counter.count(_RECALL_HEAD)
        taken: list[Memory] = []
        left = room - overhead
        for memory in memories:
            cost = memory.tokens + 2  # a bullet and a line break
            if cost <= left:
                taken.append(memory)
                left -= cost
        while taken:
            lines = [_RECALL_HEAD, *(f"- {memory.line}" for memory in taken)]
            message: ChatDict = {"role": "system", "content": "\n".join(lines)}
            cost = count_message(self._counter, message)
            if cost <= room:
                return message, taken, cost
            taken.pop()
        return None, [], 0
