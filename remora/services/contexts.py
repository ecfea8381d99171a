"""Loading contexts, and the user profile that is part of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter

import anyio
import msgspec

from remora.actors.session.messages import (
    Inspect,
    Load,
    SessionView,
    Snapshot,
    TurnView,
)
from remora.actors.session.window import fit_buffer
from remora.actors.user.messages import ReadSynopsis, Synopsis, Touch
from remora.errors import InvalidInput, ModelTimeout
from remora.ids import SessionKey, UserKey, message_id_prefix
from remora.messages import Entry
from remora.recall.context import Context
from remora.recall.planner import Planner
from remora.runtime.clock import Clock
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.meters import VerbMeters
from remora.storage.ports import Journal, check_owned, earlier_buffer
from remora.storage.records import StateItem, Summary, find_lost, join_lost

__all__ = ["LocalContexts"]


class LocalContexts:
    """Contexts of sessions whose actors are in this process.

    Args:
        actors: sessions and users.
        journal: for sessions as they were earlier.
        planner: adds memories, the synopsis and memory blocks.
        supervisor: runs the jobs that write a synopsis.
        clock: says when memories were retrieved.
        timeout_s: seconds to wait for a synopsis where the caller gives none.
        meters: count how long contexts took, and what their sources gave.
    """

    def __init__(
        self,
        actors: ActorRegistry,
        journal: Journal,
        planner: Planner,
        supervisor: Supervisor,
        clock: Clock,
        timeout_s: float,
        meters: VerbMeters,
    ) -> None:
        self._meters = meters
        self._actors = actors
        self._journal = journal
        self._planner = planner
        self._supervisor = supervisor
        self._clock = clock
        self._timeout_s = timeout_s

    async def load(
        self,
        key: SessionKey,
        budget: int,
        query: str | None = None,
        *,
        override: Sequence[Entry] | None = None,
        about: Sequence[Entry] | None = None,
        at: int | None = None,
        turn: TurnView | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """See `remora.Session.load`; `about` is its argument `messages`."""
        began_s = perf_counter()
        snapshot: Snapshot
        if turn is not None:
            snapshot = await self._turn_snapshot(key, budget, turn, timeout_s)
        elif override is None and at is None:
            snapshot = await self._actors.ask(key, Load(budget), timeout_s=timeout_s)
        else:
            snapshot = await self._snapshot(key, budget, override, at)
        context = await self._planner.assemble(
            key, snapshot, query, budget, about=about, own=override is None
        )
        if query is not None:  # its embedder or reranker may have taken long
            check_owned(self._journal)
        if context.memories:
            rows = tuple(memory.id for memory in context.memories)
            touch = Touch(rows, int(self._clock.time() * 1_000_000))
            self._actors.post(UserKey(key.user), touch)
        meters = self._meters
        if query is not None:
            meters.count_sources(context.sources)
        (meters.load_s if query is None else meters.query_s).add(perf_counter() - began_s)
        return context

    async def _snapshot(
        self, key: SessionKey, budget: int, override: Sequence[Entry] | None, at: int | None
    ) -> Snapshot:
        """Show another buffer than the session's present one."""
        view: SessionView = await self._actors.ask(key, Inspect())
        if override is not None:
            entries = [entry.with_seq(n) for n, entry in enumerate(override, start=1)]
            return _show(entries, None, (), budget, view.blocks, cut=False, id_prefix="")
        assert at is not None
        if at > view.last_seq:
            raise InvalidInput(f"a session with {view.last_seq} messages has no message {at}")
        return await self._earlier_snapshot(key, budget, view, at)

    async def _turn_snapshot(
        self, key: SessionKey, budget: int, turn: TurnView, timeout_s: float | None
    ) -> Snapshot:
        """Show what a turn that is resumed is about."""
        if turn.at:
            view: SessionView = await self._actors.ask(key, Inspect(), timeout_s=timeout_s)
            if view.sid == turn.sid:  # otherwise it was erased
                with suppress(InvalidInput):  # what is not kept any more cannot be shown
                    return await self._earlier_snapshot(key, budget, view, turn.at, turn.replies)
        snapshot: Snapshot = await self._actors.ask(
            key, Load(budget, turn.without, turn.sid), timeout_s=timeout_s
        )
        return snapshot

    async def _earlier_snapshot(
        self,
        key: SessionKey,
        budget: int,
        view: SessionView,
        at: int,
        then: Sequence[Entry] = (),
    ) -> Snapshot:
        """Show the session as it was when message `at` was its newest, and `then` these messages.

        Raises:
            InvalidInput: that is not kept any more.
        """
        earlier = await earlier_buffer(self._journal, key, at, as_it_was=True)
        return _show(
            (*earlier.entries, *then),
            earlier.summary,
            earlier.summaries,
            budget,
            view.blocks,
            cut=earlier.front > earlier.cleared,
            id_prefix=message_id_prefix(self._journal.instance, view.sid),
        )

    def note_summaries(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown summaries, by the digests of their texts."""
        self._planner.summaries.note(user, digests)

    async def find_summaries(self, user: str, digests: Sequence[bytes]) -> Sequence[bool]:
        """Which of these texts the user was shown as summaries; by their digests."""
        return self._planner.summaries.find(user, digests)

    async def synopsis(self, user: str, *, refresh: bool, timeout_s: float | None) -> Synopsis:
        """See `remora.User.synopsis`."""
        limit = self._timeout_s if timeout_s is None else timeout_s
        # A synopsis written from now on is recent enough. So the caller waits for one job only,
        # even if a synopsis is valid for a very short time.
        request = ReadSynopsis(self._clock.time(), refresh=refresh)
        with anyio.move_on_after(limit):
            while True:
                found: Synopsis = await self._actors.ask(UserKey(user), request, timeout_s=limit)
                if found.state != "pending":
                    return found
                await self._supervisor.wait_for_job(found.job)
                request = msgspec.structs.replace(request, refresh=False)
        raise ModelTimeout(
            f"the synopsis of {user!r} was not written within {limit:g} s; its job continues, "
            "ask again later"
        )


def _show(
    entries: Sequence[Entry],
    summary: Summary | None,
    summaries: Sequence[Summary],
    budget: int,
    blocks: tuple[StateItem, ...],
    *,
    cut: bool,
    id_prefix: str,
) -> Snapshot:
    tools = any(entry.calls or entry.answers for entry in entries)
    tokens = sum(entry.tokens for entry in entries)
    shown = (*((summary,) if summary else ()), *summaries)
    window = fit_buffer(entries, tokens, summary, summaries, budget, tools=tools, cut=cut)
    return Snapshot(
        summary=window.summary,
        summaries=window.summaries,
        entries=window.entries,
        tokens=window.tokens,
        pending=0,
        omitted=window.omitted,
        awaiting=window.awaiting,
        orphans=window.orphans,
        prefix_changed=True,
        blocks=blocks,
        degraded=join_lost(part for one in shown for part in find_lost(one)),
        size=sum(entry.size for entry in window.entries),
        omitted_tokens=window.omitted_tokens,
        left_out=window.left_out,
        shortened_from=window.shortened_from,
        cut_summary=window.cut_summary,
        id_prefix=id_prefix,
    )
