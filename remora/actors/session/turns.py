"""Turns: finding what is stored of one, and storing its replies.

The appends of a turn have keys that begin with the same bytes (`remora.ids.turn_key`), so the turn
is what the journal has under these keys. Nothing else is stored of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from remora.actors.session import rewriting
from remora.actors.session.compaction import SessionRules
from remora.actors.session.messages import Append, Load, StoredTurn, TurnMark, TurnReceipt
from remora.actors.session.state import SessionState
from remora.errors import InvalidInput, TurnClosed
from remora.ids import turn_numbers
from remora.messages import Entry, Receipt
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.probes import probe
from remora.storage.lookups import KeyedAppend, TurnLookup
from remora.storage.records import Appended

_by_seq = attrgetter("seq")


def find(state: SessionState, root: bytes) -> Decision | NeedsLookup:
    """Return what is stored of the turn whose keys begin with `root`."""
    if state.keys_complete and not any(key.startswith(root) for key in state.keys):
        return Decision(StoredTurn(state.sid))
    query = TurnLookup(root)
    if query not in state.answers:
        return state.look_up(query)
    appends: dict[int, dict[int, KeyedAppend]] = {}
    for one in state.answers[query]:
        attempt, part = turn_numbers(one.key)
        appends.setdefault(attempt, {})[part] = one
    if not appends:
        return Decision(StoredTurn(state.sid))
    there = [number for number, parts in appends.items() if _has_opening(state, parts)]
    if not there:
        probe("turn_begun_again")
        return Decision(StoredTurn(state.sid, max(appends) + 1))
    parts = appends[max(there)]
    opening = parts[0].entries
    replies = tuple(entry for part in sorted(parts) if part for entry in parts[part].entries)
    overtaken = _is_overtaken(state, opening, replies)
    return Decision(StoredTurn(state.sid, max(there), opening, replies, max(parts) + 1, overtaken))


def _has_opening(state: SessionState, parts: dict[int, KeyedAppend]) -> bool:
    """Return whether the user's messages are stored, and were neither cleared nor removed."""
    opening = parts.get(0)
    if opening is None or opening.removed:
        return False
    return opening.entries[0].seq > state.watermarks.cleared_through


def _is_overtaken(state: SessionState, opening: Sequence[Entry], replies: Sequence[Entry]) -> bool:
    if opening[0].seq <= state.watermarks.archived_through:
        return True
    own = {entry.seq for entry in (*opening, *replies)}
    first = bisect_left(state.entries, opening[0].seq, key=_by_seq)
    return any(entry.seq not in own for entry in state.entries[first:])


def check(state: SessionState, message: Append, entries: Sequence[Entry]) -> None:
    """Refuse messages of a turn that is gone, or that are stored already.

    Args:
        state: the session.
        message: what is to be stored.
        entries: those of its messages that are new.

    Raises:
        TurnClosed, InvalidInput: see `Append.turn`.
    """
    turn = message.turn
    assert turn is not None
    if turn.seq and not _is_there(state, turn):
        probe("turn_gone")
        raise TurnClosed(
            f"the message that this turn of {state.key.words} answers was cleared, rewound, "
            "deleted or forgotten: nothing was written"
        )
    if len(entries) < len(message.entries):
        raise InvalidInput(
            "a message of this turn has an id that is stored already, or twice: nothing was "
            "written; a turn is recognized by its key, so leave the ids out, or use new ones"
        )


def _is_there(state: SessionState, turn: TurnMark) -> bool:
    """Return whether the session still has the message that the turn answers.

    Of one that left the buffer it cannot know.
    """
    if turn.sid != state.sid:  # erased: the number is that of another message
        return False
    seq, watermarks = turn.seq, state.watermarks
    if seq in state.erased or not watermarks.cleared_through < seq < state.next_seq:
        return False
    if seq <= watermarks.archived_through:
        return True
    index = bisect_left(state.entries, seq, key=_by_seq)
    if index == len(state.entries):
        return False
    found = state.entries[index]
    return found.seq == seq and found.chat == turn.chat


def name_session(state: SessionState, decision: Decision) -> Decision:
    """Say in the receipt of a turn's first append which session it is in."""
    receipt: Receipt = decision.reply
    decision.reply = TurnReceipt(receipt.seqs, receipt.ids, receipt.duplicate, state.sid)
    return decision


def replace(
    state: SessionState,
    rules: SessionRules,
    message: Append,
    receipt: Receipt,
    entries: Sequence[Entry],
) -> Decision:
    """Append replies, and remove the incomplete one that they replace, in one write."""
    assert message.turn is not None
    probe("incomplete_reply_replaced")
    removed = rewriting.remove_number(state, rules, message.turn.replaces)
    records = [*removed.records, Appended(state.sid, tuple(entries), message.key)]
    return Decision(receipt, records, jobs=removed.jobs, cancel=removed.cancel, size=message.size)


def without(state: SessionState, message: Load) -> tuple[Sequence[Entry], int]:
    """The messages of the buffer that `message` asks for, and their tokens."""
    seq = message.without
    if not seq or message.sid != state.sid:
        return state.entries, state.tokens
    left = [entry for entry in state.entries if entry.seq != seq]
    return left, sum(entry.tokens for entry in left)
