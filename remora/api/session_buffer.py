"""What an application may do with a session's buffer beside appending and loading: look, search,
cut, carry elsewhere.

Every verb is one message to the session's actor, so it takes its turn among the appends; what comes
back are copies.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import anyio.to_thread
import msgspec

from remora.actors.blocks.state import copy_block_items, excluded_item
from remora.actors.policies.redaction import redact_text
from remora.actors.policies.search import lexical_scores
from remora.actors.policies.summary import shorten
from remora.actors.session.messages import (
    Adopt,
    Buffer,
    Inspect,
    ReadBuffer,
    Remove,
    Replace,
    Rewind,
    SessionView,
    Truncate,
)
from remora.actors.user.messages import ExpireSynopsis
from remora.errors import InvalidInput, InvalidMessage
from remora.ids import SessionKey, UserKey, message_id, validate_id
from remora.messages import (
    ChatDict,
    Entry,
    Message,
    Receipt,
    Role,
    decode_chat,
    plain_text,
    restore_message,
    without_surrogates,
)
from remora.models.ports import Embedder, embed_texts
from remora.services.arguments import check_int, check_text
from remora.services.intake import encode_entries
from remora.storage.ports import earlier_buffer
from remora.storage.records import Summary
from remora.tokens import count_message

__all__ = ["BufferHit", "BufferVerbs"]

_MUXI_PREFIX = "Previous conversation summary: "


class BufferHit(msgspec.Struct, frozen=True):
    """A message of the buffer that a search found; `score` is comparable within one search only."""

    message: Message
    score: float


class BufferVerbs:
    """Part of `remora.Session`."""

    __slots__ = ("_services", "key")

    def __init__(self, services: Any, key: SessionKey) -> None:
        self._services = services
        self.key = key

    async def inspect(self) -> SessionView:
        """How things stand: marks, what is buffered, what is pending, the summaries.

        For people and tools.
        """
        view: SessionView = await self._services.directory.ask(self.key, Inspect())
        return view

    async def _look(self) -> Buffer:
        buffer: Buffer = await self._services.directory.ask(self.key, ReadBuffer())
        return buffer

    def _restored(self, sid: int, entries: Sequence[Entry]) -> list[Message]:
        instance = self._services.journal.instance
        return [
            restore_message(entry, entry.id or message_id(instance, sid, entry.seq))
            for entry in entries
        ]

    # -- looking -----------------------------------------------------------------------------------

    async def get_messages(
        self,
        role: Role | None = None,
        *,
        filter_metadata: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> list[Message]:
        """The messages in the buffer, oldest first.

        Args:
            role: those of this role.
            filter_metadata: those whose metadata has all of these pairs; an empty dict filters
                nothing.
            limit: the newest so many of what is left.

        Raises:
            InvalidInput: a negative limit.
        """
        if limit is not None:
            check_int(limit, "limit")
        if filter_metadata is not None and not isinstance(filter_metadata, Mapping):
            raise InvalidInput(
                f"filter_metadata must be a dict, not {type(filter_metadata).__name__}"
            )
        buffer = await self._look()
        entries = [entry for entry in buffer.entries if role is None or entry.role == role]
        messages = self._restored(buffer.sid, entries)
        if filter_metadata:
            wanted = filter_metadata.items()
            messages = [
                one
                for one in messages
                if one.metadata and all(one.metadata.get(k) == v for k, v in wanted)
            ]
        return messages if limit is None else messages[max(len(messages) - limit, 0) :]

    async def get_recent(self, count: int) -> list[Message]:
        """The newest `count` messages in the buffer, oldest first, or all there are."""
        return await self.get_messages(limit=count)

    async def get_last_message(self) -> Message | None:
        """The newest message in the buffer."""
        newest = await self.get_messages(limit=1)
        return newest[0] if newest else None

    async def get_formatted_messages(self, *, summary_prefix: str = _MUXI_PREFIX) -> list[ChatDict]:
        """Role and content alone, the summary in front as a system message, if there is one."""
        buffer = await self._look()
        shown = [
            {"role": "system", "content": summary_prefix + one.text} for one in _summaries(buffer)
        ]
        chats = (decode_chat(entry.chat) for entry in buffer.entries)
        return [*shown, *({"role": chat["role"], "content": chat.get("content")} for chat in chats)]

    async def get_context(self) -> list[ChatDict]:
        """The summary's system message, if there is one, and every message of the buffer as a chat
        dict.

        Unlike `load` it has no budget, and shows tool calls that still wait for a result.
        """
        buffer = await self._look()
        shown = [{"role": "system", "content": one.prefix + one.text} for one in _summaries(buffer)]
        return [*shown, *(decode_chat(entry.chat) for entry in buffer.entries)]

    async def contents(self) -> tuple[list[ChatDict], list[Message]]:
        """The summaries as system messages, and the buffer's messages with all they carry, both of
        one moment: for adapters.
        """
        buffer = await self._look()
        shown: list[ChatDict] = [
            {"role": "system", "content": one.prefix + one.text} for one in _summaries(buffer)
        ]
        return shown, self._restored(buffer.sid, buffer.entries)

    async def size(self) -> int:
        """How many messages the buffer holds."""
        return len((await self._look()).entries)

    async def search(
        self, query: str, k: int = 5, *, semantic: bool | None = None
    ) -> list[BufferHit]:
        """The messages of the buffer that bear on `query`, best first.

        Args:
            query: what to look for.
            k: how many at most.
            semantic: by meaning rather than by words; `buffer.vector_search` decides otherwise,
                where there is an embedder.

        Raises:
            InvalidInput: `k` is not positive, or meanings are asked for and there is no embedder.
            ModelError: the embedder failed.
        """
        check_text(query, "query")
        check_int(k, "k", low=1)
        embedder: Embedder | None = self._services.embedder
        if semantic and embedder is None:
            raise InvalidInput(
                "there is no embedder to search by meaning with: models.embedder is none"
            )
        by_meaning = self._services.config.buffer.vector_search if semantic is None else semantic
        buffer = await self._look()
        texts = [plain_text(decode_chat(entry.chat)) for entry in buffer.entries]
        if by_meaning and embedder is not None and texts:
            vectors = await embed_texts(embedder, [query, *texts])
            scores = [float(score) for score in vectors[1:] @ vectors[0]]
        else:
            scores = await anyio.to_thread.run_sync(lexical_scores, query, texts)
        ranked = sorted(
            (place for place in range(len(texts)) if scores[place] > 0),
            key=lambda place: -scores[place],
        )[:k]
        found = self._restored(buffer.sid, [buffer.entries[place] for place in ranked])
        return [
            BufferHit(message, scores[place]) for message, place in zip(found, ranked, strict=True)
        ]

    # -- cutting -----------------------------------------------------------------------------------

    async def delete(self, index: int | Iterable[int] = (), *, ids: Iterable[str] = ()) -> int:
        """Take messages out of the buffer, by place (from 0, oldest first) or by id.

        Returns how many went.

        They leave long-term memory as well, and `history`. Ids that are not in the buffer are
        passed over.

        Raises:
            IndexOutOfRange: a place that is not there, a negative one included; nothing was
                deleted.
            InvalidInput: a place that is no integer.
        """
        try:
            places = (
                (operator.index(index),)
                if not isinstance(index, Iterable)
                else tuple(map(operator.index, index))
            )
        except TypeError as e:
            raise InvalidInput(f"a place in the buffer is an integer: {e}") from e
        if not isinstance(ids, Iterable):
            raise InvalidInput(f"ids must be texts, not {type(ids).__name__}")
        wanted = (ids,) if isinstance(ids, str) else tuple(check_text(id_, "an id") for id_ in ids)
        count: int = await self._services.directory.ask(self.key, Remove(places, wanted))
        return self._gone(count)

    async def truncate_to_size(self, size: int) -> int:
        """Let the newest `size` messages stay, or fewer where the cut would part a turn.

        Returns how many left.

        What leaves is archived: it stays in `history`, and goes to long-term memory where there is
        one.

        Raises:
            InvalidInput: a negative size.
        """
        check_int(size, "size")
        count: int = await self._services.directory.ask(self.key, Truncate(size))
        return count

    async def rewind(self, to: int) -> int:
        """Go back to where message number `to` was the newest; returns how many messages are gone.

        What came after it leaves `history` and long-term memory; a summary that covered it gives
        way to the one before.

        Raises:
            InvalidInput: there is no message with that number, or not any more.
        """
        check_int(to, "to")
        count: int = await self._services.directory.ask(self.key, Rewind(to))
        return self._gone(count)

    def _gone(self, count: int) -> int:
        """What was taken out of a session is in no synopsis of its user, either."""
        if count:
            self._services.directory.post(UserKey(self.key.user), ExpireSynopsis())
        return count

    async def fork(self, session: str, *, at: int | None = None) -> Self:
        """Begin another session of the same user as a copy of this one, as it is now or was at
        message `at`.

        Messages are numbered anew from 1. What this session handed over to long-term memory is not
        handed over again.

        Raises:
            InvalidId: `session` cannot name a session.
            InvalidInput: that session has messages already, or this one has no message `at`.
        """
        view = await self.inspect()
        at = view.last_seq if at is None else check_int(at, "at")
        if not 0 <= at <= view.last_seq:
            raise InvalidInput(f"a session with {view.last_seq} messages has no message {at}")
        journal = self._services.journal
        earlier = await earlier_buffer(journal, self.key, at, as_it_was=True)
        entries = await journal.read(self.key, 1, at, at=at)
        numbers = {entry.seq: number for number, entry in enumerate(entries, start=1)}

        def moved(seq: int) -> int:
            return sum(1 for old in numbers if old <= seq)

        def summary(one: Summary) -> Summary:
            return msgspec.structs.replace(
                one, first=moved(one.first - 1) + 1, through=moved(one.through)
            )

        front, cleared = moved(earlier.front), moved(earlier.cleared)
        state_items = copy_block_items(view.blocks, front)
        adopt = Adopt(
            entries=tuple(entry.with_seq(numbers[entry.seq]) for entry in entries),
            front=front,
            flushing=moved(view.watermarks.flushing),
            summary=summary(earlier.summary) if earlier.summary else None,
            summaries=tuple(summary(one) for one in earlier.summaries),
            state_items=(*state_items, excluded_item(((1, front),))) if front else state_items,
            cleared=cleared,
        )
        copy = type(self)(
            self._services, SessionKey(self.key.user, validate_id(session, "a session id"))
        )
        await self._services.directory.ask(copy.key, adopt)
        return copy

    # -- carrying elsewhere ------------------------------------------------------------------------

    async def state_dict(self) -> dict[str, Any]:
        """The buffer and its summary as plain data.

        ``{"messages": [{"role", "content", "id", …}], "summary": …}``.
        """
        buffer = await self._look()
        messages = []
        for one in self._restored(buffer.sid, buffer.entries):
            state = {**one.to_chat(), "id": one.id}
            if one.created_at is not None:
                state["created_at"] = one.created_at.isoformat()
            if one.metadata:
                state["metadata"] = one.metadata
            messages.append(state)
        text = "\n".join(one.text for one in _summaries(buffer)) or None
        return {"messages": messages, "summary": text}

    async def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> Receipt:
        """Let the buffer and the summary be what a `state_dict` says, instead of what they are.

        What was in the buffer stays in `history`. The runtime's summarizer and policy go on with
        it.

        Raises:
            InvalidInput: it has no ``messages``, and `strict` is set.
            InvalidMessage: one of them is no chat message; nothing was changed.
        """
        if not isinstance(state, Mapping) or ("messages" not in state and strict):
            raise InvalidInput(
                "a state must be a dict with the key messages; pass strict=False to take one "
                "without"
            )
        messages = state.get("messages", [])
        if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
            raise InvalidMessage(
                f"the messages of a state must be a list, not {type(messages).__name__}"
            )
        text = state.get("summary")
        if text is not None and not isinstance(text, str):
            raise InvalidInput(f"the summary of a state must be text, not {type(text).__name__}")
        entries = await encode_entries(self._services, list(messages))
        summary = await self._restored_summary(text) if text else None
        size = sum(entry.size for entry in entries)
        receipt: Receipt = await self._services.directory.ask(
            self.key, Replace(tuple(entries), summary, size), size=size
        )
        return receipt

    async def _restored_summary(self, text: str) -> Summary:
        """A summary from outside: redacted like any text, and no longer than one of our own."""
        services = self._services
        if services.redact is not None:
            text = redact_text(text, services.redact)
        prefix, counter = services.config.buffer.summary_prefix, services.counter
        room = max(
            services.config.buffer.summary_tokens
            - counter.message_overhead
            - counter.count(prefix),
            1,
        )
        text = await anyio.to_thread.run_sync(shorten, without_surrogates(text), room, counter)
        tokens = count_message(counter, {"role": "system", "content": prefix + text})
        return Summary(0, prefix, text, tokens, degraded=False, model="restored")

    async def to_json(self) -> str:
        """`state_dict` as JSON, with ``buffer_size``: the policy's number of messages, or None."""
        state = await self.state_dict()
        policy = (await self.inspect()).policy
        return msgspec.json.encode({**state, "buffer_size": policy.above_messages}).decode()

    async def from_json(self, text: str | bytes) -> Receipt:
        """Restore what `to_json` wrote; a missing summary means none. The policy in force stays.

        Raises:
            InvalidInput: it is no such JSON.
            InvalidMessage: see `load_state_dict`.
        """
        try:
            state = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, TypeError, ValueError) as e:
            raise InvalidInput(f"this is no JSON of a session: {e}") from e
        return await self.load_state_dict(state)


def _summaries(buffer: Buffer) -> list[Summary]:
    return [*([buffer.summary] if buffer.summary else []), *buffer.summaries]
