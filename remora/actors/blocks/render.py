"""Memory blocks in a context: asked at once, cut to size by priority, and put where they belong.

What a context costs is only known once its messages stand: tags count, and two texts that become
one may have another size than both. So every step is measured on the message that is really sent,
by the configured counter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from remora.actors.blocks.base import BlockContent, ChatMessage, MemoryBlock
from remora.actors.blocks.markup import escape_tags
from remora.actors.blocks.source import Source
from remora.actors.blocks.state import BlockProgress, BlockSet, block_progress
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import ChatDict, without_surrogates
from remora.runtime.guard import guarded_call
from remora.storage.records import StateItem
from remora.tokens import INLINE_CHARACTERS

__all__ = ["BlockText", "BlockView", "FittedBlocks", "GatheredBlocks", "InsertMethod", "insert"]

_logger = get_logger("remora.blocks")
_ENVELOPE = "memory"

InsertMethod: TypeAlias = Literal["system", "user", "tail"]
"""Where blocks go.

Into the first system message, into the newest user message, or a message of their own before that.
"""


class BlockText(msgspec.Struct, frozen=True):
    """What a block gave.

    Attributes:
        block: the block itself, for its `atruncate`.
        name: its section.
        priority: 0: always kept.
        content: text, or content parts; never empty.
    """

    block: MemoryBlock
    name: str
    priority: int
    content: BlockContent


class GatheredBlocks(msgspec.Struct, frozen=True):
    """What a session's blocks gave, in the order in which the blocks were given.

    Attributes:
        contents: of those that had something to say.
        sources: how each block fared, as ``block:NAME``.
    """

    contents: tuple[BlockText, ...] = ()
    sources: dict[str, Source] = msgspec.field(default_factory=dict)


class FittedBlocks(msgspec.Struct, frozen=True):
    """What of it goes into the context.

    Attributes:
        contents: name and content of each section.
        sources: how each block fared, those that were shortened or left out named.
    """

    contents: tuple[tuple[str, BlockContent], ...] = ()
    sources: dict[str, Source] = msgspec.field(default_factory=dict)


class BlockView:
    """Gathers, fits and inserts a session's memory blocks.

    Args:
        blocks: the blocks of each session.
        count: tokens that a chat message costs, by the configured counter.
        method: where blocks go.
        timeout_s: how long each block may take to answer.
    """

    def __init__(
        self,
        blocks: BlockSet,
        *,
        count: Callable[[ChatDict], int],
        method: InsertMethod = "system",
        timeout_s: float = 5.0,
    ) -> None:
        self._blocks = blocks
        self._count = count
        self._method: InsertMethod = method
        self._timeout_s = timeout_s

    async def gather(
        self, key: SessionKey, states: Sequence[StateItem], messages: Sequence[ChatDict]
    ) -> GatheredBlocks:
        """Ask all blocks of a session at once; one that fails, or is late, is left out and named.

        Args:
            key: the session.
            states: its block facets.
            messages: the context's, oldest first; the blocks are shown them.

        Raises:
            ConfigError: the session's blocks are not in order; see `BlockSet`.
        """
        prototypes = self._blocks.prototypes(key)
        if not prototypes:
            return GatheredBlocks()
        progress = block_progress(states)
        shown = [ChatMessage.of_chat(chat) for chat in messages]
        found: dict[str, BlockText] = {}
        sources: dict[str, Source] = {}

        async def ask(name: str, prototype: MemoryBlock) -> None:
            now = progress.get(name, BlockProgress())
            try:
                block = self._blocks.copy(key, prototype, now.state)
                with anyio.move_on_after(self._timeout_s) as scope:
                    given = await guarded_call(
                        block.aget, list(shown), user_id=key.user, session_id=key.session
                    )
                if scope.cancelled_caught:
                    sources[name] = Source("late", detail=f"no answer within {self._timeout_s:g} s")
                    return
                content = _check_content(given)
            except Exception as e:
                _logger.warning(
                    "block_failed", session=key, block=name, error=f"{type(e).__name__}: {e}"
                )
                sources[name] = Source("failed", detail=f"{type(e).__name__}: {e}")
            else:
                if content:
                    found[name] = BlockText(block, name, block.priority, content)
                # What it knows is shown, though it has not taken in what came last.
                sources[name] = Source(
                    "failed" if now.error else "ok", 1 if content else 0, now.error
                )

        async with anyio.create_task_group() as group:
            for name, prototype in prototypes.items():
                group.start_soon(ask, name, prototype)
        contents = tuple(found[name] for name in prototypes if name in found)
        return GatheredBlocks(contents, {f"block:{name}": sources[name] for name in prototypes})

    async def size_of_kept(self, gathered: GatheredBlocks) -> int:
        """Tokens of what is always kept, as a message of its own."""
        kept = {place: one for place, one in enumerate(gathered.contents) if one.priority == 0}
        return await self._size(kept, (), None)

    async def fit(
        self,
        gathered: GatheredBlocks,
        room_tokens: int,
        messages: Sequence[ChatDict] = (),
        method: InsertMethod | None = None,
    ) -> FittedBlocks:
        """Shorten until `insert` into these messages, by this method, adds at most `room_tokens`.

        Priority 0 stays; then 1 goes first, then 2, and of equal priorities the one that was given
        first. A block that could make room by getting shorter is asked once, with the tokens that
        are too many; if it has no answer, or one that is still too long, it goes as a whole.

        Raises:
            InvalidInput: what is always kept needs more than there is room for.
        """
        left = dict(enumerate(gathered.contents))
        sources = dict(gathered.sources)
        over = await self._size(left, messages, method) - room_tokens
        for place in sorted(left, key=lambda place: left[place].priority):
            if over <= 0:
                break
            one = left[place]
            if one.priority == 0:
                continue
            source = sources.get(f"block:{one.name}", Source("ok"))
            del left[place]
            # Without it altogether; if that is not enough, no shorter text of its own is either.
            after = await self._size(left, messages, method) - room_tokens
            detail = f"left out: the context is {over} tokens too long"
            shorter = await self._truncate(one, over) if after <= 0 else None
            if shorter:
                tried = {**left, place: msgspec.structs.replace(one, content=shorter)}
                tried_over = await self._size(tried, messages, method) - room_tokens
                if tried_over <= 0:
                    left, after = tried, tried_over
                    detail = f"shortened by {over - tried_over} tokens"
                    if source.status == "ok":
                        source = msgspec.structs.replace(source, status="degraded")
            if place not in left:
                source = msgspec.structs.replace(source, count=0)
            notes = [note for note in (source.detail, detail) if note]
            sources[f"block:{one.name}"] = msgspec.structs.replace(source, detail="; ".join(notes))
            over = after
        if over > 0 and left:
            names = ", ".join(one.name for one in left.values())
            raise InvalidInput(
                f"the memory blocks that are always kept ({names}) need {room_tokens + over} "
                "tokens; there is room for "
                f"{max(room_tokens, 0)}. Raise max_tokens, or give one of them a priority"
            )
        return FittedBlocks(
            tuple((left[place].name, left[place].content) for place in sorted(left)), sources
        )

    def insert(
        self, messages: Sequence[ChatDict], fitted: FittedBlocks, method: InsertMethod | None = None
    ) -> tuple[list[ChatDict], int]:
        """The messages with the blocks among them, and the tokens that these add.

        The ones given stay as they are.
        """
        return insert(messages, fitted.contents, method or self._method, self._count)

    async def _size(
        self,
        contents: dict[int, BlockText],
        messages: Sequence[ChatDict],
        method: InsertMethod | None,
    ) -> int:
        """Tokens that these add to the messages."""
        if not contents:
            return 0
        sections = [(contents[place].name, contents[place].content) for place in sorted(contents)]

        def measure() -> int:
            return insert(messages, sections, method or self._method, self._count)[1]

        if sum(_characters(content) for _, content in sections) <= INLINE_CHARACTERS:
            return measure()
        return await anyio.to_thread.run_sync(measure)

    async def _truncate(self, one: BlockText, tokens: int) -> BlockContent | None:
        """The block's own shorter content; None if it has none."""
        content = one.content if isinstance(one.content, str) else list(one.content)
        try:
            with anyio.fail_after(self._timeout_s):
                shorter = await guarded_call(one.block.atruncate, content, tokens)
            return None if shorter is None else _check_content(shorter)
        except Exception as e:
            _logger.warning("block_not_truncated", block=one.name, error=f"{type(e).__name__}: {e}")
            return None


# -- putting it into messages ----------------------------------------------------------------------


def insert(
    messages: Sequence[ChatDict],
    sections: Sequence[tuple[str, BlockContent]],
    method: InsertMethod,
    count: Callable[[ChatDict], int],
) -> tuple[list[ChatDict], int]:
    """Put sections into messages.

    ``system``: at the end of the first system message, or a new one in front. ``user``: at the
        beginning of the newest user
    message, or a new one at the end. ``tail``: a system message before the newest user message, or
    at the end.

    Args:
        messages: stay as they are.
        sections: name and content of each.
        method: where to.
        count: tokens that a chat message costs.

    Returns:
        The messages, and the tokens that they cost more than before.
    """
    fresh = list(messages)
    if not sections:
        return fresh, 0
    memory = _render(sections)
    at = _target(fresh, method)
    if at is None or method == "tail":
        new: ChatDict = {"role": "user" if method == "user" else "system", "content": memory}
        place = {"system": 0, "user": len(fresh), "tail": len(fresh) if at is None else at}[method]
        fresh.insert(place, new)
        return fresh, count(new)
    old = fresh[at]
    parts = (old.get("content"), memory) if method == "system" else (memory, old.get("content"))
    fresh[at] = {**old, "content": _merge(*parts)}
    return fresh, count(fresh[at]) - count(old)


def _target(messages: Sequence[ChatDict], method: InsertMethod) -> int | None:
    if method == "system":
        return next(
            (i for i, one in enumerate(messages) if one["role"] in {"system", "developer"}), None
        )
    return next(
        (i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "user"), None
    )


def _merge(first: BlockContent | None, second: BlockContent | None) -> BlockContent:
    """One content out of two."""
    if not first or not second:
        return first or second or ""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: BlockContent) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _render(sections: Sequence[tuple[str, BlockContent]]) -> BlockContent:
    """The memory envelope: text, or parts where one of the sections has parts that are no text."""
    names = [_ENVELOPE, *(name for name, _ in sections)]
    parts: list[dict[str, Any]] = []
    text = [f"<{_ENVELOPE}>"]
    for name, content in sections:
        text.append(f"<{name}>")
        for part in _parts(content):
            if part["type"] == "text":
                text.append(escape_tags(part["text"], names))
            else:
                parts.extend(({"type": "text", "text": "\n".join(text)}, part))
                text = []
        text.append(f"</{name}>")
    text.append(f"</{_ENVELOPE}>")
    rest = "\n".join(text)
    return [*parts, {"type": "text", "text": rest}] if parts else rest


def _check_content(content: Any) -> BlockContent:
    """What a block gave, or the empty text where that says nothing.

    Raises:
        TypeError: it is neither text nor content parts.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return without_surrogates(content) if content.strip() else ""
    if not isinstance(content, (list, tuple)):
        raise TypeError(
            f"a memory block gives text or a list of content parts, not {type(content).__name__}"
        )
    parts: list[dict[str, Any]] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or not isinstance(
            part.get(kind), str if kind == "text" else (str, dict)
        ):
            raise TypeError(f"no content part: {str(part)[:80]!r}")
        parts.append({**part, "text": without_surrogates(part["text"])} if kind == "text" else part)
    if all(part["type"] == "text" and not part["text"].strip() for part in parts):
        return ""
    return parts


def _characters(content: BlockContent) -> int:
    return sum(len(part["text"]) for part in _parts(content) if part["type"] == "text")
