"""Memory blocks in a context: all are asked at once, and shortened by priority until they fit.

Every size is measured on the message that is sent: tags count, and two texts joined to one may have
another size than both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import anyio
import msgspec

from remora.actors.blocks.base import BlockContent, ChatMessage, MemoryBlock
from remora.actors.blocks.render import (
    Inserted,
    InsertMethod,
    characters,
    check_content,
    insert,
)
from remora.actors.blocks.source import Source
from remora.actors.blocks.state import BlockProgress, BlockSet, block_progress
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import ChatDict, Role
from remora.runtime.guard import call_guarded
from remora.runtime.threads import run_in_thread
from remora.storage.records import StateItem
from remora.tokens import INLINE_CHARACTERS

_logger = get_logger(__name__)


class BlockText(msgspec.Struct, frozen=True):
    """The text of one block.

    Attributes:
        block: the block, for its `atruncate`.
        name: of its section.
        priority: 0: always kept.
        content: text or content parts; never empty.
    """

    block: MemoryBlock
    name: str
    priority: int
    content: BlockContent


class GatheredBlocks(msgspec.Struct, frozen=True):
    """The texts of a session's blocks, in the order of the blocks.

    Attributes:
        contents: of blocks that returned anything.
        sources: the status of each block, by its name.
    """

    contents: tuple[BlockText, ...] = ()
    sources: dict[str, Source] = msgspec.field(default_factory=dict)


class FittedBlocks(msgspec.Struct, frozen=True):
    """The blocks that go into the context.

    Attributes:
        contents: name and content of each section.
        sources: the status of each block, with what was shortened or left out.
    """

    contents: tuple[tuple[str, BlockContent], ...] = ()
    sources: dict[str, Source] = msgspec.field(default_factory=dict)


class BlockView:
    """Gathers, fits and inserts a session's memory blocks.

    Args:
        blocks: the blocks of each session.
        count: tokens of a chat message.
        method: where blocks go.
        tail_role: the role of a message at the tail.
        timeout_s: how long each block may take to answer.
    """

    def __init__(
        self,
        blocks: BlockSet,
        *,
        count: Callable[[ChatDict], int],
        method: InsertMethod = "system",
        tail_role: Role = "user",
        timeout_s: float = 5.0,
    ) -> None:
        self._blocks = blocks
        self._count = count
        self._method: InsertMethod = method
        self._tail_role: Role = tail_role
        self._timeout_s = timeout_s

    async def gather(
        self, key: SessionKey, states: Sequence[StateItem], messages: Sequence[ChatDict]
    ) -> GatheredBlocks:
        """Ask all blocks of a session at once; one that fails or is late is left out.

        Args:
            key: the session.
            states: its block items.
            messages: of the context, oldest first, which the blocks are shown.

        Raises:
            ConfigError: see `BlockSet`.
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
                    given = await call_guarded(
                        block.aget, list(shown), user_id=key.user, session_id=key.session
                    )
                if scope.cancelled_caught:
                    sources[name] = Source("late", detail=f"no answer within {self._timeout_s:g} s")
                    return
                content = check_content(given)
            except Exception as e:
                _logger.warning(
                    "block_failed", session=key, block=name, error=f"{type(e).__name__}: {e}"
                )
                sources[name] = Source("failed", detail=f"{type(e).__name__}: {e}")
            else:
                if content:
                    found[name] = BlockText(block, name, block.priority, content)
                # A block that failed to take in the newest messages shows what it has.
                count = 1 if content else 0
                sources[name] = Source("failed" if now.error else "ok", count, now.error)

        async with anyio.create_task_group() as group:
            for name, prototype in prototypes.items():
                group.start_soon(ask, name, prototype)
        contents = tuple(found[name] for name in prototypes if name in found)
        return GatheredBlocks(contents, {name: sources[name] for name in prototypes})

    async def size_of_kept(self, gathered: GatheredBlocks) -> int:
        """Tokens of what is always kept, in a message of its own."""
        kept = {place: one for place, one in enumerate(gathered.contents) if one.priority == 0}
        return await self._size(kept, ())

    async def fit(
        self,
        gathered: GatheredBlocks,
        room_tokens: int,
        messages: Sequence[ChatDict] = (),
        conversation: range | None = None,
        quoted: Collection[int] = (),
    ) -> FittedBlocks:
        """Shorten until `insert` into these messages adds at most `room_tokens`.

        Priority 0 stays; then 1 is shortened first, then 2, and of equal priorities the first. A
        block whose removal would make enough room is asked once for a shorter text; if it has none,
        or one that is still too long, it is left out.

        Raises:
            InvalidInput: what is always kept needs more than `room_tokens`.
        """
        left = dict(enumerate(gathered.contents))
        sources = dict(gathered.sources)
        over = await self._size(left, messages, conversation, quoted) - room_tokens
        for place in sorted(left, key=lambda place: left[place].priority):
            if over <= 0:
                break
            one = left[place]
            if one.priority == 0:
                continue
            source = sources.get(one.name, Source("ok"))
            del left[place]
            # If leaving it out is not enough, no shorter text of it is.
            after = await self._size(left, messages, conversation, quoted) - room_tokens
            detail = f"left out: the context is {over} tokens too long"
            shorter = await self._truncate(one, over) if after <= 0 else None
            if shorter:
                tried = {**left, place: msgspec.structs.replace(one, content=shorter)}
                tried_over = await self._size(tried, messages, conversation, quoted) - room_tokens
                if tried_over <= 0:
                    left, after = tried, tried_over
                    detail = f"shortened by {over - tried_over} tokens"
                    if source.status == "ok":
                        source = msgspec.structs.replace(source, status="degraded")
            if place not in left:
                status = "omitted" if source.status == "ok" else source.status
                source = msgspec.structs.replace(source, status=status, count=0, omitted=1)
            notes = [note for note in (source.detail, detail) if note]
            sources[one.name] = msgspec.structs.replace(
                source, detail="; ".join(notes), omitted_tokens=over - after
            )
            over = after
        if over > 0 and left:
            names = ", ".join(one.name for one in left.values())
            raise InvalidInput(
                f"the memory blocks that are always kept ({names}) need {room_tokens + over} "
                "tokens; there is room for "
                f"{max(room_tokens, 0)}. Raise max_tokens, or give one of them a priority"
            )
        contents = tuple((left[place].name, left[place].content) for place in sorted(left))
        return FittedBlocks(contents, sources)

    def insert(
        self,
        messages: Sequence[ChatDict],
        fitted: FittedBlocks,
        conversation: range | None = None,
        quoted: Collection[int] = (),
    ) -> Inserted:
        """Put the blocks into messages; see `remora.actors.blocks.render.insert`."""
        return self._insert(messages, fitted.contents, conversation, quoted)

    def _insert(
        self,
        messages: Sequence[ChatDict],
        sections: Sequence[tuple[str, BlockContent]],
        conversation: range | None,
        quoted: Collection[int],
    ) -> Inserted:
        return insert(
            messages,
            sections,
            self._method,
            self._count,
            tail_role=self._tail_role,
            conversation=conversation,
            quoted=quoted,
        )

    async def _size(
        self,
        contents: dict[int, BlockText],
        messages: Sequence[ChatDict],
        conversation: range | None = None,
        quoted: Collection[int] = (),
    ) -> int:
        """Tokens that these add to the messages."""
        if not contents:
            return 0
        sections = [(contents[place].name, contents[place].content) for place in sorted(contents)]

        def measure() -> int:
            return self._insert(messages, sections, conversation, quoted).tokens

        if sum(characters(content) for _, content in sections) <= INLINE_CHARACTERS:
            return measure()
        return await run_in_thread(measure)

    async def _truncate(self, one: BlockText, tokens: int) -> BlockContent | None:
        """The block's own shorter content; None if it has none."""
        content = one.content if isinstance(one.content, str) else list(one.content)
        try:
            with anyio.fail_after(self._timeout_s):
                shorter = await call_guarded(one.block.atruncate, content, tokens)
            return None if shorter is None else check_content(shorter)
        except Exception as e:
            _logger.warning("block_not_truncated", block=one.name, error=f"{type(e).__name__}: {e}")
            return None
