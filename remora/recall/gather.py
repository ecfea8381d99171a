"""Ask every tier of memory at once, each with its deadline.

A tier that misses its deadline, or fails, is left out and named in `sources`: the conversation
never waits for it (G5).
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

import anyio
import msgspec

from remora.actors.blocks.fit import BlockView, GatheredBlocks
from remora.actors.blocks.source import Source
from remora.actors.policies.bm25 import words
from remora.actors.session.messages import Snapshot
from remora.actors.user.messages import ScoredItem, Synopsis
from remora.config import Config
from remora.errors import ErasureInProgress, LongTermError, ModelError, OwnershipLost
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import Entry, decode_chats
from remora.models.clipping import size_words
from remora.recall.context import Sources
from remora.recall.memory import LONG_TOKENS, Memory
from remora.recall.recall import Recall
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import run_in_thread
from remora.storage.ports import Scope
from remora.storage.records import MemoryItem

_logger = get_logger(__name__)
_COMMON = Scope(agent="")  # what an agent keeps to itself is in no session's context


class Tiers(msgspec.Struct, frozen=True):
    """The tiers that a context is gathered from, besides the session; None for one that is off.

    Attributes:
        warm_up: loads what searches need; their deadlines begin when it has ended.
        recall: search in long-term memory.
        working: search in working memory: user, session, query -> what was found, best first.
        synopsis: a user's synopsis as it is now; a part that is out of date gets written.
        no_synopsis: why contexts have none; empty if they have it.
        blocks: the session's memory blocks.
        instructions: a user's standing instructions, newest first.
    """

    warm_up: SharedCall[None] | None = None
    recall: Recall | None = None
    working: Callable[[str, str, str], Awaitable[Sequence[ScoredItem]]] | None = None
    synopsis: Callable[[str], Awaitable[Synopsis]] | None = None
    no_synopsis: str = ""
    blocks: BlockView | None = None
    instructions: Callable[[str], Awaitable[Sequence[MemoryItem]]] | None = None


_Tier: TypeAlias = Literal["synopsis", "working", "long_term", "instructions"]


class Gathered:
    """The answers of the tiers."""

    def __init__(self) -> None:
        self.memories: Sequence[Memory] = ()
        self.working: Sequence[ScoredItem] = ()
        self.synopsis: Synopsis | None = None
        self.blocks = GatheredBlocks()
        self.instructions: Sequence[MemoryItem] = ()
        self.sources = Sources()

    @property
    def recalls(self) -> bool:
        """Return whether anything was found for the question."""
        return bool(self.memories or self.working)

    def report(self, tier: _Tier, source: Source) -> None:
        """Say what became of a tier."""
        self.sources = msgspec.structs.replace(self.sources, **{tier: source})


async def gather(
    tiers: Tiers,
    config: Config,
    key: SessionKey,
    snapshot: Snapshot,
    query: str | None,
    *,
    about: Sequence[Entry] | None,
    shown: Collection[tuple[str, int]],
    newest: int,
    room: int,
) -> Gathered:
    """Ask all tiers.

    Args:
        tiers: the tiers to ask.
        config: deadlines, and how much to recall.
        key: the session.
        snapshot: its conversation, and its blocks' states.
        query: the question; without one, only memory blocks are asked.
        about: messages to show to memory blocks instead of the conversation.
        shown: messages not to recall, by session and number.
        newest: the number of the session's newest message; 0 if `shown` is not of the session.
        room: tokens of long-term memory to look at, at most.
    """
    found = Gathered()

    async def search(tier: _Tier, ask: Callable[[], Awaitable[Source]]) -> None:
        warm_up, options = tiers.warm_up, config.recall
        if warm_up is not None and not warm_up.ended:
            probe("search_before_warm_up")
            with anyio.move_on_after(options.warm_up_s):
                await warm_up.wait()
        await _ask(found, tier, key, options.deadline_s, ask)
        if found.sources[tier].status == "late" and warm_up is not None and not warm_up.ended:
            detail = f"not loaded within {options.warm_up_s:g} s: await runtime.ready() before"
            found.report(tier, Source("late", detail=detail))

    async with anyio.create_task_group() as tasks:
        if tiers.blocks is not None:
            entries = snapshot.entries if about is None else about
            tasks.start_soon(_ask_blocks, tiers.blocks, key, snapshot, entries, found)
        if query is None:
            return found
        found.report("synopsis", Source("off", detail=tiers.no_synopsis))
        if (recall := tiers.recall) is not None:

            async def ask_recall() -> Source:
                unranked: list[str] = []
                memories = await recall(
                    key.user,
                    query,
                    limit=config.recall.limit,
                    scope=_COMMON,
                    without=shown,
                    newest=newest,
                    max_tokens=room,
                    relevance=config.recall.relevance,
                    report=unranked.append,
                )
                if any(one.tokens > LONG_TOKENS for one in memories):
                    memories = await run_in_thread(show_parts, memories, query)
                found.memories = memories
                notes = "; ".join(note for note in (*unranked, recall.note(key.user)) if note)
                return Source("degraded" if unranked else "ok", detail=notes)

            tasks.start_soon(search, "long_term", ask_recall)
        if (working := tiers.working) is not None:

            async def ask_working() -> Source:
                found.working = await working(key.user, key.session, query)
                return Source("ok")

            tasks.start_soon(search, "working", ask_working)
        if (synopsis := tiers.synopsis) is not None:

            async def ask_synopsis() -> Source:
                found.synopsis = await synopsis(key.user)
                return Source(_SYNOPSIS_STATUS.get(found.synopsis.state, "ok"))

            tasks.start_soon(_ask, found, "synopsis", key, config.synopsis.deadline_s, ask_synopsis)
    return found


_SYNOPSIS_STATUS: dict[str, Literal["ok", "degraded", "pending"]] = {
    "degraded": "degraded",
    "pending": "pending",
}


async def _ask(
    found: Gathered,
    tier: _Tier,
    key: SessionKey,
    deadline_s: float,
    ask: Callable[[], Awaitable[Source]],
) -> None:
    try:
        with anyio.fail_after(deadline_s):
            found.report(tier, await ask())
    except TimeoutError:
        probe("tier_late")
        found.report(tier, Source("late", detail=f"no answer within {deadline_s:g} s"))
    except Exception as e:  # the conversation itself can be shown
        probe("tier_failed")
        if not isinstance(e, (ErasureInProgress, LongTermError, ModelError, OwnershipLost)):
            _logger.exception("tier_failed", tier=tier, session=key)
        found.report(tier, Source("failed", detail=str(e)))


async def _ask_blocks(
    blocks: BlockView,
    key: SessionKey,
    snapshot: Snapshot,
    entries: Sequence[Entry],
    found: Gathered,
) -> None:
    chats = decode_chats(entries)
    found.blocks = await blocks.gather(key, snapshot.blocks, chats)


# -- the part of a long message that answers a question, for a context -----------------------------
#
# A tool's result may have 20 kB, and one of its fields the answer. So a result that is JSON is
# shown by its fields: those that hold words of the question, and the first ones, which mostly say
# what it is about. Of other long texts, the lines with words of the question are shown, and those
# around them.

_MOST_CHARS = 1_200  # that are shown of one
_FILLED_CHARS = 600  # up to which it is shown from the beginning, besides what matches
_MOST_ASKED = 2_000  # characters of a question
_FIRST = 2  # fields that say what a result is about
_LARGE = 300  # characters of a field whose own fields are looked at one by one
_MOST_FIELDS = 400
_DEEPEST, _LONGEST = 8, 600  # of a field: levels, and characters
_LINE = 300  # characters of a piece of a text without lines


def show_parts(memories: Sequence[Memory], query: str) -> list[Memory]:
    """The memories, of long ones the part that answers; their tokens in proportion.

    Where there are long ones, do it in a thread.

    Args:
        memories: what was found.
        query: what is asked.
    """
    asked = frozenset(words(query[:_MOST_ASKED]))
    return [_show_part(one, asked) if one.tokens > LONG_TOKENS else one for one in memories]


def _show_part(memory: Memory, asked: frozenset[str]) -> Memory:
    if len(memory.text) <= _MOST_CHARS:
        return memory
    fields = _fields_of(memory.text)
    pieces, glue = (fields, ", ") if fields else (list(_lines_of(memory.text)), "\n")
    shown = _choose(pieces, asked, around=not fields)
    parts: list[str] = []
    last = -1
    for place in shown:
        if place > last + 1:
            parts.append("…")
        parts.append(pieces[place])
        last = place
    if last < len(pieces) - 1:
        parts.append("…")
    text = glue.join(parts)
    left_out = len(memory.text) - len(text)
    if left_out <= 0:
        return memory
    where = f"message {memory.seq} of {memory.session}" if memory.seq else "this memory"
    text += f" [{size_words(left_out)} of {where} are left out]"
    tokens = max(memory.tokens * len(text) // len(memory.text), 1)
    return msgspec.structs.replace(memory, text=text, tokens=tokens)


def _fields_of(text: str) -> list[str]:
    """The fields of a JSON text, each as it is written there; empty if it is none."""
    if text[:1] not in {"{", "["}:
        return []
    try:
        # numbers stay as they are written
        found: Any = json.loads(text, parse_float=_as_written, parse_int=_as_written)
        return list(islice(_walk(found, "", 0), _MOST_FIELDS))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return []


def _as_written(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())


def _walk(value: object, name: str, depth: int) -> Iterator[str]:
    written = msgspec.json.encode(value).decode()
    if len(written) <= _LARGE or not isinstance(value, dict | list) or depth == _DEEPEST:
        field = f"{name}: {written}" if name else written
        yield field if len(field) <= _LONGEST else f"{field[:_LONGEST]}…"
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value, start=1)
    for key, one in pairs:
        yield from _walk(one, f"{name}.{key}" if name else str(key), depth + 1)


def _lines_of(text: str) -> Iterator[str]:
    for line in text.splitlines():
        for start in range(0, len(line), _LINE):
            yield line[start : start + _LINE]


def _choose(pieces: Sequence[str], asked: frozenset[str], *, around: bool) -> list[int]:
    """Places of the pieces to show, in order: the first, and those that match, best first."""
    held = [asked & set(words(one[:_MOST_CHARS])) for one in pieces]
    counts: dict[str, int] = {}
    for some in held:
        for word in some:
            counts[word] = counts.get(word, 0) + 1
    worth = {word: math.log(1 + len(pieces) / count) for word, count in counts.items()}
    scores = [sum(worth[word] for word in some) for some in held]
    best = sorted(range(len(pieces)), key=lambda place: -scores[place])
    wanted = list(range(min(_FIRST, len(pieces))))
    for place in best:
        if scores[place] > 0:
            wanted += [place - 1, place, place + 1] if around else [place]
    chosen: set[int] = set()
    taken = 0
    for places, most in ((wanted, _MOST_CHARS), (range(len(pieces)), _FILLED_CHARS)):
        for place in places:
            if 0 <= place < len(pieces) and place not in chosen:
                size = len(pieces[place]) + 2
                if taken + size <= most or not chosen:
                    chosen.add(place)
                    taken += size
    return sorted(chosen)
