"""The stored state of a session's memory blocks, and the copies of blocks that do the work.

A block's state item holds the ranges of messages that it has seen, and its state after them. Both
change in one record, so they agree after any crash. One more item, without a name, holds the
messages that no block is to see: those that were cleared before they left the buffer.
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

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Message numbers, first and last of each range, in order, with gaps between them."""

_KIND = "block"
_EXCLUDED = ""  # no block's name is empty
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_RESERVED = frozenset({"memory", "fact", "message"})
_GIVEN = frozenset({"name", "priority", "description", "services"})
_NATIVE = (bytes, bytearray, datetime)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class BlockProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a block has come in a session.

    Attributes:
        seen: the messages that it took in, or that were removed before.
        state: its state after them, msgpack; empty for the prototype's own.
        error: why it did not take in the last messages; empty if it did.
    """

    seen: Ranges = ()
    state: bytes = b""
    error: str = ""


_decode_progress = msgspec.msgpack.Decoder(BlockProgress).decode
_decode_ranges = msgspec.msgpack.Decoder(Ranges).decode


# -- state items -----------------------------------------------------------------------------------


def block_progress(state_items: Iterable[StateItem]) -> dict[str, BlockProgress]:
    """The progress of a session's blocks, by name."""
    return {
        one.name: _decode_progress(one.value)
        for one in state_items
        if one.kind == _KIND and one.name != _EXCLUDED
    }


def progress_item(name: str, progress: BlockProgress) -> StateItem:
    """The state item of a block's progress."""
    return StateItem(_KIND, name, _encode(progress))


def exclusions(state_items: Iterable[StateItem], cleared: int) -> Ranges:
    """Messages that no block is to see.

    Args:
        state_items: the session's.
        cleared: if there is no item yet, messages up to here are excluded.
    """
    found = next(
        (one.value for one in state_items if one.kind == _KIND and one.name == _EXCLUDED), None
    )
    if found is not None:
        return _decode_ranges(found)
    return ((1, cleared),) if cleared else ()


def exclusion_item(ranges: Ranges) -> StateItem:
    """The state item of the messages that no block is to see."""
    return StateItem(_KIND, _EXCLUDED, _encode(ranges))


def copy_block_items(state_items: Iterable[StateItem], front: int) -> tuple[StateItem, ...]:
    """Items for a copy of a session with other message numbers.

    Args:
        state_items: the original's, when no job of its blocks was running.
        front: messages up to here are out of the copy's buffer, and count as seen.
    """
    seen = ((1, front),) if front else ()
    return tuple(
        progress_item(name, BlockProgress(seen, one.state, one.error))
        for name, one in block_progress(state_items).items()
    )


# -- ranges ----------------------------------------------------------------------------------------


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ranges, in order, without empty ones."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(one for one in ranges if one[0] <= one[1]):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def missing_ranges(through: int, ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The part of 1…`through` that is in none of `ranges`."""
    found = []
    start = 1
    for first, last in join_ranges(ranges):
        if start < first:
            found.append((start, min(first - 1, through)))
        start = max(start, last + 1)
    found.append((start, through))
    return join_ranges(found)


def renumber_ranges(ranges: Ranges, through: Callable[[int], int]) -> Ranges:
    """The same messages with other numbers; `through`: how many are left up to a number."""
    return join_ranges((through(first - 1) + 1, through(last)) for first, last in ranges)


# -- prototypes and their copies -------------------------------------------------------------------


class BlockSet:
    """The blocks of every session.

    Args:
        blocks: prototypes, the same for all sessions or a function of the session's key.
        services: what a session's blocks may use.

    Raises:
        ConfigError: two blocks of one name, an invalid name or priority, or an object that is not a
            block.
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
            for prototype in prototypes:  # raises now if one lacks something
                self.copy(SessionKey("", ""), prototype, b"")

    def prototypes(self, key: SessionKey) -> dict[str, MemoryBlock]:
        """A session's blocks by name, in the order given.

        Raises:
            ConfigError: see the class.
        """
        return {block_name(block): block for block in check_blocks(self._blocks(key))}

    def copy(self, key: SessionKey, prototype: MemoryBlock, state: bytes) -> MemoryBlock:
        """A copy of a block with a session's state, for that session only."""
        twin = copy.copy(prototype)
        initial = _encode(_state(prototype))
        if state and not _is_plain(prototype):
            _load(twin, _decode(state))
        else:  # decoded, so that no list or dict is shared with the prototype
            _load(twin, _decode(initial) | (_decode(state) if state else {}))
        bind = getattr(twin, "bind", None)
        if bind is not None:
            bind(self._services(key))
        return twin

    @staticmethod
    def state(prototype: MemoryBlock, twin: MemoryBlock) -> bytes:
        """The state of a copy to keep.

        If the block has no `state_dict`, only what differs from the prototype is kept, so that a
        changed configuration applies to old sessions as well.
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
    """Check the blocks of one session and return them.

    Raises:
        ConfigError: see `BlockSet`.
    """
    names: set[str] = set()
    for block in blocks:
        for method in ("aget", "aput", "atruncate"):
            if isinstance(block, type) or not callable(getattr(block, method, None)):
                raise ConfigError(
                    f"a memory block must have {method}, but {block!r} has none; see "
                    "BaseMemoryBlock",
                    key="blocks",
                )
        name, priority = block_name(block), block.priority
        if not _NAME.fullmatch(name) or name.lower() in _RESERVED:
            raise ConfigError(
                "a memory block's name must be letters, digits, _ - and ., and not a tag that "
                f"remora uses: {name!r}"
            )
        if name in names:
            raise ConfigError(f"two memory blocks have the name {name!r}", key="blocks")
        if not isinstance(priority, int) or isinstance(priority, bool) or priority < 0:
            raise ConfigError(
                f"the priority of the memory block {name} must be 0, 1, 2 …, not {priority!r}",
                key="blocks",
            )
        names.add(name)
    return tuple(blocks)


def _is_plain(block: MemoryBlock) -> bool:
    """Return whether remora determines the block's state."""
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
