"""Memory blocks: pieces of long-term memory that an application chooses, and may write itself.

A block is shown the messages that leave a session's buffer (`aput`), and returns what of them
belongs in the next context (`aget`). The runtime is given *prototypes*: before each call a
prototype is copied and gets the state of its session, and what a put changed is journalled. So one
prototype serves every session, and sessions share nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, get_type_hints

import msgspec

from remora.ids import SessionKey
from remora.messages import ChatDict, Entry, decode_chat, plain_text
from remora.models.ports import ChatModel, Embedder
from remora.storage.ports import LongTermStore
from remora.tokens import TokenCounter

BlockContent: TypeAlias = str | list[dict[str, Any]]
"""What a block returns: text, or a list of content parts as in a chat API."""
T_co = TypeVar("T_co", covariant=True)
_encode = msgspec.msgpack.Encoder().encode
_NATIVE = (bytes, bytearray, datetime)  # msgpack has these types


class ChatMessage(msgspec.Struct, frozen=True):
    """A message as blocks see it.

    Attributes:
        role: the chat role.
        content: its text; a word stands for each part that is not text.
        name: the speaker's name, if several share a role.
        created_at: when, aware UTC; None if unknown.
        seq: the message's number in its session; None if it was never appended.
        raw: the chat dict, msgpack; see `chat`.
    """

    role: str
    content: str = ""
    name: str | None = None
    created_at: datetime | None = None
    seq: int | None = None
    raw: bytes = b""

    @classmethod
    def of_entry(cls, entry: Entry) -> ChatMessage:
        """A message of the journal."""
        chat = decode_chat(entry.chat)
        at = datetime.fromtimestamp(entry.at_us / 1_000_000, UTC)
        return cls(entry.role, plain_text(chat), chat.get("name"), at, entry.seq, entry.chat)

    @classmethod
    def of_chat(cls, chat: Mapping[str, Any]) -> ChatMessage:
        """A message of a context."""
        return cls(chat["role"], plain_text(chat), chat.get("name"), raw=_encode(dict(chat)))

    @property
    def chat(self) -> ChatDict:
        """The message as a new chat dict, with media and tool calls."""
        return decode_chat(self.raw) if self.raw else {"role": self.role, "content": self.content}


class BlockServices(msgspec.Struct, frozen=True):
    """The session that a block works for, and what it may use of the runtime.

    Attributes:
        user_id: the session's owner.
        session_id: the session.
        counter: the runtime's token counter.
        chat_model: the runtime's, or None.
        embedder: the runtime's, or None.
        long_term: opens the runtime's long-term memory; None if it is disabled.
    """

    user_id: str
    session_id: str
    counter: TokenCounter
    chat_model: ChatModel | None = None
    embedder: Embedder | None = None
    long_term: Callable[[], Awaitable[LongTermStore]] | None = None


class MemoryBlock(Protocol):
    """The port of a block; `BaseMemoryBlock` is the easy way to one.

    Optional: ``bind(services: BlockServices)``, called before each use; and ``state_dict() ->
    dict`` with ``load_state_dict(state)``. Without these, the attributes that msgpack can encode
    are the block's state; the others (a client, a lock) are configuration, shared by all sessions.
    """

    name: str
    """Names the block's section in the context; letters, digits, ``_``, ``-`` and ``.``."""
    priority: int
    """0: always kept; 1, 2, 3 …: the order in which blocks are truncated."""

    async def aget(self, messages: Sequence[ChatMessage] | None = None, **block_kwargs: Any) -> Any:
        """Return what belongs in a context that holds `messages`; `block_kwargs` has both ids."""
        ...

    async def aput(self, messages: Sequence[ChatMessage], **block_kwargs: Any) -> None:
        """Take in a batch of messages that left the buffer."""
        ...

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> Any:
        """`content`, shorter by so many tokens; None: the block may be left out."""
        ...


BlocksLike: TypeAlias = Sequence[MemoryBlock] | Callable[[SessionKey], Sequence[MemoryBlock]]
"""Blocks for all sessions, or a function that gives the same blocks for a session each time."""


class BaseMemoryBlock(msgspec.Struct, Generic[T_co], kw_only=True):
    """A memory block to derive from; its parameter is what it returns.

    A subclass declares its fields with defaults and defines `_aget`, usually `_aput`, and
    `atruncate` if it can shorten its content. Fields that msgpack can encode are the block's state
    in its session, once a put has changed them; the others are configuration. What `_aget` changes
    is not kept.

    Attributes:
        name: of its section; by default the class's name in snake_case without ``Block``.
        priority: 0: always kept; 1, 2, 3 …: the order in which blocks are truncated. Of equal ones,
            the first one given goes first.
        description: for people.
        services: what it may use of the runtime; None until it is bound.
    """

    name: str = ""
    priority: int = 0
    description: str = ""
    services: BlockServices | None = None

    def __post_init__(self) -> None:
        self.name = self.name or block_name(self)

    def bind(self, services: BlockServices) -> None:
        """Keep what the runtime offers; called on each copy before it is used."""
        self.services = services

    async def aget(
        self, messages: Sequence[ChatMessage] | None = None, **block_kwargs: Any
    ) -> T_co:
        """Return what belongs in a context that holds `messages`."""
        return await self._aget(None if messages is None else list(messages), **block_kwargs)

    async def aput(self, messages: Sequence[ChatMessage], **block_kwargs: Any) -> None:  # noqa: ARG002
        """Take in a batch of messages that left the buffer: whole units, each message once."""
        await self._aput(list(messages))

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> T_co:  # noqa: ARG002
        raise TypeError(f"{type(self).__name__} must define _aget")

    async def _aput(self, messages: list[ChatMessage]) -> None:
        """Ignore the messages, unless a subclass does more."""

    async def atruncate(self, content: Any, tokens_to_truncate: int) -> T_co | None:  # noqa: ARG002
        """`content`, shorter by at least so many tokens; None: leave the block out."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The fields of the subclass that msgpack can encode."""
        fields = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in _BASE_FIELDS
        }
        return {name: value for name, value in fields.items() if is_encodable(value)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set these fields with their declared types; unknown names are ignored.

        Raises:
            msgspec.ValidationError: a value does not have its field's type.
        """
        types = _types(type(self))
        for name, value in state.items():
            if name in self.__struct_fields__ and name not in _BASE_FIELDS:
                setattr(
                    self, name, msgspec.convert(value, types.get(name, Any), builtin_types=_NATIVE)
                )


_BASE_FIELDS = frozenset(BaseMemoryBlock.__struct_fields__)


class StaticMemoryBlock(BaseMemoryBlock[BlockContent], kw_only=True):
    """Fixed content: who the user is, how to answer, a pinned file.

    Attributes:
        static_content: text, or content parts: ``{"type": "text", …}``, ``{"type": "image_url",
            …}`` …
    """

    static_content: BlockContent

    async def _aget(
        self,
        messages: list[ChatMessage] | None = None,  # noqa: ARG002
        **block_kwargs: Any,  # noqa: ARG002
    ) -> BlockContent:
        return self.static_content


def block_name(block: object) -> str:
    """The name of a block's section: its own, or made of its class's name."""
    given = getattr(block, "name", "")
    if given:
        return str(given)
    words = re.sub(
        r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(block).__name__
    ).lower()
    return words.removesuffix("_block") or words


def is_encodable(value: Any) -> bool:
    """Return whether msgpack can carry `value`."""
    try:
        _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


@lru_cache(maxsize=256)
def _types(kind: type) -> dict[str, Any]:
    """The declared types; none if a name exists for type checkers only."""
    try:
        return get_type_hints(kind)
    except Exception:
        return {}
