"""What fault tests send, and how they judge what is left: nothing acknowledged lost, nothing
doubled, nothing torn.

A session's conversation is the same each time: append number n is `unit(n)`, one or two messages
under the key ``n``, sent one after the other. So whoever knows how many of a session's appends were
acknowledged knows its whole history, but for the one append that may have been on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from remora import Runtime
from remora.ids import SessionKey, row_id
from remora.messages import Message, split_tool_calls

__all__ = ["Verdict", "judged", "unit"]


class Verdict(msgspec.Struct):
    """What became of what was acknowledged; all but the first two are to be 0.

    Attributes:
        acknowledged: messages whose append had returned.
        unheard: messages that are there although nobody was told: committed, and the process died
            before it said so.
        lost: acknowledged messages that are not in the history.
        doubled: messages that are in the history more than once.
        torn: appends of which a part is there.
        disordered: sessions whose history has another order, or other numbers than the receipts
            said.
        split: tool calls in contexts without their result, or results without their call.
        missing: messages of the history that are not in long-term memory when all work is done.
        doubled_rows: rows of long-term memory that are there more than once.
        unfinished: jobs and dead letters that are left when all work is done.
    """

    acknowledged: int = 0
    unheard: int = 0
    lost: int = 0
    doubled: int = 0
    torn: int = 0
    disordered: int = 0
    split: int = 0
    missing: int = 0
    doubled_rows: int = 0
    unfinished: int = 0

    def __add__(self, other: Verdict) -> Self:
        """Both together."""
        return type(self)(
            *(mine + theirs for mine, theirs in zip(_figures(self), _figures(other), strict=True))
        )

    @property
    def wrong(self) -> dict[str, int]:
        """What should have been 0, and is not."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value and name not in {"acknowledged", "unheard"}
        }


def _figures(verdict: Verdict) -> Sequence[int]:
    return msgspec.structs.astuple(verdict)


def unit(number: int) -> list[dict[str, Any]]:
    """The messages of append `number`: words, a call with its result, a call alone, and its result
    alone, in turn.
    """
    call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    match number % 4:
        case 0:
            return [
                {
                    "role": "user",
                    "content": f"{number}.0 what of the garden, the bridge and the river in the "
                    "morning?",
                }
            ]
        case 1:
            return [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": f"{number}.0", **call}],
                },
                {
                    "role": "tool",
                    "tool_call_id": f"{number}.0",
                    "content": f"{number}.1 seven hundred paces of walnut and copper",
                },
            ]
        case 2:
            return [
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"id": f"{number}.0", **call}],
                }
            ]
        case _:
            return [
                {
                    "role": "tool",
                    "tool_call_id": f"{number - 1}.0",
                    "content": f"{number}.0 a quiet harbour, a ledger, a lantern",
                }
            ]


def _place(message: Message) -> tuple[int, int]:
    """Which append a message of the history came with, and its place there."""
    named = message.tool_calls[0].id if message.tool_calls else str(message.content).split()[0]
    number, _, place = named.partition(".")
    return int(number), int(place)


async def judged(
    runtime: Runtime,
    acknowledged: Mapping[SessionKey, Sequence[Sequence[int]]],
    *,
    long_term: bool = True,
) -> Verdict:
    """Let the runtime finish what it has to do, and compare what is there with what was
    acknowledged.

    Args:
        runtime: over what is left.
        acknowledged: for each session, the numbers in the receipt of each append that returned, in
            order.
        long_term: whether there is a long-term memory to look at.
    """
    verdict = Verdict()
    wanted: list[str] = []
    for key, receipts in acknowledged.items():
        chat = runtime.session(*key)
        history = await chat.history()
        places = [_place(message) for message in history]
        found = Counter(places)
        heard = {
            (number, place) for number in range(len(receipts)) for place in range(len(unit(number)))
        }
        verdict.acknowledged += len(heard)
        verdict.unheard += len(found.keys() - heard)
        verdict.lost += len(heard - found.keys())
        verdict.doubled += sum(count - 1 for count in found.values())
        sizes = Counter(number for number, _ in found)
        verdict.torn += sum(count != len(unit(number)) for number, count in sizes.items())
        numbers = {place: message.seq for place, message in zip(places, history, strict=True)}
        told = {
            (n, place): seq for n, seqs in enumerate(receipts) for place, seq in enumerate(seqs)
        }
        verdict.disordered += places != sorted(places) or any(
            numbers.get(place) != seq for place, seq in told.items()
        )
        verdict.split += split_tool_calls((await chat.load()).messages)
        await chat.flush()
        through = (await chat.inspect()).watermarks.indexing_through
        wanted += [
            row_id(key, message.seq or 0) for message in history if (message.seq or 0) <= through
        ]
    await runtime.settle()
    verdict.unfinished = len(await runtime.internals.journal.jobs()) + len(
        await runtime.dead_letters()
    )
    if long_term:
        rows = Counter(await (await runtime.internals.long_term()).row_ids())
        verdict.doubled_rows = sum(count - 1 for count in rows.values())
        verdict.missing = len(set(wanted) - rows.keys())
    return verdict
