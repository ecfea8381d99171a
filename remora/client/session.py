"""A session of a memory over HTTP. Its verbs are those of `remora.Session`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing, suppress
from functools import partial
from types import TracebackType
from typing import Self, get_args

import anyio
import msgspec

from remora.api.deletion import Deletable, parse_deletion
from remora.api.keyed_state import KeyedState, StateValue
from remora.api.session import Session
from remora.api.turn import (
    Chunk,
    OnInterrupt,
    Query,
    ReadChunk,
    Spoken,
    StreamedReply,
    TurnPhase,
    turn_not_open,
)
from remora.client.messages import (
    list_all,
    receipt_of,
    spoken_messages,
)
from remora.client.service import Service, new_key
from remora.client.verbs import ERASURE_S, served
from remora.errors import InvalidInput, TurnClosed
from remora.ids import SessionKey, validate_id
from remora.messages import Message, MessageLike, Receipt, ToolCall, open_calls
from remora.recall.context import Context
from remora.rest import differences as ask
from remora.rest import shapes, streams
from remora.rest.operation import context_of
from remora.services.arguments import (
    check_choice,
    check_flag,
    check_function,
    check_int,
    check_query,
    check_seconds,
)
from remora.services.deleting import DeletionReceipt
from remora.services.parts import OfOneProcess
from remora.services.turns import HeldTurn, LocalTurns

__all__ = ["ClientSession", "ClientState", "ClientTurn"]

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
        return ClientState(self._service, self._names)

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
        receipt = await self._append(
            messages,
            key=new_key() if key is None else key,
            allow_duplicates=allow_duplicates,
            replace=replace,
            timeout_s=timeout_s,
        )
        return Receipt(receipt.seqs, receipt.ids) if key is None else receipt

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

    load = served(Session.load)
    clear = served(Session.clear)
    flush = served(Session.flush)
    forget = served(Session.forget, timeout_s=ERASURE_S)
    stats = served(Session.stats)
    get_messages = served(Session.get_messages)
    contents = served(Session.contents)
    search = served(Session.search)
    truncate_to_size = served(Session.truncate_to_size)
    rewind = served(Session.rewind)
    _append = served(Session.append)

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

    async def size(self) -> int:
        """How many messages the buffer holds."""
        return (await self.stats()).buffered

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

    async def fork(self, session: str, *, at: int | None = None) -> Self:
        """Begin another session of the same user as a copy. See `remora.Session.fork`."""
        given = shapes.Forking(
            session=validate_id(session, "a session id"),
            at=None if at is None else check_int(at, "at"),
        )
        copy = await self._service.call(ask.fork_session, self._names, given)
        return type(self)(self._service, self._turns, SessionKey(self.key.user, copy.session))


# -- a turn of a memory over HTTP: two requests or more, with one idempotency key ------------------


class ClientTurn(OfOneProcess):
    """One request of the user, from their message to the reply: `remora.Turn`, by requests.

    Use it once, with ``async with``. Until the block ends, no other turn of the session runs in
    this client. Without a key it has one of its own: requests that are sent again have one effect.
    """

    def __init__(
        self,
        service: Service,
        turns: LocalTurns,
        session: SessionKey,
        message: Spoken,
        *,
        key: str | None,
        query: Query,
        max_tokens: int | None,
        timeout_s: float | None,
    ) -> None:
        self._service, self._turns, self._session = service, turns, session
        self._spoken = message
        self._given_key = None if key is None else validate_id(key, "an idempotency key")
        self._key = self._given_key or new_key()
        self._query = _check(query)
        self._budget = None if max_tokens is None else check_int(max_tokens, "max_tokens")
        self._timeout_s = check_seconds(timeout_s, "timeout_s")
        self._phase: TurnPhase = "new"
        self._held: HeldTurn | None = None
        self._message: shapes.Said = ""
        self._context: Context | None = None
        self._resumed = False
        self._replies: list[Message] = []
        self._replying = anyio.Lock()  # each reply says how many came before it
        self._streamed: StreamedReply | None = None
        self._passing: AsyncGenerator[object, None] | None = None

    def __repr__(self) -> str:
        return f"ClientTurn({self._session.user!r}, {self._session.session!r}, {self._phase})"

    @property
    def key(self) -> str | None:
        """The turn's idempotency key, if it was given one."""
        return self._given_key

    @property
    def replayed(self) -> bool:
        """Return whether this request was answered before: `replies` has the answer."""
        return self._phase == "replayed"

    @property
    def resumed(self) -> bool:
        """Return whether an earlier attempt was cut short: `replies` has what it stored."""
        return self._resumed

    @property
    def replies(self) -> list[Message]:
        """Return what is stored of the turn after the user's messages, in order."""
        return list(self._replies)

    @property
    def open_calls(self) -> list[ToolCall]:
        """The tool calls of `replies` that have no result yet, in order: those to run next.

        Those of an attempt that was cut short are among them.
        """
        return [call for _, call in open_calls(self._replies)]

    @property
    def context(self) -> Context:
        """Return what the model should see, as of entering the block or of the last `load`.

        Raises:
            TurnClosed: the turn was not entered, or was answered before.
        """
        if self._context is None:
            raise turn_not_open(self._phase)
        return self._context

    async def __aenter__(self) -> Self:
        if self._phase != "new":
            raise TurnClosed("a turn is entered once; make another with session.turn(…)")
        self._phase = "ended"  # until it has begun
        self._message = list(spoken_messages(self._spoken, "user"))
        number = await self._turns.begin(self._session)
        self._held = HeldTurn(self, self._turns, self._session, number)
        try:
            answer = await self._begin(self._query, self._budget, self._timeout_s)
            self._replies, self._resumed = answer.replies, answer.resumed
            if answer.context is not None:
                self._context = context_of(answer.context)
            self._phase = "replayed" if answer.answered else "open"
        finally:
            if self._phase != "open":
                self._end()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._end_stream()
        finally:
            if not self.replayed:
                self._phase = "ended"
            self._end()

    def _end(self) -> None:
        if self._held is not None:
            self._held.end()

    async def _end_stream(self) -> None:
        """Interrupt a stream that nobody reads to its end."""
        if self._streamed is None or self._passing is None:
            return
        if self._streamed.running:
            with suppress(RuntimeError):  # another task waits for its next chunk
                await self._passing.aclose()
        if self._streamed.begun:
            await self._streamed.interrupt()

    async def _begin(
        self, query: Query, max_tokens: int | None, timeout_s: float | None
    ) -> shapes.TurnShown:
        given = shapes.TurnAsked(
            message=self._message,
            query=query or None,
            recall=query is not False,
            max_tokens=max_tokens,
        )
        return await self._service.call(
            ask.begin_turn, self._names, given, key=self._key, timeout_s=timeout_s
        )

    @property
    def _names(self) -> dict[str, str]:
        return {"user": self._session.user, "session": self._session.session}

    async def load(
        self,
        query: Query = None,
        *,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """Load the context again, after tool results for instance. See `remora.Turn.load`."""
        if self._phase not in {"open", "replayed"}:
            raise turn_not_open(self._phase)
        wanted = self._query if _check(query) is None else query
        budget = self._budget if max_tokens is None else check_int(max_tokens, "max_tokens")
        timeout_s = self._timeout_s if check_seconds(timeout_s, "timeout_s") is None else timeout_s
        answer = await self._begin(wanted, budget, timeout_s)
        shown = answer.context
        if shown is None:  # it is answered
            asked = shapes.ContextAsked(query=wanted or None, max_tokens=budget)
            shown = await self._service.call(
                ask.load_context, self._names, asked, timeout_s=timeout_s
            )
        self._context = context_of(shown)
        return self._context

    async def reply(self, messages: Spoken, *, timeout_s: float | None = None) -> Receipt:
        """Store what the assistant says, calls, or is told by tools. See `remora.Turn.reply`."""
        self._check_open()
        said = list(spoken_messages(messages, "assistant"))
        timeout_s = self._timeout_s if check_seconds(timeout_s, "timeout_s") is None else timeout_s
        async with self._replying:
            given = shapes.Reply(message=self._message, reply=said, stored=len(self._replies))
            answer = await self._service.call(
                ask.reply_to_turn, self._names, given, key=self._key, timeout_s=timeout_s
            )
            self._replies = answer.replies
        assert answer.stored is not None
        return receipt_of(answer.stored)

    def stream(
        self,
        chunks: AsyncIterable[Chunk],
        *,
        read: ReadChunk | None = None,
        on_interrupt: OnInterrupt = "keep",
    ) -> AsyncGenerator[Chunk, None]:
        """Pass on what the model streams, and store the whole reply when it ends.

        See `remora.Turn.stream`.
        """
        self._check_open()
        check_choice(on_interrupt, "on_interrupt", get_args(OnInterrupt))
        check_function(read, "read")
        if not isinstance(chunks, AsyncIterable):
            raise InvalidInput(f"chunks must be an async iterable, not {type(chunks).__name__}")
        if self._streamed is not None and self._streamed.running:
            raise TurnClosed("a stream of this turn is running: read it to its end, or close it")
        streamed = StreamedReply(self.reply, self._turns.begin_call, read, on_interrupt)
        self._turns.watch(self._session, streamed.interrupt)
        passing = streamed.pass_on(chunks)
        self._streamed, self._passing = streamed, passing
        return passing

    def _check_open(self) -> None:
        if self._phase != "open":
            raise turn_not_open(self._phase)


def _check(query: object) -> Query:
    if query is None or query is False:
        return query
    return check_query(query)


class ClientState(OfOneProcess):
    """Small JSON values by key, kept with a session or a user. See `remora.KeyedState`.

    A value is set by one request, which is not sent again if it may have run: `OutcomeUnknown`
    tells that. Read the value then.
    """

    __slots__ = ("_names", "_service")

    def __init__(self, service: Service, names: dict[str, str]) -> None:
        self._service, self._names = service, names

    def __repr__(self) -> str:
        return f"ClientState({', '.join(map(repr, self._names.values()))}, {self._service.url})"

    get = served(KeyedState.get)
    get_many = served(KeyedState.get_many)
    set = served(KeyedState.set)
    delete = served(KeyedState.delete)
    change = served(KeyedState.change)
    _page = served(KeyedState.items)

    async def items(
        self,
        *,
        prefix: str = "",
        limit: int | None = None,
        after: str | None = None,
        backward: bool = False,
    ) -> list[StateValue]:
        """All values, or a page of them, in the order of their keys. See `remora.KeyedState.items`.

        More than 1,000 come by several requests, so they may be of several moments.
        """

        async def page(size: int, behind: str | None) -> list[StateValue]:
            return await self._page(prefix=prefix, limit=size, after=behind, backward=backward)

        return await list_all(page, limit, after, "key")
