"""What an application holds of a user: their sessions, and what outlives them.

Making one does no I/O and starts no actor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora.actors.policies.pruning import PruningStrategy
from remora.actors.policies.redaction import redact_text
from remora.actors.user.messages import (
    InspectUser,
    Learn,
    ReadSynopsis,
    ScoredItem,
    SearchWorking,
    Synopsis,
    UserView,
)
from remora.actors.user.working import WorkingItem
from remora.api.memories import Agent, LongTermHandle, gathered, prune_message, recording
from remora.api.session import Session
from remora.errors import InvalidInput, LongTermError, ModelTimeout
from remora.ids import SessionKey, UserKey, validate_id, working_id
from remora.jobs.memories import ROW_TYPES
from remora.messages import MessageLike, Receipt, without_surrogates
from remora.models.cache import CachingEmbedder
from remora.models.ports import embed_texts
from remora.services.erasure import ErasureReceipt
from remora.services.parts import Services
from remora.storage.export.transfer import SessionExport
from remora.storage.ports import SessionListing
from remora.tokens import INLINE_CHARACTERS

__all__ = ["User", "UserStatistics", "WorkingHit"]


class WorkingHit(msgspec.Struct, frozen=True):
    """Something found in working memory.

    Attributes:
        text: what was learned.
        source: where it came from, for instance ``"tool:search"``.
        session: the session that it belongs to; empty for all of the user's.
        created_at: when it was learned.
        score: nearness of meaning to the query, 1 for the same.
        id: names it within the user's working memory.
    """

    text: str
    source: str
    session: str
    created_at: datetime
    score: float
    id: str


class UserStatistics(msgspec.Struct, frozen=True):
    """A user in figures. Hit rates are of the runtime, since it was opened.

    Attributes:
        sessions: that have ever had a message.
        messages: in all of them, ever.
        tokens: of these messages.
        summaries: that were made of them.
        memories: recorded on purpose.
        long_term_rows: rows in long-term memory, messages and memories; 0 where it is switched off.
        working_items: items in working memory.
        working_bytes: their size.
        pending_jobs: background work under way, or waiting.
        dead_jobs: background work that failed for good.
        synopsis_hit_rate: reads of the synopsis that were answered from what was held, since the
            user's actor came to life.
        recall_hit_rate: recalls of any user that were answered from the cache.
        embedding_hit_rate: texts of any user whose vectors were still held.
    """

    sessions: int
    messages: int
    tokens: int
    summaries: int
    memories: int
    long_term_rows: int
    working_items: int
    working_bytes: int
    pending_jobs: int
    dead_jobs: int
    synopsis_hit_rate: float
    recall_hit_rate: float
    embedding_hit_rate: float


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
        return Session(self._services, SessionKey(self.id, validate_id(session, "a session id")))

    async def sessions(self) -> Sequence[SessionListing]:
        """The user's sessions, the one with the newest message last."""
        return await self._services.journal.sessions(self.id)

    async def import_session(self, export: SessionExport, *, session: str | None = None) -> Session:
        """Begin a session of this user as what `Session.export` gave, whoever's it was.

        Returns the handle.

        Sizes are counted, and what long-term memory had of it is embedded, by this runtime's own
        models; `settle` waits for that.

        Args:
            export: the session.
            session: the new one's id; as it was otherwise.

        Raises:
            InvalidId: `session` cannot name a session.
            InvalidInput: the session has messages already, or the export does not hold together;
                nothing was written.
            InvalidMessage, RedactionFailed: see `Session.append`; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`.
        """
        # `remora.services.preload` has loaded it
        from remora.maintenance.import_ import import_session  # noqa: PLC0415

        taken = self.session(export.session if session is None else session)
        await import_session(self._services, export, taken.key)
        return taken

    async def export_arrow(self, *, types: str | Iterable[str] | None = None) -> Any:
        """The user's rows in long-term memory as a `pyarrow.Table`, oldest first.

        Its columns are id, user_id, session_id (null for none), content, embedding (null where
        nothing is embedded), memory_type, importance, created_at, accessed_at (null for never) and
        access_count.

        Args:
            types: rows of these memory types; all otherwise, but for what memory blocks keep.

        Raises:
            InvalidInput: an unknown memory type, or long-term memory is switched off.
            LongTermError: long-term memory failed.
        """
        # `remora.services.preload` has loaded it
        from remora.storage.export.arrow import memory_table  # noqa: PLC0415

        scope = self._scope(ROW_TYPES if types is None else types, None, None)
        rows, vectors = await self._recall.embedded_rows(self.id, scope)
        accesses = (await self.inspect()).accesses
        embedder = self._services.embedder
        dimension = embedder.dimension if embedder is not None else 0
        return await anyio.to_thread.run_sync(
            lambda: memory_table(rows, vectors, accesses, dimension=dimension)
        )

    # -- long-term memory (what else there is of it: `LongTermHandle`) -----------------------------

    def agent(self, agent: str) -> Agent:
        """A handle on one of the user's agents.

        What it records is its own, and it finds nothing else.

        Raises:
            InvalidId: the id cannot name an agent.
        """
        return Agent(self._services, self.id, validate_id(agent, "an agent's id"))

    async def append_many(
        self, messages: Mapping[str, MessageLike | Iterable[MessageLike]]
    ) -> dict[str, Receipt]:
        """Append to several of the user's sessions at once; each as by `Session.append`.

        Args:
            messages: for each session's id, one message or many; those of a session are all or
                none.

        Raises:
            InvalidId, InvalidMessage, MailboxFull, CommitFailed, OutcomeUnknown: see
                `Session.append`; the first of them, when all have ended. Other sessions' messages
                may be written.
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
        """Take out of long-term memory what matters least.

        What was said stays in the sessions' history.

        Args:
            keep: memories that stay, at most; None for no such bound.
            strategy: ``fifo``: the oldest go; ``age``: what is older than `max_age_s`, and the
                oldest beyond `keep`; ``importance``: what weighs least by age, use and importance;
                ``lru``: what was not retrieved for longest. None for the configured one
                (`long_term.prune`).
            max_age_s: seconds, for ``age``.
            types: memory types that are looked at; `keep` counts these alone. None for all.
            wait: return when it is done, and not when it is written down to be done.

        Raises:
            InvalidInput: a value out of range, neither `keep` nor `max_age_s`, or long-term memory
                is switched off.
            RecordingFailed: the journal failed; nothing is pruned, unless its outcome is unknown.
            LongTermError: with `wait`, it failed for good; while long-term memory is merely away,
                it is waited for.
            ReentrantAsk: with `wait`, called from within the user's background work.
        """
        services = self._services
        strategy = strategy or services.config.long_term.prune
        message = prune_message(keep, strategy, max_age_s, types)
        self._recall  # noqa: B018 -- refused where long-term memory is switched off
        with recording("prune", self.id, ""):
            job: str = await services.directory.ask(UserKey(self.id), message)
        if not wait:
            return
        await services.supervisor.wait_for_job(job)
        for dead in await services.journal.jobs(dead=True):
            if dead.id == job:
                raise LongTermError(
                    f"pruning for user {self.id!r} failed: {dead.error}", retryable=False
                )

    # -- working memory ----------------------------------------------------------------------------

    async def learn(
        self, text: str | Iterable[str], *, source: str = "application", session: str = ""
    ) -> list[str]:
        """Put something at hand: a tool's output, something that the user told.

        Returns the ids when it is durable.

        It can be found at once, by `search_working`, and leaves when working memory is full and it
        is the oldest, or with `forget`. The same text, for the same session, is held once, and
        keeps its age.

        Args:
            text: one text or many; all of them are taken, or none. The redaction hook goes over
                each first.
            source: where they come from, for instance ``"tool:search"``.
            session: the session that they belong to; empty for all of the user's.

        Raises:
            InvalidInput: no text, an empty one, one that working memory cannot hold, or no embedder
                is configured.
            InvalidId: `session` cannot name a session, or `source` cannot be kept.
            RedactionFailed: the redaction hook failed; nothing was written.
            ModelError: the embedder failed; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; learning twice has one
                effect, so simply retry.
        """
        embedder = self._working_embedder()
        if not isinstance(text, (str, Iterable)):
            raise InvalidInput(
                f"what is learned must be one text or many, not {type(text).__name__}"
            )
        texts = [
            _text(one, "what is learned") for one in ([text] if isinstance(text, str) else text)
        ]
        validate_id(source, "a source")
        if session:
            validate_id(session, "a session id")
        if not texts:
            return []
        if (redact := self._services.redact) is not None:
            texts = [_text(redact_text(one, redact), "what redaction leaves") for one in texts]
        vectors = await embed_texts(embedder, texts)
        count = self._services.counter.count
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            tokens = [count(one) for one in texts]
        else:
            tokens = await anyio.to_thread.run_sync(lambda: [count(one) for one in texts])
        at_us = int(self._services.clock.time() * 1_000_000)
        items = tuple(
            WorkingItem(
                working_id(session, one),
                one,
                source,
                session,
                at_us,
                size,
                vector.astype("<f4").tobytes(),
            )
            for one, size, vector in zip(texts, tokens, vectors, strict=True)
        )
        await self._services.directory.ask(
            UserKey(self.id), Learn(items), size=sum(map(len, texts)) + vectors.nbytes
        )
        return [item.id for item in items]

    async def search_working(
        self, query: str, k: int = 5, session: str | None = None
    ) -> list[WorkingHit]:
        """What in working memory is nearest in meaning to `query`, best first; of equals the older.

        Args:
            query: what to look for.
            k: how many at most.
            session: what that session may see: its own and what belongs to none. None for all of
                the user's.

        Raises:
            InvalidInput: `k` is not positive, the query is no text, or no embedder is configured.
            InvalidId: `session` cannot name a session.
            ModelError: the embedder failed.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; reading changes
                nothing, so simply retry.
        """
        embedder = self._working_embedder()
        if not isinstance(query, str):
            raise InvalidInput(f"query must be text, not {type(query).__name__}")
        if k < 1:
            raise InvalidInput(f"k must be positive, not {k}")
        if session is not None:
            validate_id(session, "a session id")
        (vector,) = await embed_texts(embedder, [without_surrogates(query)])
        found: tuple[ScoredItem, ...] = await self._services.directory.ask(
            UserKey(self.id), SearchWorking(vector, k, session)
        )
        return [
            WorkingHit(
                text=one.item.text,
                source=one.item.source,
                session=one.item.scope,
                created_at=datetime.fromtimestamp(one.item.at_us / 1_000_000, UTC),
                score=one.score,
                id=one.item.id,
            )
            for one in found
        ]

    def _working_embedder(self) -> CachingEmbedder:
        embedder = self._services.embedder
        if embedder is None:
            raise InvalidInput(
                "working memory needs an embedder: set models.embedder to wordllama (embedded) or "
                "openai, "
                "or pass embedder= to the Runtime"
            )
        return embedder

    # -- the user as a whole -----------------------------------------------------------------------

    async def synopsis(self, *, refresh: bool = False, timeout_s: float | None = None) -> Synopsis:
        """Who the user is, and what they are about.

        What is held of it, or else written now, by one model call.

        However many ask at once, it is written once. Without a chat model it is an extract.

        Args:
            refresh: have it written anew although it still holds.
            timeout_s: seconds to wait for it; the configured default otherwise.

        Raises:
            ModelTimeout: it was not written in time; it goes on being written, so ask again later.
            ReentrantAsk: called from within a background job of this user, such as the one that
                writes it.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; simply retry.
        """
        services = self._services
        limit = services.config.mailbox.timeout_s if timeout_s is None else timeout_s
        # Who asks is served by whatever is written from now on, so one job is waited for, however
        # short the terms are.
        request = ReadSynopsis(services.clock.time(), refresh=refresh)
        with anyio.move_on_after(limit):
            while True:
                found: Synopsis = await services.directory.ask(
                    UserKey(self.id), request, timeout_s=limit
                )
                if found.state != "pending":
                    return found
                await services.supervisor.wait_for_job(found.job)
                request = msgspec.structs.replace(request, refresh=False)
        raise ModelTimeout(
            f"the synopsis of {self.id!r} was not written within {limit:g} s; it goes on being "
            "written, ask later"
        )

    async def forget(self) -> ErasureReceipt:
        """Erase the user (G13).

        Returns when no byte of what they said, nor their id, is in any file of the memory
        directory.

        Sessions, summaries, synopsis, working memory, memories, long-term rows with their older
        versions, jobs, keys and caches go. Meanwhile whoever asks for this user gets
        `ErasureInProgress`; afterwards they are new. Other users are served, but the files that
        held the rows are rewritten, so it takes seconds rather than milliseconds, and appends may
        wait for part of that. Who stops waiting does not stop it; a crash half-way is made good at
        the next start. What left the directory before (exports, backups, what was sent to a model)
        is not reached, nor what a memory block keeps in a store of its own.

        Raises:
            ReentrantAsk: called from within background work.
            CommitFailed: the journal failed; nothing was erased.
            StorageError: the journal has forgotten them, but files cannot be rewritten; it is tried
                again and again.
            RuntimeClosed: the runtime closed before; the next start goes on.
        """
        return await self._services.eraser.forget(self.id)

    async def inspect(self) -> UserView:
        """How things stand: working memory, figures of access, the synopsis, grants.

        For people and tools.
        """
        view: UserView = await self._services.directory.ask(UserKey(self.id), InspectUser())
        return view

    async def stats(self) -> UserStatistics:
        """The user in figures.

        Raises:
            LongTermError: long-term memory cannot be read.
        """
        services = self._services
        counts = await services.journal.counts(self.id)
        view = await self.inspect()
        recalls = services.recall.statistics() if services.recall is not None else None
        embedded = services.embedder.statistics() if services.embedder is not None else None
        return UserStatistics(
            sessions=counts.sessions,
            messages=counts.messages,
            tokens=counts.tokens,
            summaries=counts.summaries,
            memories=counts.memories,
            long_term_rows=len(await services.recall.rows(self.id))
            if services.recall is not None
            else 0,
            working_items=view.working_items,
            working_bytes=view.working_bytes,
            pending_jobs=counts.pending_jobs,
            dead_jobs=counts.dead_jobs,
            synopsis_hit_rate=_rate(view.synopsis_hits, view.synopsis_misses),
            recall_hit_rate=_rate(recalls.hits, recalls.misses) if recalls is not None else 0.0,
            embedding_hit_rate=_rate(embedded.hits, embedded.misses)
            if embedded is not None
            else 0.0,
        )


def _rate(hits: int, misses: int) -> float:
    return hits / (hits + misses) if hits or misses else 0.0


def _text(value: object, what: str) -> str:
    """A text that says something, as a file can keep it."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be text, not {type(value).__name__}")
    if not value.strip():
        raise InvalidInput(f"{what} must not be empty")
    return without_surrogates(value)
