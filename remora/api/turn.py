"""A turn: one request of a user, from their message to the reply."""

from __future__ import annotations

import copy
import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args

import anyio
import msgspec

from remora.actors.session.messages import (
    Append,
    FindTurn,
    StoredTurn,
    TurnMark,
    TurnReceipt,
    TurnView,
)
from remora.actors.user.messages import ExpireSynopsis
from remora.errors import (
    CommitFailed,
    InvalidInput,
    InvalidMessage,
    KeyConflict,
    MailboxFull,
    OverdraftReached,
    RuntimeClosed,
    TurnClosed,
)
from remora.ids import SessionKey, UserKey, message_id, turn_key, turn_root, validate_id
from remora.logging import get_logger
from remora.messages import (
    ChatDict,
    Entry,
    Message,
    MessageLike,
    Receipt,
    ToolCall,
    decode_chat,
    is_message_object,
    is_same_chat,
    open_calls,
    restore_message,
)
from remora.messages.chat import call_keys
from remora.messages.objects import dump_quietly
from remora.recall.attached import attach_all, attach_own
from remora.recall.context import Context
from remora.runtime.probes import probe
from remora.runtime.shared_call import SharedCall
from remora.runtime.threads import HomeLoop
from remora.services.arguments import (
    MAX_TEXT_CHARACTERS,
    check_choice,
    check_function,
    check_int,
    check_query,
    check_seconds,
)
from remora.services.intake import PlainMessage, as_batch
from remora.services.parts import OfOneProcess, PartsHolder
from remora.services.turns import HeldTurn

Spoken: TypeAlias = str | MessageLike | Iterable[MessageLike]
"""What is said in a turn: text, a message, or several messages."""

Query: TypeAlias = str | Literal[False] | None
"""What a turn recalls memories for: None for the user's own text, False for nothing."""

TurnPhase: TypeAlias = Literal["new", "open", "replayed", "ended"]
_OPENING = frozenset({"user", "system", "developer", "tool"})
_REPLIES = frozenset({"assistant", "tool"})
_REFUSED = (CommitFailed, InvalidInput, MailboxFull, OverdraftReached, TurnClosed)
_by_seq = attrgetter("seq")


class Turn(OfOneProcess):
    """One request of a user, from their message to the reply. Get one from `Session.turn`.

    Use it once, with ``async with``. Until the block ends, no other turn of the session runs.
    """

    __slots__ = (
        "__weakref__",
        "_attempt",
        "_budget",
        "_context",
        "_entries",
        "_held",
        "_holder",
        "_key",
        "_loads",
        "_mark",
        "_messages",
        "_part",
        "_passing",
        "_phase",
        "_query",
        "_replies",
        "_session",
        "_stored",
        "_streamed",
        "_text",
        "_timeout_s",
        "_uncertain",
    )

    def __init__(
        self,
        holder: PartsHolder,
        session: SessionKey,
        messages: Spoken,
        *,
        key: str | None,
        query: Query,
        max_tokens: int | None,
        timeout_s: float | None,
        loads: bool = True,
    ) -> None:
        self._holder = holder
        self._loads = loads
        self._session = session
        self._messages = messages
        self._key = None if key is None else validate_id(key, "an idempotency key")
        self._query: Query = check_query(query) if isinstance(query, str) else _check_query(query)
        self._budget = None if max_tokens is None else check_int(max_tokens, "max_tokens")
        self._timeout_s = check_seconds(timeout_s, "timeout_s")
        self._phase: TurnPhase = "new"
        self._held: HeldTurn | None = None
        self._context: Context | None = None
        self._text: str | None = None
        self._stored: StoredTurn | None = None
        self._mark = TurnMark()
        self._attempt, self._part = 0, 1
        self._uncertain: _Sent | None = None
        self._entries: list[Entry] = []
        self._replies: list[Message] = []
        self._streamed: StreamedReply | None = None
        self._passing: AsyncGenerator[Any, None] | None = None

    def __repr__(self) -> str:
        return f"Turn({self._session.user!r}, {self._session.session!r}, {self._phase})"

    # -- what it knows -----------------------------------------------------------------------------

    @property
    def key(self) -> str | None:
        """The turn's idempotency key."""
        return self._key

    @property
    def replayed(self) -> bool:
        """Return whether this request was answered before: `replies` has the answer.

        Then nothing is written, and there is no need to call the model.
        """
        return self._phase == "replayed"

    @property
    def resumed(self) -> bool:
        """Return whether an earlier attempt was cut short: `replies` has what it stored."""
        return self._stored is not None and not self.replayed

    @property
    def replies(self) -> list[Message]:
        """Return what is stored of the turn after the user's messages, in order.

        An incomplete reply is not among them: the next reply takes its place.
        """
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

    # -- entering and leaving ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._phase != "new":
            raise TurnClosed("a turn is entered once; make another with session.turn(…)")
        self._phase = "ended"  # until it has begun
        parts = self._holder.parts
        opening = await parts.intake.encode_for_append(
            self._session.user, _as_batch(self._messages, "user")
        )
        _check_roles(opening, _OPENING, "a turn begins with what the user says")
        self._text = _query_text(opening) if parts.recalls is not None else None
        number = await parts.turns.begin(self._session, wait=False)
        if not number:
            if await self._find(opening):
                return self  # an answer that is there need not wait
            number = await parts.turns.begin(self._session)
        self._held = HeldTurn(self, parts.turns, self._session, number)
        try:
            if not await self._find(opening):
                if self._stored is None:
                    await self._store_opening(opening)
                if self._loads:
                    self._context = await self._load(self._query, self._budget, self._timeout_s)
                self._phase = "open"
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

    async def _end_stream(self) -> None:
        """Interrupt a stream that nobody reads to its end."""
        if self._streamed is None or self._passing is None:
            return
        if self._streamed.running:
            with suppress(RuntimeError):  # another task waits for its next chunk
                await self._passing.aclose()
        if self._streamed.begun:
            await self._streamed.interrupt()

    def _end(self) -> None:
        if self._held is not None:
            self._held.end()

    async def _find(self, opening: Sequence[Entry]) -> bool:
        """Look for what is stored of the turn; says whether it was answered.

        Raises:
            KeyConflict: the key is of another turn.
        """
        if self._key is None:
            return False
        parts = self._holder.parts
        stored: StoredTurn = await parts.actors.ask(
            self._session, FindTurn(turn_root(self._key)), timeout_s=self._timeout_s
        )
        self._attempt, self._part = stored.attempt, stored.parts
        if not stored.opening:
            self._stored = None
            return False
        if not _are_same(stored.opening, opening):
            raise KeyConflict(
                f"the idempotency key was used for another turn of {self._session.words} (message "
                f"{stored.opening[0].seq}): nothing was written; a new request needs a new key"
            )
        self._stored = stored
        replies = list(stored.replies)
        incomplete = replies.pop() if replies and _is_incomplete(replies[-1]) else None
        replaces = incomplete.seq if incomplete else 0
        self._note_opening(stored.opening[-1], stored.sid, replaces)
        self._entries = replies
        whole = await attach_all(replies, self._session.user, parts.archive.blobs)
        self._replies = [
            restore_message(one, one.id or message_id(parts.instance, stored.sid, one.seq))
            for one in whole
        ]
        if incomplete is None and replies and _is_final(replies[-1]):
            self._phase = "replayed"
        return self.replayed

    async def _store_opening(self, opening: Sequence[Entry]) -> None:
        receipt = await self._append(_Sent(0, opening, TurnMark()), self._timeout_s)
        assert isinstance(receipt, TurnReceipt)
        self._note_opening(opening[-1].with_seq(receipt.seqs[-1]), receipt.sid)

    def _note_opening(self, newest: Entry, sid: int, replaces: int = 0) -> None:
        self._mark = TurnMark(newest.seq, newest.chat, replaces, sid)

    # -- inside ------------------------------------------------------------------------------------

    async def load(
        self,
        query: Query = None,
        *,
        max_tokens: int | None = None,
        timeout_s: float | None = None,
    ) -> Context:
        """Load the context again, after tool results for instance; `context` is then this one.

        Args:
            query: see `Session.turn`; None for what the turn was given.
            max_tokens: the budget; None for what the turn was given.
            timeout_s: seconds to wait for the session; None for what the turn was given.

        Raises:
            TurnClosed: outside of the turn's block.
            InvalidInput, MailboxFull, OutcomeUnknown, CommitFailed: see `Session.load`.
        """
        if self._phase not in {"open", "replayed"}:
            raise turn_not_open(self._phase)
        query = check_query(query) if isinstance(query, str) else _check_query(query)
        if max_tokens is not None:
            check_int(max_tokens, "max_tokens")
        check_seconds(timeout_s, "timeout_s")
        self._context = await self._load(
            self._query if query is None else query,
            self._budget if max_tokens is None else max_tokens,
            self._timeout_s if timeout_s is None else timeout_s,
        )
        return self._context

    async def _load(self, query: Query, max_tokens: int | None, timeout_s: float | None) -> Context:
        parts = self._holder.parts
        budget = parts.intake.buffer.token_limit if max_tokens is None else max_tokens
        mark, view = self._mark, None
        if self._stored is not None and self._stored.overtaken:
            view = TurnView(mark.sid, mark.replaces, mark.seq, tuple(self._entries))
        elif mark.replaces:
            view = TurnView(mark.sid, mark.replaces)
        wanted = self._text if query is None else query or None
        return await parts.contexts.load(
            self._session, budget, wanted, turn=view, timeout_s=timeout_s
        )

    async def reply(self, messages: Spoken, *, timeout_s: float | None = None) -> Receipt:
        """Store what the assistant says, calls, or is told by tools; returns when it is durable.

        The turn is answered with the first assistant message that calls no tool: a retry of the
        request then gives what is stored. So store the last messages of a turn in one call.

        Args:
            messages: text of the assistant, a message, or several, all or none; of the roles
                assistant and tool. An assistant message whose metadata has ``incomplete: True``
                does not answer the turn: the next reply takes its place, in the same write.
            timeout_s: see `Session.append`; None for what the turn was given.

        Raises:
            TurnClosed: outside of the turn's block, the turn was answered before it was entered,
                or its message is gone; nothing was written.
            InvalidMessage: one of them is not such a message; nothing was written.
            OutcomeUnknown: it may have been written. In a turn with a key, the same call again
                stores it once.
            MailboxFull, OverdraftReached, CommitFailed, RedactionFailed: see `Session.append`.
        """
        self._check_open()
        check_seconds(timeout_s, "timeout_s")
        batch = _as_batch(messages, "assistant")
        intake = self._holder.parts.intake
        entries = await intake.encode_in_turn(self._session, batch)
        self._check_open()
        _check_roles(entries, _REPLIES, "a turn is answered by the assistant and by tools")
        sent, self._uncertain = self._uncertain, None
        if sent is None or not _are_same(sent.entries, entries):
            sent = _Sent(self._part, entries, self._mark)
            self._part += 1
        self._mark = msgspec.structs.replace(self._mark, replaces=0)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            receipt = await self._append(sent, timeout_s)
        except _REFUSED:  # nothing was written
            self._mark = sent.mark
            raise
        except BaseException:
            self._uncertain = sent
            raise
        self._note_replies(entries, receipt)
        if sent.mark.replaces:
            self._holder.parts.actors.post(UserKey(self._session.user), ExpireSynopsis())
        return receipt

    def stream(
        self,
        chunks: AsyncIterable[Chunk],
        *,
        read: ReadChunk | None = None,
        on_interrupt: OnInterrupt = "keep",
    ) -> AsyncGenerator[Chunk, None]:
        """Pass on what the model streams, and store the whole reply when it ends.

        When this is closed or cancelled before that (the client has disconnected), when the model
        or the block raises, and when the runtime closes, the text that was streamed is stored as an
        incomplete reply, and the model's stream is closed. Tool calls are stored whole or not at
        all. A stream without text and tool calls stores nothing, so the turn is not answered.

        Args:
            chunks: text, or ``chat.completion.chunk`` objects or dicts of OpenAI's format.
            read: for chunks of another shape: gives the text that a chunk adds, a ``delta`` dict of
                OpenAI's format, or None for nothing.
            on_interrupt: ``keep`` the text that the user may have read, so that later turns know of
                it; or ``discard`` it.

        Yields:
            The chunks, unchanged.

        Raises:
            TurnClosed: outside of the turn's block, or another stream of the turn is running.
            InvalidInput: an argument is not valid, or, in the loop, a chunk that cannot be read.
            RuntimeClosed: in the loop: the runtime has closed.
        """
        self._check_open()
        check_choice(on_interrupt, "on_interrupt", get_args(OnInterrupt))
        check_function(read, "read")
        if not isinstance(chunks, AsyncIterable):
            raise InvalidInput(f"chunks must be an async iterable, not {type(chunks).__name__}")
        if self._streamed is not None and self._streamed.running:
            raise TurnClosed("a stream of this turn is running: read it to its end, or close it")
        turns = self._holder.parts.turns
        streamed = StreamedReply(self.reply, turns.begin_call, read, on_interrupt)
        turns.watch(self._session, streamed.interrupt)
        self._streamed, self._passing = streamed, streamed.pass_on(chunks)
        return self._passing

    async def _append(self, sent: _Sent, timeout_s: float | None) -> Receipt:
        key = None
        if self._key is not None:
            key = turn_key(turn_root(self._key), self._attempt, sent.part)
        size = sum(entry.size for entry in sent.entries)
        request = Append(tuple(sent.entries), key, size, turn=sent.mark)
        return await self._holder.parts.appends.append(self._session, request, timeout_s)

    def _note_replies(self, entries: Sequence[Entry], receipt: Receipt) -> None:
        numbered = [one.with_seq(seq) for one, seq in zip(entries, receipt.seqs, strict=True)]
        ids = list(receipt.ids)
        if _is_incomplete(numbered[-1]):
            self._mark = msgspec.structs.replace(self._mark, replaces=numbered.pop().seq)
        self._entries.extend(msgspec.structs.replace(one, blobs=None) for one in numbered)
        self._replies.extend(map(restore_message, map(attach_own, numbered), ids))
        self._entries.sort(key=_by_seq)  # replies of several tasks may be acknowledged together
        self._replies.sort(key=_by_seq)

    def _check_open(self) -> None:
        if self._phase != "open":
            raise turn_not_open(self._phase)


class _Sent(msgspec.Struct, frozen=True):
    """Messages on their way to the session, with their part of the turn."""

    part: int
    entries: Sequence[Entry]
    mark: TurnMark


def _is_incomplete(entry: Entry) -> bool:
    """Return whether a stored message is a reply that was interrupted."""
    if entry.role != "assistant" or entry.meta is None:
        return False
    return msgspec.msgpack.decode(entry.meta).get(INCOMPLETE) is True


def _is_final(entry: Entry) -> bool:
    return entry.role == "assistant" and not entry.calls


def _are_same(stored: Sequence[Entry], given: Sequence[Entry]) -> bool:
    pairs = zip(stored, given, strict=False)
    return len(stored) == len(given) and all(is_same_chat(a.chat, b.chat) for a, b in pairs)


def _as_batch(messages: Spoken, role: Literal["user", "assistant"]) -> list[PlainMessage]:
    if isinstance(messages, str):
        return as_batch(Message(role=role, content=messages))
    return as_batch(messages)


def _check_roles(entries: Sequence[Entry], roles: frozenset[str], rule: str) -> None:
    for index, entry in enumerate(entries):
        if entry.role not in roles:
            raise InvalidMessage(
                f"message {index} has the role {entry.role}: {rule}, so its messages have the "
                f"roles {', '.join(sorted(roles))}; nothing was written",
                index=index,
            )


def _check_query(query: object) -> Literal[False] | None:
    if query is None:
        return None
    if query is False:
        return False
    raise InvalidInput(f"query must be text, None or False, not {type(query).__name__}")


def _query_text(opening: Sequence[Entry]) -> str | None:
    """The text of the user's newest message, as it is stored; None without any."""
    newest = next((one for one in reversed(opening) if one.role == "user"), None)
    if newest is None:
        return None
    content = decode_chat(newest.chat).get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    return check_query(content[:MAX_TEXT_CHARACTERS]) if content else None


def turn_to_answer(session: Any, message: Spoken, *, key: str | None) -> Turn:
    """A turn that is entered for replies alone: it loads no context.

    Args:
        session: a `Session`.
        message: see `Session.turn`.
        key: see `Session.turn`.
    """
    holder = session._holder  # noqa: SLF001 - a handle of the same layer
    return Turn(
        holder, session.key, message, key=key, query=False, max_tokens=None, timeout_s=None,
        loads=False,
    )  # fmt: skip


def turn_not_open(phase: TurnPhase) -> TurnClosed:
    """Return what to raise where a turn is used that is in this phase."""
    if phase == "replayed":
        return TurnClosed(
            "this turn was answered before: give turn.replies, without calling the model; "
            "nothing was written"
        )
    return TurnClosed(
        "enter the turn first, and reply inside its block: async with session.turn(…) as turn"
        if phase == "new"
        else "the turn has ended: reply inside its block; nothing was written"
    )


# -- a reply that a model gives piece by piece: passed on as it comes, and stored at its end -------

INCOMPLETE = "incomplete"
"""Key in the metadata of a reply that was interrupted."""

OnInterrupt: TypeAlias = Literal["keep", "discard"]
"""What becomes of a reply that was interrupted."""

ReadChunk: TypeAlias = Callable[[Any], str | Mapping[str, Any] | None]
"""What a chunk adds to the reply: text, a ``delta`` in OpenAI's format, or nothing."""

Chunk = TypeVar("Chunk")

_LIMIT_S = 5.0  # for storing what was interrupted, and for closing the model's stream
_logger = get_logger(__name__)


class StreamedReply:
    """The streamed part of a reply.

    Args:
        store: stores an assistant message.
        begin_call: see `remora.services.parts.Turns`.
        read: see `remora.Turn.stream`.
        on_interrupt: what becomes of it if its stream does not end.
    """

    def __init__(
        self,
        store: Callable[[ChatDict], Awaitable[object]],
        begin_call: Callable[[Callable[[], Awaitable[object]]], SharedCall[object]],
        read: ReadChunk | None,
        on_interrupt: OnInterrupt,
    ) -> None:
        self._store = store
        self._begin_call = begin_call
        self._home = HomeLoop()
        self._storing: SharedCall[object] | None = None
        self._read = read
        self._keep = on_interrupt == "keep"
        self._content: list[str | dict[str, Any]] = []
        """Texts and, of some providers, content parts."""
        self._others: dict[str, Any] = {}
        """Keys of the reply that are neither text nor tool calls."""
        self._calls: dict[object, dict[str, Any]] = {}
        self._finished = False
        self._over = False
        self.begun = False
        """Somebody began to read it."""
        self.running = False
        """Chunks are passed on: begun, and neither ended nor interrupted."""

    async def pass_on(self, chunks: AsyncIterable[Chunk]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks, and store at the end what they said, however that comes."""
        self.begun, self.running = True, not self._over
        try:
            async for chunk in chunks:
                self._check_running()
                self._add(chunk)
                yield chunk
            self._check_running()
            self._end()
            if (message := self._whole()) is not None:
                storing = self._begin_storing(message)
                with anyio.CancelScope(shield=True):
                    await storing.result()
        except BaseException:
            try:
                await self.interrupt()
            finally:
                await _close(chunks)
            raise

    def _check_running(self) -> None:
        if self._over:
            raise RuntimeClosed(
                "the runtime or the turn ended while the reply was streamed; what there was of it "
                "is stored, unless it was to be discarded"
            )

    def _end(self) -> None:
        self._over, self.running = True, False

    async def interrupt(self) -> None:
        """Store what there is, if it is to be kept; returns when what is being stored is stored.

        A cancellation is raised then, and not before. At the end of the stream it only waits.
        """
        if self._home.is_closed:
            self._end()  # what the event loop ran is being collected: no task can begin
            return
        if not self._over:
            self._end()
            probe("stream_interrupted")
            message = self._whole() if self._finished else self._text(**{INCOMPLETE: True})
            if message is not None and (self._keep or self._finished):
                with suppress(RuntimeClosed):  # it is logged; the caller has another exception
                    self._begin_storing(message)
        if self._storing is not None:
            await self._storing.wait_until_ended(_LIMIT_S)

    def _begin_storing(self, message: ChatDict) -> SharedCall[object]:
        """Store it in a task of the runtime: asyncio's own cancellations pass shields.

        Raises:
            RuntimeClosed: the runtime has closed.
        """
        try:
            self._storing = self._begin_call(partial(self._store_logged, message))
        except RuntimeClosed as e:
            _log_loss(e)
            raise
        return self._storing

    async def _store_logged(self, message: ChatDict) -> None:
        try:
            await self._store(message)
        except BaseException as e:
            _log_loss(e)
            raise

    # -- what was said -----------------------------------------------------------------------------

    def _add(self, chunk: object) -> None:
        """Add what a chunk says.

        Raises:
            InvalidInput: it has another shape, and there is no function that reads it.
        """
        said = chunk if self._read is None else self._read(chunk)
        if said is None:
            return
        if isinstance(said, str):
            self._content.append(said)
            return
        choices = _get(said, "choices")
        if choices is not None:
            first = next((one for one in choices if not _get(one, "index")), None)
            self._finished = self._finished or _get(first, "finish_reason") is not None
            said = _get(first, "delta")
        elif self._read is None:
            raise InvalidInput(
                f"a chunk is text or a chat.completion.chunk of OpenAI, not {type(chunk).__name__}:"
                " pass read=, a function that gives the text of a chunk"
            )
        delta = _plain(said)
        if isinstance(content := delta.pop("content", None), str):
            self._content.append(content)
        elif isinstance(content, (list, tuple)):
            self._content += map(_plain, content)
        for call in delta.pop("tool_calls", None) or ():
            self._add_call(_plain(call))
        delta.pop("role", None)
        _merge(self._others, delta)

    def _add_call(self, delta: dict[str, Any]) -> None:
        for key in _NAMED & delta.keys():
            delta[key] = _plain(delta[key])
        place = delta.pop("index", None)
        if place is None:  # some servers leave it out, and give whole calls
            place = delta.get("id") or next(reversed(self._calls), 0)
        call = self._calls.setdefault(place, {})
        for key in _NAMED & delta.keys() & call.keys():  # some servers repeat the name
            if call[key].get("name"):
                delta[key].pop("name", None)
        if call.get("id"):
            delta.pop("id", None)
        _merge(call, delta)

    def _whole(self) -> ChatDict | None:
        """The reply as a message; None if nothing was said."""
        if not self._calls:
            return self._text()
        calls = [_called(one) for one in self._calls.values()]
        content = _join(self._content) or None
        return {"role": "assistant", "content": content, "tool_calls": calls, **self._others}

    def _text(self, **metadata: bool) -> ChatDict | None:
        """The reply without its tool calls, of which the last may be cut off."""
        content = _join(self._content)
        if not content and not any(self._others.get(key) for key in _SAYING):
            return None
        chat: ChatDict = {"role": "assistant", "content": content or None, **self._others}
        return {**chat, "metadata": metadata}


_SAYING = ("refusal", "audio", "function_call")
"""Keys of a reply that has no text, and yet says something."""
_DELTA = ("content", "refusal", "tool_calls", "index", "id", "type", "function", "custom")
_NAMED = frozenset({"function", "custom"})
_IN_PIECES = frozenset({"text", "refusal", "thinking", "reasoning"})
"""Types of parts that come piece by piece, and the keys of their texts. Others come whole."""
_KINDS = frozenset({"id", "type", "index", "format"})
"""Keys whose texts are given whole, and not piece by piece."""


def _called(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call of which all pieces are there; what a server left out is empty."""
    key, text = call_keys(call.setdefault("type", "function"))
    named = {"name": "", text: "", **call.get(key, {})}
    return {**call, "id": call.get("id") or "", key: named}


def _join(pieces: Sequence[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of which these are pieces: a text, or parts if one of them is a part."""
    texts = [one for one in pieces if isinstance(one, str)]
    if len(texts) == len(pieces):
        return "".join(texts)
    parts: list[dict[str, Any]] = []
    for piece in (one for one in pieces if one):
        part: dict[str, Any] = {"type": "text", "text": piece} if isinstance(piece, str) else piece
        kind, last = part.get("type"), parts[-1] if parts else {}
        if kind in _IN_PIECES and last.get("type") == kind and "signature" not in last:
            _merge_part(parts[-1], part)
        else:
            parts.append(copy.deepcopy(part))
    for one in parts:
        one.update({key: _join(value) for key, value in one.items() if _is_texts(value)})
    return parts


def _merge_part(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    for key, value in part.items():
        before = whole.get(key)
        if key in _IN_PIECES and isinstance(before, str) and isinstance(value, str):
            whole[key] = before + value
        elif isinstance(before, list) and isinstance(value, list):
            whole[key] = [*before, *copy.deepcopy(value)]
        else:  # a signature, an id
            whole[key] = copy.deepcopy(value)


def _is_texts(value: object) -> bool:
    return (
        bool(value)
        and isinstance(value, list)
        and all(_get(one, "type") == "text" for one in value)
    )


def _merge(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add a piece, as the accumulator of OpenAI's client does.

    Texts are joined, numbers replaced, dicts merged, and list items merged by their ``index``.
    """
    for key, value in delta.items():
        before = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif isinstance(before, str) and isinstance(value, str) and key not in _KINDS:
            whole[key] = before + value
        elif isinstance(before, dict) and isinstance(value, Mapping):
            _merge(before, value)
        elif isinstance(before, list) and isinstance(value, list):
            _merge_lists(before, value)
        else:
            whole[key] = copy.deepcopy(value)


def _merge_lists(whole: list[Any], delta: list[Any]) -> None:
    places = {
        one["index"]: one for one in whole if isinstance(one, dict) and one.get("index") is not None
    }
    for one in delta:
        index = one.get("index") if isinstance(one, Mapping) else None
        if index is not None and index in places:
            _merge(places[index], one)
        else:
            whole.append(copy.deepcopy(one))


def _plain(thing: object) -> dict[str, Any]:
    """A fresh dict of a delta, whatever it came as."""
    if thing is None:
        return {}
    if isinstance(thing, Mapping):
        return dict(thing)
    if is_message_object(thing):
        dumped: dict[str, Any] = dump_quietly(thing, mode="json", exclude_unset=True)
        return dumped
    found = {name: value for name in _DELTA if (value := getattr(thing, name, None)) is not None}
    return {**getattr(thing, "__dict__", {}), **found}


def _get(thing: object, name: str) -> Any:
    """An item of a dict, or an attribute of an object; None if it is not there."""
    if isinstance(thing, Mapping):
        return thing.get(name)
    return getattr(thing, name, None)


def _log_loss(error: BaseException) -> None:
    """Say that a reply was not stored: who streamed it may have been cancelled since."""
    _logger.warning("streamed_reply_lost", error=type(error).__name__)


async def _close(chunks: object) -> None:
    """Close a model's stream, so that it does not go on for nobody."""
    close = getattr(chunks, "aclose", None) or getattr(chunks, "close", None)
    if close is None:
        return
    try:
        with anyio.fail_after(_LIMIT_S, shield=True):
            if inspect.isawaitable(closing := close()):
                await closing
    except Exception as e:
        _logger.warning("model_stream_not_closed", error=type(e).__name__)
