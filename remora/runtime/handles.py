"""Handles: what an application holds of a user or a session. Making one does no I/O and starts no actor.

The scope is the handle: there is no call that takes another user's id, so none can reach another user's data (S2.31).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

import anyio.to_thread

from remora.actors.planner import Context, Planner
from remora.actors.protocol import Append, Clear, Flush, Inspect, Load, SessionView, Snapshot
from remora.actors.pruning import PruningStrategy
from remora.actors.recall import Recall
from remora.config import Config
from remora.errors import InvalidInput, InvalidMessage
from remora.identity import SessionKey, UserKey, key_digest, message_id, validated_id
from remora.messages import Entry, Message, MessageLike, Receipt, encode_message, restore_message
from remora.runtime.clock import Clock
from remora.runtime.directory import Directory
from remora.runtime.long_term_handle import Agent, LongTermHandle, gathered, prune_message, recording, touched
from remora.runtime.supervisor import Supervisor
from remora.storage.ports import Journal, SessionListing
from remora.tokens import TokenCounter, count_message

__all__ = ["Services", "Session", "User"]

_INLINE_CHARACTERS = 16_000  # texts up to this are counted on the event loop: about a millisecond


class Services(Protocol):
    """What handles need of the runtime; each attribute raises `RuntimeClosed` while it is not open."""

    @property
    def config(self) -> Config:
        """The configuration in force."""
        ...

    @property
    def directory(self) -> Directory:
        """Live sessions."""
        ...

    @property
    def supervisor(self) -> Supervisor:
        """Background jobs."""
        ...

    @property
    def journal(self) -> Journal:
        """The write-ahead journal."""
        ...

    @property
    def planner(self) -> Planner:
        """Context assembly."""
        ...

    @property
    def recall(self) -> Recall | None:
        """Search in long-term memory."""
        ...

    @property
    def counter(self) -> TokenCounter:
        """The token counter."""
        ...

    @property
    def clock(self) -> Clock:
        """What the time is."""
        ...


class Session:
    """One conversation. Get one from `User.session` or `Runtime.session`."""

    __slots__ = ("_services", "key")

    def __init__(self, services: Services, key: SessionKey) -> None:
        self._services = services
        self.key = key

    def __repr__(self) -> str:
        return f"Session({self.key.user!r}, {self.key.session!r})"

    async def append(
        self, messages: MessageLike | Iterable[MessageLike], *, key: str | None = None, timeout_s: float | None = None
    ) -> Receipt:
        """Add one message or many, all or none; returns when they are durable (G3, G4).

        A sender that awaits each append has its messages in that order. Appends that one task starts without waiting keep
        their order as well, but for batches over 16 000 characters, whose tokens are counted in a thread meanwhile.

        Args:
            messages: dicts in the OpenAI chat format, or `Message` objects.
            key: idempotency key: a second append under it, restart or not, adds nothing and returns the original numbers.
            timeout_s: seconds to wait; the configured default otherwise.

        Raises:
            InvalidMessage: one of them is no chat message; nothing was written.
            InvalidId: the key cannot be one.
            MailboxFull: the session is overloaded; nothing ran.
            CommitFailed: the journal refused it; nothing was written.
            OutcomeUnknown: it may have been written; retry with the same key.
        """
        batch = _batch(messages)
        digest = None if key is None else key_digest(validated_id(key, "an idempotency key"))
        counter, limit = self._services.counter, self._services.config.buffer.max_message_bytes
        encoded = [encode_message(message, index=i, max_bytes=limit) for i, message in enumerate(batch)]
        size = sum(entry.size for entry, _ in encoded)
        if size <= _INLINE_CHARACTERS:
            counts = [count_message(counter, chat) for _, chat in encoded]
        else:
            counts = await anyio.to_thread.run_sync(lambda: [count_message(counter, chat) for _, chat in encoded])
        entries = tuple(
            Entry(0, e.at_us, tokens, e.role, e.chat, e.meta, e.id, e.calls, e.answers)
            for (e, _), tokens in zip(encoded, counts, strict=True)
        )
        request = Append(entries, digest, size, dedup_window=self._services.config.buffer.dedup_window)
        receipt: Receipt = await self._services.directory.ask(self.key, request, size=size, timeout_s=timeout_s)
        return receipt

    async def load(self, query: str | None = None, *, max_tokens: int | None = None, timeout_s: float | None = None) -> Context:
        """What a model should see now: summary, recent messages and, with a `query`, what was recalled for it.

        Never waits for a model without a query (G5); with one, long-term memory has a deadline, and a tier that misses
        it is left out and named in `Context.sources`.

        Args:
            query: what to recall for, usually the user's newest message.
            max_tokens: the budget; `buffer.token_limit` otherwise.
            timeout_s: seconds to wait for the session; the configured default otherwise.

        Raises:
            InvalidInput: a negative budget, or a query that is no text.
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`; reading changes nothing, so simply retry.
        """
        services = self._services
        budget = services.config.buffer.token_limit if max_tokens is None else max_tokens
        if budget < 0:
            raise InvalidInput(f"max_tokens must not be negative, not {budget}")
        if query is not None and not isinstance(query, str):
            raise InvalidInput(f"query must be text, not {type(query).__name__}")
        request = Load(services.planner.conversation_tokens(budget, query=query is not None))
        snapshot: Snapshot = await services.directory.ask(self.key, request, timeout_s=timeout_s)
        context = await services.planner.assemble(self.key, snapshot, query, budget)
        touched(services, self.key.user, context.memories)
        return context

    async def clear(self, *, timeout_s: float | None = None) -> int:
        """Empty the buffer and the summary; returns how many messages left the buffer (S1.14).

        What was said stays in `history()`, and what was flushed stays in long-term memory. Idempotency keys stay.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`.
        """
        count: int = await self._services.directory.ask(self.key, Clear(), timeout_s=timeout_s)
        return count

    async def flush(self, *, timeout_s: float | None = None) -> int:
        """Hand over to long-term memory what it does not have yet, without waiting for it; returns how many messages.

        Call it at the end of a conversation; an idle session does it by itself. `settle` waits until they are searchable.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`.
        """
        count: int = await self._services.directory.ask(self.key, Flush(), timeout_s=timeout_s)
        return count

    async def history(self) -> list[Message]:
        """Every message ever appended and not forgotten, folded, cleared or not, oldest first, with their numbers."""
        view = await self.inspect()
        if view.last_seq == 0:
            return []
        journal = self._services.journal
        entries = await journal.read(self.key, 1, view.last_seq)
        instance, sid = journal.instance, view.sid

        def restore() -> list[Message]:
            return [restore_message(entry, entry.id or message_id(instance, sid, entry.seq)) for entry in entries]

        return restore() if len(entries) < 200 else await anyio.to_thread.run_sync(restore)

    async def inspect(self) -> SessionView:
        """How things stand: marks, what is buffered, what is pending, the summary. For people and tools."""
        view: SessionView = await self._services.directory.ask(self.key, Inspect())
        return view

    async def settle(self) -> None:
        """Wait until this session's background work (folds, flushes) is done: for tests, scripts and shutdown.

        Raises:
            ReentrantAsk: called from within that work.
        """
        await self._services.supervisor.settle(self.key)


class User(LongTermHandle):
    """One user: their sessions, and what was said in all of them. Get one from `Runtime.user`."""

    __slots__ = ("id",)

    def __init__(self, services: Services, id_: str) -> None:
        super().__init__(services, id_)
        self.id = id_

    def __repr__(self) -> str:
        return f"User({self.id!r})"

    def session(self, session: str) -> Session:
        """A handle on one of the user's sessions; it exists from its first message on.

        Raises:
            InvalidId: the id cannot name a session.
        """
        return Session(self._services, SessionKey(self.id, validated_id(session, "a session id")))

    async def sessions(self) -> Sequence[SessionListing]:
        """The user's sessions, the one with the newest message last."""
        return await self._services.journal.sessions(self.id)

    # -- long-term memory (what else there is of it: `LongTermHandle`) ------------------------------------------------

    def agent(self, agent: str) -> Agent:
        """A handle on one of the user's agents: what it records is its own, and it finds nothing else (S4.17, S4.18).

        Raises:
            InvalidId: the id cannot name an agent.
        """
        return Agent(self._services, self.id, validated_id(agent, "an agent's id"))

    async def append_many(self, messages: Mapping[str, MessageLike | Iterable[MessageLike]]) -> dict[str, Receipt]:
        """Append to several of the user's sessions at once; each as by `Session.append` (S4.40).

        Args:
            messages: for each session's id, one message or many; those of a session are all or none.

        Raises:
            InvalidId, InvalidMessage, MailboxFull, CommitFailed, OutcomeUnknown: see `Session.append`; the first of them, when
                all have ended. Other sessions' messages may be written.
        """
        sessions = [(self.session(name), batch) for name, batch in messages.items()]
        receipts = await gathered([partial(session.append, batch) for session, batch in sessions])
        return dict(zip(messages, receipts, strict=True))

    async def prune(
        self,
        *,
        keep: int | None = None,
        strategy: PruningStrategy | None = None,
        max_age_s: float | None = None,
        types: str | Iterable[str] | None = None,
        wait: bool = True,
    ) -> None:
        """Take out of long-term memory what matters least (S4.41); what was said stays in the sessions' history.

        Args:
            keep: memories that stay, at most; None for no such bound.
            strategy: ``fifo``: the oldest go; ``age``: what is older than `max_age_s`, and the oldest beyond `keep`;
                ``importance``: what weighs least by age, use and importance; ``lru``: what was not retrieved for longest. None
                for the configured one (`long_term.prune`).
            max_age_s: seconds, for ``age``.
            types: memory types that are looked at; `keep` counts these alone. None for all.
            wait: return when it is done, and not when it is written down to be done.

        Raises:
            InvalidInput: a value out of range, neither `keep` nor `max_age_s`, or long-term memory is switched off.
            RecordingFailed: the journal failed; nothing is pruned, unless its outcome is unknown.
            ReentrantAsk: called from within the user's background work, with `wait`.
        """
        services = self._services
        strategy = strategy or services.config.long_term.prune
        message = prune_message(keep, strategy, max_age_s, types)
        self._recall  # noqa: B018 -- refused where long-term memory is switched off
        with recording("prune", self.id, ""):
            await services.directory.ask(UserKey(self.id), message)
        if wait:
            await self.settle()


def _batch(messages: MessageLike | Iterable[MessageLike]) -> list[MessageLike]:
    if isinstance(messages, (Message, Mapping)):
        return [messages]
    found: object = messages
    if isinstance(found, (str, bytes)) or not isinstance(messages, Iterable):
        raise InvalidMessage(f"a message is a dict in the OpenAI chat format or a remora.Message, not {type(messages).__name__}")
    batch = list(messages)
    if not batch:
        raise InvalidMessage("there is no message to append")
    return batch
