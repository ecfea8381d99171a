"""When a buffer is compacted, how much of it, and what becomes of it: trigger, amount, fold.

The source documents describe six memories; each is a choice of these three::

    preset            trigger                amount                    fold
    keep_all          never                  -                         -
    window            more than N messages   the excess                drop, or summary
    token_window      more than N tokens     the excess                drop
    summary           a second message       all but the newest unit   summary
    summary_buffer    more than N tokens     all but half of N         summary (default)
    ring              more than N messages   the oldest batch          an entry each

Every cut is between units: a unit is a message, or a whole tool-call group. A single message
is never compacted.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Literal, TypeAlias, get_args

import msgspec

from remora.actors.policies.units import cut_oldest, cut_to_keep
from remora.config import BufferConfig
from remora.errors import InvalidInput
from remora.ids import SessionKey
from remora.messages import Entry

Fold: TypeAlias = Literal["drop", "summary", "entry"]
"""Compacted messages are dropped (the journal keeps them), or go into the running summary, or each
batch into a summary entry.
"""

Overdraft: TypeAlias = Literal["extract", "wait", "refuse"]
"""What an append does that goes over the overdraft while a compaction runs: have a fallback summary
made at once, wait until the compaction is done, or raise `OverdraftReached`.
"""


class BufferPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of a buffer: its trigger, how much leaves it, and what becomes of that.

    Attributes:
        above_tokens: compact a buffer of more tokens; not at equality.
        above_messages: compact a buffer of more messages.
        keep_tokens: amount: at most so many tokens stay, or the newest unit.
        keep_messages: amount: at most so many messages stay, or the newest unit.
        batch: amount: the oldest so many messages, up to a unit's boundary.
        fold: what becomes of them.
        result_tokens: most tokens that the result of a tool counts for, in these tokens and in
            `overdraft_tokens`: contexts show old results as stubs. None: all that it has.
        above_bytes: compact a buffer of more bytes, down to half of that, whatever it counts for.
        entries: most summary entries; the oldest one beyond goes into the running summary.
        overdraft_tokens: while a compaction runs, most tokens in the buffer that are not being
            summarized.
        overdraft: what an append does that would exceed it.

    Raises:
        InvalidInput: a number that is not positive, a trigger without an amount, or two amounts.
    """

    above_tokens: int | None = None
    above_messages: int | None = None
    keep_tokens: int | None = None
    keep_messages: int | None = None
    batch: int | None = None
    result_tokens: int | None = None
    above_bytes: int | None = None
    fold: Fold = "summary"
    entries: int = 500
    overdraft_tokens: int = 60_000
    overdraft: Overdraft = "extract"

    def __post_init__(self) -> None:
        if self.fold not in get_args(Fold):
            raise InvalidInput(
                f"a buffer policy's fold must be one of {', '.join(get_args(Fold))}, not "
                f"{self.fold!r}"
            )
        if self.overdraft not in get_args(Overdraft):
            raise InvalidInput(
                f"a buffer policy's overdraft must be one of {', '.join(get_args(Overdraft))}, not "
                f"{self.overdraft!r}"
            )
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if (
                name not in {"fold", "overdraft"}
                and value is not None
                and (type(value) is not int or value < 1)
            ):
                raise InvalidInput(
                    f"a buffer policy's {name} must be a positive whole number, not {value!r}"
                )
        amounts = sum(
            amount is not None for amount in (self.keep_tokens, self.keep_messages, self.batch)
        )
        triggered = self.above_tokens is not None or self.above_messages is not None
        if amounts != triggered:
            raise InvalidInput(
                "a buffer policy with a trigger needs one amount: keep_tokens, keep_messages or "
                "batch"
            )

    @classmethod
    def keep_all(cls) -> BufferPolicy:
        """Never compact."""
        return cls()

    @classmethod
    def window(cls, size: int = 50, *, fold: Fold = "drop") -> BufferPolicy:
        """Keep the newest `size` messages; with ``fold="summary"``, summarize the others."""
        return cls(above_messages=size, keep_messages=size, fold=fold)

    @classmethod
    def token_window(cls, tokens: int) -> BufferPolicy:
        """Keep the newest messages of up to `tokens` tokens, without a summary."""
        return cls(above_tokens=tokens, keep_tokens=tokens, fold="drop")

    @classmethod
    def summary(cls) -> BufferPolicy:
        """Keep the newest unit, and a summary of everything before."""
        return cls(above_messages=1, keep_messages=1)

    @classmethod
    def summary_buffer(cls, tokens: int, *, overdraft_tokens: int | None = None) -> BufferPolicy:
        """Keep a running summary; compact more than `tokens` down to half of that."""
        if type(tokens) is not int:
            raise InvalidInput(
                f"a buffer policy's tokens must be a positive whole number, not {tokens!r}"
            )
        keep = max(tokens // 2, 1)
        return cls(
            above_tokens=tokens,
            keep_tokens=keep,
            overdraft_tokens=overdraft_tokens or max(3 * tokens, 1),
        )

    @classmethod
    def ring(cls, size: int = 50, *, multiplier: int = 10, batch: int = 10) -> BufferPolicy:
        """Keep the newest `size` messages, and a summary entry for each older batch.

        Args:
            size: messages.
            multiplier: `size` times this is the number of entries.
            batch: messages in an entry.
        """
        return cls(above_messages=size, batch=batch, fold="entry", entries=size * multiplier)

    @property
    def summarizes(self) -> bool:
        """Return whether messages that leave the buffer are summarized."""
        triggered = self.above_tokens is not None or self.above_messages is not None
        return triggered and self.fold != "drop"

    def weigh(self, entry: Entry) -> int:
        """The tokens that a message counts for."""
        if entry.answers is None or self.result_tokens is None:
            return entry.tokens
        return min(entry.tokens, self.result_tokens)

    def due(self, tokens: int, count: int, size: int) -> bool:
        """Return whether to compact a buffer of `count` messages that count for `tokens` tokens.

        `size`: of it, in bytes.
        """
        if count < 2:
            return False
        if self.above_bytes is not None and size > self.above_bytes:
            return True
        if self.above_tokens is not None and tokens > self.above_tokens:
            return True
        return self.above_messages is not None and count > self.above_messages

    def amount(self, entries: Sequence[Entry], tokens: int) -> int:
        """How many entries, from the front, to compact; 0 if there is no cut yet."""
        if self.batch is not None:
            return cut_oldest(entries, self.batch)
        if self.keep_messages is not None:
            return cut_to_keep(entries, self.keep_messages, len(entries), lambda _: 1)
        assert self.keep_tokens is not None
        count = cut_to_keep(entries, self.keep_tokens, tokens, self.weigh)
        if self.above_bytes is not None:
            size = sum([entry.size for entry in entries])
            if size > self.above_bytes:
                half = self.above_bytes // 2
                count = max(count, cut_to_keep(entries, half, size, attrgetter("size")))
        return count


class BufferPreset(enum.Enum):
    """Window sizes for kinds of conversation."""

    SHORT = BufferPolicy.window(4)
    """Short, factual exchanges."""
    COMPLEX = BufferPolicy.window(10)
    """Complex conversations."""
    TECHNICAL = BufferPolicy.window(12)
    """Technical discussions."""


PolicyLike: TypeAlias = (
    BufferPolicy | BufferPreset | Callable[[SessionKey], "BufferPolicy | BufferPreset"]
)
"""A policy, or a function that gives the same policy for a session each time."""


def resolve_policy(given: object, key: SessionKey | None = None) -> BufferPolicy:
    """The policy that was given, or that a function gives for this session.

    Raises:
        InvalidInput: it is not a policy.
    """
    found = given(key) if callable(given) and key is not None else given
    if isinstance(found, BufferPreset):
        return found.value
    if isinstance(found, BufferPolicy):
        return found
    raise InvalidInput(
        "policy must be a BufferPolicy, a BufferPreset or a function that gives one, not "
        f"{found!r:.80}"
    )


def policy_from_config(config: BufferConfig) -> BufferPolicy:
    """The policy of the configuration."""
    overdraft = max(int(config.token_limit * config.overdraft_ratio), 1)
    match config.policy:
        case "keep_all":
            policy = BufferPolicy.keep_all()
        case "window":
            policy = BufferPolicy.window(config.size)
        case "token_window":
            policy = BufferPolicy.token_window(config.fold_above_tokens)
        case "summary":
            policy = BufferPolicy.summary()
        case "ring":
            policy = BufferPolicy.ring(
                config.size, multiplier=config.multiplier, batch=config.batch
            )
        case "summary_buffer":
            policy = msgspec.structs.replace(
                BufferPolicy.summary_buffer(config.fold_above_tokens),
                result_tokens=config.result_tokens,
                above_bytes=config.max_bytes,
            )
    return msgspec.structs.replace(policy, overdraft_tokens=overdraft, overdraft=config.overdraft)
