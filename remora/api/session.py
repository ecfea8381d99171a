"""Handles: what an application holds of a session. Making one does no I/O and starts no actor.

The scope is the handle: there is no call that takes another user's id, so none can reach another
user's data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import anyio.to_thread
import msgspec

from remora.actors.session.messages import Append, Clear, Flush, Load, Snapshot
from remora.actors.session.window import fit_buffer
from remora.api.memories import touched
from remora.api.session_buffer import BufferVerbs
from remora.errors import InvalidInput
from remora.ids import key_digest, validate_id
from remora.messages import Entry, Message, MessageLike, Receipt
from remora.recall.planner import Context
from remora.services.arguments import check_int, check_text
from remora.services.erasure import ErasureReceipt
from remora.services.intake import batch_of, encode_entries
from remora.services.parts import Services
from remora.storage.export.transfer import SessionExport
from remora.storage.ports import SummaryFigures, earlier_buffer
from remora.storage.records import StateItem, Summary

__all__ = ["Session", "SessionStatistics"]

_IN_THREAD = 200  # messages from which on decoding them is a thread's work


class SessionStatistics(msgspec.Struct, frozen=True):
    """A session in figures.

    Attributes:
        messages: ever taken; those deleted or rewound included.
        buffered: messages in the buffer, `pending` ones included.
        buffered_tokens: their size.
        pending: folded messages that wait for their summary.
        summary_tokens: size of the running summary and the entries.
        folds: summaries that were made, and the tokens that they took and gave.
        flushed: messages that long-term memory has, or will have: a job is journalled.
        restated: how often the session was cleared, rewound, or something of it deleted.
    """

    messages: int
    buffered: int
    buffered_tokens: int
    pending: int
    summary_tokens: int
    folds: SummaryFigures
    flushed: int
    restated: int


class Session(BufferVerbs):
    """One conversation. Get one from `User.session` or `Runtime.session`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Session({self.key.user!r}, {self.key.session!r})"

    async def append(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        allow_duplicates: bool = False,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Add one message or many, all or none; returns when they are durable (G3, G4).

        A sender that awaits each append has its messages in that order. Appends that one task
        starts without waiting keep their order as well, but for batches over 16 000 characters,
        whose tokens are counted in a thread meanwhile.

        Args:
            messages: dicts in the OpenAI chat format, or `Message` objects.
            key: idempotency key: a second append under it, restart or not, adds nothing and returns
                the original numbers.
            allow_duplicates: take a message although one with its id is there; otherwise it is
                skipped, and the receipt has the number of the one that is there. Ids that were
                cleared or deleted may come again.
            timeout_s: seconds to wait; the configured default otherwise.

        Raises:
            InvalidMessage: one of them is no chat message; nothing was written.
            InvalidId: the key cannot be one.
            RedactionFailed: the redaction hook failed on one of them; nothing was written.
            MailboxFull: the session is overloaded; nothing ran.
            CommitFailed: the journal refused it; nothing was written.
            OutcomeUnknown: it may have been written; retry with the same key.
        """
        batch = batch_of(messages)
        digest = None if key is None else key_digest(validate_id(key, "an idempotency key"))
        services = self._services
        entries = await encode_entries(services, batch)
        size = 0
        for entry in entries:
            size += entry.size
        request = Append(
            tuple(entries), digest, size, allow_duplicates, services.config.buffer.dedup_window
        )
        receipt: Receipt = await services.directory.ask(
            self.key, request, size=size, timeout_s=timeout_s
        )
        return receipt

    async def load(
        self,
        query: str | None = None,
        *,
        max_tokens: int | None = None,
        override: Sequence[MessageLike] | None = None,
        messages: Sequence[MessageLike] | None = None,
        at: int | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """What a model should see now: summary, recent messages and, with a `query`, what was
        recalled for it.

        Never waits for a model without a query (G5); with one, every other tier has a deadline, and
        a tier that misses it is left out and named in `Context.sources`. Memory blocks are asked in
        any case; they are the application's own code, and each has `context.block_timeout_s`.

        Args:
            query: what to recall for, usually the user's newest message.
            max_tokens: the budget; `buffer.token_limit` otherwise.
            override: a conversation to be shown instead of the session's own, which stays as it is.
            messages: what memory blocks are asked about instead of the conversation.
            at: show the session as it was when this message was its newest.
            timeout_s: seconds to wait for the session; the configured default otherwise.

        Raises:
            InvalidInput: a negative budget, a query that is no text, no such message, or memory
                blocks that must always be shown and do not fit.
            InvalidMessage: in `override` or `messages`.
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`; reading changes nothing, so
                simply retry.
        """
        services = self._services
        budget = services.config.buffer.token_limit if max_tokens is None else max_tokens
        check_int(budget, "max_tokens")
        if query is not None:
            check_text(query, "query")
        snapshot: Snapshot
        if override is not None:
            entries = await _given(services, override)
            with_seq = [entry.with_seq(n) for n, entry in enumerate(entries, start=1)]
            snapshot = _snapshot(with_seq, None, (), budget, (await self.inspect()).blocks)
        elif at is not None:
            view = await self.inspect()
            if not 0 <= check_int(at, "at") <= view.last_seq:
                raise InvalidInput(f"a session with {view.last_seq} messages has no message {at}")
            earlier = await earlier_buffer(services.journal, self.key, at, as_it_was=True)
            snapshot = _snapshot(
                earlier.entries, earlier.summary, earlier.summaries, budget, view.blocks
            )
        else:
            snapshot = await services.directory.ask(self.key, Load(budget), timeout_s=timeout_s)
        about = None if messages is None else await _given(services, messages)
        context: Context = await services.planner.assemble(
            self.key, snapshot, query, budget, about=about, own=override is None
        )
        touched(services, self.key.user, context.memories)
        return context

    async def clear(self, *, timeout_s: float | None = None) -> int:
        """Empty the buffer and the summary; returns how many messages left the buffer.

        What was said stays in `history()`, and what was flushed stays in long-term memory.
        Idempotency keys stay.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`.
        """
        count: int = await self._services.directory.ask(self.key, Clear(), timeout_s=timeout_s)
        return count

    async def flush(self, *, timeout_s: float | None = None) -> int:
        """Hand over to long-term memory what it does not have yet, without waiting for it.

        Returns how many messages.

        Call it at the end of a conversation; an idle session does it by itself. `settle` waits
        until they are searchable.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`.
        """
        count: int = await self._services.directory.ask(self.key, Flush(), timeout_s=timeout_s)
        return count

    async def forget(self) -> ErasureReceipt:
        """Erase the session down to the bytes (G13), and what the user's own actor holds of it.

        See `User.forget`.

        What was learned and recorded for this session goes with it, and so does the user's
        synopsis, which may tell of it: it is written anew from what is left. Until it is done, the
        user's long-term and working memory are not to be had either.

        Raises:
            ReentrantAsk, CommitFailed, StorageError, RuntimeClosed: see `User.forget`.
        """
        receipt: ErasureReceipt = await self._services.eraser.forget(
            self.key.user, self.key.session
        )
        return receipt

    async def history(
        self, *, include_archived: bool = True, at: int | None = None
    ) -> list[Message]:
        """Every message ever appended and not deleted, rewound or forgotten, oldest first, with
        their numbers.

        Args:
            include_archived: those that left the buffer (folded, cleared) as well.
            at: as it was when this message was the newest: what was deleted or rewound later is
                there.
        """
        view = await self.inspect()
        if view.last_seq == 0:
            return []
        first = 1 if include_archived else view.watermarks.archived_through + 1
        last = view.last_seq if at is None else min(check_int(at, "at"), view.last_seq)
        # As of `last` in any case: what is removed while this reads, with later messages there, was
        # there when it looked (G2).
        entries = await self._services.journal.read(self.key, first, last, at=last)
        if len(entries) < _IN_THREAD:
            return self._restored(view.sid, entries)
        return await anyio.to_thread.run_sync(self._restored, view.sid, entries)

    async def stats(self) -> SessionStatistics:
        """The session in figures."""
        view = await self.inspect()
        folds = await self._services.journal.folds(self.key)
        summaries = [*([view.summary] if view.summary else []), *view.summaries]
        return SessionStatistics(
            messages=view.last_seq,
            buffered=view.buffered + view.pending,
            buffered_tokens=view.buffered_tokens + view.pending_tokens,
            pending=view.pending,
            summary_tokens=sum(one.tokens for one in summaries),
            folds=folds,
            flushed=min(view.watermarks.flushing, view.last_seq),
            restated=view.watermarks.generation,
        )

    async def export(self) -> SessionExport:
        """The whole session as plain data, its past and the states of its memory blocks included.

        `User.import_session` makes a session of it again, here or elsewhere. Its messages are
        numbered from 1 without gaps: what was deleted or rewound is left out. Idempotency keys are
        left out as well.

        Raises:
            InvalidInput: the session has no messages.
        """
        # `remora.services.preload` has loaded it
        from remora.maintenance.export import export_session  # noqa: PLC0415

        exported = await export_session(self._services, self.key)
        if exported is None:
            raise InvalidInput(f"the session {self.key.session} has no messages")
        return exported

    async def settle(self) -> None:
        """Wait until this session's background work (folds, flushes) is done: for tests, scripts
        and shutdown.

        Raises:
            ReentrantAsk: called from within that work.
        """
        await self._services.supervisor.settle(self.key)


async def _given(services: Services, messages: Sequence[MessageLike]) -> list[Entry]:
    """Messages that a caller shows instead of the conversation's; none are a list as well."""
    if isinstance(messages, (list, tuple)) and not messages:
        return []
    return await encode_entries(services, batch_of(messages))


def _snapshot(
    entries: Sequence[Entry],
    summary: Summary | None,
    summaries: Sequence[Summary],
    budget: int,
    blocks: tuple[StateItem, ...],
) -> Snapshot:
    """What `load` shows of another buffer than the session's own."""
    tools = any(entry.calls or entry.answers for entry in entries)
    shown = fit_buffer(
        entries, sum(entry.tokens for entry in entries), summary, summaries, budget, tools=tools
    )
    return Snapshot(
        summary=shown.summary,
        summaries=shown.summaries,
        entries=shown.entries,
        tokens=shown.tokens,
        pending=0,
        omitted=shown.omitted,
        awaiting=shown.awaiting,
        orphans=shown.orphans,
        prefix_changed=True,
        blocks=blocks,
    )
