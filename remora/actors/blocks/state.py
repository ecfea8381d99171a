"""What the journal keeps of a session's memory blocks, and the copies that work on it.

A block's facet holds which messages it has seen, as ranges, and its state after the last of them.
Both change in one record, so a block has seen exactly what its state says, whatever crashed when.
One more facet, with no name, holds which messages no block is to see: those that were cleared
before they left the buffer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias, cast

import msgspec

from remora.actors.blocks.base import (
    BaseMemoryBlock,
    BlockServices,
    BlocksLike,
    MemoryBlock,
    block_name,
    is_encodable,
)
from remora.errors import ConfigError
from remora.ids import SessionKey
from remora.storage.records import StateItem

__all__ = [
    "BlockProgress",
    "BlockSet",
    "Ranges",
    "block_progress",
    "check_blocks",
    "copy_block_items",
    "excluded_item",
    "excluded_ranges",
    "join_ranges",
    "missing_ranges",
    "progress_item",
    "renumber_ranges",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Message numbers, first and last of each range, in order, none touching the next."""

_KIND = "block"
_UNSEEN = ""  # no block's name is empty
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RESERVED = frozenset({"memory", "fact", "message"})
_GIVEN = frozenset({"name", "priority", "description", "services"})
_NATIVE = (bytes, bytearray, datetime)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class BlockProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a block has come in a session.

    Attributes:
        seen: the messages that it has taken in, or that were removed before it could.
        state: its state after them, msgpack; empty for the prototype's own.
        error: why it has not taken in what it was shown last; empty when it has.
    """

    seen: Ranges = ()
    state: bytes = b""
    error: str = ""


_decode_progress = msgspec.msgpack.Decoder(BlockProgress).decode
_decode_ranges = msgspec.msgpack.Decoder(Ranges).decode


# -- facets ----------------------------------------------------------------------------------------


def block_progress(state_items: Iterable[StateItem]) -> dict[str, BlockProgress]:
    """What a session's facets say of its blocks, by name."""
    return {
        one.name: _decode_progress(one.value)
        for one in state_items
        if one.kind == _KIND and one.name != _UNSEEN
    }


def progress_item(name: str, progress: BlockProgress) -> StateItem:
    """The facet to journal."""
    return StateItem(_KIND, name, _encode(progress))


def excluded_ranges(state_items: Iterable[StateItem], cleared: int) -> Ranges:
    """Messages that no block is to see.

    `cleared`: those that were cleared before anybody kept account of them.
    """
    found = next(
        (one.value for one in state_items if one.kind == _KIND and one.name == _UNSEEN), None
    )
    if found is not None:
        return _decode_ranges(found)
    return ((1, cleared),) if cleared else ()


def excluded_item(ranges: Ranges) -> StateItem:
    """The facet to journal."""
    return StateItem(_KIND, _UNSEEN, _encode(ranges))


def copy_block_items(state_items: Iterable[StateItem], front: int) -> tuple[StateItem, ...]:
    """Block facets for a copy of a session whose messages are numbered anew.

    What is out of its buffer has been seen.

    Args:
        state_items: the original's, when no job of its blocks was under way.
        front: messages up to here are out of the copy's buffer.
    """
    seen = ((1, front),) if front else ()
    return tuple(
        progress_item(name, BlockProgress(seen, one.state, one.error))
        for name, one in block_progress(state_items).items()
    )


# -- ranges ----------------------------------------------------------------------------------------


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union, in order; empty ranges fall out."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(one for one in ranges if one[0] <= one[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def missing_ranges(through: int, ranges: Iterable[tuple[int, int]]) -> Ranges:
    """What of 1…`through` is in none of `ranges`."""
    found = []
    start = 1
    for first, last in join_ranges(ranges):
        if start < first:
            found.append((start, min(first - 1, through)))
        start = max(start, last + 1)
    found.append((start, through))
    return join_ranges(found)


def renumber_ranges(ranges: Ranges, through: Callable[[int], int]) -> Ranges:
    """The same messages where they are counted anew.

    `through` says how many are left up to a number.
    """
    return join_ranges((through(first - 1) + 1, through(last)) for first, last in ranges)


# -- prototypes and their copies -------------------------------------------------------------------


class BlockSet:
    """The blocks of every session.

    Args:
        blocks: prototypes, the same for all sessions or a function of the session's key.
        services: what a session's blocks may use.

    Raises:
        ConfigError: two blocks of one name, a name or a priority that cannot be one, or something
            that is no block.
    """

    def __init__(self, blocks: BlocksLike, services: Callable[[SessionKey], BlockServices]) -> None:
        self._blocks: Callable[[SessionKey], Sequence[MemoryBlock]]
        if callable(blocks):
            self._blocks = blocks
        else:
            prototypes = check_blocks(blocks)
            self._blocks = lambda _: prototypes
        self._services = services
        if not callable(blocks):
            for prototype in (
                prototypes
            ):  # what one lacks is said at once, and not with the first message that overflows
                self.copy(SessionKey("", ""), prototype, b"")

    def prototypes(self, key: SessionKey) -> dict[str, MemoryBlock]:
        """A session's blocks by name, in the order given.

        Raises:
            ConfigError: see the class.
        """
        return {block_name(block): block for block in check_blocks(self._blocks(key))}

    def copy(self, key: SessionKey, prototype: MemoryBlock, state: bytes) -> MemoryBlock:
        """A block that works for one session, and that nobody else holds."""
        twin = copy.copy(prototype)
        initial = _encode(_state(prototype))
        if state and not _is_plain(prototype):
            _load(twin, _decode(state))
        else:  # decoded anew, so that no list or dict is the prototype's own
            _load(twin, _decode(initial) | (_decode(state) if state else {}))
        bind = getattr(twin, "bind", None)
        if bind is not None:
            bind(self._services(key))
        return twin

    @staticmethod
    def state(prototype: MemoryBlock, twin: MemoryBlock) -> bytes:
        """What to keep of a copy.

        Where the block does not say itself, what differs from the prototype.

        So a prototype that is configured differently next time is so for old sessions, too.
        """
        state = _state(twin)
        if _is_plain(prototype):
            initial = _state(prototype)
            state = {
                k: v
                for k, v in state.items()
                if k not in initial or _encode(v) != _encode(initial[k])
            }
        return _encode(state) if state else b""


def check_blocks(blocks: Sequence[MemoryBlock]) -> tuple[MemoryBlock, ...]:
    """The blocks of one session.

    Raises:
        ConfigError: see `BlockSet`.
    """
    names: set[str] = set()
    for block in blocks:
        for method in ("aget", "aput", "atruncate"):
            if isinstance(block, type) or not callable(getattr(block, method, None)):
                raise ConfigError(
                    f"a memory block must have {method}, which {block!r} has not; see "
                    "BaseMemoryBlock",
                    key="blocks",
                )
        name, priority = block_name(block), block.priority
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise ConfigError(
                "a memory block's name must be letters, digits, _ - and ., and no tag of "
                f"remora's own, not {name!r}"
            )
        if name in names:
            raise ConfigError(
                f"two memory blocks are called {name!r}; give one of them another name",
                key="blocks",
            )
        if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
            raise ConfigError(
                f"the priority of the memory block {name} must be 0, 1, 2 …, not {priority!r}",
                key="blocks",
            )
        names.add(name)
    return tuple(blocks)


def _is_plain(block: MemoryBlock) -> bool:
    """Whether the block leaves it to remora what its state is."""
    own = getattr(type(block), "state_dict", None)
    return own is None or own is BaseMemoryBlock.state_dict


def _state(block: MemoryBlock) -> dict[str, Any]:
    own = getattr(block, "state_dict", None)
    if own is not None:
        return cast("dict[str, Any]", own())
    return {name: value for name, value in _attributes(block).items() if is_encodable(value)}


def _load(block: MemoryBlock, state: dict[str, Any]) -> None:
    own = getattr(block, "load_state_dict", None)
    if own is not None:
        own(state)
        return
    before = _attributes(block)
    for name, value in state.items():
        kind = type(before[name]) if before.get(name) is not None else Any
        setattr(block, name, msgspec.convert(value, kind, builtin_types=_NATIVE))


def _attributes(block: object) -> dict[str, Any]:
    return {
        name: value for name, value in getattr(block, "__dict__", {}).items() if name not in _GIVEN
    }
