"""The application's handle of a user. Making a handle does no I/O and starts no actor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, get_args

import msgspec

from remora.actors.policies.pruning import PruningStrategy
from remora.actors.policies.redaction import redact_text
from remora.actors.user.messages import (
    InspectUser,
    Learn,
    PruneNow,
    ScoredItems,
    SearchWorking,
    Synopsis,
    UserView,
)
from remora.actors.user.working import WorkingItem, pack_vector
from remora.api.batches import append_by_id
from remora.api.keyed_state import KeyedState
from remora.api.memories import Agent, LongTermHandle
from remora.api.session import Session
from remora.errors import InvalidInput
from remora.ids import SessionKey, UserKey, validate_id, working_id
from remora.jobs.rows import ROW_TYPES
from remora.messages import MessageLike, Receipt, without_surrogates
from remora.models.cache import CachingEmbedder
from remora.models.ports import embed_texts
from remora.recall.found_sessions import FoundSession, find_sessions
from remora.recall.memory import Memory, newest_that_hold
from remora.runtime.concurrency import run_in_thread_if
from remora.services.archive import UserStatistics
from remora.services.arguments import (
    check_choice,
    check_flag,
    check_int,
    check_length,
    check_page,
    check_query,
    check_result_count,
    check_seconds,
    check_text,
    collect,
)
from remora.services.erasure import ErasureReceipt
from remora.services.intake import are_large
from remora.services.parts import PartsHolder
from remora.services.recording import check_types, name_failures
from remora.storage.export.transfer import SessionExport
from remora.storage.listing import ListingOrder
from remora.storage.ports import SessionListing
from remora.storage.records import INSTRUCTION

_COMPARED_AT_ONCE = 32  # instructions; more in a thread
_LONGEST_S = 1e11  # some 3 000 years: a time before that is not in the calendar


class WorkingHit(msgspec.Struct, frozen=True):
    """Something found in working memory.

    Attributes:
        text: what was learned.
        source: where it came from, for instance ``"tool:search"``.
        session: the session that it belongs to; empty if it belongs to the user.
        created_at: when it was learned.
        score: similarity to the query; 1 for the same meaning.
        id: its id within the user's working memory.
    """

    text: str
    source: str
    session: str
    created_at: datetime
    score: float
    id: str


class User(LongTermHandle):
    """One user: their sessions, profile and memories. Get one from `Runtime.user`."""

    __slots__ = ("id",)

    def __init__(self, holder: PartsHolder, id_: str) -> None:
        super().__init__(holder, id_)
        self.id = id_

    def __repr__(self) -> str:
        return f"User({self.id!r}, {self._holder.described})"

    # -- sessions ----------------------------------------------------------------------------------

    def session(self, session: str) -> Session:
        """A handle on one of the user's sessions; the session exists once it has a message.

        Raises:
            InvalidId: the id cannot name a session.
        """
        return Session(self._holder, SessionKey(self.id, validate_id(session, "a session id")))

    async def sessions(
        self,
        *,
        prefix: str = "",
        order: ListingOrder = "oldest",
        limit: int | None = None,
        after: str | None = None,
        empty: bool = False,
    ) -> Sequence[SessionListing]:
        """List the user's sessions, with number of messages and last use, all or a page of them.

        A session without a message is not listed, unless `empty` is set. The next page begins
        behind the last one of a page: ``after=page[-1].cursor``. It stays right while sessions are
        added and forgotten; one that is used in the meantime moves to its new place.

        Args:
            prefix: only sessions whose id begins with this.
            order: ``oldest``: the one with the newest message last; ``newest``: first; ``name``:
                by id.
            limit: how many at most; None for all.
            after: the `cursor` of a listing in the same order; None for the first page.
            empty: also sessions that have keyed state and no message; the order of those by use is
                open, so list by ``name``.

        Raises:
            InvalidInput: an argument is out of range, or `after` is no cursor in this order.
        """
        page = check_page(order, prefix, limit, after)
        if check_flag(empty, "empty"):
            page = msgspec.structs.replace(page, empty=True)
        return await self._holder.parts.archive.sessions(self.id, page)

    async def find_sessions(self, query: str, *, limit: int = 10) -> list[FoundSession]:
        """Find the sessions in which something was said that matches `query`, best first.

        Args:
            query: a question, or words; or a message of several sentences, for which recent
                sessions count more.
            limit: how many at most.

        Raises:
            InvalidInput: an argument is out of range, or long-term memory is switched off.
            LongTermError, ModelError: see `recall`.
            StorageError: the journal cannot be read.
        """
        check_int(limit, "limit", low=1)
        return await find_sessions(self, query, limit)

    async def append_many(
        self, messages: Mapping[str, MessageLike | Iterable[MessageLike]]
    ) -> dict[str, Receipt]:
        """Append to several of the user's sessions at once; see `Session.append`.

        Args:
            messages: for each session's id, one message or many; those of a session are all or
                none.

        Raises:
            InvalidId, InvalidMessage, MailboxFull, CommitFailed, OutcomeUnknown: see
                `Session.append`; the first of them, when all sessions are done. Other sessions'
                messages may be written.
        """
        return await append_by_id(self.session, messages)

    async def import_session(self, export: SessionExport, *, session: str | None = None) -> Session:
        """Begin a session of this user with what `Session.export` gave, of any user.

        Tokens are counted, and what long-term memory had of it is embedded, by this runtime's own
        models; `settle` waits for that.

        Args:
            export: the session.
            session: the new session's id; None for the exported one's.

        Raises:
            InvalidId: `session` cannot name a session.
            InvalidInput: the session has messages or keyed state already, or the export is
                inconsistent; nothing was written.
            InvalidMessage, RedactionFailed: see `Session.append`; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`.
        """
        given: object = export
        if not isinstance(given, SessionExport):
            raise InvalidInput(
                f"export must be what Session.export gave, not {type(given).__name__}"
            )
        imported = self.session(export.session if session is None else session)
        await self._holder.parts.transfers.import_session(export, imported.key)
        return imported

    # -- long-term memory; see also `LongTermHandle` -----------------------------------------------

    def agent(self, agent: str) -> Agent:
        """A handle on one of the user's agents: it records its own memories, and finds only those.

        Raises:
            InvalidId: the id cannot name an agent.
        """
        return Agent(self._holder, self.id, validate_id(agent, "an agent's id"))

    async def export_arrow(self, *, types: str | Iterable[str] | None = None) -> Any:
        """The user's rows in long-term memory as a `pyarrow.Table`, oldest first.

        Its columns are id, user_id, session_id (null for none), content, embedding (null where
        nothing is embedded), memory_type, importance, created_at, accessed_at (null for never) and
        access_count. Facts that do not hold any more are left out; `memories` lists those that
        newer ones replaced.

        What is recorded appears when it is indexed, a moment later: `settle` waits for that.

        Args:
            types: rows of these memory types; None for all except those of memory blocks.

        Raises:
            InvalidInput: an unknown memory type, or long-term memory is switched off.
            LongTermError: long-term memory failed.
        """
        scope = self._scope(ROW_TYPES if types is None else types, None, None)
        return await self._require_recalls().arrow_table(self.id, scope)

    async def prune(
        self,
        *,
        keep: int | None = None,
        strategy: PruningStrategy | None = None,
        max_age_s: float | None = None,
        types: str | Iterable[str] | None = None,
        wait: bool = True,
    ) -> None:
        """Remove the least important rows from long-term memory; `Session.history` stays.

        Args:
            keep: rows that stay, at most; None for no such bound.
            strategy: ``fifo``: the oldest go; ``age``: what is older than `max_age_s`, and the
                oldest beyond `keep`; ``importance``: the lowest by age, use and importance;
                ``lru``: what was not retrieved for the longest time. None for `long_term.prune`.
            max_age_s: seconds, for ``age``.
            types: only these memory types; `keep` counts these alone. None for all.
            wait: return when it is done; otherwise when the job is durable.

        Raises:
            InvalidInput: a value out of range, neither `keep` nor `max_age_s`, or long-term memory
                is switched off.
            RecordingFailed: the journal failed; nothing is pruned, unless its outcome is unknown.
            LongTermError: with `wait`, the job was dead-lettered; while long-term memory is only
                unavailable, it is retried.
            ReentrantAsk: with `wait`, called from within the user's background work.
        """
        if strategy is None:
            strategy = self._holder.parts.config.long_term.prune
        check_flag(wait, "wait")
        message = _prune_message(keep, strategy, max_age_s, types)
        recalls = self._require_recalls()
        with name_failures("prune", self.id):
            await recalls.prune(self.id, message, wait=wait)

    # -- keyed state -------------------------------------------------------------------------------

    @property
    def state(self) -> KeyedState:
        """Small JSON values that the application keeps with the user, for all of their sessions."""
        return KeyedState(self._holder, UserKey(self.id))

    # -- working memory ----------------------------------------------------------------------------

    async def learn(
        self, text: str | Iterable[str], *, source: str = "application", session: str = ""
    ) -> list[str]:
        """Note texts in working memory, for a while: newer ones push out the oldest.

        They are a tool's output, for instance, or something that the user said.

        Returns the ids when it is durable. `search_working` finds it at once. When working memory
        is full, the oldest items leave it. The same text for the same session is held once, and
        keeps its age.

        Args:
            text: one text or many, all or none. The redaction hook is applied to each first.
            source: where they come from, for instance ``"tool:search"``.
            session: the session that they belong to; empty if they belong to the user.

        Raises:
            InvalidInput: no text, an empty one, one that is too large for working memory, or no
                embedder is configured.
            InvalidId: `session` cannot name a session, or `source` is not valid.
            RedactionFailed: the redaction hook failed; nothing was written.
            ModelError: the embedder failed; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; learning twice has one
                effect, so simply retry.
        """
        embedder = self._require_embedder()
        given = [text] if isinstance(text, str) else collect(text, "what is learned")
        texts = [_require_content(one, "what is learned") for one in given]
        source = validate_id(source, "a source")
        if session != "":
            session = validate_id(session, "a session id")
        if not texts:
            return []
        parts = self._holder.parts
        if (redact := parts.intake.redact) is not None:
            texts = [
                _require_content(redact_text(one, redact), "what redaction leaves") for one in texts
            ]
        vectors = await embed_texts(embedder, texts)
        tokens = await parts.intake.count_texts(texts)
        at_us = int(parts.intake.clock.time() * 1_000_000)

        def make_items() -> tuple[WorkingItem, ...]:
            return tuple(
                WorkingItem(
                    working_id(session, one),
                    one,
                    source,
                    session,
                    at_us,
                    size,
                    pack_vector(vector),
                )
                for one, size, vector in zip(texts, tokens, vectors, strict=True)
            )

        items = await run_in_thread_if(are_large(texts), make_items)
        size = sum(map(len, texts)) + vectors.nbytes
        await parts.actors.ask(UserKey(self.id), Learn(items), size=size)
        return [item.id for item in items]

    async def search_working(
        self, query: str, limit: int = 5, session: str | None = None
    ) -> list[WorkingHit]:
        """Search working memory: what is nearest in meaning, best first; of equals the older.

        Args:
            query: what to look for.
            limit: how many at most.
            session: only what belongs to this session or to the user. None for everything.

        Raises:
            InvalidInput: `limit` is not from 1 to 1 000, the query is not text, or no embedder is
                configured.
            InvalidId: `session` cannot name a session.
            ModelError: the embedder failed.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; simply retry.
        """
        embedder = self._require_embedder()
        query = check_query(query)
        check_result_count(limit)
        if session is not None:
            session = validate_id(session, "a session id")
        (vector,) = await embed_texts(embedder, [query])
        request = SearchWorking(pack_vector(vector), limit, session)
        found: ScoredItems = await self._holder.parts.actors.ask(UserKey(self.id), request)
        return [
            WorkingHit(
                text=one.item.text,
                source=one.item.source,
                session=one.item.scope,
                created_at=datetime.fromtimestamp(one.item.at_us / 1_000_000, UTC),
                score=one.score,
                id=one.item.id,
            )
            for one in found.items
        ]

    def _require_embedder(self) -> CachingEmbedder:
        embedder = self._holder.parts.intake.embedder
        if embedder is None:
            raise InvalidInput(
                "working memory needs an embedder: set models.embedder to wordllama (embedded) or "
                "openai, or pass embedder= to the Runtime"
            )
        return embedder

    # -- the user as a whole -----------------------------------------------------------------------

    async def instructions(self) -> list[Memory]:
        """Standing instructions of the user that hold, newest first.

        They are noticed by their wording ("always …", "please don't …", "call me …") in what the
        user says, see `ContextConfig.instructions_share`, and stand at the front of each context.
        Of those about one matter the newest holds, and only the newest 128 are looked at.
        `update_memory` changes one, `delete` removes it; deleting its message does, too.

        Returns:
            Memories of the type ``instruction``.

        Raises:
            LongTermError: long-term memory is switched off.
            StorageError: the journal cannot be read.
        """
        found = await self.remembered(types=INSTRUCTION, limit=None)
        return await run_in_thread_if(len(found) > _COMPARED_AT_ONCE, newest_that_hold, found)

    async def synopsis(self, *, refresh: bool = False, timeout_s: float | None = None) -> Synopsis:
        """The user's profile: who the user is and what concerns them now.

        One that is missing or expired is written first, by one model call however many ask at once.
        Without a chat model there is none: its state is ``off``, and its `detail` says what turns
        it on.

        Args:
            refresh: write it again although it is valid.
            timeout_s: seconds to wait for it; None for the configured default.

        Raises:
            ModelTimeout: it was not written in time; its job continues, so ask again later.
            ReentrantAsk: called from within a background job of this user.
            MailboxFull, OutcomeUnknown, CommitFailed: see `Session.append`; simply retry.
        """
        check_flag(refresh, "refresh")
        check_seconds(timeout_s, "timeout_s")
        return await self._holder.parts.contexts.synopsis(
            self.id, refresh=refresh, timeout_s=timeout_s
        )

    async def forget(self) -> ErasureReceipt:
        """Erase the user: no byte of their messages or id is left in the memory directory.

        Sessions, summaries, synopsis, working memory, memories, long-term rows with their older
        versions, keyed state, jobs, keys and caches are erased. Until nothing finds them, requests
        for this user raise `ErasureInProgress`. Then the user is new, and files that held the rows
        are rewritten; appends may wait for part of that. Files that were rewritten for another
        erasure a moment ago are rewritten once for all erasures that follow: the receipt of each of
        these says when, as `erased_by`, and `Runtime.retry_erasures` does it at once. Cancelling
        the call does not stop the erasure; after a crash the next start completes it. Exports,
        backups, requests to a model, and what a memory block keeps in its own store are not erased.

        Raises:
            ReentrantAsk: called from within background work.
            CommitFailed: the journal failed; nothing was erased.
            StorageError: the journal has forgotten them, but files cannot be rewritten; remora
                keeps retrying.
            RuntimeClosed: the runtime closed before; the next start completes it.
        """
        return await self._holder.parts.work.forget(self.id)

    async def inspect(self) -> UserView:
        """The user's state: working memory, access figures, synopsis, grants. For tools."""
        return await self._holder.parts.actors.ask(UserKey(self.id), InspectUser())

    async def stats(self) -> UserStatistics:
        """Count what is stored of the user.

        Raises:
            LongTermError: long-term memory cannot be read.
        """
        return await self._holder.parts.archive.user_stats(self.id)


def _prune_message(
    keep: int | None,
    strategy: PruningStrategy,
    max_age_s: float | None,
    types: str | Iterable[str] | None,
) -> PruneNow:
    """Check the arguments of `User.prune`."""
    check_choice(strategy, "strategy", get_args(PruningStrategy))
    if keep is not None:
        check_int(keep, "keep")
    check_seconds(max_age_s, "max_age_s")
    if max_age_s is not None and not 0 < max_age_s <= _LONGEST_S:
        raise InvalidInput(
            f"max_age_s must be over 0 and at most {_LONGEST_S:g} seconds, not {max_age_s}"
        )
    if max_age_s is not None and strategy != "age":
        raise InvalidInput(f"max_age_s goes with the strategy age, not with {strategy}")
    if keep is None and max_age_s is None:
        raise InvalidInput("pruning needs a bound: keep, or max_age_s with the strategy age")
    return PruneNow(-1 if keep is None else keep, strategy, max_age_s or 0.0, check_types(types))


def _require_content(value: object, what: str) -> str:
    text = check_text(value, what)
    if not text.strip():
        raise InvalidInput(f"{what} must not be empty")
    return without_surrogates(check_length(text, what))
