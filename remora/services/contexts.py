"""Loading contexts, and the user profile that is part of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import anyio
import msgspec

from remora.actors.session.messages import (
    Inspect,
    Load,
    SessionView,
    Snapshot,
    TurnView,
)
from remora.actors.session.window import WindowRules, fit_buffer
from remora.actors.user.messages import ReadSynopsis, Synopsis, Touch
from remora.errors import InvalidInput, ModelTimeout
from remora.ids import SessionKey, UserKey, message_id_prefix
from remora.messages import Entry, has_media
from remora.recall.context import Context
from remora.recall.current import rows_of
from remora.recall.planner import Planner, Show
from remora.runtime.clock import Clock
from remora.runtime.registry import ActorRegistry
from remora.runtime.supervisor import Supervisor
from remora.services.meters import VerbMeters
from remora.storage.lookups import read_instructions
from remora.storage.ports import Journal, check_owned, earlier_buffer
from remora.storage.records import StateItem, Summary, find_lost, join_lost


async def read_synopsis(
    ask: Callable[..., Awaitable[Any]], journal: Journal, user: str, request: ReadSynopsis
) -> Synopsis:
    """The synopsis of a user; of one who has nothing an empty one, and nothing is written.

    Args:
        ask: asks an actor.
        journal: knows who has something.
        user: the user.
        request: the request.
    """
    for is_user in (False, True):
        found: Synopsis | None = await ask(
            UserKey(user), msgspec.structs.replace(request, is_user=is_user)
        )
        if found is not None:
            return found
        if not (await journal.counts(user)).users:
            break
    return Synopsis("", "", "empty")


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
        windows: how contexts are fitted.
        no_synopsis: why synopses are not written; empty if they are.
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
        windows: WindowRules,
        no_synopsis: str,
    ) -> None:
        self._windows = windows
        self._no_synopsis = no_synopsis
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
        show: Show
        hidden: Collection[int] = ()
        if override is not None or at is not None:
            show = await self._show_other(key, override, at)
        elif turn is not None and turn.at:
            show, hidden = await self._show_turn(key, turn, timeout_s)
        else:
            show = self._show_present(key, turn, timeout_s)
            if turn is not None and turn.without:
                hidden = (turn.without,)
        context = await self._planner.assemble(
            key, show, query, budget, about=about, own=override is None, hidden=hidden
        )
        if query is not None:  # its embedder or reranker may have taken long
            check_owned(self._journal)
        if context.memories:
            rows = rows_of(key.user, context.memories)
            touch = Touch(rows, int(self._clock.time() * 1_000_000))
            self._actors.post(UserKey(key.user), touch)
        meters = self._meters
        if query is not None:
            meters.count_sources(context.sources)
        (meters.load_s if query is None else meters.query_s).add(perf_counter() - began_s)
        return context

    def _show_present(
        self, key: SessionKey, turn: TurnView | None, timeout_s: float | None
    ) -> Show:
        """Show the session as it is, without what `turn` leaves out."""
        without, sid = (turn.without, turn.sid) if turn is not None else (0, 0)

        async def show(budget: int, *, recalls: bool, again: bool) -> Snapshot:
            load = Load(budget, without, sid, recalls, again)
            return await self._actors.ask(key, load, timeout_s=timeout_s)

        return show

    async def _show_other(
        self, key: SessionKey, override: Sequence[Entry] | None, at: int | None
    ) -> Show:
        """Show another buffer than the session's present one."""
        view: SessionView = await self._actors.ask(key, Inspect())
        if override is not None:
            entries = [entry.with_seq(n) for n, entry in enumerate(override, start=1)]
            return self._show(entries, None, (), view.blocks, cut=False, id_prefix="")
        assert at is not None
        if at > view.last_seq:
            raise InvalidInput(f"a session with {view.last_seq} messages has no message {at}")
        return await self._show_earlier(key, view, at)

    async def _show_turn(
        self, key: SessionKey, turn: TurnView, timeout_s: float | None
    ) -> tuple[Show, Collection[int]]:
        """Show what a turn that is resumed is about; what came after it is not recalled."""
        view: SessionView = await self._actors.ask(key, Inspect(), timeout_s=timeout_s)
        if view.sid == turn.sid:  # otherwise it was erased
            with suppress(InvalidInput):  # what is not kept any more cannot be shown
                show = await self._show_earlier(key, view, turn.at, turn.replies)
                return show, range(turn.at + 1, view.last_seq + 1)
        return self._show_present(key, turn, timeout_s), (turn.without,)

    async def _show_earlier(
        self, key: SessionKey, view: SessionView, at: int, then: Sequence[Entry] = ()
    ) -> Show:
        """Show the session as it was when message `at` was its newest, and `then` these messages.

        Raises:
            InvalidInput: that is not kept any more.
        """
        earlier = await earlier_buffer(self._journal, key, at, as_it_was=True)
        pinned = await read_instructions(self._journal, key, earlier.cleared, earlier.front, at=at)
        return self._show(
            (*earlier.entries, *then),
            earlier.summary,
            earlier.summaries,
            view.blocks,
            pinned=pinned,
            cut=earlier.front > earlier.cleared,
            id_prefix=message_id_prefix(self._journal.instance, view.sid),
        )

    def _show(
        self,
        entries: Sequence[Entry],
        summary: Summary | None,
        summaries: Sequence[Summary],
        blocks: tuple[StateItem, ...],
        *,
        cut: bool,
        id_prefix: str,
        pinned: Sequence[Entry] = (),
    ) -> Show:
        entries, lightened = self._windows.lighten_old(entries)
        tools = any(entry.calls or entry.answers for entry in entries)
        tokens = sum(entry.tokens for entry in entries)
        listed = (*((summary,) if summary else ()), *summaries)

        async def show(budget: int, *, recalls: bool, again: bool) -> Snapshot:  # noqa: ARG001
            window = fit_buffer(
                entries,
                tokens,
                summary,
                summaries,
                budget,
                self._windows,
                tools=tools,
                recalls=recalls,
                cut=cut,
                pinned=pinned,
            )
            return Snapshot(
                **window.shown(),
                pending=0,
                prefix_changed=True,
                blocks=blocks,
                degraded=join_lost(part for one in listed for part in find_lost(one)),
                size=sum(entry.size for entry in window.entries),
                id_prefix=id_prefix,
                closed=sum(not entry.seq for entry in window.entries),
                attached=any(map(has_media, window.entries)),
                lightened=lightened,
            )

        return show

    def note_summaries(self, user: str, digests: Sequence[bytes]) -> None:
        """Remember that the user was shown summaries, by the digests of their texts."""
        self._planner.summaries.note(user, digests)

    async def find_summaries(self, user: str, digests: Sequence[bytes]) -> Sequence[bool]:
        """Which of these texts the user was shown as summaries; by their digests."""
        return self._planner.summaries.find(user, digests)

    async def synopsis(self, user: str, *, refresh: bool, timeout_s: float | None) -> Synopsis:
        """See `remora.User.synopsis`."""
        if self._no_synopsis:
            return Synopsis("", "", "off", detail=self._no_synopsis)
        limit = self._timeout_s if timeout_s is None else timeout_s
        # A synopsis written from now on is recent enough. So the caller waits for one job only,
        # even if a synopsis is valid for a very short time.
        request = ReadSynopsis(self._clock.time(), refresh=refresh)
        ask = partial(self._actors.ask, timeout_s=limit)
        with anyio.move_on_after(limit):
            while True:
                found = await read_synopsis(ask, self._journal, user, request)
                if found.state != "pending":
                    return found
                await self._supervisor.wait_for_job(found.job)
                request = msgspec.structs.replace(request, refresh=False)
        raise ModelTimeout(
            f"the synopsis of {UserKey(user).words} was not written within {limit:g} s; its job "
            "continues, ask again later"
        )
