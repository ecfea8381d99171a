"""The encoded form of a message: checked, encoded and counted once."""

import datetime as dt
import re
import reprlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args
from uuid import UUID

import msgspec

from remora.errors import InvalidId, InvalidMessage
from remora.ids import validate_id
from remora.messages.attachments import (
    MAGIC,
    AttachedText,
    Blobs,
    decode_attached,
    is_attachment,
    show_words,
    take_attachments,
    texts_in,
)
from remora.messages.chat import (
    INSTRUCTING_ROLES,
    ChatDict,
    Message,
    Role,
    ToolCall,
    call_keys,
)
from remora.messages.media import check_payload
from remora.messages.objects import chat_of_object, is_message_object
from remora.messages.text import PART_TYPES, clean_texts, plain_text, without_surrogates


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as the runtime holds it.

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
        importance: how much it is worth keeping, 0 to 1.
        blobs: the bytes of its attachments, until they are stored.
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
    blobs: dict[bytes, bytes] | None = None

    @property
    def size(self) -> int:
        """Bytes of content held (msgpack)."""
        return len(self.chat) + (len(self.meta) if self.meta else 0)

    def with_weight(self, tokens: int, importance: float) -> "Entry":
        """The same entry with its size in tokens and its importance."""
        return msgspec.structs.replace(self, tokens=tokens, importance=importance)

    def with_seq(self, seq: int) -> "Entry":
        """The same entry with its number in the session."""
        return msgspec.structs.replace(self, seq=seq)


class AttachmentLimits(msgspec.Struct, frozen=True):
    """The limits above which attachments are taken out of messages.

    Attributes:
        min_bytes: least characters of base64 that are.
        max_bytes: largest attachment that is allowed.
    """

    min_bytes: int
    max_bytes: int


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Refusal(msgspec.Struct, tag_field="type", tag="refusal"):
    refusal: str


class _Url(msgspec.Struct):
    url: str


class _Image(msgspec.Struct, tag_field="type", tag="image_url"):
    image_url: _Url


class _Video(msgspec.Struct, tag_field="type", tag="video_url"):
    video_url: _Url


class _AudioData(msgspec.Struct):
    data: str
    format: str


class _Audio(msgspec.Struct, tag_field="type", tag="input_audio"):
    input_audio: _AudioData


class _File(msgspec.Struct, tag_field="type", tag="file"):
    file: dict[str, Any]


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Custom(msgspec.Struct):
    name: str
    input: str


class _Call(msgspec.Struct):
    id: str
    type: str = "function"
    function: _Function | None = None
    custom: _Custom | None = None


class _Chat(msgspec.Struct):
    """The shape that a chat message must have; unknown keys are kept unchanged."""

    role: Role
    content: str | list[_Text | _Refusal | _Image | _Video | _Audio | _File] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None


_PROVIDER_PARTS = frozenset({"audio_url", "document_url", "document"})  # of vLLM, Mistral, Cohere
_CONVERTED_PARTS = {
    "from_anthropic": frozenset(
        {
            "document", "image", "mcp_tool_result", "mcp_tool_use", "redacted_thinking",
            "search_result", "server_tool_use", "thinking", "tool_result", "tool_use",
        }
    ),
    "from_responses": frozenset(
        {"function_call", "input_file", "input_image", "input_text", "output_text"}
    ),
}  # fmt: skip
_LEAST_ATTACHMENT = 1_024
"""Least characters of base64 that may be an attachment."""
KEPT_PREFIX = "remora."
"""Begins the metadata keys of what `remora.formats` keeps verbatim."""

REPEATED = f"{KEPT_PREFIX}repeated"
"""Metadata key of a message in which a framework repeats or summarizes what was said: it is shown,
and neither indexed nor recalled."""

NATIVE = f"{KEPT_PREFIX}native"
"""Key of a counted chat dict: the texts that only the form has that a framework keeps."""
ADAPTER_KEYS = frozenset(
    {"openai_agents", "pydantic_ai", "langchain", "llama_index", "agent_framework"}
)
"""Metadata keys of adapters whose frameworks send what is under them to the model."""
_ORIGINALS = tuple(
    name.encode()
    for name in (KEPT_PREFIX, *ADAPTER_KEYS, "claude_agent_sdk", "google_adk", "strands")
)
_REPEATED = msgspec.msgpack.encode(REPEATED)
_PLACEHOLDERS = re.compile(r"^\[[\w./+-]+(?:: [^\[\]\n]*)?\](?: \[[\w./+-]+\])*$\n?", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\[([\w./+-]+)")
_WHOLE_MESSAGES = frozenset(
    f"[{one}]" for one in ("event", "item", "message", "reasoning", "speech", "thinking", "thought")
)
_COUNTED_NAMES = tuple(name.encode() for name in (KEPT_PREFIX, *ADAPTER_KEYS))
_encoder = msgspec.msgpack.Encoder()
_AUDIO = msgspec.msgpack.encode("audio")
_decoder = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=show_words)
_PLAIN = frozenset({str, type(None)})
_CONVERTED = (set, frozenset, UUID, Decimal, dt.date, dt.time, dt.timedelta)
MAX_DEPTH = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_ENVELOPE = frozenset({"id", "created_at", "metadata", "seq"})
_ROLES: tuple[str, ...] = get_args(Role)
_PLAIN_ROLES = frozenset({"user", "assistant", "system", "developer"})
_NAMED = frozenset({"role", "content", "name", "tool_calls", "tool_call_id"})


def decode_chat(chat: bytes) -> ChatDict:
    """A fresh chat dict, which the caller may change."""
    return _decoder.decode(chat)


def decode_chats(entries: Iterable[Entry]) -> list[ChatDict]:
    """Fresh chat dicts of many entries."""
    decode = _decoder.decode
    return [decode(entry.chat) for entry in entries]


def counted_chat(chat: ChatDict, meta: bytes | None) -> ChatDict:
    """Return what is counted of a message: its chat dict, and what another API needs back.

    Adapters keep a message as its framework has it: what is in that and not in the chat dict is
    sent to the model as well.
    """
    if meta is None or not any(name in meta for name in _COUNTED_NAMES):
        return chat
    metadata = decode_attached(meta)
    native = [
        value
        for key, value in metadata.items()
        if value and (key in ADAPTER_KEYS or key.startswith(KEPT_PREFIX))
    ]
    if not native:
        return chat
    said = set(map(_as_key, _texts_in(list(chat.values()))))
    return {**chat, NATIVE: [text for text in _texts_in(native) if _as_key(text) not in said]}


def said_text(entry: Entry, chat: ChatDict) -> str:
    """A message as text, without the words that stand for what has no form in a chat.

    A message that keeps its original has a line such as ``[web_search_call]`` for each part without
    text. Nobody said it, so it is neither indexed nor recalled. A line that the original has itself
    stays, and so do the messages of applications. A message that repeats others has no text.
    """
    text, meta = plain_text(chat), entry.meta
    if meta is None or not any(name in meta for name in _ORIGINALS):
        return text
    if text in _WHOLE_MESSAGES or _REPEATED in meta:
        return ""

    def replace(line: re.Match[str]) -> str:
        kinds = _PLACEHOLDER.findall(line[0])
        stands = all(
            _encoder.encode(kind) in meta and f"[{kind}]".encode() not in meta for kind in kinds
        )
        return "" if stands else line[0]

    return _PLACEHOLDERS.sub(replace, text).strip()


def _as_key(text: str) -> Any:
    """Return what tells a text from others: of one that is an attachment, its bytes."""
    if isinstance(text, AttachedText) and is_attachment(text):
        return tuple([blob.digest for blob in text.blobs])
    return text


def _texts_in(value: object) -> Iterator[str]:
    """All texts in plain data, those in JSON included."""
    for text in texts_in(value):
        if text[:1] in {"{", "["} and type(text) is str:
            with suppress(msgspec.DecodeError, RecursionError):
                yield from _texts_in(msgspec.json.decode(text))
                continue
        yield text


def kept_metadata(entry: Entry) -> dict[str, Any]:
    """Return what a message keeps for one API, by the keys of its metadata."""
    if entry.meta is None or KEPT_PREFIX.encode() not in entry.meta:
        return {}
    metadata: dict[str, Any] = _decoder.decode(entry.meta)
    return {key: value for key, value in metadata.items() if key.startswith(KEPT_PREFIX)}


def leading_instructions(entries: Sequence[Entry]) -> int:
    """How many messages at the front are of a system or a developer."""
    if not entries or entries[0].role not in INSTRUCTING_ROLES:
        return 0
    others = (place for place, one in enumerate(entries) if one.role not in INSTRUCTING_ROLES)
    return next(others, len(entries))


def check_ids(entries: Iterable[Entry]) -> None:
    """Check that no two messages of a batch have one id.

    Raises:
        InvalidMessage: two have.
    """
    known: set[str] = set()
    for index, entry in enumerate(entries):
        if entry.id is not None:
            if entry.id in known:
                raise InvalidMessage(
                    f"message {index} has the id {entry.id!r} of another message of its batch",
                    index=index,
                )
            known.add(entry.id)


def has_media(entry: Entry) -> bool:
    """Return whether a message may have attachments, or a sound that is a part of its answer."""
    chat, meta = entry.chat, entry.meta
    return MAGIC in chat or _AUDIO in chat or (meta is not None and MAGIC in meta)


def is_same_chat(one: bytes, other: bytes) -> bool:
    """Return whether two encoded chat dicts say the same, whatever the order of their keys.

    Bytes that one holds, and the other refers to, are the same.
    """
    if one == other:
        return True
    if MAGIC not in one and MAGIC not in other:
        return decode_chat(one) == decode_chat(other)
    return bool(_taken(one) == _taken(other))


def _taken(chat: bytes) -> Any:
    """A chat dict with a digest in place of whatever could be an attachment."""
    return msgspec.msgpack.decode(
        msgspec.msgpack.encode(
            take_attachments(msgspec.msgpack.decode(chat), _LEAST_ATTACHMENT, {})
        ),
        ext_hook=lambda code, data: (code, bytes(data)),
    )


def _check_chat(chat: ChatDict) -> _Chat:
    """Return the chat dict in the shape that it must have.

    An assistant's parts of other types are what a provider answered: Mistral's ``thinking``. They
    are kept unchanged.

    Raises:
        msgspec.ValidationError: it has another shape.
    """
    try:
        return msgspec.convert(chat, _Chat)
    except msgspec.ValidationError:
        parts = chat.get("content")
        if not isinstance(parts, (list, tuple)):
            raise
        known = [one for one in parts if not _is_of_provider(one, chat.get("role"))]
        if len(known) == len(parts):
            raise
        return msgspec.convert({**chat, "content": known}, _Chat)


def _is_of_provider(part: object, role: object) -> bool:
    """Return whether a part is of a type that some provider has, and that remora only keeps.

    Raises:
        msgspec.ValidationError: it is a part of an API from which `remora.formats` converts.
    """
    if not isinstance(part, Mapping) or not isinstance(kind := part.get("type"), str):
        return False
    if kind in PART_TYPES:
        return False
    if kind in _PROVIDER_PARTS and isinstance(part.get(kind), (str, Mapping)):
        return True
    own = next((name for name, kinds in _CONVERTED_PARTS.items() if kind in kinds), None)
    if kind == "thinking" and isinstance(part.get(kind), list):
        own = None
    if own is not None:
        raise msgspec.ValidationError(
            f"a part of the type {kind!r} is of another API: {own} of remora.formats makes a chat "
            "message of it"
        )
    return role == "assistant"


def check_shape(chat: ChatDict, index: int) -> None:
    """Check that a chat dict has the keys and types of a chat message; it may say nothing.

    Args:
        chat: without an envelope.
        index: its place in the batch, for the error.

    Raises:
        InvalidMessage: it is not a chat message.
    """
    try:
        checked = _check_chat(chat)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"message {index} is not a chat message: {e}", index=index) from e
    if checked.role == "tool" and checked.tool_call_id is None:
        raise InvalidMessage(f"message {index} has the role tool but no tool_call_id", index=index)


def encode_plain(
    message: ChatDict, max_bytes: int, max_characters: int
) -> tuple[str, bytes] | None:
    """The text and the encoded form of a message that has a role and a short text and no more.

    None for all others, whose text is not looked at, and for what `encode_message` refuses. With
    `encode_at_once` and the session's short path an append takes a tenth fewer instructions.
    """
    if len(message) != 2:
        return None
    role, text = message.get("role"), message.get("content")
    if type(text) is not str or type(role) is not str or role not in _PLAIN_ROLES:
        return None
    if len(text) > max_characters:
        return None
    try:
        encoded = _shrink(_encoder.encode(message))
    except ValueError:  # half an emoji
        return None
    return (text, encoded) if len(encoded) <= max_bytes else None


def encode_message(
    message: object,
    *,
    index: int = 0,
    max_bytes: int = 1 << 24,
    now_us: int | None = None,
    attachments: AttachmentLimits | None = None,
) -> tuple[Entry, ChatDict]:
    """Check one message and encode it.

    Args:
        message: a `Message`, or a chat dict with optional ``id``, ``created_at`` (aware datetime,
            ISO 8601 text or seconds since the epoch) and ``metadata``.
        index: its place in the batch, for the error text.
        max_bytes: largest encoded size allowed.
        now_us: the time of a message without one; the system's by default.
        attachments: what is taken out of the message; None for nothing.

    Returns:
        The entry (with seq 0 and tokens 0) and the chat dict to count.

    Raises:
        InvalidMessage: it is not a chat message, cannot be encoded, or is too large.
    """
    if type(message) is dict and _ENVELOPE.isdisjoint(
        message
    ):  # the common case, four times faster
        chat, id_, created_at, metadata = message.copy(), None, None, None
    else:
        chat, id_, created_at, metadata = _split_envelope(message, index)
    try:
        if len(chat) > 2 and None in chat.values():  # not in the common case: role and content
            chat = {
                key: value for key, value in chat.items() if value is not None or key == "content"
            }
        checked = _check_chat(chat)
        _refuse_extensions(chat.values(), metadata)
        if checked.role == "assistant" and _is_empty(checked):
            chat["content"] = ""  # as a model answers that has nothing to say; no API takes None
        if metadata:
            metadata = msgspec.convert(metadata, dict[str, Any])
        try:
            encoded, meta = _encode(chat, metadata)
        except UnicodeEncodeError:
            chat, metadata = clean_message(chat, index), clean_texts(metadata)
            encoded, meta = _encode(chat, metadata)
        if isinstance(chat.get("content"), (list, tuple)):
            _check_payloads(chat["content"], index)
        blobs: dict[bytes, bytes] = {}
        if attachments is not None and len(encoded) + len(meta or b"") >= attachments.min_bytes:
            least = attachments.min_bytes
            taken = take_attachments(chat, least, blobs)
            noted = take_attachments(metadata, least, blobs) if metadata else metadata
            if blobs:
                _check_blobs(blobs, attachments.max_bytes, index)
                encoded, meta = _encode(taken, noted)
        for value in chat.values():
            if type(value) not in _PLAIN or blobs:
                chat = decode_attached(encoded)  # count what will be read back
                _check_depth(chat.values(), metadata, index)
                break
        else:
            if metadata:
                _check_depth((), metadata, index)
    except InvalidMessage:
        raise
    except (msgspec.ValidationError, TypeError) as e:
        if _has_text_classes((chat, metadata)):  # of a framework: markup, an enumeration
            try:
                plain = {**clean_message(chat, index), "metadata": clean_texts(metadata)}
            except RecursionError:
                raise InvalidMessage(
                    f"message {index} nests deeper than {MAX_DEPTH} levels", index=index
                ) from None
            return encode_message(
                {**plain, "id": id_, "created_at": created_at},
                index=index,
                max_bytes=max_bytes,
                now_us=now_us,
                attachments=attachments,
            )
        problem = _role_problem(chat.get("role")) or str(e)
        is_shape = isinstance(e, msgspec.ValidationError)
        what = "is not a chat message" if is_shape else "cannot be encoded"
        raise InvalidMessage(f"message {index} {what}: {problem}", index=index) from e
    except (ValueError, OverflowError, RecursionError) as e:
        raise InvalidMessage(f"message {index} cannot be encoded: {e}", index=index) from e
    if id_ is not None:
        id_ = _check_id(id_, index)
    if (size := len(encoded) + (len(meta) if meta else 0)) > max_bytes:
        text = f"message {index} is {size} bytes; at most {max_bytes} are allowed"
        raise InvalidMessage(text, index=index)
    if checked.role == "tool" or checked.content is None or checked.tool_calls:
        _check_calls(checked, index)
    at_us = now_us if now_us is not None else time.time_ns() // 1_000
    if created_at is not None:
        try:
            at_us = parse_time(created_at)
        except ValueError as e:
            raise InvalidMessage(f"message {index}: created_at {e}", index=index) from e
    calls = tuple(call.id for call in checked.tool_calls) if checked.tool_calls else ()
    answers = checked.tool_call_id if checked.role == "tool" else None
    entry = Entry(0, at_us, 0, checked.role, encoded, meta, id_, calls, answers, 0.5, blobs or None)
    return entry, chat


def _encode(chat: ChatDict, metadata: dict[str, Any] | None) -> tuple[bytes, bytes | None]:
    return _shrink(_encoder.encode(chat)), _shrink(_encoder.encode(metadata)) if metadata else None


def _refuse_extensions(values: Iterable[Any], metadata: object) -> None:
    """Refuse extensions of msgpack, which only remora writes into messages, and what JSON lacks.

    msgpack would keep a set as a list, and a UUID or a time without a zone as a text.

    Raises:
        TypeError: there is one.
    """
    for one in _values_within((*values, metadata)):
        if isinstance(one, msgspec.msgpack.Ext):
            raise TypeError("it has an extension of msgpack")
        if isinstance(one, _CONVERTED) and getattr(one, "tzinfo", None) is None:
            raise TypeError(f"{one!r:.60} ({type(one).__name__}) is no JSON value: give its text")


def _values_within(values: Iterable[Any]) -> Iterator[Any]:
    """Values and all within them, but plain texts and None; each once, as one may hold itself."""
    left, seen = [one for one in values if type(one) not in _PLAIN], set[int]()
    while left:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, (Mapping, list, tuple)):
            inner = one.values() if isinstance(one, Mapping) else one
            left.extend(value for value in inner if type(value) not in _PLAIN)


def _has_text_classes(value: object) -> bool:
    """Return whether plain data has a text of a subclass of `str`, which msgspec refuses."""
    return any(
        isinstance(text, str) and type(text) is not str
        for one in _values_within((value,))
        for text in (one if isinstance(one, Mapping) else (one,))
    )


def _check_payloads(parts: Iterable[Any], index: int) -> None:
    """Check that what parts hold as base64 is base64, and may be where it is.

    Raises:
        InvalidMessage: it is not; the text says where.
    """
    for place, part in enumerate(parts):
        if part["type"] != "text" and (problem := check_payload(part)):
            raise InvalidMessage(f"message {index}: content[{place}].{problem}", index=index)


def _check_blobs(blobs: Blobs, most: int, index: int) -> None:
    largest = max(map(len, blobs.values()))
    if largest > most:
        raise InvalidMessage(
            f"message {index} has an attachment of {largest} bytes; at most {most} are allowed "
            "(attachments.max_mb)",
            index=index,
        )


def _is_empty(checked: _Chat) -> bool:
    said = (checked.tool_calls, checked.refusal, checked.audio, checked.function_call)
    return checked.content is None and not any(said)


def clean_message(chat: Mapping[str, Any], index: int) -> ChatDict:
    """A copy whose texts UTF-8 can encode; see `without_surrogates`.

    Raises:
        InvalidMessage: an id has half of a surrogate pair: replaced, two could become equal.
    """
    ids = [(name, chat.get(name)) for name in ("id", "tool_call_id")]
    calls = chat.get("tool_calls")
    for place, call in enumerate(calls if isinstance(calls, (list, tuple)) else ()):
        if isinstance(call, Mapping):
            ids.append((f"tool_calls[{place}].id", call.get("id")))
    for name, id_ in ids:
        if isinstance(id_, str) and without_surrogates(id_) != id_:
            raise InvalidMessage(
                f"message {index}: {name} {id_!r:.80} has half of a surrogate pair", index=index
            )
    cleaned: ChatDict = clean_texts(chat)
    return cleaned


def _split_envelope(message: object, index: int) -> tuple[ChatDict, Any, Any, Any]:
    """The chat dict, and id, created_at and metadata."""
    if isinstance(message, Message):
        return message.to_chat(), message.id, message.created_at, message.metadata
    if isinstance(message, Mapping):
        chat = {key: value for key, value in message.items() if key not in _ENVELOPE}
        return chat, message.get("id"), message.get("created_at"), message.get("metadata")
    if is_message_object(message):
        return _split_envelope(chat_of_object(message), index)
    raise no_message(message, index)


def no_message(given: object, index: int) -> InvalidMessage:
    """The error for what is no message.

    Args:
        given: in place of one.
        index: its place in the batch.
    """
    return InvalidMessage(
        f"message {index} is a {type(given).__name__}; "
        "pass a dict in the OpenAI chat format or a remora.Message",
        index=index,
    )


def _role_problem(role: object) -> str:
    """Return what is wrong with the role, if it is text and no role."""
    if not isinstance(role, str) or role in _ROLES:
        return ""
    return f"its role is {reprlib.repr(role)}; the roles are {', '.join(_ROLES)}"


def _check_id(id_: object, index: int) -> str:
    try:
        return validate_id(id_, "id")
    except InvalidId as e:
        raise InvalidMessage(f"message {index}: {e}", index=index) from e


def _check_calls(checked: _Chat, index: int) -> None:
    """Refuse what a chat API refuses about content, tool calls and their results."""
    problem = None
    if checked.role == "tool":
        if not checked.tool_call_id:
            problem = " has the role tool but no tool_call_id"
    elif checked.content is None and checked.role != "assistant":
        problem = " has no content; only an assistant's message may leave it out"
    if problem is None and checked.tool_calls and checked.role != "assistant":
        problem = ": only an assistant may have tool_calls"
    for place, call in enumerate(checked.tool_calls or ()):
        wanted, _ = call_keys(call.type)
        if getattr(call, wanted) is None:
            problem = f": tool_calls[{place}] of the type {call.type} has no {wanted}"
    if problem is not None:
        raise InvalidMessage(f"message {index}{problem}", index=index)


def _shrink(encoded: bytes) -> bytes:
    """A copy without spare room: msgspec's buffers have 512 bytes or more; entries live long."""
    return bytes(memoryview(encoded))


def _check_depth(values: Iterable[Any], metadata: object, index: int) -> None:
    """Refuse deep nesting: decoding it could overflow a stack that is deeper than this one."""
    level = [*values, metadata]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for value in level
            if isinstance(value, (dict, list, tuple))
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise InvalidMessage(f"message {index} nests deeper than {MAX_DEPTH} levels", index=index)


def parse_time(value: object) -> int:
    """Microseconds since the epoch of a datetime, ISO 8601 text, or seconds since the epoch.

    A time without a zone is in UTC.

    Raises:
        ValueError: it is none of these, or cannot be read back; the text goes after the name.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as e:
            raise ValueError(f"{value!r:.40} is not ISO 8601") from e
    try:
        if isinstance(value, datetime):
            # whole numbers: a float would lose microseconds
            value = value if value.tzinfo else value.replace(tzinfo=UTC)
            microseconds = (value - _EPOCH) // _MICROSECOND
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            microseconds = int(value * 1_000_000)
        else:
            microseconds = None
        if microseconds is not None:
            datetime.fromtimestamp(microseconds / 1_000_000, UTC)  # refuse what cannot be read back
            return microseconds
    except (ValueError, OverflowError, OSError) as e:
        raise ValueError(f"{value!r:.40} is out of range") from e
    raise ValueError(
        f"must be a datetime, ISO 8601 text or seconds since the epoch, not {type(value).__name__}"
    )


def restore_message(entry: Entry, id_: str) -> Message:
    """The typed message that an entry holds, with its id and number."""
    chat = decode_chat(entry.chat)
    calls = chat.get("tool_calls")
    return Message(
        role=chat["role"],
        content=chat.get("content"),
        name=chat.get("name"),
        tool_calls=[ToolCall.from_chat(call) for call in calls] if calls else None,
        tool_call_id=chat.get("tool_call_id"),
        id=id_,
        created_at=_EPOCH + entry.at_us * _MICROSECOND,
        metadata=_decoder.decode(entry.meta) if entry.meta else None,
        seq=entry.seq,
        extra={key: value for key, value in chat.items() if key not in _NAMED} or None,
    )
