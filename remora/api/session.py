"""The application's handle of a session. Making a handle does no I/O and starts no actor.

The handle is the scope: no verb takes another user's id, so none can reach another user's data.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, get_args

import msgspec

from remora.actors.policies.bm25 import bm25_scores
from remora.actors.session.messages import (
    Append,
    Clear,
    Flush,
    Inspect,
    Replace,
    Rewind,
    SessionView,
    Truncate,
)
from remora.actors.user.messages import ExpireSynopsis
from remora.api.deletion import Deletable, parse_deletion
from remora.api.keyed_state import KeyedState
from remora.api.turn import Query, Spoken, Turn
from remora.errors import InvalidInput, InvalidMessage, TurnClosed
from remora.ids import SessionKey, UserKey, key_digest, validate_id
from remora.messages import (
    ChatDict,
    Entry,
    Message,
    MessageLike,
    Receipt,
    Role,
    decode_chat,
    plain_text,
)
from remora.models.ports import Embedder, embed_texts
from remora.recall.attached import attach_all
from remora.recall.context import Context
from remora.recall.quotes import summary_message
from remora.recall.shown import shown_digests
from remora.runtime.actor import Asked, Reply
from remora.runtime.concurrency import run_in_thread_if
from remora.runtime.threads import run_in_thread
from remora.services.archive import SessionStatistics, are_long, restore_messages
from remora.services.arguments import (
    MAX_IDS,
    check_choice,
    check_flag,
    check_int,
    check_query,
    check_result_count,
    check_seconds,
    check_text,
)
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.erasure import ErasureReceipt
from remora.services.intake import Intake, PlainMessage, as_batch, as_messages
from remora.services.metadata import MetadataFilter, check_where
from remora.services.parts import Archive, OfOneProcess, Parts, PartsHolder
from remora.services.turns import HeldTurn
from remora.storage.export.transfer import SessionExport
from remora.storage.records import Summary

# -- a session's messages, read as they come -------------------------------------------------------

_FIRST, _MOST = 8, 100  # messages that one call reads


class Following:
    """Who reads a session's messages as they come, and how far that is.

    Args:
        archive: what is read.
        key: of the session.
        after: the number of the last message that was read; None to begin with the next one.
        sid: the session's number in its journal; 0 if it is not known yet.
    """

    def __init__(self, archive: Archive, key: SessionKey, after: int | None, sid: int = 0) -> None:
        self.after, self.sid = after, sid
        self._archive, self._key = archive, key
        self._limit = _FIRST

    async def read(self) -> list[Message] | None:
        """The next messages, when there are some; None if the session was erased.

        The first call returns at once, maybe with none, if `after` was None. A call that is
        cancelled takes nothing.
        """
        found = await self._archive.follow(
            self._key, after=self.after, sid=self.sid, limit=self._limit
        )
        if found.ended:
            return None
        # fewer come than were read where messages are long
        self._limit = min(2 * max(len(found.messages), 1), _MOST)
        self.after, self.sid = found.after, found.sid
        return found.messages

    async def messages(self) -> AsyncGenerator[Message]:
        """One after the other, until the session is erased."""
        while (found := await self.read()) is not None:
            for message in found:
                yield message


def start_following(session: Any, after: int | None, sid: int) -> Following:
    """`Session.follow` for a server, whose clients come back.

    Args:
        session: a `Session`.
        after: see `Following`.
        sid: see `Following`.
    """
    holder = session._holder  # noqa: SLF001 - a handle of the same layer
    return Following(holder.parts.archive, session.key, after, sid)


# -- a session kept for one caller, without a message to begin a turn with -------------------------


class Exclusive(OfOneProcess):
    """A block in which no turn of the session runs. Get one from `Session.exclusive`.

    Use it once, with ``async with``.
    """

    __slots__ = ("__weakref__", "_entered", "_holder", "_session", "_turn")

    def __init__(self, holder: PartsHolder, session: SessionKey) -> None:
        self._holder = holder
        self._session = session
        self._entered = False
        self._turn: HeldTurn | None = None

    def __repr__(self) -> str:
        return f"Exclusive({self._session.user!r}, {self._session.session!r})"

    async def __aenter__(self) -> Self:
        if self._entered:
            raise TurnClosed("this is entered once; make another with session.exclusive()")
        self._entered = True
        turns = self._holder.parts.turns
        number = await turns.begin(self._session)
        self._turn = HeldTurn(self, turns, self._session, number)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._turn is not None:
            self._turn.end()


class Session:
    """One conversation. Get one from `User.session` or `Runtime.session`.

    Every verb is one message to the session's actor, which handles them in order; what comes back
    are copies. Each verb may raise `MailboxFull` (nothing ran), `CommitFailed` (nothing was
    written), `OutcomeUnknown` (it may have been written) and `RuntimeClosed`. A verb that only
    reads can simply be retried.
    """

    __slots__ = ("_holder", "key")

    def __init__(self, holder: PartsHolder, key: SessionKey) -> None:
        self._holder = holder
        self.key = key

    def __repr__(self) -> str:
        return f"Session({self.key.user!r}, {self.key.session!r}, {self._holder.described})"

    @property
    def state(self) -> KeyedState:
        """Small JSON values that the application keeps with the session."""
        return KeyedState(self._holder, self.key)

    async def _ask(self, message: Asked[Reply], timeout_s: float | None = None) -> Reply:
        check_seconds(timeout_s, "timeout_s")
        return await self._holder.parts.actors.ask(self.key, message, timeout_s=timeout_s)

    async def append(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        allow_duplicates: bool = False,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Add one message or many to the conversation, all or none, durable on return.

        The user's other sessions recall them at once.

        Appends of one task are in the order in which it starts them, whether it awaits each or not:
        a batch over 16 000 characters is encoded and counted in a thread, and later appends to the
        session wait for that.

        Args:
            messages: dicts in the OpenAI chat format, or `Message` objects.
            key: idempotency key: a second append of the same messages with it, restart or not,
                adds nothing and returns the original numbers.
            allow_duplicates: add a message although one with its id is there; otherwise an equal
                one is skipped, and the receipt has the number of the existing one. Ids that were
                cleared or deleted may be used again.
            replace: change a message whose id is there already, and which says something else now:
                it keeps its number, time and role. A summary that covers it is repaired, and
                memories of it are indexed again, in the background.
            timeout_s: seconds to wait; None for the configured default. With `buffer.overdraft`
                ``wait``, also how long the append waits for a compaction; None for
                `buffer.overdraft_wait_s`.

        Raises:
            InvalidMessage: one of them is not a chat message, or two have one id; nothing was
                written.
            InvalidId: the key is not valid.
            IdConflict: a message with this id says something else, and `replace` is not given;
                nothing was written.
            KeyConflict: the key was used before for other messages, or the redaction hook makes
                another text of the same ones; nothing was written.
            RedactionFailed: the redaction hook failed on one of them; nothing was written.
            MailboxFull: the session is overloaded; nothing ran.
            OverdraftReached: summaries are not written as fast as messages come, and
                `buffer.overdraft` is ``refuse``, or is ``wait`` and the append waited until its
                deadline, or was called from a background job, which never waits; nothing was
                written.
            CommitFailed: the journal refused it; nothing was written.
            OutcomeUnknown: it may have been written; retry with the same key.
        """
        if replace is not False or allow_duplicates is not False:
            check_flag(allow_duplicates, "allow_duplicates")
            if check_flag(replace, "replace") and allow_duplicates:
                raise InvalidInput("pass replace or allow_duplicates, not both")
        if timeout_s is not None:
            check_seconds(timeout_s, "timeout_s")
        digest = None if key is None else key_digest(validate_id(key, "an idempotency key"))
        parts = self._holder.parts
        intake = parts.intake
        plain: Any = messages if type(messages) is dict else None
        one = None if plain is None else intake.encode_at_once(self.key, plain)
        if one is not None:
            entries: tuple[Entry, ...] = (one,)
            size = len(one.chat)
        else:
            batch = as_batch(messages)
            entries = tuple(await intake.encode_in_turn(self.key, batch))
            size = sum([entry.size for entry in entries])
        window = intake.buffer.dedup_window
        request = Append(entries, digest, size, allow_duplicates, window, None, replace)
        return await parts.appends.append(self.key, request, timeout_s)

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
        """Gather what a model should see now: summary, recent messages, memories for a `query`.

        Without a query it never waits for a model. With one, every other tier has a deadline;
        a tier that misses it is left out and named in `Context.sources`. Memory blocks are always
        asked; they are the application's own code, and each has `context.block_timeout_s`.

        Args:
            query: what to recall memories for, usually the user's newest message.
            max_tokens: the budget; None for `buffer.token_limit`.
            override: a conversation to show instead of the session's own, which is not changed.
            messages: what memory blocks are asked about instead of the conversation.
            at: show the session as it was when this message was its newest.
            timeout_s: seconds to wait for the session; None for the configured default.

        Raises:
            InvalidInput: a negative budget, a query that is not text, no such message, or memory
                blocks that must always be shown and do not fit.
            InvalidMessage: in `override` or `messages`.
            MailboxFull, OutcomeUnknown, CommitFailed: see `append`; simply retry.
        """
        parts = self._holder.parts
        intake = parts.intake
        budget = intake.buffer.token_limit if max_tokens is None else max_tokens
        check_int(budget, "max_tokens")
        if query is not None:
            query = check_query(query)
        if at is not None:
            check_int(at, "at")
        check_seconds(timeout_s, "timeout_s")
        if override is None and messages is None and at is None:
            return await parts.contexts.load(self.key, budget, query, timeout_s=timeout_s)
        return await parts.contexts.load(
            self.key,
            budget,
            query,
            override=None
            if override is None
            else await encode_all(intake, self.key.user, override),
            about=None if messages is None else await encode_all(intake, self.key.user, messages),
            at=None if override is not None else at,
            timeout_s=timeout_s,
        )

    def turn(
        self,
        message: Spoken,
        *,
        key: str | None = None,
        query: Query = None,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Turn:
        """One request of the user, from their message to the reply: ``async with``.

        Entering the block waits until the session's earlier turns have ended, stores the user's
        message, and loads the context. Inside, `Turn.reply` stores what the model says. A request
        that is repeated with its key continues where it was cut, or gives the stored reply.

        Args:
            message: the user's text, their message, or several messages of one request.
            key: idempotency key of the request, for all of its messages.
            query: what to recall memories for; None for the user's text, if long-term memory is on;
                False to recall nothing, so that entering never waits for a model.
            max_tokens: see `load`.
            timeout_s: see `append` and `load`. How long a turn waits for others is `turns.wait_s`.

        Raises:
            InvalidId, InvalidInput: an argument is not valid.
            SessionBusy: on entering: too many turns wait, or it waited too long; nothing ran.
            KeyConflict: on entering: the key is of another request; nothing was written.
            InvalidMessage, and what `append` and `load` raise: on entering.
        """
        return Turn(
            self._holder,
            self.key,
            message,
            key=key,
            query=query,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
        )

    def exclusive(self) -> Exclusive:
        """Keep the session for a framework's run: ``async with session.exclusive(): …``.

        Entering the block waits until the session's earlier turns and blocks have ended; until it
        ends, later ones wait. So what several runs append does not mix. Appends from outside of
        turns do not wait. A turn of the same session inside the block would wait for itself.

        Raises:
            SessionBusy: on entering: see `turn`.
            TurnClosed: on entering: it was entered before.
        """
        return Exclusive(self._holder, self.key)

    async def clear(self, *, timeout_s: float | None = None) -> int:
        """Empty the buffer and the summary; returns how many messages left the buffer.

        `history()`, long-term memory, keyed state (`state`) and idempotency keys stay. Messages
        that are not indexed yet never reach long-term memory: `flush` first if they should.
        """
        return await self._ask(Clear(), timeout_s)

    async def flush(self, *, timeout_s: float | None = None) -> int:
        """Start indexing what long-term memory does not have yet; returns how many messages.

        Recall finds messages before they are indexed, so this is seldom needed: an idle session
        does it by itself. `settle` waits for the end.
        """
        return await self._ask(Flush(now=True), timeout_s)

    async def forget(self) -> ErasureReceipt:
        """Erase the session down to the bytes, and what the user's actor holds of it.

        What was learned and recorded for this session is erased with it, and the user's synopsis is
        written again from what is left. Until then `recall` and working memory raise
        `ErasureInProgress`.

        Raises:
            ReentrantAsk, CommitFailed, StorageError, RuntimeClosed: see `User.forget`.
        """
        return await self._holder.parts.work.forget(self.key.user, self.key.session)

    async def history(
        self,
        *,
        include_archived: bool = True,
        at: int | None = None,
        after: int = 0,
        limit: int | None = None,
        attachments: bool = True,
    ) -> list[Message]:
        """Read every message appended and not deleted, rewound or forgotten, oldest first.

        The next page begins behind the last message of a page: ``after=page[-1].seq``. A page costs
        what it holds, however long the session is.

        Args:
            include_archived: include messages that left the buffer (compacted, cleared).
            at: as it was when this message was the newest, with what was deleted or rewound later.
            after: only messages with a larger number.
            limit: how many at most, the oldest; None for all.
            attachments: with the bytes of attachments; otherwise they are not read, and a few words
                stand in their place: ``[image/png 1024x768, 4.1 MB]``.

        Raises:
            InvalidInput: an argument is out of range.
        """
        check_flag(include_archived, "include_archived")
        check_flag(attachments, "attachments")
        if at is not None:
            check_int(at, "at")
        check_int(after, "after")
        if limit is not None:
            check_int(limit, "limit", low=1)
        return await self._holder.parts.archive.history(
            self.key,
            include_archived=include_archived,
            at=at,
            after=after,
            limit=limit,
            attachments=attachments,
        )

    def follow(self, *, after: int | None = None) -> AsyncGenerator[Message]:
        """Iterate over the session's messages when they are durable, those to come included.

        Each message comes once, in the order of numbers; what was deleted before it was read does
        not come, and up to 100 are read at once. The iteration goes on across idle times and
        changes of the owning process, and ends when the session is erased. Leave it by `break`;
        close it where that must happen at once (`contextlib.aclosing`).

        Args:
            after: only messages with a larger number; None for those that are not there yet.

        Raises:
            InvalidInput: `after` is out of range.
            OwnerUnreachable: no process owns the memory for now, or it cannot be reached; follow
                again behind the last message.
            RuntimeClosed: the runtime closed.
        """
        if after is not None:
            check_int(after, "after")
        return Following(self._holder.parts.archive, self.key, after).messages()

    async def stats(self) -> SessionStatistics:
        """Count the session's messages, tokens and summaries."""
        return await self._holder.parts.archive.stats(self.key)

    async def inspect(self) -> SessionView:
        """The session's state: watermarks, buffer, summaries. For people and tools."""
        return await self._ask(Inspect())

    async def _whole_buffer(self) -> SessionView:
        """The session's state, with the attachments of the buffer."""
        view = await self.inspect()
        entries = await attach_all(view.entries, self.key.user, self._holder.parts.archive.blobs)
        return msgspec.structs.replace(view, entries=tuple(entries))

    async def export(self) -> SessionExport:
        """The whole session as plain data: its past, states of its memory blocks, keyed state.

        `User.import_session` makes a session of it, here or elsewhere. Messages are numbered from 1
        without gaps; deleted and rewound ones, and idempotency keys, are left out.

        Raises:
            InvalidInput: the session has neither messages nor keyed state.
        """
        exported = await self._holder.parts.transfers.export_session(self.key)
        if exported is None:
            raise InvalidInput(f"{self.key.words} has no messages and no state")
        return exported

    async def settle(self) -> None:
        """Wait until this session's background work is done: for tests, scripts and shutdown.

        Raises:
            ReentrantAsk: called from within that work.
        """
        await self._holder.parts.work.drain(self.key)

    # -- reading the buffer ------------------------------------------------------------------------

    async def get_messages(
        self,
        role: Role | None = None,
        *,
        filter_metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        """Read the messages in the buffer, oldest first.

        Args:
            role: only those of this role.
            filter_metadata: only those whose metadata meets all of these conditions: values, or
                dicts of operators and values, as in `User.recall`.
            limit: the newest of what is left, at most this many.

        Raises:
            InvalidInput: a negative limit, or a filter that is not such a dict.
        """
        if role is not None:
            check_choice(role, "role", get_args(Role))
        if limit is not None:
            check_int(limit, "limit")
        wanted = check_where(filter_metadata, "filter_metadata", copy=lambda value: value)
        buffer = await self._whole_buffer()
        instance = self._holder.parts.instance
        return await filter_messages(buffer, instance, role, wanted, limit)

    async def contents(
        self, *, summary_prefix: str | None = None
    ) -> tuple[list[ChatDict], list[Message]]:
        """Read the whole buffer, and the summaries as messages, as of one moment.

        Unlike `load` it has no budget, and shows tool calls that still wait for a result. It is
        for adapters; a model is shown what `load` gives.

        Args:
            summary_prefix: what the summaries begin with; None for their own.
        """
        if summary_prefix is not None:
            check_text(summary_prefix, "summary_prefix")
        buffer = await self._whole_buffer()
        parts = self._holder.parts
        summaries = summary_messages(parts, self.key.user, buffer, summary_prefix)
        return summaries, await messages_of(buffer, parts.instance)

    async def size(self) -> int:
        """How many messages the buffer holds."""
        return len((await self.inspect()).entries)

    async def search(
        self, query: str, limit: int = 5, *, semantic: bool | None = None
    ) -> list[BufferHit]:
        """Search the buffer: the messages that match `query`, best first.

        Args:
            query: what to look for.
            limit: how many at most.
            semantic: by meaning rather than by words; None for `buffer.vector_search`, as far as
                there is an embedder.

        Raises:
            InvalidInput: `limit` is not from 1 to 1 000, a query that is not text or over 100 000
                characters, or `semantic` is set and there is no embedder.
            ModelError: the embedder failed.
        """
        query = check_query(query)
        check_result_count(limit)
        if semantic is not None:
            check_flag(semantic, "semantic")
        parts = self._holder.parts
        embedder = choose_embedder(parts.intake, semantic)
        return await search_buffer(await self.inspect(), parts.instance, query, limit, embedder)

    # -- changing the buffer -----------------------------------------------------------------------

    async def delete(
        self,
        which: Deletable | Iterable[Deletable] = (),
        *,
        positions: int | Iterable[int] | None = None,
    ) -> DeletionReceipt:
        """Delete messages of this session, in the buffer or out of it.

        When it returns, nothing shows them: no context, `history`, `load(at=…)` or recall. A
        summary that covers one is not shown until it is written again without it; so are the user
        profile and the facts that rest on it. Their bytes leave the files by `erased_by`.

        Args:
            which: messages as `history` or `load` gave them, memories as recall gave them, or their
                ids; one or many.
            positions: in the buffer, from 0, oldest first.

        Returns:
            How many were deleted, ids that no message of this session has, and when the bytes are
            gone.

        Raises:
            NotFound: no message has any of the ids; nothing was deleted.
            IndexOutOfRange: no such position, negative ones included; nothing was deleted.
            InvalidInput: something else is given, or nothing.
        """
        ids, places = parse_deletion(which, positions, self.key.session)
        request = DeletionRequest(self.key.user, ids, self.key.session, places)
        return await self._holder.parts.work.delete(request)

    async def truncate_to_size(self, keep: int) -> int:
        """Keep the newest `keep` messages, or fewer so that no tool-call group is split.

        Returns how many left the buffer. They stay in `history`, and are indexed in long-term
        memory if it is on.

        Raises:
            InvalidInput: `keep` is negative.
        """
        return await self._ask(Truncate(check_int(keep, "keep")))

    async def rewind(self, to: int) -> int:
        """Go back to when message number `to` was the newest; returns how many messages are gone.

        Later messages are removed from `history` and long-term memory; a summary that covers any of
        them is replaced by the one before. Keyed state stays as it is.

        Raises:
            InvalidInput: there is no message with that number, or no longer.
        """
        return self._expire_synopsis(await self._ask(Rewind(check_int(to, "to"))))

    def _expire_synopsis(self, removed: int) -> int:
        if removed:
            self._holder.parts.actors.post(UserKey(self.key.user), ExpireSynopsis())
        return removed

    async def fork(self, session: str, *, at: int | None = None) -> Self:
        """Begin another session of the same user as a copy of this one, as it is or was at `at`.

        Messages are numbered from 1, and are not indexed again. Keyed state is copied as it is now.

        Raises:
            InvalidId: `session` cannot name a session.
            InvalidInput: that session exists already, or this one has no message `at`.
        """
        copy = SessionKey(self.key.user, validate_id(session, "a session id"))
        if at is not None:
            check_int(at, "at")
        await self._holder.parts.archive.fork(self.key, copy, at)
        return type(self)(self._holder, copy)

    # -- the buffer as plain data ------------------------------------------------------------------

    async def state_dict(self) -> dict[str, Any]:
        """Read the buffer and its summary as plain data, for `load_state_dict`.

        ``{"messages": [{"role", "content", "id", …}], "summary": …}``.
        """
        return await to_state(await self._whole_buffer(), self._holder.parts.instance)

    async def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> Receipt:
        """Replace the buffer and the summary by those of a `state_dict`.

        What was in the buffer stays in `history`. The policy and the summarizer stay the runtime's.

        Raises:
            InvalidInput: it has no ``messages``, and `strict` is set.
            InvalidMessage: one of them is not a chat message; nothing was changed.
        """
        messages, text = parse_state(state, strict=check_flag(strict, "strict"))
        parts = self._holder.parts
        entries = await parts.intake.encode(self.key.user, messages, taking=True)
        summary = await parts.intake.restore_summary(text) if text else None
        size = sum(entry.size for entry in entries)
        request = Replace(tuple(entries), summary, size)
        return await parts.appends.replace(self.key, request)


# -- the buffer as the handle returns it: messages, search results, plain data ---------------------


class BufferHit(msgspec.Struct, frozen=True):
    """A message of the buffer that a search found; `score` is comparable within one search only."""

    message: Message
    score: float


async def messages_of(buffer: SessionView, instance: str) -> list[Message]:
    """The messages of the buffer."""
    return await run_in_thread_if(
        are_long(buffer.entries), restore_messages, instance, buffer.sid, buffer.entries
    )


def summaries_of(buffer: SessionView) -> list[Summary]:
    """The running summary, if there is one, and the summary entries, oldest first.

    Without one that is written again, since a message of it was deleted.
    """
    listed = [*([buffer.summary] if buffer.summary else []), *buffer.summaries]
    return [one for one in listed if not one.blank]


def summary_messages(
    parts: Parts, user: str, buffer: SessionView, prefix: str | None = None
) -> list[ChatDict]:
    """The summaries as messages, with their own prefix or this one; `record` will know them."""
    config = parts.config.context
    messages = [summary_message(one, config, prefix) for one in summaries_of(buffer)]
    parts.contexts.note_summaries(user, shown_digests(messages))
    return messages


async def filter_messages(
    buffer: SessionView,
    instance: str,
    role: Role | None,
    metadata: MetadataFilter,
    limit: int | None,
) -> list[Message]:
    """See `remora.Session.get_messages`."""
    entries = [entry for entry in buffer.entries if role is None or entry.role == role]
    filters = bool(metadata.conditions)
    if limit is not None and not filters:
        entries = entries[max(len(entries) - limit, 0) :]
    messages = await run_in_thread_if(
        are_long(entries), restore_messages, instance, buffer.sid, entries
    )
    if filters:
        messages = [one for one in messages if metadata.fits(one.metadata or {})]
    return messages if limit is None else messages[max(len(messages) - limit, 0) :]


def choose_embedder(intake: Intake, semantic: bool | None) -> Embedder | None:
    """Return what a search by meaning uses; None for a search by words.

    Raises:
        InvalidInput: `semantic` is set, and there is no embedder.
    """
    if semantic and intake.embedder is None:
        raise InvalidInput(
            "there is no embedder to search by meaning with: models.embedder is none"
        )
    by_meaning = intake.buffer.vector_search if semantic is None else semantic
    return intake.embedder if by_meaning else None


async def search_buffer(
    buffer: SessionView, instance: str, query: str, limit: int, embedder: Embedder | None
) -> list[BufferHit]:
    """The `limit` best matches, by meaning if there is an embedder, by words otherwise."""
    texts = await run_in_thread_if(
        are_long(buffer.entries),
        lambda: [plain_text(decode_chat(entry.chat)) for entry in buffer.entries],
    )
    if embedder is not None and texts:
        vectors = await embed_texts(embedder, [query, *texts])
        scores = [float(score) for score in vectors[1:] @ vectors[0]]
    else:
        scores = await run_in_thread(bm25_scores, query, texts)
    places = [place for place in range(len(texts)) if scores[place] > 0]
    best = sorted(places, key=lambda place: -scores[place])[:limit]
    entries = [buffer.entries[place] for place in best]
    found = await run_in_thread_if(
        are_long(entries), restore_messages, instance, buffer.sid, entries
    )
    return [BufferHit(message, scores[place]) for message, place in zip(found, best, strict=True)]


async def to_state(buffer: SessionView, instance: str) -> dict[str, Any]:
    """See `remora.Session.state_dict`."""
    return await run_in_thread_if(are_long(buffer.entries), _state_of, buffer, instance)


def _state_of(buffer: SessionView, instance: str) -> dict[str, Any]:
    """The buffer and the summaries as plain data."""
    messages = []
    for one in restore_messages(instance, buffer.sid, buffer.entries):
        state = {**one.to_chat(), "id": one.id}
        if one.created_at is not None:
            state["created_at"] = one.created_at.isoformat()
        if one.metadata:
            state["metadata"] = one.metadata
        messages.append(state)
    text = "\n".join(one.text for one in summaries_of(buffer)) or None
    return {"messages": messages, "summary": text}


def parse_state(state: Mapping[str, Any], *, strict: bool) -> tuple[list[PlainMessage], str | None]:
    """The messages and the summary of a `to_state`.

    Raises:
        InvalidInput: it has no ``messages``, and `strict` is set; or a summary that is not text.
        InvalidMessage: its messages are not a list.
    """
    if not isinstance(state, Mapping) or ("messages" not in state and strict):
        raise InvalidInput(
            "a state must be a dict with the key messages; pass strict=False to take one without"
        )
    messages = state.get("messages", [])
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidMessage(
            f"the messages of a state must be a list, not {type(messages).__name__}"
        )
    text = state.get("summary")
    if text is not None and not isinstance(text, str):
        raise InvalidInput(f"the summary of a state must be text, not {type(text).__name__}")
    return as_messages(messages, most=MAX_IDS), text or None


async def encode_all(intake: Intake, user: str, messages: Sequence[MessageLike]) -> list[Entry]:
    """Encode messages that may be none."""
    if isinstance(messages, (list, tuple)) and not messages:
        return []
    return await intake.encode(user, as_batch(messages))
