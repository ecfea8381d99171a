"""Fit what was gathered into the budget, by one rule (G9).

1. Memory blocks of priority 0 are always shown.
2. The synopsis is shown if it fits into a quarter of the budget.
3. The conversation gets what is left, by the rule of `remora.actors.session.window`: summaries,
   then the newest messages.
4. Other memory blocks, and then recalled memories, each get their share of the budget, or more if
   the conversation leaves more. Only messages older than the newest `context.recent` give way.

Every piece is counted by the configured counter before it is taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from remora.actors.blocks.fit import BlockView, FittedBlocks
from remora.actors.blocks.render import join_contents
from remora.actors.blocks.source import Source
from remora.actors.policies.units import newest_start, units
from remora.actors.session.messages import Snapshot
from remora.actors.session.window import Window, fit_buffer
from remora.actors.user.messages import ScoredItem
from remora.config import Config
from remora.messages import ChatDict, Entry, decode_chat
from remora.recall.context import (
    Context,
    Selection,
    conversation_range,
    list_summaries,
    newest_user,
    quoted_places,
)
from remora.recall.gather import Gathered
from remora.recall.memory import Memory, comparable_text
from remora.recall.quotes import LINE_TOKENS, recalled_text, synopsis_text, working_line
from remora.runtime.probes import probe
from remora.tokens import TokenCounter, count_message

__all__ = ["ContextFitter"]


class _RecallLine(msgspec.Struct, frozen=True):
    """One recalled line, and where it came from."""

    text: str
    tokens: int
    memory: Memory | None = None
    working: ScoredItem | None = None


class _RecallMessage(msgspec.Struct, frozen=True):
    """The recalled lines as a message; None if there are none."""

    message: ChatDict | None = None
    lines: Sequence[_RecallLine] = ()
    tokens: int = 0


class ContextFitter:
    """Selects what goes into a context.

    Args:
        counter: the configured counter.
        config: shares of the budget.
        blocks: the session's memory blocks.
    """

    def __init__(self, counter: TokenCounter, config: Config, blocks: BlockView | None) -> None:
        self._counter = counter
        self._recent = config.context.recent
        self._quoted_role = config.context.quoted_role
        self._recalled_at = config.recall.insert_method
        self._recall_share = config.recall.context_share
        self._blocks_share = config.context.blocks_share if blocks is not None else 0.0
        self._blocks = blocks

    def always_shown(self, snapshot: Snapshot, budget: int) -> Sequence[Entry]:
        """Messages that are shown in any case, so that they need not be recalled.

        Those that just fit now may have to give way.
        """
        least = int(budget * (1 - self._recall_share - self._blocks_share))
        return snapshot.entries[newest_start(snapshot.entries, least) :]

    async def fit(
        self, session: str | None, snapshot: Snapshot, gathered: Gathered, budget: int
    ) -> tuple[Selection, FittedBlocks]:
        """Select what fits.

        Args:
            session: the session, if the snapshot is of its own conversation.
            snapshot: the conversation within the budget.
            gathered: what the tiers gave.
            budget: in tokens.

        Raises:
            InvalidInput: memory blocks of priority 0 do not fit.
        """
        kept = await self._size_of_kept_blocks(gathered, budget)
        left = budget - kept
        synopsis, cost, about = self._fit_synopsis(gathered, min(left, budget // 4))
        left -= cost
        window = _narrow(snapshot, left)
        entries = window.entries
        first = _recent_start(entries, self._recent)
        recent = _tokens(entries[first:])
        older = _tokens(snapshot.entries) - recent  # these messages may give way
        left -= window.tokens - _tokens(entries[:first])
        recall_share = int(budget * self._recall_share)
        wanted = recall_share if gathered.memories or gathered.working else 0
        blocks = FittedBlocks()
        if self._blocks is not None:
            room = max(left - older - wanted, min(left, int(budget * self._blocks_share)))
            blocks = await self._blocks.fit(gathered.blocks, kept + room)
            left -= self._blocks.insert((), blocks).tokens - kept
        room = max(left - older, min(left, recall_share))
        recalled, start = self._fit_recalled(session, gathered, entries, first, left, room)
        memories = tuple(one.memory for one in recalled.lines if one.memory is not None)
        working = tuple(one.working for one in recalled.lines if one.working is not None)
        recalled_message, newest, spent = self._place(recalled, entries[start:])
        sources = msgspec.structs.replace(
            gathered.sources,
            synopsis=about,
            long_term=_count(gathered.sources.long_term, len(memories)),
            working=_count(gathered.sources.working, len(working)),
        )
        chosen = Selection(
            summaries=list_summaries(window),
            entries=entries[start:],
            tokens=cost + spent + window.tokens - _tokens(entries[:start]),
            sources=sources,
            synopsis_message=synopsis,
            synopsis=None if synopsis is None else gathered.synopsis,
            recalled_message=recalled_message,
            newest=newest,
            memories=memories,
            working=working,
        )
        return chosen, blocks

    async def insert_blocks(
        self,
        context: Context,
        chosen: Selection,
        gathered: Gathered,
        fitted: FittedBlocks,
        budget: int,
    ) -> Context:
        """Put memory blocks into a context."""
        if self._blocks is None:
            return context
        own, quoted = conversation_range(chosen), quoted_places(chosen)
        inserted = self._blocks.insert(context.messages, fitted, own, quoted)
        if context.tokens + inserted.tokens > budget:
            # two texts joined may take more than both alone
            room = budget - context.tokens
            fitted = await self._blocks.fit(gathered.blocks, room, context.messages, own, quoted)
            inserted = self._blocks.insert(context.messages, fitted, own, quoted)
        entries = list(context.entries)
        if inserted.place is not None:
            entries.insert(inserted.place, None)
        return msgspec.structs.replace(
            context,
            messages=inserted.messages,
            entries=tuple(entries),
            tokens=context.tokens + inserted.tokens,
            sources=msgspec.structs.replace(context.sources, blocks=fitted.sources),
        )

    async def _size_of_kept_blocks(self, gathered: Gathered, budget: int) -> int:
        if self._blocks is None:
            return 0
        kept = await self._blocks.size_of_kept(gathered.blocks)
        if kept > budget:
            await self._blocks.fit(gathered.blocks, budget)  # raises, and says what they need
        return kept

    def _fit_synopsis(self, gathered: Gathered, room: int) -> tuple[ChatDict | None, int, Source]:
        """The synopsis as a message, its tokens and its status; None: there is none, or no room."""
        synopsis, source = gathered.synopsis, gathered.sources.synopsis
        text = "" if synopsis is None else synopsis_text(synopsis)
        if not text:
            return None, 0, source
        message: ChatDict = {"role": self._quoted_role, "content": text}
        cost = count_message(self._counter, message)
        if cost > room:
            probe("synopsis_left_out")
            detail = f"it needs {cost} tokens, and {max(room, 0)} are left for it"
            return None, 0, Source("omitted", detail=detail)
        return message, cost, msgspec.structs.replace(source, count=1)

    def _fit_recalled(
        self,
        session: str | None,
        gathered: Gathered,
        entries: Sequence[Entry],
        first: int,
        left: int,
        room: int,
    ) -> tuple[_RecallMessage, int]:
        """The recalled lines that fit, and the index of the first message that is shown.

        A message that is shown is not recalled as well; but which of the messages before `first`
        are shown depends on the room that the recalled ones leave.
        """
        shown = {(session, entry.seq) for entry in entries[first:]}
        lines = [one for one in _rank_lines(gathered) if not _is_among(one, shown)]
        recalled = self._fit_lines(lines, room)
        start = newest_start(entries[:first], left - recalled.tokens)
        shown = {(session, entry.seq) for entry in entries[start:first]}
        if any(_is_among(one, shown) for one in recalled.lines):
            probe("recalled_already_shown")
            lines = [one for one in recalled.lines if not _is_among(one, shown)]
            recalled = self._fit_lines(lines, recalled.tokens)
        return recalled, start

    def _place(
        self, recalled: _RecallMessage, entries: Sequence[Entry]
    ) -> tuple[ChatDict | None, ChatDict | None, int]:
        """The recalled lines as a message, or the newest message with them, and their tokens."""
        message, tokens = recalled.message, recalled.tokens
        if message is None or self._recalled_at == "tail":
            return message, None, tokens
        at = newest_user(entries)
        if at == len(entries):
            return message, None, tokens
        newest = decode_chat(entries[at].chat)
        newest["content"] = join_contents(message["content"], newest["content"])
        grown = count_message(self._counter, newest) - entries[at].tokens
        if grown > tokens:  # two texts joined may take more than both alone
            return message, None, tokens
        return None, newest, grown

    def _fit_lines(self, lines: Sequence[_RecallLine], room: int) -> _RecallMessage:
        """As many lines as fit, best first. The whole message is counted before it is taken."""
        left = room - self._counter.message_overhead - self._counter.count(recalled_text(()))
        taken: list[_RecallLine] = []
        for one in lines:
            cost = one.tokens + LINE_TOKENS + one.text.count("\\n")
            if cost <= left:
                taken.append(one)
                left -= cost
        while taken:
            text = recalled_text([one.text for one in taken])
            message: ChatDict = {"role": self._quoted_role, "content": text}
            cost = count_message(self._counter, message)
            if cost <= room:
                return _RecallMessage(message, taken, cost)
            taken.pop()
        return _RecallMessage()


def _narrow(snapshot: Snapshot, room: int) -> Snapshot | Window:
    """What the session would show within `room`."""
    if snapshot.tokens <= room:
        return snapshot
    entries = snapshot.entries
    return fit_buffer(
        entries,
        # of a buffer that did not fit before, it suffices that it is more than the room
        room + 1 if snapshot.omitted else _tokens(entries),
        snapshot.summary,
        snapshot.summaries,
        room,
        tools=any(entry.calls for entry in entries),
    )


def _recent_start(entries: Sequence[Entry], count: int) -> int:
    """Where the newest whole units begin that hold at least `count` messages."""
    start = len(entries)
    for unit in reversed(units(entries)):
        if len(entries) - start >= count:
            break
        start = unit.start
    return start


def _rank_lines(gathered: Gathered) -> list[_RecallLine]:
    """Lines of both tiers, best first: scaled by the best of their tier, without duplicates."""
    scored: list[tuple[float, int, _RecallLine]] = []
    best = max((memory.score for memory in gathered.memories), default=0.0)
    for place, memory in enumerate(gathered.memories):
        line = _RecallLine(memory.line, memory.tokens, memory=memory)
        scored.append((memory.score / best if best > 0 else 0.0, place, line))
    texts = {comparable_text(memory.text) for memory in gathered.memories}
    for place, found in enumerate(gathered.working):
        item = found.item
        if comparable_text(item.text) not in texts:
            line = _RecallLine(working_line(found), item.tokens, working=found)
            scored.append((found.score, place, line))
    return [line for _, _, line in sorted(scored, key=lambda one: (-one[0], one[1]))]


def _is_among(line: _RecallLine, shown: Collection[tuple[str | None, int]]) -> bool:
    memory = line.memory
    return memory is not None and memory.seq > 0 and (memory.session, memory.seq) in shown


def _count(source: Source, count: int) -> Source:
    if source.status != "ok":
        return source
    return msgspec.structs.replace(source, count=count)


def _tokens(entries: Sequence[Entry]) -> int:
    return sum(entry.tokens for entry in entries)
