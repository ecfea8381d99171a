"""A session of a memory over HTTP. Its verbs are those of `remora.Session`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, get_args

import msgspec

from remora.api.deletion import Deletable, parse_deletion
from remora.api.session_buffer import BufferHit
from remora.api.turn import Query, Spoken
from remora.client.keyed_state import ClientState
from remora.client.messages import all_of, context_of, erasure_of, plain_messages, receipt_of
from remora.client.service import Service, new_key
from remora.client.turn import ClientTurn
from remora.errors import InvalidInput
from remora.ids import SessionKey, validate_id
from remora.messages import ChatDict, Message, MessageLike, Receipt, Role
from remora.recall.context import Context
from remora.rest import session_operations as ask
from remora.rest import shapes, streams
from remora.rest.state_operations import SESSION_STATE
from remora.services.archive import SessionStatistics
from remora.services.arguments import (
    check_choice,
    check_flag,
    check_int,
    check_query,
    check_result_count,
    check_text,
)
from remora.services.deleting import DeletionReceipt
from remora.services.erasure import ErasureReceipt
from remora.services.turns import LocalTurns

__all__ = ["ERASURE_S", "ClientSession"]

ERASURE_S = 300.0  # files are rewritten
_PAGE = 1_000
_PAGE_WITH_BYTES = 100  # a message may have some megabytes of attachments


class ClientSession:
    """One conversation of a memory over HTTP: `remora.Session`, by requests.

    Each verb does, returns and raises what the verb of `remora.Session` does, and may raise
    `OwnerUnreachable`, `RateLimited` and `KeyRefused` as well. What is safe to repeat is sent again
    until there is an answer, or the time is over: an append always is, since it has a key.
    """

    __slots__ = ("_service", "_turns", "key")

    def __init__(self, service: Service, turns: LocalTurns, key: SessionKey) -> None:
        self._service = service
        self._turns = turns
        self.key = key

    def __repr__(self) -> str:
        return f"ClientSession({self.key.user!r}, {self.key.session!r}, {self._service.url})"

    @property
    def _names(self) -> dict[str, str]:
        return {"user": self.key.user, "session": self.key.session}

    @property
    def state(self) -> ClientState:
        """Small JSON values that the application keeps with the session."""
        return ClientState(self._service, SESSION_STATE, self._names)

    async def append(
        self,
        messages: MessageLike | Iterable[MessageLike],
        *,
        key: str | None = None,
        allow_duplicates: bool = False,
        replace: bool = False,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Add one message or many, all or none, durable on return. See `remora.Session.append`.

        Without a `key`, the call has one of its own, so that it is stored once however often its
        request must be sent.
        """
        check_flag(allow_duplicates, "allow_duplicates")
        check_flag(replace, "replace")
        given = shapes.Append(
            messages=plain_messages(messages), allow_duplicates=allow_duplicates, replace=replace
        )
        own = new_key()
        answer = await self._service.call(
            ask.append_messages, self._names, given, key=own if key is None else key,
            timeout_s=timeout_s,
        )  # fmt: skip
        receipt = receipt_of(answer)
        return Receipt(receipt.seqs, receipt.ids) if key is None else receipt

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
        """Gather what a model should see now. See `remora.Session.load`.

        Items of working memory in it have no vectors.
        """
        given = shapes.ContextAsked(
            query=None if query is None else check_query(query),
            max_tokens=None if max_tokens is None else check_int(max_tokens, "max_tokens"),
            at=None if at is None else check_int(at, "at"),
            override=all_of(override),
            messages=all_of(messages),
        )
        return context_of(
            await self._service.call(ask.load_context, self._names, given, timeout_s=timeout_s)
        )

    def turn(
        self,
        message: Spoken,
        *,
        key: str | None = None,
        query: Query = None,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> ClientTurn:
        """One request of the user, from their message to the reply. See `remora.Session.turn`.

        It waits for earlier turns of the session in this client. Those of other clients may run at
        the same time: each reply stays with its own message.
        """
        return ClientTurn(
            self._service,
            self._turns,
            self.key,
            message,
            key=key,
            query=query,
            max_tokens=max_tokens,
            timeout_s=timeout_s,
        )

    async def clear(self, *, timeout_s: float | None = None) -> int:
        """Empty the buffer and the summary. See `remora.Session.clear`."""
        answer = await self._service.call(ask.clear_session, self._names, timeout_s=timeout_s)
        return answer.messages

    async def flush(self, *, timeout_s: float | None = None) -> int:
        """Start indexing what long-term memory does not have yet. See `remora.Session.flush`."""
        answer = await self._service.call(ask.flush_session, self._names, timeout_s=timeout_s)
        return answer.messages

    async def forget(self) -> ErasureReceipt:
        """Erase the session down to the bytes. See `remora.Session.forget`."""
        return erasure_of(
            await self._service.call(ask.forget_session, self._names, timeout_s=ERASURE_S)
        )

    async def history(
        self,
        *,
        include_archived: bool = True,
        at: int | None = None,
        after: int = 0,
        limit: int | None = None,
        attachments: bool = True,
    ) -> list[Message]:
        """Read every message, oldest first, or a page of them. See `remora.Session.history`."""
        check_flag(include_archived, "include_archived")
        check_flag(attachments, "attachments")
        if limit is not None:
            check_int(limit, "limit", low=1)
        if at is not None:
            check_int(at, "at")
        read = partial(self._read_page, include_archived, attachments)
        found, more = await read(at, check_int(after, "after"), limit)
        if more is not None and at is None:
            at = (await self.stats()).messages  # so that all pages are of one moment
            found, more = await read(at, after, limit)
        while more is not None and (limit is None or len(found) < limit):
            left = None if limit is None else limit - len(found)
            page, more = await read(at, more, left)
            found += page
        return found

    async def _read_page(
        self, archived: bool, attachments: bool, at: int | None, after: int, limit: int | None
    ) -> tuple[list[Message], int | None]:
        most = _PAGE_WITH_BYTES if attachments else _PAGE
        size = most if limit is None else min(limit, most)
        given = shapes.Messages(
            after=after, limit=size, archived=archived, at=at, attachments=attachments
        )
        page = await self._service.call(ask.list_messages, self._names, given)
        more = page.after if limit is None or limit > size else None
        return page.messages, more

    def follow(self, *, after: int | None = None) -> AsyncGenerator[Message]:
        """Iterate over the messages when they are durable. See `remora.Session.follow`.

        A connection that is lost is made again; `OwnerUnreachable` is raised if that fails for as
        long as a request may take.
        """
        given = streams.Followed(after=None if after is None else check_int(after, "after"))
        return self._follow(given)

    async def _follow(self, given: streams.Followed) -> AsyncGenerator[Message]:
        events = self._service.events(streams.EVENTS, self._names, given)
        async with aclosing(events):
            async for kind, data in events:
                if kind == "erased":
                    return
                if kind == "message":
                    yield msgspec.json.decode(data, type=Message)

    async def stats(self) -> SessionStatistics:
        """Count the session's messages, tokens and summaries."""
        return await self._service.call(ask.count_session, self._names)

    async def get_messages(
        self,
        role: Role | None = None,
        *,
        filter_metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        """Read the messages in the buffer, oldest first. See `remora.Session.get_messages`."""
        if role is not None:
            check_choice(role, "role", get_args(Role))
        if filter_metadata is not None and not isinstance(filter_metadata, Mapping):
            raise InvalidInput(
                f"filter_metadata must be a dict, not {type(filter_metadata).__name__}"
            )
        given = shapes.Buffer(
            role=role,
            filter_metadata=None if filter_metadata is None else dict(filter_metadata),
            limit=None if limit is None else check_int(limit, "limit"),
        )
        return (await self._service.call(ask.read_buffer, self._names, given)).messages

    async def contents(
        self, *, summary_prefix: str | None = None
    ) -> tuple[list[ChatDict], list[Message]]:
        """Read the whole buffer, and the summaries as messages. See `remora.Session.contents`."""
        if summary_prefix is not None:
            check_text(summary_prefix, "summary_prefix")
        given = shapes.ContentsAsked(summary_prefix=summary_prefix)
        found = await self._service.call(ask.read_contents, self._names, given)
        return found.summaries, found.messages

    async def size(self) -> int:
        """How many messages the buffer holds."""
        return (await self.stats()).buffered

    async def search(
        self, query: str, limit: int = 5, *, semantic: bool | None = None
    ) -> list[BufferHit]:
        """Search the buffer. See `remora.Session.search`."""
        given = shapes.BufferSearch(
            query=check_query(query),
            limit=check_result_count(limit),
            semantic=None if semantic is None else check_flag(semantic, "semantic"),
        )
        found = await self._service.call(ask.search_buffer, self._names, given)
        return [BufferHit(one.message, one.score) for one in found.hits]

    async def delete(
        self,
        which: Deletable | Iterable[Deletable] = (),
        *,
        positions: int | Iterable[int] | None = None,
    ) -> DeletionReceipt:
        """Delete messages of this session. See `remora.Session.delete`."""
        ids, places = parse_deletion(which, positions, self.key.session)
        given = shapes.Deletion(ids=[id_ for _, id_ in ids], positions=list(places))
        return await self._service.call(ask.delete_messages, self._names, given)

    async def truncate_to_size(self, keep: int) -> int:
        """Keep the newest messages in the buffer. See `remora.Session.truncate_to_size`."""
        given = shapes.Truncation(keep=check_int(keep, "keep"))
        return (await self._service.call(ask.truncate_session, self._names, given)).messages

    async def rewind(self, to: int) -> int:
        """Go back to an earlier message. See `remora.Session.rewind`."""
        given = shapes.Rewinding(to=check_int(to, "to"))
        return (await self._service.call(ask.rewind_session, self._names, given)).deleted

    async def fork(self, session: str, *, at: int | None = None) -> Self:
        """Begin another session of the same user as a copy. See `remora.Session.fork`."""
        given = shapes.Forking(
            session=validate_id(session, "a session id"),
            at=None if at is None else check_int(at, "at"),
        )
        copy = await self._service.call(ask.fork_session, self._names, given)
        return type(self)(self._service, self._turns, SessionKey(self.key.user, copy.session))
