"""Recorded memories by id, by key and by page: read, changed, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remora.actors.user.messages import ChangedMemory, ChangeMemory
from remora.api.deletion import Deletable, parse_which
from remora.errors import InvalidInput
from remora.ids import UserKey, keyed_memory_id, validate_id
from remora.messages import dated_line
from remora.recall.current import recorded_memory
from remora.recall.memory import Memory
from remora.runtime.concurrency import run_in_thread_if
from remora.services.arguments import check_flag, check_int
from remora.services.deleting import DeletionReceipt, DeletionRequest
from remora.services.intake import are_large
from remora.services.metadata import check_metadata, check_where
from remora.services.parts import PartsHolder, Recalls, long_term_is_off
from remora.services.recording import check_importance, check_types, clean_text, name_failures
from remora.services.remembered import MemoryPage, parse_cursor
from remora.storage.ports import Scope


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
