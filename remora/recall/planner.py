"""Context assembly.

What a model is shown, within the budget, in an order that keeps provider caches warm.

*Order.* What is stable goes first: memory blocks, the synopsis, the summary, then the conversation,
which only grows at its end until a fold replaces its front (`prefix_changed` says when). What was
recalled for this one question goes last but one, before the newest user message, so that it
disturbs nothing in front of it.

*Budget*, in this order: blocks of priority 0, the synopsis, the newest messages, the summary; then
other blocks and recalled memories, each up to its share of the budget or to what the rest of the
conversation leaves; then that rest, newest first. Every piece is counted by the configured counter
before it goes in (G9).

*Time.* Working memory, long-term memory and the synopsis are asked at once, each with its deadline.
One that misses it is left out and named in `sources`; the conversation itself never waits for any
of them (G5).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import anyio
import msgspec

from remora.actors.blocks.render import BlockView, FittedBlocks, GatheredBlocks
from remora.actors.blocks.source import Source
from remora.actors.policies.turns import newest_start, units
from remora.actors.session.messages import Snapshot
from remora.actors.user.messages import ScoredItem, Synopsis
from remora.config import Config
from remora.errors import LongTermError, ModelError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import ChatDict, Entry, decode_chat
from remora.recall.recall import Memory, Recall
from remora.runtime.probes import probe
from remora.storage.ports import Scope
from remora.storage.records import Summary
from remora.tokens import TokenCounter, count_message

__all__ = ["Context", "Planner", "Source", "Tiers", "synopsis_text"]

_logger = get_logger("remora.planner")
_RECALL_HEAD = "Possibly relevant, from what is known of this user and earlier conversations:"
_COMMON = Scope(agent="")  # what an agent keeps to itself is in no session's context
_OFF = Source("off")
_FRONTS = 10_000  # sessions whose last front is remembered


class Context(msgspec.Struct, frozen=True):
    """What `load` returns: a snapshot; changing it changes nothing.

    Attributes:
        messages: plain dicts in the OpenAI chat format, ready to send.
        tokens: their size by the configured counter, at most the budget.
        summary: the text of the running summary and the summary entries, as far as they are among
            them.
        memories: what was recalled into it from long-term memory, best first.
        working: what was recalled into it from working memory, best first.
        synopsis: the synopsis, if it is in it.
        sources: what each tier gave: ``summary``, ``recent``, ``synopsis``, ``working``,
            ``long_term``, and ``block:NAME``.
        prefix_changed: the front of `messages` is not the one that the last load of this session
            began with.
        pending: messages among them that are folded and wait for their summary.
        omitted: messages of the buffer, the oldest, that did not fit.
        awaiting: ids of tool calls without a result; they and what was answered are withheld until
            they are whole.
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
    working: tuple[ScoredItem, ...] = ()
    synopsis: Synopsis | None = None


class Tiers(msgspec.Struct, frozen=True):
    """Where contexts are gathered from, beside the session itself.

    None for a tier that is not there.

    Attributes:
        recall: search in long-term memory.
        working: search in working memory: user, session, query -> what was found, best first.
        synopsis: a user's synopsis, as far as it is there; asking for it has it written.
        blocks: the session's memory blocks.
    """

    recall: Recall | None = None
    working: Callable[[str, str, str], Awaitable[Sequence[ScoredItem]]] | None = None
    synopsis: Callable[[str], Awaitable[Synopsis]] | None = None
    blocks: BlockView | None = None


class _Gathered:
    """What the tiers gave."""

    def __init__(self) -> None:
        self.memories: Sequence[Memory] = ()
        self.working: Sequence[ScoredItem] = ()
        self.synopsis: Synopsis | None = None
        self.blocks = GatheredBlocks()
        self.sources: dict[str, Source] = {
            name: Source("off") for name in ("synopsis", "working", "long_term")
        }


class _RecallLine(msgspec.Struct, frozen=True):
    """One line of what was recalled, and where it came from."""

    line: str
    tokens: int
    memory: Memory | None = None
    found: ScoredItem | None = None


class Planner:
    """Gathers, ranks, fits.

    Args:
        tiers: where from.
        counter: the configured counter.
        config: shares and deadlines.
    """

    def __init__(self, tiers: Tiers, counter: TokenCounter, config: Config) -> None:
        self._tiers = tiers
        self._counter = counter
        self._config = config
        self._fronts: OrderedDict[SessionKey, int] = OrderedDict()

    def forget(self, user: str) -> None:
        """Hold nothing of this user's sessions any more."""
        for key in [key for key in self._fronts if key.user == user]:
            del self._fronts[key]

    async def assemble(
        self,
        key: SessionKey,
        snapshot: Snapshot,
        query: str | None,
        max_tokens: int,
        *,
        about: Sequence[Entry] | None = None,
        own: bool = True,
    ) -> Context:
        """Build the context.

        Args:
            key: the session.
            snapshot: what it shows within `max_tokens`.
            query: what to recall for; without one, only memory blocks are asked.
            max_tokens: the budget.
            about: what memory blocks are asked about, instead of the conversation.
            own: whether the snapshot is the session's own conversation.

        Raises:
            InvalidInput: memory blocks of priority 0 do not fit.
        """
        if query is None and self._tiers.blocks is None:
            return self._plain(key, snapshot)
        gathered = await self._gather(key, snapshot, query, max_tokens, about, own=own)
        return await self._fit(key, snapshot, gathered, max_tokens)

    def _plain(self, key: SessionKey, snapshot: Snapshot) -> Context:
        """The conversation alone; its size is known already."""
        summaries = _summaries(snapshot)
        messages: list[ChatDict] = [
            {"role": "system", "content": one.prefix + one.text} for one in summaries
        ]
        messages.extend([decode_chat(entry.chat) for entry in snapshot.entries])
        changed = snapshot.prefix_changed
        if self._fronts and self._fronts.pop(key, 0):
            changed = True
        return Context(
            messages=messages,
            tokens=snapshot.tokens,
            summary="\n".join([one.text for one in summaries]) if summaries else None,
            memories=(),
            sources={
                "summary": _summary_source(summaries),
                "synopsis": _OFF,
                "working": _OFF,
                "long_term": _OFF,
                "recent": Source("ok", len(snapshot.entries)),
            },
            prefix_changed=changed,
            pending=snapshot.pending,
            omitted=snapshot.omitted,
            awaiting=snapshot.awaiting,
            orphans=snapshot.orphans,
        )

    # -- gathering ---------------------------------------------------------------------------------

    async def _gather(
        self,
        key: SessionKey,
        snapshot: Snapshot,
        query: str | None,
        budget: int,
        about: Sequence[Entry] | None,
        *,
        own: bool,
    ) -> _Gathered:
        found = _Gathered()
        config, tiers = self._config, self._tiers
        # What is shown in any case is not recalled; what only just fits now may have to make room.
        least = int(
            budget
            * (
                1
                - config.recall.context_share
                - (config.context.blocks_share if tiers.blocks else 0)
            )
        )
        shown = (
            {
                (key.session, entry.seq)
                for entry in snapshot.entries[newest_start(snapshot.entries, least) :]
            }
            if own
            else set()
        )

        async def tier(name: str, deadline_s: float, ask: Callable[[], Awaitable[Source]]) -> None:
            try:
                with anyio.fail_after(deadline_s):
                    found.sources[name] = await ask()
            except TimeoutError:
                probe("tier_late")
                found.sources[name] = Source("late", detail=f"no answer within {deadline_s:g} s")
            except Exception as e:  # whatever became of it, the conversation itself can be shown
                probe("tier_failed")
                if not isinstance(e, (LongTermError, ModelError)):
                    _logger.exception("tier_failed", tier=name, session=key)
                found.sources[name] = Source("failed", detail=str(e))

        async def recall() -> Source:
            assert tiers.recall is not None
            assert query is not None
            found.memories = await tiers.recall(
                key.user, query, k=config.recall.k, scope=_COMMON, without=shown
            )
            return Source("ok")

        async def working() -> Source:
            assert tiers.working is not None
            assert query is not None
            found.working = await tiers.working(key.user, key.session, query)
            return Source("ok")

        async def synopsis() -> Source:
            assert tiers.synopsis is not None
            found.synopsis = await tiers.synopsis(key.user)
            states: dict[str, Literal["ok", "degraded", "pending"]] = {
                "degraded": "degraded",
                "pending": "pending",
            }
            return Source(states.get(found.synopsis.state, "ok"))

        async def blocks() -> None:
            assert tiers.blocks is not None
            chats = [
                decode_chat(entry.chat) for entry in (snapshot.entries if about is None else about)
            ]
            found.blocks = await tiers.blocks.gather(key, snapshot.blocks, chats)

        async with anyio.create_task_group() as tasks:
            if tiers.blocks is not None:
                tasks.start_soon(blocks)
            if query is not None:
                if tiers.recall is not None:
                    tasks.start_soon(tier, "long_term", config.recall.deadline_s, recall)
                if tiers.working is not None:
                    tasks.start_soon(tier, "working", config.recall.deadline_s, working)
                if tiers.synopsis is not None:
                    tasks.start_soon(tier, "synopsis", config.synopsis.deadline_s, synopsis)
        return found

    # -- fitting -----------------------------------------------------------------------------------

    async def _fit(
        self, key: SessionKey, snapshot: Snapshot, gathered: _Gathered, budget: int
    ) -> Context:
        config, blocks = self._config, self._tiers.blocks
        entries = snapshot.entries
        kept = 0
        if blocks is not None:
            kept = await blocks.size_of_kept(gathered.blocks)
            if kept > budget:
                await blocks.fit(gathered.blocks, budget)  # raises, and says how much they need
        left = budget - kept
        synopsis = self._synopsis_message(gathered, min(left, budget // 4))
        if synopsis is not None:
            left -= synopsis[1]
        first = _recent(entries, config.context.recent)
        first += newest_start(entries[first:], left)
        left -= sum(entry.tokens for entry in entries[first:])
        summaries: list[Summary] = []
        for one in reversed(_summaries(snapshot)):
            if one.tokens > left:
                break
            summaries.insert(0, one)
            left -= one.tokens
        older = sum(entry.tokens for entry in entries[:first])
        recall_share = int(budget * config.recall.context_share)
        wanted = recall_share if gathered.memories or gathered.working else 0
        room = max(left - older - wanted, min(left, int(budget * config.context.blocks_share)))
        fitted = FittedBlocks()
        if blocks is not None:
            fitted = await blocks.fit(gathered.blocks, kept + room)
            left -= blocks.insert((), fitted)[1] - kept
        room = max(left - older, min(left, recall_share))
        # What of the older conversation will be shown needs not be recalled; its place in the
        # budget depends on what is.
        shown = {(key.session, entry.seq) for entry in entries[first:]}
        message, taken, cost = self._fitted(
            [one for one in self._ranked(gathered) if not _among(one, shown)], room
        )
        start = newest_start(entries[:first], left - cost)
        shown.update((key.session, entry.seq) for entry in entries[start:first])
        if any(_among(one, shown) for one in taken):
            probe("recalled_already_shown")
            message, taken, cost = self._fitted(
                [one for one in taken if not _among(one, shown)], cost
            )
        context = self._context(
            key, snapshot, gathered, entries[start:], summaries, taken, message, cost, synopsis
        )
        if blocks is None:
            return context
        messages, grown = blocks.insert(context.messages, fitted)
        if (
            context.tokens + grown > budget
        ):  # two texts that became one may cost a little more than both
            fitted = await blocks.fit(gathered.blocks, budget - context.tokens, context.messages)
            messages, grown = blocks.insert(context.messages, fitted)
        sources = {**context.sources, **fitted.sources}
        return msgspec.structs.replace(
            context, messages=messages, tokens=context.tokens + grown, sources=sources
        )

    def _context(
        self,
        key: SessionKey,
        snapshot: Snapshot,
        gathered: _Gathered,
        entries: Sequence[Entry],
        summaries: Sequence[Summary],
        taken: Sequence[_RecallLine],
        recalled: ChatDict | None,
        cost: int,
        synopsis: tuple[ChatDict, int] | None,
    ) -> Context:
        messages: list[ChatDict] = []
        sources: dict[str, Source] = {"summary": Source("off"), **gathered.sources}
        tokens = cost
        if synopsis is not None:
            messages.append(synopsis[0])
            tokens += synopsis[1]
            sources["synopsis"] = msgspec.structs.replace(sources["synopsis"], count=1)
        for one in summaries:
            messages.append({"role": "system", "content": one.prefix + one.text})
            tokens += one.tokens
        sources["summary"] = _summary_source(summaries)
        messages.extend(decode_chat(entry.chat) for entry in entries)
        tokens += sum(entry.tokens for entry in entries)
        sources["recent"] = Source("ok", len(entries))
        memories = tuple(one.memory for one in taken if one.memory is not None)
        working = tuple(one.found for one in taken if one.found is not None)
        for name, count in (("long_term", len(memories)), ("working", len(working))):
            if sources[name].status == "ok":
                sources[name] = Source("ok", count)
        if recalled is not None:
            at = len(messages)
            if messages and messages[-1]["role"] == "user":
                at -= 1
            messages.insert(at, recalled)
        return Context(
            messages=messages,
            tokens=tokens,
            summary="\n".join(one.text for one in summaries) or None,
            memories=memories,
            working=working,
            synopsis=gathered.synopsis if synopsis is not None else None,
            sources=sources,
            prefix_changed=self._moved(key, snapshot, entries, synopsis, summaries),
            pending=max(snapshot.pending - (len(snapshot.entries) - len(entries)), 0),
            omitted=snapshot.omitted + len(snapshot.entries) - len(entries),
            awaiting=snapshot.awaiting,
            orphans=snapshot.orphans,
        )

    def _moved(
        self,
        key: SessionKey,
        snapshot: Snapshot,
        entries: Sequence[Entry],
        synopsis: tuple[ChatDict, int] | None,
        summaries: Sequence[Summary],
    ) -> bool:
        """Whether the front is another one than at the last load.

        The session knows of its own part, this of the rest.
        """
        front = 0
        if (
            synopsis is not None
            or len(entries) < len(snapshot.entries)
            or len(summaries) < len(_summaries(snapshot))
        ):
            first = entries[0].seq if entries else 0
            front = hash((synopsis[0]["content"] if synopsis else "", first, len(summaries)))
        changed = snapshot.prefix_changed or self._fronts.get(key, 0) != front
        if front:
            self._fronts[key] = front
            self._fronts.move_to_end(key)
            if len(self._fronts) > _FRONTS:
                self._fronts.popitem(last=False)
        elif key in self._fronts:
            del self._fronts[key]
        return changed

    def _synopsis_message(self, gathered: _Gathered, room: int) -> tuple[ChatDict, int] | None:
        synopsis = gathered.synopsis
        text = synopsis_text(synopsis) if synopsis is not None else ""
        if not text:
            return None
        message: ChatDict = {"role": "system", "content": text}
        cost = count_message(self._counter, message)
        if cost > room:
            probe("synopsis_left_out")
            gathered.sources["synopsis"] = Source(
                "omitted", detail=f"it needs {cost} tokens, and {max(room, 0)} are left for it"
            )
            return None
        return message, cost

    def _ranked(self, gathered: _Gathered) -> list[_RecallLine]:
        """Both tiers in one list, best first: each scaled by its own best, what both found once."""
        scored: list[tuple[float, int, _RecallLine]] = []
        best = max((memory.score for memory in gathered.memories), default=0.0)
        for place, memory in enumerate(gathered.memories):
            scored.append(
                (
                    memory.score / best if best > 0 else 0.0,
                    place,
                    _RecallLine(memory.line, memory.tokens, memory=memory),
                )
            )
        said = {_plain(memory.text) for memory in gathered.memories}
        for place, found in enumerate(gathered.working):
            if _plain(found.item.text) not in said:
                line = (
                    f"({found.item.source}) {found.item.text}"
                    if found.item.source
                    else found.item.text
                )
                scored.append(
                    (found.score, place, _RecallLine(line, found.item.tokens, found=found))
                )
        return [one for _, _, one in sorted(scored, key=lambda entry: (-entry[0], entry[1]))]

    def _fitted(
        self, lines: Sequence[_RecallLine], room: int
    ) -> tuple[ChatDict | None, list[_RecallLine], int]:
        """As many lines as fit, best first; the message's exact size is counted once it stands."""
        left = room - self._counter.message_overhead - self._counter.count(_RECALL_HEAD)
        taken: list[_RecallLine] = []
        for one in lines:
            cost = one.tokens + 2  # a bullet and a line break
            if cost <= left:
                taken.append(one)
                left -= cost
        while taken:
            text = "\n".join([_RECALL_HEAD, *(f"- {one.line}" for one in taken)])
            message: ChatDict = {"role": "system", "content": text}
            cost = count_message(self._counter, message)
            if cost <= room:
                return message, taken, cost
            taken.pop()
        return None, [], 0


def synopsis_text(synopsis: Synopsis) -> str:
    """How a synopsis stands in a context; empty for one that says nothing."""
    parts = [("About this user: ", synopsis.identity), ("At present: ", synopsis.context)]
    return "\n".join(head + text for head, text in parts if text)


def _summaries(snapshot: Snapshot) -> Sequence[Summary]:
    return (*((snapshot.summary,) if snapshot.summary else ()), *snapshot.summaries)


def _summary_source(summaries: Sequence[Summary]) -> Source:
    if not summaries:
        return _OFF
    return Source("degraded" if any(one.degraded for one in summaries) else "ok", len(summaries))


def _recent(entries: Sequence[Entry], count: int) -> int:
    """Where the newest whole turns begin that hold at least `count` messages."""
    start = len(entries)
    for unit in reversed(units(entries)):
        if len(entries) - start >= count:
            break
        start = unit.start
    return start


def _among(one: _RecallLine, shown: set[tuple[str, int]]) -> bool:
    return (
        one.memory is not None
        and one.memory.seq > 0
        and (one.memory.session, one.memory.seq) in shown
    )


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
