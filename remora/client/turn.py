"""A turn of a memory over HTTP: two requests or more, with one idempotency key."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import suppress
from types import TracebackType
from typing import Self, get_args

import anyio

from remora.api.streaming import Chunk, OnInterrupt, ReadChunk, StreamedReply
from remora.api.turn import Query, Spoken, TurnPhase, turn_not_open
from remora.client.messages import context_of, receipt_of, spoken_messages
from remora.client.service import Service, new_key
from remora.errors import InvalidInput, TurnClosed
from remora.ids import SessionKey, validate_id
from remora.messages import Message, Receipt, ToolCall, open_calls
from remora.recall.context import Context
from remora.rest import session_operations as ask
from remora.rest import shapes
from remora.services.arguments import (
    check_choice,
    check_function,
    check_int,
    check_query,
    check_seconds,
)
from remora.services.parts import OfOneProcess
from remora.services.turns import HeldTurn, LocalTurns

__all__ = ["ClientTurn"]


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
