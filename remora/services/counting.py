"""Counting the tokens of many appends off the event loop.

To count 300 bytes takes 100 000 instructions of some 250 000 that an append costs the event loop.
tiktoken does without the interpreter, so another thread counts while the loop serves others: all
texts that came together by one call.

While its tokens are counted, a message has its place in its session's mailbox already: whatever is
asked of the session later is handled later. With few appends on their way the loop would only wait
for the thread, which takes longer than counting, so these are counted at once.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import TypeAlias

from msgspec.structs import force_setattr

from remora.errors import InvalidInput
from remora.messages import Entry, decode_chat
from remora.runtime.probes import probe
from remora.runtime.registry import Reserved
from remora.runtime.threads import CallingThread, call_function
from remora.tokens import BatchCounter, split_message

UNCOUNTED = -1
"""Tokens of an entry that are still to be counted; its chat dict holds nothing but texts."""

_FEW = 64  # appends on their way whose tokens are counted at once, if they are short
_FEW_LONG = 4  # otherwise: 63 of 16,000 characters would hold the loop for 26 ms
_SHORT = 2_000  # characters
_AT_ONCE = 64  # messages counted by one call, and handled in one turn of the loop: 4 ms
_MOST_WAITING = 256  # more are counted at once: a flood must not delay what comes behind it

_Waiting: TypeAlias = tuple[Sequence[Entry], Reserved]
_Counted: TypeAlias = list[int] | BaseException


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

    def _on_counted(self, counted: Sequence[_Counted] | None, _: BaseException | None) -> None:
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
) -> Sequence[_Counted]:
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
