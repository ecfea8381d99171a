"""The one wire type: chat messages, checked at the door and encoded once.

A caller hands over plain dicts in the OpenAI chat format, or `Message` objects. `encode_message`
checks one and turns it into an `Entry`: the chat dict as msgpack bytes, exactly as it came (keys
that we do not know included), with beside it the few facts that the session needs without decoding.
From then on nothing encodes or counts that message again: the journal stores the bytes, and `load`
decodes them into a fresh dict, so that no caller can reach the session's state.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from remora.errors import InvalidId, InvalidMessage
from remora.ids import validate_id

__all__ = [
    "ChatDict",
    "Entry",
    "Message",
    "MessageLike",
    "Receipt",
    "Role",
    "ToolCall",
    "ToolFunction",
    "dated_line",
    "decode_chat",
    "encode_message",
    "media_parts",
    "plain_text",
    "restore_message",
    "speaker_of",
    "split_tool_calls",
    "without_surrogates",
]

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
ChatDict: TypeAlias = dict[str, Any]
"""One message as a chat API takes it."""


class ToolFunction(msgspec.Struct, frozen=True):
    """The function that a model asks to run; `arguments` is JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of an assistant message.

    Ids may repeat within a conversation, with different calls.
    """

    id: str
    function: ToolFunction
    type: str = "function"


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class _Url(msgspec.Struct):
    url: str


class _Image(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Url


class _AudioData(msgspec.Struct):
    data: str
    format: str


class _Audio(msgspec.Struct, tag_field="type", tag="input_audio"):
    input_audio: _AudioData


class _File(msgspec.Struct, tag_field="type", tag="file"):
    file: dict[str, Any]


class _Chat(msgspec.Struct):
    """The shape that a chat message must have; unknown keys pass through untouched."""

    role: Role
    content: str | list[_Text | _Refusal | _Image | _Audio | _File] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat message with its envelope.

    Attributes:
        role: ``system``, ``developer``, ``user``, ``assistant`` or ``tool``.
        content: text, or a list of OpenAI content parts; None only for an assistant that calls
            tools.
        name: the speaker's name, where several share a role.
        tool_calls: what an assistant asks to run.
        tool_call_id: which call a tool message answers.
        id: the sender's own id; without one, the session gives ``msg_…``.
        created_at: aware UTC time; without one, the time at which `append` was called.
        metadata: any JSON-like dict of the sender's.
        seq: the message's number in its session, from 1; set by the session, ignored on append.
        extra: keys of the chat dict that this type does not name, kept as they came.
    """

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    id: str | None = None
    created_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    seq: int | None = None
    extra: dict[str, Any] | None = None

    @classmethod
    def system(cls, content: str) -> Message:
        """A system message."""
        return cls(role="system", content=content)

    @classmethod
    def user(cls, content: str) -> Message:
        """A user message."""
        return cls(role="user", content=content)

    @classmethod
    def assistant(cls, content: str) -> Message:
        """An assistant message."""
        return cls(role="assistant", content=content)

    @classmethod
    def human(cls, content: str) -> Message:
        """What a human says: a user message."""
        return cls.user(content)

    @classmethod
    def ai(cls, content: str) -> Message:
        """What the AI says: an assistant message."""
        return cls.assistant(content)

    @classmethod
    def tool(cls, content: str, *, tool_call_id: str) -> Message:
        """The result of a tool call."""
        return cls(role="tool", content=content, tool_call_id=tool_call_id)

    def to_chat(self) -> ChatDict:
        """The plain dict that a chat API takes: no envelope."""
        chat: ChatDict = {"role": self.role, "content": self.content}
        if self.name is not None:
            chat["name"] = self.name
        if self.tool_calls is not None:
            chat["tool_calls"] = msgspec.to_builtins(self.tool_calls)
        if self.tool_call_id is not None:
            chat["tool_call_id"] = self.tool_call_id
        if self.extra:
            chat.update(self.extra)
        return chat


MessageLike: TypeAlias = Message | Mapping[str, Any]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A message as the runtime holds it: encoded once, counted once.

    Attributes:
        seq: number in its session, from 1 (0 until the session has taken it).
        at_us: created_at, in microseconds since the epoch.
        tokens: size by the runtime's counter, envelope of the chat format included.
        role: the chat role.
        chat: the chat dict, msgpack.
        meta: the metadata dict, msgpack, or None.
        id: the sender's id, or None where the session's own is derived from `seq`.
        calls: ids of the tool calls that this message opens, in order.
        answers: the tool call that this message answers.
        importance: 0 to 1; what it is worth keeping.
    """

    seq: int
    at_us: int
    tokens: int
    role: str
    chat: bytes
    meta: bytes | None = None
    id: str | None = None
    calls: tuple[str, ...] = ()
    answers: str | None = None
    importance: float = 0.5

    @property
    def size(self) -> int:
        """Bytes of content held (msgpack)."""
        return len(self.chat) + (len(self.meta) if self.meta else 0)

    def with_weight(self, tokens: int, importance: float) -> Entry:
        """The same entry with its size by the runtime's counter, and its worth."""
        return Entry(
            self.seq,
            self.at_us,
            tokens,
            self.role,
            self.chat,
            self.meta,
            self.id,
            self.calls,
            self.answers,
            importance,
        )

    def with_seq(self, seq: int) -> Entry:
        """The same entry at its place in the session."""
        return Entry(
            seq,
            self.at_us,
            self.tokens,
            self.role,
            self.chat,
            self.meta,
            self.id,
            self.calls,
            self.answers,
            self.importance,
        )


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """What `append` acknowledges: durable at the runtime's durability level (G3).

    Attributes:
        seqs: the sequence numbers, in the order given.
        ids: the message ids, in the same order.
        duplicate: this key was seen before; `seqs` and `ids` are the original ones.
    """

    seqs: tuple[int, ...]
    ids: tuple[str, ...]
    duplicate: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, Any])
_PLAIN = frozenset({str, type(None)})
_MAX_DEPTH = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_NAMED = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


def decode_chat(chat: bytes) -> ChatDict:
    """A fresh chat dict; the caller may do with it as it likes."""
    return _decoder.decode(chat)


def encode_message(
    message: MessageLike, *, index: int = 0, max_bytes: int = 1 << 24, now_us: int | None = None
) -> tuple[Entry, ChatDict]:
    """Check one message and encode it.

    Returns the entry (seq 0, tokens 0) and the chat dict to count.

    Args:
        message: a `Message`, or a dict in the OpenAI chat format with, if wanted, ``id``,
            ``created_at`` (aware datetime, ISO 8601 text or seconds since the epoch) and
            ``metadata``.
        index: its place in the batch, for the error text.
        max_bytes: largest encoded size allowed.
        now_us: the time of a message that has none, in microseconds since the epoch; the system's
            otherwise.

    Raises:
        InvalidMessage: it is no chat message, or cannot be encoded, or is too large.
    """
    id_ = created_at = metadata = None
    if type(message) is dict and _ENVELOPE.isdisjoint(
        message
    ):  # the common case, at a quarter of the others' cost
        chat = message.copy()
    elif isinstance(message, Message):
        chat, id_, created_at, metadata = (
            message.to_chat(),
            message.id,
            message.created_at,
            message.metadata,
        )
    elif isinstance(message, Mapping):
        chat = {k: v for k, v in message.items() if k not in _ENVELOPE}
        id_, created_at, metadata = (
            message.get("id"),
            message.get("created_at"),
            message.get("metadata"),
        )
    else:
        raise InvalidMessage(
            f"message {index} is a {type(message).__name__}; pass a dict in the OpenAI chat "
            "format or a remora.Message",
            index=index,
        )
    try:
        checked = msgspec.convert(chat, _Chat)
        encoded = _shrink(_encoder.encode(chat))
        meta = (
            _shrink(_encoder.encode(msgspec.convert(metadata, dict[str, Any])))
            if metadata
            else None
        )
        for value in chat.values():
            if type(value) not in _PLAIN:
                chat = _decoder.decode(
                    encoded
                )  # what will come back is what is counted, whatever types were handed over
                _check_depth(chat.values(), metadata, index)
                break
        else:
            if metadata:
                _check_depth((), metadata, index)
    except msgspec.ValidationError as e:
        raise InvalidMessage(f"message {index} is no chat message: {e}", index=index) from e
    except (TypeError, ValueError, OverflowError, RecursionError) as e:
        raise InvalidMessage(f"message {index} cannot be encoded: {e}", index=index) from e
    if id_ is not None:
        try:
            validate_id(id_, "id")
        except InvalidId as e:
            raise InvalidMessage(f"message {index}: {e}", index=index) from e
    size = len(encoded) + (len(meta) if meta else 0)
    if size > max_bytes:
        raise InvalidMessage(
            f"message {index} is {size} bytes; at most {max_bytes} are allowed", index=index
        )
    if checked.role == "tool":
        if not checked.tool_call_id:
            raise InvalidMessage(
                f"message {index} has the role tool but no tool_call_id", index=index
            )
    elif checked.content is None and not (checked.role == "assistant" and checked.tool_calls):
        raise InvalidMessage(
            f"message {index} has no content; only an assistant message with tool_calls may leave "
            "it out",
            index=index,
        )
    if checked.tool_calls and checked.role != "assistant":
        raise InvalidMessage(f"message {index}: only an assistant may have tool_calls", index=index)
    at_us = now_us if now_us is not None else time.time_ns() // 1_000
    if created_at is not None:
        at_us = _microseconds(created_at, index)
    entry = Entry(
        0,
        at_us,
        0,
        checked.role,
        encoded,
        meta,
        id_,
        tuple(call.id for call in checked.tool_calls) if checked.tool_calls else (),
        checked.tool_call_id if checked.role == "tool" else None,
    )
    return entry, chat


def _shrink(encoded: bytes) -> bytes:
    """The same bytes in no more memory than they take.

    Msgspec's come in a buffer of at least 512, and they stay for long.
    """
    return bytes(memoryview(encoded))


def _check_depth(values: Iterable[Any], metadata: Any, index: int) -> None:
    """What nests deeper than this may be read back here and not where the stack is deeper
    already.
    """
    level = [*values, metadata]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list, tuple))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise InvalidMessage(f"message {index} nests deeper than {_MAX_DEPTH} levels", index=index)


def _microseconds(value: object, index: int) -> int:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as e:
            raise InvalidMessage(
                f"message {index}: created_at {value!r} is not ISO 8601", index=index
            ) from e
    try:
        if isinstance(value, datetime):  # in whole numbers: a float would lose microseconds
            microseconds = (
                (value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH
            ) // _MICROSECOND
            datetime.fromtimestamp(
                microseconds / 1_000_000, UTC
            )  # what cannot be read back is not taken
            return microseconds
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            microseconds = int(value * 1_000_000)
            datetime.fromtimestamp(microseconds / 1_000_000, UTC)  # the same
            return microseconds
    except (ValueError, OverflowError, OSError) as e:
        raise InvalidMessage(
            f"message {index}: created_at {value!r} is out of range", index=index
        ) from e
    raise InvalidMessage(
        f"message {index}: created_at must be a datetime, ISO 8601 text or seconds since the epoch",
        index=index,
    )


def restore_message(entry: Entry, id_: str) -> Message:
    """The typed message that an entry holds, with its id and number."""
    chat = decode_chat(entry.chat)
    calls = chat.get("tool_calls")
    return Message(
        role=chat["role"],
        content=chat.get("content"),
        name=chat.get("name"),
        tool_calls=msgspec.convert(calls, list[ToolCall]) if calls else None,
        tool_call_id=chat.get("tool_call_id"),
        id=id_,
        created_at=_EPOCH + entry.at_us * _MICROSECOND,
        metadata=_decoder.decode(entry.meta) if entry.meta else None,
        seq=entry.seq,
        extra={k: v for k, v in chat.items() if k not in _NAMED} or None,
    )


def plain_text(chat: Mapping[str, Any]) -> str:
    """What a message says, as text: its content, a word for each part that is no text, and its tool
    calls.
    """
    pieces: list[str] = []
    content = chat.get("content")
    if isinstance(content, str):
        pieces.append(content)
    elif content:
        for part in content:
            kind = part["type"]
            pieces.append(
                part[kind] if kind in {"text", "refusal"} else f"[{kind.removesuffix('_url')}]"
            )
    calls = chat.get("tool_calls") or ()
    pieces.extend(
        f"[calls {call['function']['name']} {call['function']['arguments']}]" for call in calls
    )
    return "\n".join(piece for piece in pieces if piece)


def without_surrogates(text: str) -> str:
    """`text` without lone surrogates, which are text to Python and to nobody else.

    A model may cut an emoji in half.
    """
    return text.encode("utf-8", "replace").decode()


def split_tool_calls(messages: Sequence[ChatDict]) -> int:
    """How many calls in a context lack their result, or results their call, in the place where a
    chat API wants them (G8).
    """
    split = 0
    awaited: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] in awaited:
                awaited.remove(str(message["tool_call_id"]))
            else:
                split += 1
            continue
        split += len(awaited)
        calls = message.get("tool_calls") or ()
        assert isinstance(calls, (list, tuple))
        awaited = [call["id"] for call in calls]
    return split + len(awaited)


def media_parts(chat: Mapping[str, Any]) -> Iterable[str]:
    """The kinds of the parts that are no text (``image_url``, ``input_audio``, ``file``), one for
    each.
    """
    content: str | Sequence[Mapping[str, Any]] | None = chat.get("content")
    if not content or isinstance(content, str):
        return ()
    return [part["type"] for part in content if part["type"] not in {"text", "refusal"}]


def dated_line(at_us: int, text: str) -> str:
    """A line of the past, for searching and for a context: "(8 May 2023) Caroline: …".

    `at_us` since the epoch.
    """
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    return f"({at.day} {at:%B %Y}) {text}"


def speaker_of(chat: Mapping[str, Any]) -> str:
    """Who speaks: the name if there is one, else the role."""
    return str(chat.get("name") or str(chat["role"]).title())
