"""Handles on the long-term memory of a user, or of one of the user's agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from remora.actors.user.messages import ChangedMemory, ChangeMemory, Remember, RememberReceipt
from remora.api.deletion import Deletable, parse_which
from remora.api.tools import MemoryTools
from remora.errors import InvalidInput
from remora.ids import SessionKey, UserKey, keyed_memory_id, validate_id
from remora.messages import Message, MessageLike, dated_line
from remora.recall.current import recorded_memory
from remora.recall.memory import Memory
from remora.runtime.concurrency import map_concurrently, run_in_thread_if
from remora.runtime.threads import run_in_thread
from remora.services.arguments import (
    check_choice,
    check_flag,
    check_int,
    check_query,
    check_result_count,
    collect,
)
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.intake import are_large
from remora.services.metadata import check_metadata, check_where
from remora.services.parts import PartsHolder, Recalls, long_term_is_off
from remora.services.recording import (
    check_importance,
    check_types,
    clean_text,
    conversation_texts,
    count_items,
    make_item,
    name_failures,
)
from remora.services.remembered import MemoryPage, parse_cursor
from remora.storage.ports import Scope
from remora.storage.records import MemoryItem

# -- recorded memories by id, by key and by page: read, changed, deleted ---------------------------


class AddressableMemories:
    """Memories by id; a part of `User` and `Agent`."""

    __slots__ = ("_agent", "_holder", "_user")

    def __init__(self, holder: PartsHolder, user: str, agent: str | None = None) -> None:
        self._holder = holder
        self._user = user
        self._agent = agent

    async def memory(
        self, id: str | None = None, *, key: str | None = None, agent: str | None = None  # noqa: A002
    ) -> Memory | None:  # fmt: skip
        """Read a memory that `remember` or `record` stored; None if there is none.

        It is read from the journal, so it is there as soon as `remember` has returned. An agent's
        handle reads only its own.

        Args:
            id: as `remember` returned it.
            key: as `remember` was given it; instead of `id`.
            agent: whose memory the key names; None for one of all the user's agents.

        Raises:
            InvalidInput: neither an id nor a key is given, or both, or long-term memory is off.
            StorageError: the journal cannot be read.
        """
        if (id is None) == (key is None):
            raise InvalidInput("pass a memory's id, or its key")
        recalls = self._require_recalls()
        if key is not None:
            owner = self._agent_of(agent) or ""
            id = keyed_memory_id(self._user, owner, validate_id(key, "a memory's key"))  # noqa: A001
        return await recalls.memory(self._user, validate_id(id, "a memory's id"), self._agent)

    async def remembered(
        self,
        *,
        where: Mapping[str, Any] | None = None,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
        limit: int | None = 100,
        after: str | None = None,
    ) -> list[Memory]:
        """List what `remember` and `record` stored, oldest first, a page of it.

        It is read from the journal: a change shows at once. The next page begins behind the last
        memory of a page: ``after=page[-1].cursor``; it stays right while memories come and go.

        Args:
            where: what the metadata must say; see `recall`.
            types: see `recall`.
            session: see `recall`.
            agent: see `recall`.
            limit: how many at most; None for all.
            after: the `cursor` of a memory; None for the first page.

        Raises:
            InvalidInput: a value out of range, or long-term memory is switched off.
            StorageError: the journal cannot be read.
        """
        if limit is not None:
            check_int(limit, "limit", low=1)
        page = MemoryPage(
            self._scope(types, session, agent), check_where(where), parse_cursor(after), limit
        )
        return await self._require_recalls().remembered(self._user, page)

    async def update_memory(
        self,
        id: str,  # noqa: A002
        content: str | None = None,
        *,
        importance: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Memory:
        """Change a memory; what is not given stays, its id and its key too.

        When it returns, the change is durable, and nothing shows the memory as it was.

        Args:
            id: as `remember` returned it.
            content: its text from now on. The redaction hook is applied first.
            importance: 0 to 1.
            metadata: replaces all of its metadata; an empty dict removes it.

        Returns:
            The memory as it is now.

        Raises:
            NoSuchMemory: there is none with this id; of an agent's handle, none of the agent's.
            InvalidInput: a value out of range; nothing was changed.
            RedactionFailed: the redaction hook failed; nothing was changed.
            RecordingFailed: the journal failed; it is changed, or not. Retry the call.
            MailboxFull, SessionQuarantined: nothing ran.
        """
        recalls = self._require_recalls()
        parts = self._holder.parts
        id_ = validate_id(id, "a memory's id")
        if importance is not None:
            importance = check_importance(importance)
        encoded = None if metadata is None else check_metadata(metadata)
        at_us = int(parts.intake.clock.time() * 1_000_000)
        text, tokens = content, 0
        if content is not None:
            large = are_large([content]) if isinstance(content, str) else False
            text = await run_in_thread_if(large, clean_text, parts.intake, content)
            known = await recalls.memory(self._user, id_, None)
            line_us = at_us if known is None else int(known.created_at.timestamp() * 1_000_000)
            (tokens,) = await parts.intake.count_texts([dated_line(line_us, text)])
        request = ChangeMemory(id_, self._agent, at_us, text, importance, encoded, tokens)
        size = len(text or "") + len(encoded or "")
        with name_failures("update_memory", self._user):
            reply: ChangedMemory = await parts.actors.ask(UserKey(self._user), request, size=size)
        changed = reply.memory
        standing = await recalls.memory(self._user, id_, None) if changed.topic else None
        return standing or recorded_memory(changed)

    async def delete(
        self, which: Deletable | Iterable[Deletable], *, saved_only: bool = False
    ) -> DeletionReceipt:
        """Delete what was said or remembered, in whatever session.

        When it returns, nothing shows it; see `Session.delete`. An agent's handle deletes what was
        remembered for this agent, and no messages.

        Args:
            which: memories as recall gave them, messages, or their ids; one or many.
            saved_only: only what was remembered. What was said counts as missing: for ids that a
                model gives.

        Returns:
            How many were deleted, ids that nothing has, and when the bytes are gone.

        Raises:
            NotFound: nothing has any of the ids; nothing was deleted.
            InvalidInput: something else is given, too many, or an id that messages of several
                sessions have.
            RecordingFailed: the journal failed; all memories are deleted, or none. Retry the call.
            MailboxFull, SessionQuarantined: not all of it ran.
        """
        saved_only = check_flag(saved_only, "saved_only") or self._agent is not None
        ids = parse_which(which)
        if saved_only:
            ids = tuple([("", id_) for _, id_ in ids])
        request = DeletionRequest(self._user, ids, agent=self._agent, memories_only=saved_only)
        with name_failures("delete", self._user):
            return await self._holder.parts.work.delete(request)

    # -- scope -------------------------------------------------------------------------------------

    def _require_recalls(self) -> Recalls:
        recalls = self._holder.parts.recalls
        if recalls is None:
            raise long_term_is_off()
        return recalls

    def _agent_of(self, agent: str | None) -> str | None:
        if agent is None:
            return self._agent
        agent = validate_id(agent, "an agent's id")
        if self._agent is not None and agent != self._agent:
            raise InvalidInput(
                f"this is the handle of agent {self._agent!r}; ask the user for one of agent "
                f"{agent!r}"
            )
        return agent

    def _scope(
        self, types: str | Iterable[str] | None, session: str | None, agent: str | None
    ) -> Scope:
        if session is not None:
            session = validate_id(session, "a session id")
        return Scope(session=session, agent=self._agent_of(agent), types=check_types(types))


MemoryLike: TypeAlias = str | Mapping[str, Any]
"""Something to remember: a text, or a dict with ``content`` and, where they differ from the call's
own, ``type``, ``importance``, ``session``, ``agent``, ``key``, ``metadata`` and ``created_at`` (a
datetime, ISO 8601 text, or seconds since the epoch).
"""


_RECALLS_AT_ONCE = 8  # all of a thousand that answered at once would hold the event loop


class LongTermHandle(AddressableMemories):
    """Records and recalls for one user, or for one agent of a user.

    Get one from `Runtime.user` or `User.agent`.
    """

    __slots__ = ()

    # -- recording ---------------------------------------------------------------------------------

    async def remember(
        self,
        content: MemoryLike | Iterable[MemoryLike],
        *,
        type: str = "fact",  # noqa: A002
        importance: float | None = None,
        session: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> list[str]:
        """Store one memory or many for all of the user's sessions, all or none.

        It can be recalled at once. Without a key, the same text of the same agent is one memory;
        the first call decides its type, importance, session and metadata. A key names one memory of
        the agent: the same memory under it again changes nothing, another one is refused, or, with
        `replace`, takes its place.

        Args:
            content: a text, a dict (see `MemoryLike`), or many of either.
            type: ``fact``, ``preference``, ``context``, ``procedural`` or ``message_batch``.
            importance: 0 to 1; None for 0.5.
            session: where it was learned.
            agent: whose it is; None for all of the user's agents.
            key: the caller's name for it, of one memory alone; `memory` reads it by its key.
            metadata: a dict of JSON values, of at most 4,096 bytes as JSON. `recall` and
                `remembered` filter by it. The redaction hook does not see it.
            replace: change a memory whose key exists, as `put` of a store does.

        Returns:
            The ids, once the memories are durable.

        Raises:
            InvalidInput: no text, an empty one, or another value out of range; nothing was written.
            KeyConflict: a key names another memory; nothing was written.
            RecordingFailed: the journal failed; all of it is recorded, or nothing. Retry the call.
            RedactionFailed: the redaction hook failed on it; nothing was written.
            MailboxFull, SessionQuarantined: nothing ran.
        """
        contents = [content] if isinstance(content, (str, Mapping)) else collect(content, "content")
        if not contents:
            raise InvalidInput("there is nothing to remember")
        if key is not None and len(contents) > 1:
            raise InvalidInput("a key names one memory; give each of several its own, in its dict")
        check_flag(replace, "replace")
        defaults = {
            "type": type,
            "importance": importance,
            "session": session,
            "agent": agent,
            "key": key,
            "metadata": metadata,
        }
        items = await self._make_items(contents, defaults)
        return await self._record(items, "remember", session, replace=replace)

    async def record(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[str]:
        """Remember what was said in a conversation that remora does not keep, from its messages.

        What the user and the assistant said becomes memories of type ``context``.

        System messages and tool results are ignored: they may hold retrieved memories, which would
        be recorded again in every round. So is what remora itself put into a context that it gave
        to this process: summaries, memories, the user profile, memory blocks. What is said in a
        conversation that remora keeps is recalled without this.

        Returns:
            The ids of the memories; empty if neither said anything.

        Raises:
            InvalidMessage: one of them is not a chat message; nothing was written.
            RecordingFailed, MailboxFull, SessionQuarantined: see `remember`.
        """
        (ids,) = await self.record_many([messages], session=session, agent=agent)
        return ids

    async def record_many(
        self,
        conversations: Iterable[MessageLike | Iterable[MessageLike]],
        *,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[list[str]]:
        """Remember what was said in several conversations, all or none; see `record`."""
        parts = self._holder.parts
        buffer = parts.intake.buffer
        given = collect(conversations, "conversations")
        spoken = await run_in_thread(
            lambda: [conversation_texts(messages, buffer) for messages in given]
        )
        digests = [digest for texts in spoken for _, digest in texts]
        if digests:
            written = iter(await parts.contexts.find_summaries(self._user, digests))
            spoken = [[one for one in texts if not next(written)] for texts in spoken]
        defaults = {"type": "context", "importance": None, "session": session, "agent": agent}
        items = await self._make_items([text for texts in spoken for text, _ in texts], defaults)
        ids = iter(await self._record(items, "record", session))
        return [[next(ids) for _ in texts] for texts in spoken]

    async def _make_items(
        self, contents: Sequence[object], defaults: Mapping[str, Any]
    ) -> list[MemoryItem]:
        intake, user = self._holder.parts.intake, self._user
        return await run_in_thread_if(
            are_large([one if isinstance(one, str) else _content_of(one) for one in contents]),
            lambda: [make_item(intake, user, one, defaults, self._agent_of) for one in contents],
        )

    async def _record(
        self, items: Sequence[MemoryItem], op: str, session: str | None, *, replace: bool = False
    ) -> list[str]:
        parts = self._holder.parts
        self._require_recalls()
        if not items:
            return []
        request = Remember(await count_items(parts.intake, items), replace)
        size = sum(len(item.content) + len(item.metadata) for item in items)
        with name_failures(op, self._user, session or ""):
            receipt: RememberReceipt = await parts.actors.ask(
                UserKey(self._user), request, size=size
            )
        return list(receipt.ids)

    # -- recalling ---------------------------------------------------------------------------------

    async def recall(
        self,
        query: str,
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[Memory]:
        """Find what was said or remembered before and matches `query`, best first.

        Searches all that was said in the user's sessions, or remembered, and acknowledged before
        this call, whether it is indexed or not; of what is not, the newest
        `recall.unindexed_rows`. All the given restrictions apply at once.

        Args:
            query: what is asked.
            limit: how many at most.
            types: memory types: ``message``, ``summary``, or what `remember` takes; None for all.
            session: only what was said or learned in this session.
            agent: only what this agent recorded; None for everything of the user's. An agent's
                handle finds only its own.
            where: only memories with this metadata: ``{"topic": "food", "stars": {"$gte": 4}}``,
                with ``$eq``, ``$ne``, ``$gt``, ``$gte``, ``$lt``, ``$lte``, ``$in``. What was said
                and not remembered has no metadata, and is left out.

        Raises:
            InvalidInput: `limit` is not from 1 to 1 000, the query is not text or over 100 000
                characters, there is no such type, or
                long-term memory is switched off.
            LongTermError: long-term memory failed.
            ModelError: the embedder failed.
        """
        query = check_query(query)
        check_result_count(limit)
        recalls = self._require_recalls()
        scope = self._scope(types, session, agent)
        return await recalls.recall(self._user, query, limit, scope, check_where(where))

    async def recall_many(
        self,
        queries: Iterable[str],
        *,
        limit: int = 5,
        types: str | Iterable[str] | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[list[Memory]]:
        """Find memories for several queries at once, in the queries' order; see `recall`."""
        kinds = check_types(types) or None

        async def one(query: str) -> list[Memory]:
            return await self.recall(query, limit=limit, types=kinds, session=session, agent=agent)

        wanted = collect(queries, "queries")
        return await map_concurrently(one, wanted, concurrency=_RECALLS_AT_ONCE)

    async def memories(
        self,
        types: str | Iterable[str] | None = None,
        *,
        order: Literal["created", "importance"] = "created",
        limit: int | None = None,
        session: str | None = None,
        agent: str | None = None,
    ) -> list[Memory]:
        """List what long-term memory holds, messages included, oldest first.

        It does not count as retrieved.

        What is recorded appears when it is indexed, a moment later: `settle` waits for that. What
        was deleted is gone at once.

        Args:
            types: see `recall`; messages are included unless `types` leaves them out.
            order: ``created``, or ``importance``: the most important first, of equals the older.
            limit: how many at most.
            session: see `recall`.
            agent: see `recall`.

        Raises:
            InvalidInput: a value out of range, or long-term memory is switched off.
            LongTermError: long-term memory failed.
        """
        check_choice(order, "order", ("created", "importance"))
        if limit is not None:
            check_int(limit, "limit", low=1)
        recalls = self._require_recalls()
        scope = self._scope(types, session, agent)
        return await recalls.memories(self._user, scope, limit, order)

    # -- for agents --------------------------------------------------------------------------------

    def tools(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        edit: bool = False,
        read: bool = False,
    ) -> MemoryTools:
        """Tools by which a model saves and recalls for itself: two, or four with `edit`.

        Args:
            agent: whose memories they save and find; None for those of all the user's agents.
            session: where what they save was learned. They find memories of all sessions.
            edit: also let the model correct and delete memories that were saved, of all sessions.
            read: also let the model read messages of `session` in full, of which a context shows an
                excerpt.

        Raises:
            InvalidId: one of the ids is not valid.
            InvalidInput: `read` is set, and no session is given.
        """
        agent = self._agent_of(agent)
        if session is not None:
            session = validate_id(session, "a session id")
        check_flag(edit, "edit")
        if check_flag(read, "read") and session is None:
            raise InvalidInput("tools(read=True) needs the session whose messages it reads")
        memory = LongTermHandle(self._holder, self._user, agent)
        reading = partial(self._read_message, session) if read and session is not None else None
        return MemoryTools(memory, session=session, editor=memory if edit else None, read=reading)

    async def _read_message(self, session: str, number: int) -> Message | None:
        found = await self._holder.parts.archive.history(
            SessionKey(self._user, session),
            include_archived=True,
            at=None,
            after=number - 1,
            limit=1,
            attachments=False,
        )
        return next((one for one in found if one.seq == number), None)

    async def settle(self) -> None:
        """Wait until what was remembered is indexed, and pruning is done.

        For tests, scripts and shutdown.

        Raises:
            ReentrantAsk: called from within that work.
        """
        await self._holder.parts.work.drain(UserKey(self._user))


class Agent(LongTermHandle):
    """One agent of a user: what it records is its own, and it finds nothing else.

    Get one from `User.agent`. `User.recall` finds what the user's agents have in common and what
    was said in the user's sessions. Agents share memories in a `SharedScope`.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Agent({self._user!r}, {self._agent!r}, {self._holder.described})"

    @property
    def user(self) -> str:
        """The user's id."""
        return self._user

    @property
    def name(self) -> str:
        """The agent's id."""
        return self._agent or ""


def _content_of(memory: object) -> str:
    """The text of a memory that is a dict; empty for what is going to be refused."""
    content = memory.get("content") if isinstance(memory, Mapping) else None
    return content if isinstance(content, str) else ""
