"""Context assembly: ask the tiers of memory (`gather`), select what fits (`fit`), build the result.

Without a query and memory blocks none of that is needed: the session's own window is the context.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import repeat
from typing import NamedTuple, Protocol

import anyio
import msgspec

from remora.actors.blocks.source import Source
from remora.actors.session.messages import Snapshot
from remora.config import Config, ContextConfig
from remora.errors import BudgetTooSmall, StorageError
from remora.ids import SessionKey
from remora.logging import get_logger
from remora.messages import INSTRUCTING_ROLES, Entry
from remora.recall.attached import Fetch, attach
from remora.recall.context import (
    Context,
    Selection,
    build_context,
)
from remora.recall.conversation import show_conversation
from remora.recall.excerpts import leave_room, shorten_messages
from remora.recall.fit import ContextFitter
from remora.recall.gather import Tiers, gather
from remora.recall.shown import ShownSummaries, shown_digests
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.probes import probe
from remora.storage.records import MemoryItem
from remora.tokens import TokenCounter

_logger = get_logger(__name__)
_BYTES_IN_THREAD = 500_000  # of messages, from which on decoding them is a thread's work
_CHOICE = 3  # times what fits is recalled: what the context says already is left out
_MAX_FRONTS = 10_000  # sessions whose last front is remembered


class Show(Protocol):
    """Shows a conversation within a budget; see `remora.actors.session.messages.Load`."""

    async def __call__(self, budget: int, /, *, recalls: bool, again: bool) -> Snapshot:
        """The conversation."""
        ...


class _Front(NamedTuple):
    """The front of the last context of a session, and the tokens of what is around it."""

    texts: int
    tokens: int


class Planner:
    """Assembles contexts.

    Args:
        tiers: the tiers to ask.
        counter: the configured counter.
        config: shares and deadlines.
        summaries: notes the summaries that its contexts show.
        fetch: reads attachments; None where there are none.

    Attributes:
        tiers: the tiers that it asks.
        summaries: those that its contexts have shown.
    """

    def __init__(
        self,
        tiers: Tiers,
        counter: TokenCounter,
        config: Config,
        summaries: ShownSummaries | None = None,
        *,
        fetch: Fetch | None = None,
    ) -> None:
        self.tiers = tiers
        self.summaries = summaries or ShownSummaries()
        self._config = config
        self._counter = counter
        self._fetch = fetch
        self._fitter = ContextFitter(counter, config, tiers.blocks)
        self._fronts: OrderedDict[SessionKey, _Front] = OrderedDict()

    @property
    def has_fronts(self) -> bool:
        """Return whether the last load of some session showed more than its conversation."""
        return bool(self._fronts)

    def drop_front(self, key: SessionKey) -> bool:
        """The session is shown its conversation alone; whether the last load showed more."""
        return bool(self._fronts) and self._fronts.pop(key, None) is not None

    def forget(self, user: str) -> None:
        """Hold nothing of this user's sessions."""
        for key in [key for key in self._fronts if key.user == user]:
            del self._fronts[key]
        self.summaries.forget(user)

    async def assemble(
        self,
        key: SessionKey,
        show: Show,
        query: str | None,
        max_tokens: int,
        *,
        about: Sequence[Entry] | None = None,
        own: bool = True,
        hidden: Collection[int] = (),
    ) -> Context:
        """Build the context.

        Args:
            key: the session.
            show: shows the conversation.
            query: what to recall for; without one, only memory blocks are asked.
            max_tokens: the budget.
            about: messages to show to memory blocks instead of the conversation.
            own: whether the snapshot is the session's own conversation.
            hidden: numbers of the session's messages that are not recalled.

        Raises:
            BudgetTooSmall: nothing of the conversation fits.
            InvalidInput: memory blocks of priority 0 do not fit.
        """
        tiers, counter = self.tiers, self._counter
        instructions, source = await self._read_instructions(key)
        if query is None and tiers.blocks is None and source.status == "off":
            snapshot = await show(max_tokens, recalls=False, again=False)
            changed = self.drop_front(key) or snapshot.prefix_changed
            context = await show_snapshot(
                snapshot,
                counter,
                self._config.context,
                max_tokens,
                prefix_changed=changed,
                attach=partial(self._attach, key),
            )
            self._note_summaries(key, context, snapshot.pinned)
            return context
        recalls = query is not None and (tiers.recall is not None or tiers.working is not None)
        last = self._fronts.get(key)
        taken = last.tokens if last is not None and own else 0
        snapshot = await show(max_tokens - taken, recalls=recalls, again=False)
        if taken and snapshot.least_tokens:
            snapshot = await show(max_tokens, recalls=recalls, again=True)
        session = key.session if own else None
        first, whole = snapshot, _shown_whole(key, snapshot)
        shown = {*(whole if own else ()), *((key.session, seq) for seq in hidden)}
        gathered = await gather(
            tiers,
            self._config,
            key,
            snapshot,
            query,
            about=about,
            shown=shown,
            newest=snapshot.newest if own else 0,
            room=min(
                max_tokens, _CHOICE * self._fitter.recall_room(max_tokens, 0, snapshot.tokens)
            ),
        )
        gathered.instructions = instructions
        gathered.report("instructions", source)
        around = await self._fitter.fit_around(snapshot, gathered, max_tokens)
        if around.tokens != taken:
            left = max_tokens - around.tokens
            snapshot = await show(left, recalls=recalls, again=True)
        if snapshot is not first:
            whole = _shown_whole(key, snapshot)
        room = max_tokens - around.tokens
        snapshot = leave_room(await shorten_messages(snapshot, counter), room)
        check_room(snapshot, room)
        snapshot = await self._attach(key, snapshot)
        chosen = await self._fitter.fit(session, whole, snapshot, gathered, around, max_tokens)
        options = self._config.context
        make = partial(build_context, snapshot, chosen, options, prefix_changed=False)
        context = await run_in_thread_if(snapshot.size > _BYTES_IN_THREAD, make)
        self._note_summaries(
            key, context, snapshot.pinned + int(chosen.synopsis_message is not None)
        )
        context = await self._fitter.insert_blocks(
            context, snapshot, chosen, gathered, around.blocks, max_tokens
        )
        changed = self._record_front(key, context, around.tokens)
        return msgspec.structs.replace(context, prefix_changed=changed or snapshot.prefix_changed)

    async def _read_instructions(self, key: SessionKey) -> tuple[Sequence[MemoryItem], Source]:
        """The user's standing instructions, and whether there are any, and they could be read."""
        if self.tiers.instructions is None:
            return (), Source("off")
        deadline_s = self._config.recall.deadline_s
        try:
            with anyio.fail_after(deadline_s):
                found = await self.tiers.instructions(key.user)
        except (StorageError, TimeoutError) as e:
            probe("instructions_not_read")
            _logger.warning("instructions_not_read", session=key, error=type(e).__name__)
            if isinstance(e, TimeoutError):
                return (), Source("late", detail=f"no answer within {deadline_s:g} s")
            return (), Source("failed", detail=str(e))
        return found, Source("ok" if found else "off")

    async def _attach(self, key: SessionKey, snapshot: Snapshot) -> Snapshot:
        if self._fetch is None:
            return snapshot
        most = int(self._config.attachments.context_mb * (1 << 20))
        return await attach(snapshot, key.user, self._fetch, most)

    def _note_summaries(self, key: SessionKey, context: Context, first: int) -> None:
        if context.summary is not None:
            count = context.sources.summary.count
            shown = shown_digests(context.messages[first : first + count])
            self.summaries.note(key.user, shown)

    def _record_front(self, key: SessionKey, context: Context, tokens: int) -> bool:
        """Remember the front; says whether it differs from the last load."""
        roles = [one["role"] for one in context.messages]
        first = next(
            (
                n
                for n, one in enumerate(context.entries)
                if one and roles[n] not in INSTRUCTING_ROLES
            ),
            0,
        )
        texts = [str(one["content"]) for one in context.messages[:first]]
        front = _Front(hash(tuple(texts)), tokens)
        changed = self._fronts.pop(key, front) != front
        self._fronts[key] = front
        if len(self._fronts) > _MAX_FRONTS:
            self._fronts.popitem(last=False)
        return changed


def _shown_whole(key: SessionKey, snapshot: Snapshot) -> set[tuple[str, int]]:
    """The messages that are shown as they are, so that they need not be recalled."""
    shares = snapshot.shares or repeat(0)
    pairs = zip(snapshot.entries, shares, strict=False)
    return {(key.session, one.seq) for one, share in pairs if not 0 < share < one.tokens}


def check_room(snapshot: Snapshot, room: int) -> None:
    """Refuse to show nothing of a conversation.

    Raises:
        BudgetTooSmall: nothing of it fits.
    """
    needed = snapshot.least_tokens or (snapshot.tokens if snapshot.tokens > room else 0)
    if needed:
        raise BudgetTooSmall(
            f"the newest message does not fit into {max(room, 0)} tokens, not even a few words of "
            f"it: it needs {needed}. Raise max_tokens, or buffer.token_limit",
            needed=needed,
        )


async def show_snapshot(
    snapshot: Snapshot,
    counter: TokenCounter,
    config: ContextConfig,
    max_tokens: int,
    *,
    prefix_changed: bool,
    attach: Callable[[Snapshot], Awaitable[Snapshot]] | None = None,
) -> Context:
    """The context of a conversation alone.

    Raises:
        BudgetTooSmall: nothing of it fits.
    """
    snapshot = leave_room(await shorten_messages(snapshot, counter), max_tokens)
    check_room(snapshot, max_tokens)
    if attach is not None:
        snapshot = await attach(snapshot)

    def build() -> Context:
        shown = show_conversation(snapshot, counter)
        chosen = Selection(shown, shown.tokens)
        return build_context(snapshot, chosen, config, prefix_changed=prefix_changed)

    return await run_in_thread_if(snapshot.size > _BYTES_IN_THREAD, build)
