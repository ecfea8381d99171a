"""Context assembly: ask the tiers of memory (`gather`), select what fits (`fit`), build the result.

Without a query and memory blocks none of that is needed: the session's own window is the context.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

from remora.actors.session.messages import Snapshot
from remora.config import Config, ContextConfig
from remora.ids import SessionKey
from remora.messages import Entry
from remora.recall.context import (
    Context,
    Selection,
    build_context,
)
from remora.recall.conversation import show_conversation
from remora.recall.fit import ContextFitter
from remora.recall.gather import Tiers, gather
from remora.recall.shown import ShownSummaries, shown_digests
from remora.runtime.concurrency import run_in_thread_if
from remora.tokens import TokenCounter

__all__ = ["Planner", "show_snapshot"]

_BYTES_IN_THREAD = 500_000  # of messages, from which on decoding them is a thread's work
_MAX_FRONTS = 10_000  # sessions whose last front is remembered


class Planner:
    """Assembles contexts.

    Args:
        tiers: the tiers to ask.
        counter: the configured counter.
        config: shares and deadlines.
        summaries: notes the summaries that its contexts show.

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
    ) -> None:
        self.tiers = tiers
        self.summaries = summaries or ShownSummaries()
        self._config = config
        self._counter = counter
        self._fitter = ContextFitter(counter, config, tiers.blocks)
        self._fronts: OrderedDict[SessionKey, int] = OrderedDict()

    @property
    def has_fronts(self) -> bool:
        """Whether the last load of some session showed more than its conversation."""
        return bool(self._fronts)

    def drop_front(self, key: SessionKey) -> bool:
        """The session is shown its conversation alone; whether the last load showed more."""
        return bool(self._fronts) and self._fronts.pop(key, 0) != 0

    def forget(self, user: str) -> None:
        """Hold nothing of this user's sessions."""
        for key in [key for key in self._fronts if key.user == user]:
            del self._fronts[key]
        self.summaries.forget(user)

    async def assemble(
        self,
        key: SessionKey,
        snapshot: Snapshot,
        query: str | None,
        max_tokens: int,
        *,
        about: Sequence[Entry] | None = None,
        own: bool = True,
    ) -> Context:
        """Build the context.

        Args:
            key: the session.
            snapshot: the conversation within `max_tokens`.
            query: what to recall for; without one, only memory blocks are asked.
            max_tokens: the budget.
            about: messages to show to memory blocks instead of the conversation.
            own: whether the snapshot is the session's own conversation.

        Raises:
            InvalidInput: memory blocks of priority 0 do not fit.
        """
        if query is None and self.tiers.blocks is None:
            changed = self.drop_front(key) or snapshot.prefix_changed
            context = await show_snapshot(
                snapshot, self._counter, self._config.context, prefix_changed=changed
            )
            self._note_summaries(key, context, 0)
            return context
        session = key.session if own else None
        shown = (
            await run_in_thread_if(
                snapshot.size > _BYTES_IN_THREAD,
                partial(self._always_shown, key, snapshot, max_tokens),
            )
            if own
            else set()
        )
        gathered = await gather(
            self.tiers,
            self._config,
            key,
            snapshot,
            query,
            about=about,
            shown=shown,
            budget=max_tokens,
        )
        chosen, blocks = await self._fitter.fit(session, snapshot, gathered, max_tokens)
        changed = self._record_front(key, snapshot, chosen)
        options = self._config.context
        make = partial(build_context, snapshot, chosen, options, prefix_changed=changed)
        context = await run_in_thread_if(snapshot.size > _BYTES_IN_THREAD, make)
        self._note_summaries(key, context, int(chosen.synopsis_message is not None))
        return await self._fitter.insert_blocks(context, chosen, gathered, blocks, max_tokens)

    def _always_shown(
        self, key: SessionKey, snapshot: Snapshot, max_tokens: int
    ) -> set[tuple[str, int]]:
        always = self._fitter.always_shown(snapshot, max_tokens)
        return {(key.session, entry.seq) for entry in always}

    def _note_summaries(self, key: SessionKey, context: Context, first: int) -> None:
        if context.summary is not None:
            count = context.sources.summary.count
            shown = shown_digests(context.messages[first : first + count])
            self.summaries.note(key.user, shown)

    def _record_front(self, key: SessionKey, snapshot: Snapshot, chosen: Selection) -> bool:
        """Remember the front; says whether it differs from the last load."""
        front = 0
        shown = chosen.conversation
        if chosen.synopsis_message is not None or shown.narrowed:
            text = chosen.synopsis_message["content"] if chosen.synopsis_message else ""
            first = shown.entries[0].seq if shown.entries else 0
            front = hash((text, first, *(one.tokens for one in shown.summaries)))
        changed = snapshot.prefix_changed or self._fronts.get(key, 0) != front
        self._fronts.pop(key, None)
        if front:
            self._fronts[key] = front
            if len(self._fronts) > _MAX_FRONTS:
                self._fronts.popitem(last=False)
        return changed


async def show_snapshot(
    snapshot: Snapshot, counter: TokenCounter, config: ContextConfig, *, prefix_changed: bool
) -> Context:
    """The context of a conversation alone; its size is known already."""

    def build() -> Context:
        shown = show_conversation(snapshot, snapshot, snapshot.entries, counter)
        chosen = Selection(shown, shown.tokens)
        return build_context(snapshot, chosen, config, prefix_changed=prefix_changed)

    return await run_in_thread_if(snapshot.size > _BYTES_IN_THREAD, build)
