"""The session actor: a state machine over plain data.

It decides what changes; its cell stores and applies the change.

The life of a message::

    appended ──► buffer ──(over the trigger)──► frozen prefix ──(summary is in)──► the journal only
                   │                                 │
                   └── load shows it ────────────────┘   and it is indexed once on the way

`compaction` decides what leaves the buffer, `rewriting` what changes earlier messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from remora.actors.keyed_state import (
    ChangeValues,
    DeleteValue,
    ReadNamed,
    ReadValue,
    ReadValues,
    SetValue,
    handle_keyed,
)
from remora.actors.policies.buffer import BufferPolicy
from remora.actors.policies.units import needs_user_before
from remora.actors.session import rewriting, turns
from remora.actors.session.compaction import (
    SessionRules,
    compact,
    flush,
    last_indexable,
    resummarize,
    take_summary,
)
from remora.actors.session.messages import (
    Adopt,
    Append,
    BlocksReady,
    Clear,
    FindTurn,
    Flush,
    Inspect,
    Load,
    Remove,
    Replace,
    Resummarize,
    Rewind,
    SessionView,
    Snapshot,
    SummaryReady,
    Truncate,
    TurnMark,
)
from remora.actors.session.readers import fit_for_reader, plan_summary
from remora.actors.session.state import (
    PinnedFound,
    PrefixShown,
    ReaderSeen,
    SessionState,
    apply,
    message_ids,
    opening,
    recount_entry,
    recount_tokens,
)
from remora.actors.session.window import Window, WindowRules, running_sums
from remora.errors import IdConflict, KeyConflict, OverdraftReached
from remora.ids import SessionKey, message_id, message_id_prefix
from remora.messages import ChatDict, Entry, Receipt, check_ids, has_media, is_same_chat
from remora.runtime.actor import Decision, NeedsLookup
from remora.runtime.jobs import Job, JobDone
from remora.runtime.probes import probe
from remora.storage.lookups import IdLookup, KeyLookup, OriginalAppend, PinnedLookup
from remora.storage.records import (
    BLANK_CHAT,
    Appended,
    MessageRange,
    Reader,
    SavedSession,
    StateChanged,
    StoredMessage,
    find_lost,
    join_lost,
)


class SessionBehavior:
    """Implements `remora.runtime.actor.Behavior` for conversations.

    Args:
        policy: when to compact, how much, and into what; the same one for a session each time.
        instance: distinguishes the message ids of this journal from another's.
        flushes: whether there is a long-term memory.
        blocks: whether sessions have memory blocks, which are shown what leaves the buffer.
        recount: counts a chat dict's tokens, if the journal was begun with another counter.
        repairs: whether a model writes summaries.
        facts: whether a model extracts facts.
        windows: how contexts are fitted.
        token_limit: the budget for which compaction makes room.
    """

    def __init__(
        self,
        policy: Callable[[SessionKey], BufferPolicy],
        *,
        instance: str,
        flushes: bool,
        blocks: bool = False,
        recount: Callable[[ChatDict], int] | None = None,
        repairs: bool = False,
        facts: bool = False,
        windows: WindowRules,
        token_limit: int = 30_000,
    ) -> None:
        self._windows = windows
        self._policy = policy
        self._rules = SessionRules(instance, flushes, blocks, repairs, facts, token_limit)
        self._recount = recount

    def restore(self, key: Hashable, image: SavedSession) -> SessionState:
        """The state of the journal's rows."""
        assert isinstance(key, SessionKey)
        if self._recount is not None:
            image = recount_tokens(image, self._recount)
        return SessionState(key, image, self._policy(key))

    def size(self, state: SessionState) -> int:
        """Bytes of the buffer, the summaries, the blocks' states, the keys and keyed state."""
        size = 512 + state.size + 120 * (len(state.keys) + len(state.ids))
        if state.summary is not None:
            size += len(state.summary.text) + len(state.summary.brief)
        if state.summaries:
            size += sum(len(one.text) + len(one.brief) for one in state.summaries)
        for reader in state.readers.values():
            if reader.summary is not None:
                size += len(reader.summary.text)
        if state.blocks:
            size += sum(len(state_item.value) for state_item in state.blocks.values())
        if state.keyed is not None:
            size += state.keyed.size
        return size

    def on_idle(self, state: SessionState, *, closing: bool = False) -> Flush | None:
        """Index before leaving memory: other sessions recall the messages.

        When the runtime closes, messages without an index job are left to the next start.
        """
        pending = self._rules.indexes and last_indexable(state) > state.watermarks.indexing_through
        return Flush() if pending and not closing else None

    apply = staticmethod(apply)

    # -- deciding -------------------------------------------------------------------------------

    def handle(self, state: SessionState, message: object) -> Decision | NeedsLookup:
        """Decide what one message changes."""
        if type(message) is Append and (quick := self._append_one(state, message)) is not None:
            return quick
        match message:
            case Append(turn=TurnMark(seq=0)):
                decision = self._append(state, message)
                if isinstance(decision, NeedsLookup):
                    return decision
                return turns.name_session(state, decision)
            case Append():
                return self._append(state, message)
            case Load():
                return self._load(state, message)
            case FindTurn(root=root):
                return turns.find(state, root)
            case Inspect():
                return Decision(self._view(state))
            case Flush(now=now):
                decision = self._flush(state)
                decision.urgent = now
                return decision
            case SummaryReady():
                return take_summary(state, self._rules, message)
            case Resummarize():
                return resummarize(state, self._rules)
            case BlocksReady(states=items, job=job):
                changed = [StateChanged(state.sid, items)] if items else []
                return Decision(None, [*changed, *([JobDone(job)] if job is not None else [])])
            case Clear():
                return rewriting.clear(state, self._rules)
            case Remove():
                return rewriting.remove(state, self._rules, message)
            case Truncate(keep=keep):
                return rewriting.truncate(state, self._rules, keep)
            case Rewind(to=to):
                return rewriting.rewind(state, self._rules, to)
            case Replace():
                return rewriting.replace(state, self._rules, message)
            case Adopt():
                return rewriting.adopt(state, self._rules, message)
            case (
                ReadValue()
                | ReadValues()
                | ReadNamed()
                | SetValue()
                | DeleteValue()
                | ChangeValues()
            ):
                return handle_keyed(
                    state.keyed, state.key, state.sid, message, partial(opening, state)
                )
            case _:
                raise TypeError(f"a session has no answer to {type(message).__name__}")

    def _flush(self, state: SessionState) -> Decision:
        return flush(state, self._rules)

    # -- appending ------------------------------------------------------------------------------

    def _append_one(self, state: SessionState, message: Append) -> Decision | None:
        """Return the decision of `_append` where nothing can be found or needs to be done.

        One message without an id or a key, in a session that neither compacts nor is to. None for
        any other case.
        """
        entries = message.entries
        if len(entries) != 1 or message.key is not None or message.dedup_window or message.turn:
            return None
        entry = entries[0]
        if entry.id or state.pending or not state.opened:
            return None
        policy, seq, sid = state.policy, state.next_seq, state.sid
        weight = entry.tokens if entry.answers is None else policy.weigh(entry)
        if policy.due(state.weight + weight, len(state.entries) + 1, state.size + message.size):
            return None
        receipt = Receipt((seq,), (message_id(self._rules.instance, sid, seq),))
        numbered = msgspec.structs.replace(entry, seq=seq)
        return Decision(receipt, [Appended(sid, (numbered,), None)], size=message.size)

    def _append(self, state: SessionState, message: Append) -> Decision | NeedsLookup:
        key = message.key
        if len(message.entries) > 1 and not message.allow_duplicates:
            check_ids(message.entries)
        if key is not None and (known_change := state.changes.get(key.hex())) is not None:
            return Decision(rewriting.repeat_change(state, self._rules, message, known_change))
        original: OriginalAppend | None = None
        if key is not None and (key in state.keys or not state.keys_complete):
            query = KeyLookup(key)
            if query not in state.answers:
                probe("key_looked_up")
                return state.look_up(query)
            original = state.answers[query]
        known = self._find_stored(state, message)
        if isinstance(known, NeedsLookup):
            return known
        if original is not None:
            if key in state.keys:
                probe("duplicate_key_in_memory")
            else:
                probe("duplicate_key_in_journal")
            if not _repeats(state, original, message, known):
                probe("key_conflict")
                raise KeyConflict(
                    f"the idempotency key was used for other messages of {state.key.words} (number "
                    f"{original.seqs[0]}): nothing was written; a new message needs a new key"
                )
            return Decision(self._original_receipt(state, message, original, known))
        changed = self._find_changed(state, message, known)
        if isinstance(changed, NeedsLookup):
            return changed
        receipt, entries = self._number(state, message, known, changed=bool(changed))
        if message.turn is not None:
            turns.check(state, message, entries)
        if changed:
            return rewriting.change(state, self._rules, message, receipt, entries, changed)
        if not entries:
            return Decision(receipt)
        if message.turn is not None and message.turn.replaces:
            return turns.replace(state, self._rules, message, receipt, entries)
        records: list[Any] = opening(state, entries[0].at_us)
        records.append(Appended(state.sid, tuple(entries), key))
        live = state.live_weight + sum([state.policy.weigh(entry) for entry in entries])
        jobs: tuple[Job, ...] = ()
        expedite: tuple[str, ...] = ()
        ended: tuple[str, ...] = ()
        if state.pending:
            if live > state.policy.overdraft_tokens:
                probe("overdraft_reached")
                if state.policy.overdraft != "extract":
                    raise _overdraft_error(state, live)
                expedite = (state.compaction_job,)
        elif state.policy.due(live, len(state.entries) + len(entries), state.size + message.size):
            buffer = [*state.entries, *entries]
            compaction = compact(state, self._rules, buffer, live, state.watermarks)
            if compaction is not None:
                records.append(compaction)
                jobs, ended = compaction.jobs, compaction.ended
        return Decision(
            receipt, records, jobs=jobs, cancel=ended, expedite=expedite, size=message.size
        )

    def _number(
        self,
        state: SessionState,
        message: Append,
        known: Mapping[int, StoredMessage],
        *,
        changed: bool,
    ) -> tuple[Receipt, list[Entry]]:
        """The receipt, and the messages that are new, with their numbers."""
        seqs: list[int] = []
        ids: list[str] = []
        entries: list[Entry] = []
        seq = state.next_seq
        repeatable = not message.allow_duplicates and message.dedup_window > 0
        window = deque(
            state.entries[-message.dedup_window :] if message.dedup_window else (),
            maxlen=message.dedup_window,
        )
        for place, entry in enumerate(message.entries):
            stored = known.get(place)
            there = None if stored is None else stored.entry.seq
            if there is None and repeatable and entry.id is None:
                there = next((one.seq for one in window if one.chat == entry.chat), None)
            if there is None:
                there = seq
                numbered = entry.with_seq(seq)
                entries.append(numbered)
                window.append(numbered)
                seq += 1
            else:
                probe("duplicate_message")
            seqs.append(there)
            ids.append(entry.id or message_id(self._rules.instance, state.sid, there))
        return Receipt(tuple(seqs), tuple(ids), not entries and not changed), entries

    def _find_stored(
        self, state: SessionState, message: Append
    ) -> dict[int, StoredMessage] | NeedsLookup:
        """The messages whose id is stored already, by place in the batch."""
        if message.allow_duplicates or not (state.ids or state.has_ids):
            return {}
        given = [entry.id for entry in message.entries]
        found = {id_: state.stored(state.ids[id_]) for id_ in given if id_ in state.ids}
        if state.has_ids:
            unknown = tuple(id_ for id_ in given if id_ is not None and id_ not in found)
            query = IdLookup(unknown, state.watermarks.cleared_through)
            if unknown and query not in state.answers:
                probe("ids_looked_up")
                return state.look_up(query)
            found.update(state.answers.get(query, {}))
        return {place: found[id_] for place, id_ in enumerate(given) if id_ in found}

    def _find_changed(
        self, state: SessionState, message: Append, known: Mapping[int, StoredMessage]
    ) -> list[StoredMessage] | NeedsLookup:
        """The stored messages that `message` changes, as they are to be.

        Raises:
            IdConflict: it may not change them, or not their roles.
        """
        pairs = [(message.entries[place], one) for place, one in known.items()]
        differing = [
            (new, old)
            for new, old in pairs
            if not is_same_chat(new.chat, old.entry.chat)
            or (message.replace and new.meta != old.entry.meta)
        ]
        if not differing:
            return []
        ids = tuple([new.id for new, _ in differing if new.id is not None])
        if not message.replace or message.turn is not None:
            probe("id_conflict")
            way = "" if message.turn is not None else "pass replace=True to change it, or "
            raise IdConflict(
                f"message {differing[0][1].entry.seq} of {state.key.words} has the id {ids[0]!r} "
                f"and says something else: nothing was written; {way}use another id",
                ids=ids,
            )
        if any(new.role != old.entry.role for new, old in differing):
            raise IdConflict(
                f"message {ids[0]!r} cannot change its role: nothing was written", ids=ids
            )
        # with its key, which a message in memory does not know
        query = IdLookup(ids, state.watermarks.cleared_through)
        if query not in state.answers:
            return state.look_up(query)
        rows: Mapping[str, StoredMessage] = state.answers[query]
        return [
            msgspec.structs.replace(
                old,
                entry=msgspec.structs.replace(new, seq=old.entry.seq, at_us=old.entry.at_us),
            )
            for new, _ in differing
            if new.id is not None and (old := rows.get(new.id)) is not None
        ]

    def _original_receipt(
        self,
        state: SessionState,
        message: Append,
        original: OriginalAppend,
        known: Mapping[int, StoredMessage],
    ) -> Receipt:
        """Return what the first append under this key answered."""
        seqs, ids = original.seqs, original.ids
        if len(seqs) < len(message.entries):
            probe("key_of_partial_append")
            added = iter(zip(seqs, ids, strict=True))
            found: list[tuple[int, str | None]] = []
            for place, entry in enumerate(message.entries):
                there = known.get(place)  # the first append skipped it
                if there is not None and there.entry.seq not in original.seqs:
                    found.append((there.entry.seq, entry.id))
                elif (one := next(added, None)) is not None:
                    found.append(one)
            seqs, ids = tuple(seq for seq, _ in found), tuple(id_ for _, id_ in found)
        given = message_ids(self._rules.instance, state.sid, seqs, ids)
        return Receipt(seqs, given, duplicate=True)

    # -- showing --------------------------------------------------------------------------------

    def _load(self, state: SessionState, message: Load) -> Decision | NeedsLookup:
        pinned = self._pinned(state)
        if isinstance(pinned, NeedsLookup):
            return pinned
        entries, tokens = turns.without(state, message)
        own, sums, light = entries is state.entries, None, 0
        if state.attached:
            entries, light = self._windows.lighten_old(entries, state.light if own else None)
            tokens = sum([entry.tokens for entry in entries])
        fits = message.max_tokens // 2 if state.summary or state.summaries else message.max_tokens
        if own and not state.attached and tokens > fits and not state.tools:
            sums = state.running_tokens = state.running_tokens or running_sums(entries)
        last = state.shown
        recalls = message.recalls or (last is not None and last.recalls)
        budget, rules = message.max_tokens, self._windows
        shown = fit_for_reader(
            state, entries, tokens, budget, rules, pinned, recalls=recalls, sums=sums
        )
        job = None
        if own:
            limit = self._rules.token_limit
            job = plan_summary(state, budget, shown, rules, limit=limit)
        before = last.before if message.again and last is not None else last
        now = _prefix(state, shown, before, recalls=recalls, light=light)
        changed = before is None or not _continues(now, before, shown.entries)
        summarizing_through = state.watermarks.summarizing_through
        pending = 0
        if state.pending:
            pending = sum(1 for entry in shown.entries if 0 < entry.seq <= summarizing_through)
        # by place: every load makes one
        snapshot = Snapshot(
            shown.summary,
            shown.summaries,
            shown.entries,
            shown.tokens,
            pending,
            shown.omitted,
            shown.awaiting,
            shown.orphans,
            changed,
            tuple(state.blocks.values()) if state.blocks else (),
            _find_lost(state, shown),
            state.size,
            shown.omitted_tokens,
            shown.left_out,
            shown.shortened_from,
            shown.cut_summary,
            message_id_prefix(self._rules.instance, state.sid) if shown.entries else "",
            shown.shares,
            0,
            0,
            shown.withheld,
            shown.least_tokens,
            shown.pinned,
            shown.gap,
            sum([not entry.seq for entry in shown.entries]) if state.tools else 0,
            state.attached > 0 or any(map(has_media, pinned)),
            light,
            state.next_seq - 1,
        )
        volatile: list[Any] = [now]
        if state.pinned is None:
            volatile.append(PinnedFound(pinned))
        name = str(budget)
        if job is not None or name in state.readers:
            known = state.readers.get(name)
            seen = Reader(budget, state.next_seq - 1, known.summary if known else None)
            if job is not None or known is None or known.seen != seen.seen:
                volatile.append(ReaderSeen(name, seen, job.id if job is not None else ""))
        # the job is in no record: a load waits for no write, and a later one starts it again
        return Decision(snapshot, volatile=volatile, jobs=() if job is None else (job,))

    def _pinned(self, state: SessionState) -> tuple[Entry, ...] | NeedsLookup:
        """The instructions at the beginning of the session that have left the buffer."""
        if state.pinned is not None:
            return state.pinned
        watermarks = state.watermarks
        if watermarks.archived_through == watermarks.cleared_through:
            return ()
        query = PinnedLookup(watermarks.cleared_through, watermarks.archived_through)
        if query not in state.answers:
            return state.look_up(query)
        found: tuple[Entry, ...] = state.answers[query]
        if found:
            probe("instructions_pinned")
        if self._recount is None:
            return found
        return tuple([recount_entry(entry, self._recount) for entry in found])

    def _view(self, state: SessionState) -> SessionView:
        return SessionView(
            state.sid,
            state.watermarks,
            state.next_seq - 1,
            len(state.entries),
            state.tokens,
            state.pending,
            state.pending_tokens,
            state.summary,
            tuple(state.summaries),
            tuple(state.blocks.values()),
            state.policy,
            tuple(state.entries),
            state.degraded,
            state.keyed.image if state.keyed is not None else None,
            tuple(one for one in state.readers.values() if one.summary is not None),
        )


def _repeats(
    state: SessionState,
    original: OriginalAppend,
    message: Append,
    known: Mapping[int, StoredMessage],
) -> bool:
    """Return whether an append has the messages of the first one under its key.

    The first one may have skipped some of them, which were there already: `known`, by place.
    """
    rest = iter(original.chats)
    expected = next(rest, None)
    for place, entry in enumerate(message.entries):
        # what a message said that was deleted since, nobody knows
        if expected == BLANK_CHAT or (expected and is_same_chat(entry.chat, expected)):
            expected = next(rest, None)
        elif place not in known and not _may_repeat(state, original, message, entry):
            return False
    return expected is None


def _may_repeat(
    state: SessionState, original: OriginalAppend, message: Append, entry: Entry
) -> bool:
    """Return whether the first append may have skipped `entry`, whose content was there already.

    It may if what was there has left the buffer: nobody knows any more. Nor does anybody know the
    ids of messages that were cleared or deleted.
    """
    if entry.id is not None:
        return True
    window, first = message.dedup_window, original.seqs[0]
    if not window:
        return False
    if not state.entries or state.entries[0].seq > max(first - window, 1):
        return True
    return any(
        one.seq <= original.seqs[-1] and is_same_chat(one.chat, entry.chat) for one in state.entries
    )


def _find_lost(state: SessionState, shown: Window) -> MessageRange | None:
    """The messages that the shown summaries lost."""
    if shown.summary is None or shown.summary.through <= state.watermarks.archived_through:
        return state.degraded
    return join_lost(find_lost(shown.summary))


def _prefix(
    state: SessionState,
    shown: Window,
    before: PrefixShown | None,
    *,
    recalls: bool,
    light: int,
) -> PrefixShown:
    """Return what a context begins with.

    The newest unit, which may be shortened later, is not of it.
    """
    entries, pinned = shown.entries, shown.pinned
    end = len(entries) - 1
    while end > 0 and entries[end].answers is not None:
        end -= 1
    told = [*([shown.summary] if shown.summary else []), *shown.summaries]
    front = (
        state.watermarks.generation,
        *[number for one in told for number in (one.through, one.tokens)],
        bool(told) and needs_user_before(entries),
        entries[0].seq if entries else 0,
        light,
        *[entry.seq for entry in entries[pinned : pinned + 1]],
    )
    # a missing result may come, and messages may be left out behind the question
    places: tuple[int, ...] = ()
    if state.tools:
        places = tuple([n for n, one in enumerate(entries[:end]) if not one.seq])
    second = entries[pinned + 1].seq if pinned + 1 < end else 0
    shares: tuple[tuple[int, int], ...] = ()
    if shown.shares:
        shares = tuple(zip([one.seq for one in entries[:end]], shown.shares, strict=False))
    if before is not None:
        before = msgspec.structs.replace(before, before=None)
    newest = entries[end].seq if entries else 0
    return PrefixShown(front, newest, shares, before, recalls, second, places)


def _continues(now: PrefixShown, before: PrefixShown, entries: Sequence[Entry]) -> bool:
    """Return whether a context begins as the one before."""
    if now.front != before.front or before.missing != now.missing[: len(before.missing)]:
        return False
    if before.second and before.second != now.second:
        return False
    if before.shares:
        shares = now.shares or tuple([(entry.seq, entry.tokens) for entry in entries])
        return before.shares == shares[: len(before.shares)]
    pairs = zip(entries, now.shares, strict=False)
    return all(entry.tokens == tokens for entry, (seq, tokens) in pairs if seq < before.newest)


def _overdraft_error(state: SessionState, live: int) -> OverdraftReached:
    return OverdraftReached(
        f"{state.key.words} would have {live} tokens that are not being summarized; "
        "buffer.token_limit times buffer.overdraft_ratio allows "
        f"{state.policy.overdraft_tokens} while {state.pending} messages wait for their summary. "
        "Nothing was written: send it again later, with the same key, or raise the ratio",
        tokens=live,
        limit=state.policy.overdraft_tokens,
        job=state.compaction_job,
        waits=state.policy.overdraft == "wait",
    )
