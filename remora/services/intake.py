"""Intake of messages: check, redact, encode once, count once."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from remora.actors.policies.redaction import redact_chat, redact_metadata, redact_text
from remora.actors.policies.scoring import NEUTRAL_SCORE, validate_score
from remora.actors.policies.summary import shorten
from remora.config import BufferConfig, Config, StateConfig
from remora.errors import InvalidInput, InvalidMessage
from remora.formats import as_chats
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import (
    AttachmentLimits,
    ChatDict,
    Entry,
    Message,
    MessageLike,
    counted_chat,
    decode_chat,
    encode_message,
    encode_plain,
    indent,
    is_message_object,
    without_surrogates,
)
from remora.models.cache import CachingEmbedder
from remora.runtime.clock import Clock
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.guard import is_requested
from remora.runtime.locks import KeyedLocks
from remora.runtime.probes import probe
from remora.runtime.registry import Reserved
from remora.runtime.threads import CallingThread, call_function, compute_in_thread, run_in_thread
from remora.services.arguments import MAX_BATCH, MAX_PARTS, collect
from remora.storage.records import RESTORED, Summary
from remora.tokens import (
    INLINE_CHARACTERS,
    BatchCounter,
    TokenCounter,
    count_message,
    split_message,
)

_logger = get_logger(__name__)
_INLINE_MESSAGES = 100  # encoded on the event loop: about a millisecond
_MANY_TEXTS = 100
_WHOLE_ATTACHMENTS = 8  # of the largest size, that a message may have in it


PlainMessage: TypeAlias = Message | Mapping[str, Any]
"""A message as it is encoded: what other libraries' objects became."""

_Counted: TypeAlias = tuple[Entry, ChatDict, int]
"""An entry, the chat dict that it encodes, and the tokens of that."""


class Intake(msgspec.Struct, frozen=True):
    """The checks that every message and memory passes on its way in.

    Attributes:
        buffer: bounds the size of a message.
        counter: counts tokens.
        clock: says when a message came that does not say it itself.
        redact: replaces every text before the journal sees it.
        scorer: says what a chat message is worth keeping.
        embedder: None if there is none.
        state: bounds keyed state.
        turns: held for a session and its user while messages are encoded in a thread: of one user
            one thread at a time, so that others find a processor.
        attachments: what is taken out of messages.
        counting: counts off the event loop; None where all is counted when it is encoded.
    """

    buffer: BufferConfig
    counter: TokenCounter
    clock: Clock
    redact: Callable[[str], str] | None
    scorer: Callable[[ChatDict], float] | None
    embedder: CachingEmbedder | None
    state: StateConfig = StateConfig()
    turns: KeyedLocks = msgspec.field(default_factory=KeyedLocks)
    counting: CountingThread | None = None
    attachments: AttachmentLimits | None = None

    def encode_at_once(self, key: SessionKey, message: ChatDict) -> Entry | None:
        """The entry of a dict with a role and a short text alone, as nearly all messages are.

        None for any other message, and where `encode_in_turn` has to look or to wait.
        """
        if self.redact is not None or self.scorer is not None or key in self.turns.used:
            return None
        most = INLINE_CHARACTERS
        if self.attachments is not None:
            most = min(most, self.attachments.min_bytes - 1)
        plain = encode_plain(message, self.buffer.max_message_bytes, most)
        if plain is None:
            return None
        text, encoded = plain
        counting = self.counting
        if (
            counting is not None
            and counting.in_progress >= _FEW_LONG
            and counting.is_wanted(len(text))
        ):
            tokens = UNCOUNTED
        else:
            tokens = self.counter.message_overhead + self.counter.count(text)
        return Entry(0, int(self.clock.time() * 1_000_000), tokens, message["role"], encoded)

    async def encode_in_turn(self, key: SessionKey, batch: Sequence[PlainMessage]) -> list[Entry]:
        """`encode_for_append`; calls for one session return in the order in which they were made.

        The caller must send the entries before it awaits anything else: so a long message, which is
        encoded in a thread, is not overtaken by a short one.

        Raises:
            InvalidMessage, RedactionFailed: see `encode`.
        """
        large = _are_large(batch)
        if not large and key not in self.turns.used:
            return self._encode_at_once(batch)
        if not large:
            probe("append_waited_for_encoding")
        async with self.turns(key):
            return await self._encode_if(large, key.user, batch, taking=True)

    async def encode_for_append(self, user: str, batch: Sequence[PlainMessage]) -> list[Entry]:
        """`encode`, but `Appends.append` may have to count them: all are `UNCOUNTED`, or none."""
        if _are_large(batch):
            return await self._encode_if(True, user, batch, taking=True)
        return self._encode_at_once(batch)

    def _encode_at_once(self, batch: Sequence[PlainMessage]) -> list[Entry]:
        counting = self.counting
        later = (
            counting is not None
            and counting.is_wanted(INLINE_CHARACTERS)
            and self.redact is None
            and self.scorer is None
        )
        return self._weigh(self._encode(batch, self.now_us(), later=later))

    async def encode(
        self, user: str, batch: Sequence[PlainMessage], *, taking: bool = False
    ) -> list[Entry]:
        """The entries of a batch, not yet numbered; made in a thread if they are many or long.

        Raises:
            InvalidMessage: one of them is not a chat message.
            RedactionFailed: the redaction hook failed on one of them.
        """
        return await self._encode_if(_are_large(batch), user, batch, taking=taking)

    async def _encode_if(
        self, large: bool, user: str, batch: Sequence[PlainMessage], *, taking: bool
    ) -> list[Entry]:
        """The entries, made in a thread if they are `large`."""
        encode = partial(self._encode, taking=taking)
        if not large:
            return self._weigh(encode(batch, self.now_us()))
        async with self.turns(user):
            return self._weigh(await compute_in_thread(encode, batch, self.now_us()))

    def _weigh(self, encoded: Sequence[_Counted]) -> list[Entry]:
        scorer = self.scorer
        if scorer is None:
            return [entry for entry, _, _ in encoded]
        return [entry.with_weight(tokens, _score(scorer, chat)) for entry, chat, tokens in encoded]

    def _encode(
        self,
        batch: Sequence[PlainMessage],
        now_us: int,
        *,
        later: bool = False,
        taking: bool = False,
    ) -> list[_Counted]:
        """The entries, with their tokens, and what they encode; blocks.

        With `later` they are `UNCOUNTED`, if each consists of texts; with `taking`, attachments are
        taken out of them.
        """
        limit, counter = self.buffer.max_message_bytes, self.counter
        if len(batch) > _INLINE_MESSAGES:
            for i, message in enumerate(batch):
                _measure_message(message, i)
        attachments = self.attachments if taking else None
        whole = self.redact is not None  # what is redacted is taken apart afterwards
        if self.attachments is not None and (whole or not taking):
            limit += _WHOLE_ATTACHMENTS * self.attachments.max_bytes
        encoded = [
            encode_message(
                message,
                index=i,
                max_bytes=limit,
                now_us=now_us,
                attachments=None if whole else attachments,
            )
            for i, message in enumerate(batch)
        ]
        if later and all(_is_text(entry, chat) for entry, chat in encoded):
            return [
                (entry.with_weight(UNCOUNTED, NEUTRAL_SCORE), chat, UNCOUNTED)
                for entry, chat in encoded
            ]
        if self.redact is not None:
            most = self.buffer.max_message_bytes
            encoded = [
                _redact_entry(pair, i, self.redact, most, attachments)
                for i, pair in enumerate(encoded)
            ]
        counted = [
            (entry, chat, count_message(counter, counted_chat(chat, entry.meta)))
            for entry, chat in encoded
        ]
        if self.scorer is not None:  # an application's code, which is called on the event loop
            return counted
        return [(e.with_weight(tokens, NEUTRAL_SCORE), chat, tokens) for e, chat, tokens in counted]

    async def restore_summary(self, text: str) -> Summary | None:
        """A summary from outside: redacted, as long as one of remora's at most; None if blank."""
        if self.redact is not None:
            text = redact_text(text, self.redact)
        prefix, counter = self.buffer.summary_prefix, self.counter
        room = self.buffer.most_summary_tokens - counter.message_overhead - counter.count(prefix)
        text = await run_in_thread(shorten, indent(without_surrogates(text)), max(room, 1), counter)
        if not text.strip():
            return None
        tokens = count_message(counter, {"role": "system", "content": prefix + text})
        return Summary(0, prefix, text, tokens, degraded=False, model=RESTORED)

    async def count_texts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text; counted in a thread if they are many or long."""
        return await run_in_thread_if(
            are_large(texts), lambda: list(map(self.counter.count, texts))
        )

    def now_us(self) -> int:
        """Microseconds since the epoch."""
        return int(self.clock.time() * 1_000_000)


def attachment_limits(config: Config) -> AttachmentLimits:
    """Return what is taken out of the messages of a memory."""
    sizes = config.attachments
    return AttachmentLimits(sizes.min_kb * 1_024, int(sizes.max_mb * (1 << 20)))


def _is_text(entry: Entry, chat: ChatDict) -> bool:
    """Return whether all that is counted is text, which the entry holds as it was given."""
    return counted_chat(chat, entry.meta) is chat and all(type(one) is str for one in chat.values())


def are_large(texts: Sequence[str]) -> bool:
    """Return whether checking or counting these texts would hold the event loop."""
    return len(texts) > _MANY_TEXTS or sum(map(len, texts)) > INLINE_CHARACTERS


def as_batch(messages: MessageLike | Iterable[MessageLike]) -> list[PlainMessage]:
    """`as_messages`, at least one.

    Raises:
        InvalidMessage, InvalidInput: see `as_messages`; or there is none.
    """
    # a dict is the usual case, and the check of an abstract class is slow
    if isinstance(messages, (dict, Message)):
        return [messages]
    batch = as_messages(messages)
    if not batch:
        raise InvalidMessage("there is no message to append")
    return batch


def as_messages(
    messages: MessageLike | Iterable[MessageLike], *, most: int = MAX_BATCH
) -> list[PlainMessage]:
    """One message or many, as a list; objects of client libraries are chat dicts in it.

    Raises:
        InvalidMessage: it is neither.
        InvalidInput: more than `most`.
    """
    given: Any = messages
    if isinstance(given, (dict, Message, Mapping)):
        return [given]
    if is_message_object(given):
        return as_chats([given])
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidMessage(
            "a message is a dict in the OpenAI chat format or a remora.Message, not "
            f"{type(given).__name__}"
        )
    batch = collect(given, "messages", most=most)
    for one in batch:
        if type(one) is not dict:
            return as_chats(batch)
    return batch


def _are_large(batch: Sequence[object]) -> bool:
    """Return whether encoding and counting a batch takes more than a millisecond.

    Raises:
        InvalidMessage: see `_measure_message`; not of a long batch, whose messages are checked when
            they are encoded.
    """
    if len(batch) > _INLINE_MESSAGES:
        return True
    size = 0
    for index, message in enumerate(batch):
        size += _measure_message(message, index)
    return size > INLINE_CHARACTERS


def _measure_message(message: object, index: int) -> int:
    """About how many characters it has.

    Raises:
        InvalidMessage: a message has more than `MAX_PARTS` content parts or tool calls.
    """
    if type(message) is dict:
        content = message.get("content")
        if type(content) is str and len(message) == 2:  # the common case
            return len(content)
        values: Iterable[Any] = message.values()
        several = (content, message.get("tool_calls"))
    elif isinstance(message, Message):
        values = msgspec.structs.astuple(message)
        several = (message.content, message.tool_calls)
    elif isinstance(message, Mapping):
        values = message.values()
        several = (message.get("content"), message.get("tool_calls"))
    else:
        return 0  # refused when it is encoded
    for one in several:
        if isinstance(one, (list, tuple)) and len(one) > MAX_PARTS:
            raise InvalidMessage(
                f"message {index} has {len(one)} content parts or tool calls; at most {MAX_PARTS} "
                "are allowed",
                index=index,
            )
    return measure(values, INLINE_CHARACTERS)


def measure(values: Iterable[Any], enough: int) -> int:
    """Characters and elements in plain data, counted until there are `enough`."""
    size, left = 0, list(values)
    while left and size <= enough:
        one = left.pop()
        if isinstance(one, (str, bytes)):
            size += len(one)
        elif isinstance(one, (dict, list, tuple)):
            size += len(one)
            if size <= enough:
                left.extend(one.values() if isinstance(one, dict) else one)
        elif isinstance(one, msgspec.Struct):
            left.extend(msgspec.structs.astuple(one))
    return size


def _redact_entry(
    pair: tuple[Entry, ChatDict],
    index: int,
    redact: Callable[[str], str],
    limit: int,
    attachments: AttachmentLimits | None,
) -> tuple[Entry, ChatDict]:
    entry, chat = pair
    message: dict[str, Any] = redact_chat(chat, redact)
    if entry.meta:
        message["metadata"] = redact_metadata(msgspec.msgpack.decode(entry.meta), redact)
    if entry.id is not None:
        message["id"] = entry.id
    fresh, chat = encode_message(message, index=index, max_bytes=limit, attachments=attachments)
    return msgspec.structs.replace(fresh, at_us=entry.at_us), chat


def _score(scorer: Callable[[ChatDict], float], chat: ChatDict) -> float:
    """The scorer's answer; neutral if it fails, since keeping the message matters more."""
    try:
        return validate_score(
            scorer(chat), str(getattr(scorer, "__qualname__", type(scorer).__qualname__))
        )
    except BaseException as e:
        if is_requested(e) or isinstance(e, (KeyboardInterrupt, SystemExit)):
            raise
        _logger.exception("scorer_failed")
        return NEUTRAL_SCORE


# -- counting the tokens of many appends off the event loop ----------------------------------------
#
# To count 300 bytes takes 100 000 instructions of some 250 000 that an append costs the event loop.
# tiktoken does without the interpreter, so another thread counts while the loop serves others: all
# texts that came together by one call.
#
# While its tokens are counted, a message has its place in its session's mailbox already: whatever
# is asked of the session later is handled later. With few appends on their way the loop would only
# wait for the thread, which takes longer than counting, so these are counted at once.

UNCOUNTED = -1
"""Tokens of an entry that are still to be counted; its chat dict holds nothing but texts."""

_FEW = 64  # appends on their way whose tokens are counted at once, if they are short
_FEW_LONG = 4  # otherwise: 63 of 16,000 characters would hold the loop for 26 ms
_SHORT = 2_000  # characters
_AT_ONCE = 64  # messages counted by one call, and handled in one turn of the loop: 4 ms
_MOST_WAITING = 256  # more are counted at once: a flood must not delay what comes behind it

_Waiting: TypeAlias = tuple[Sequence[Entry], Reserved]
_CountedBatch: TypeAlias = list[int] | BaseException


class CountingThread:
    """Counts messages in a thread, and has their actors handle them then.

    Args:
        counter: counts; None for another counter, which counts all at once.
        complete: has the session handle its message, or tells the sender that it never can.
        thread: counts; None where there is no asyncio: all is counted at once.

    Attributes:
        in_progress: appends that are on their way.
    """

    def __init__(
        self,
        counter: BatchCounter | None,
        complete: Callable[[Reserved, Exception | None], None],
        thread: CallingThread | None,
    ) -> None:
        self.in_progress = 0
        self._counter = counter
        self._complete = complete
        self._thread = thread
        self._waiting: list[_Waiting] = []
        self._counting: list[_Waiting] = []
        """What the thread counts."""
        self._begun = False
        self._context = contextvars.copy_context()
        """Messages are handled in it, and never in the context of another sender."""

    def is_wanted(self, characters: int) -> bool:
        """Return whether messages of so many characters should be left `UNCOUNTED`, for `add`."""
        return (
            self.in_progress >= (_FEW if characters <= _SHORT else _FEW_LONG)
            and len(self._waiting) < _MOST_WAITING
            and self._thread is not None
            and self._counter is not None
        )

    def add(self, entries: Sequence[Entry], reserved: Reserved) -> None:
        """Count these, of which nobody has read `Entry.tokens`."""
        assert self._thread is not None
        probe("counted_in_thread")
        self._waiting.append((entries, reserved))
        if not self._begun:
            self._begun = True
            # after all that can run now: they may append, too
            self._thread.loop.call_soon(self._begin, context=self._context)

    def _begin(self) -> None:
        batch = self._counting = self._waiting[:_AT_ONCE]
        del self._waiting[:_AT_ONCE]
        self._begun = bool(batch)
        if batch:
            assert self._thread is not None
            assert self._counter is not None
            count = partial(_count_messages, self._counter, [entries for entries, _ in batch])
            self._thread.submit(count, lambda *it: self._context.run(self._on_counted, *it))

    def _on_counted(self, counted: Sequence[_CountedBatch] | None, _: BaseException | None) -> None:
        assert counted is not None  # `_count_messages` raises nothing
        batch = self._counting
        self._begin()  # the thread goes on, while these are handled
        for (entries, reserved), tokens in zip(batch, counted, strict=True):
            if isinstance(tokens, BaseException):
                refusal = InvalidInput("the tokens of a message cannot be counted")
                refusal.__cause__ = tokens
                self._complete(reserved, refusal)
                continue
            for entry, count in zip(entries, tokens, strict=True):
                force_setattr(entry, "tokens", count)
            self._complete(reserved, None)

    async def aclose(self) -> None:
        """End the thread; nothing waits any more."""
        if self._thread is not None:
            self._thread.close()


def _count_messages(
    counter: BatchCounter, batches: Sequence[Sequence[Entry]]
) -> Sequence[_CountedBatch]:
    """The tokens of each message, by append; or why an append's cannot be counted."""
    parts = [
        [split_message(counter, decode_chat(entry.chat)) for entry in batch] for batch in batches
    ]
    texts = [text for batch in parts for _, some in batch for text in some]
    found, error = call_function(partial(counter.count_all, texts))
    if found is not None:
        each = iter(found)
        return [[tokens + sum(islice(each, len(some))) for tokens, some in few] for few in parts]
    if len(batches) == 1:
        assert error is not None
        return [error]
    probe("batch_counted_one_by_one")  # one of the texts makes the tokenizer fail
    return [_count_messages(counter, [batch])[0] for batch in batches]
