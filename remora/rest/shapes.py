"""What requests and answers hold. msgspec checks them, and writes their schema for OpenAPI."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from remora.messages import Message
from remora.recall.memory import Memory

__all__ = [
    "Append",
    "Appended",
    "Cleared",
    "ContextAsked",
    "ContextShown",
    "Deleted",
    "Erased",
    "Listing",
    "MemoryAsked",
    "MemoryChange",
    "MessagePage",
    "Messages",
    "Recall",
    "Recalled",
    "Remember",
    "Remembered",
    "Reply",
    "SessionItem",
    "SessionPage",
    "TurnAsked",
    "TurnShown",
    "UserItem",
    "UserPage",
]

_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=100_000)]
_Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1000)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
ChatMessage: TypeAlias = dict[str, Any]
"""A message in the OpenAI chat format."""
Said: TypeAlias = str | ChatMessage | list[ChatMessage]
"""Text, one message, or several."""


class _Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key that is not known is an error: a typing mistake must not be ignored."""


class Append(_Request, frozen=True):
    """Messages to add; `allow_duplicates`: add one although a message has its id."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    allow_duplicates: bool = False


class Appended(msgspec.Struct, frozen=True):
    """The messages' numbers and ids; `duplicate`: the request came before."""

    seqs: tuple[int, ...]
    ids: tuple[str, ...]
    duplicate: bool


class Messages(_Request, frozen=True):
    """Messages after number `after`, at most `limit`; `archived`: also what left the buffer.

    `at`: the session as it was when this message was the newest.
    """

    after: _Count = 0
    limit: _Limit = 100
    archived: bool = True
    at: _Count | None = None


class MessagePage(msgspec.Struct, frozen=True):
    """Messages, oldest first; `after` asks for the next page, and is null on the last."""

    messages: list[Message]
    after: int | None


class ContextAsked(_Request, frozen=True):
    """What to recall memories for, the budget in tokens, and as of which message."""

    query: _Text | None = None
    max_tokens: _Count | None = None
    at: _Count | None = None


class ContextShown(msgspec.Struct, frozen=True):
    """What a model should see.

    `messages` are ready to send and have `tokens` tokens. `pending` messages wait for their
    summary; `omitted` ones did not fit; `awaiting` are tool calls without a result, withheld.
    """

    messages: list[ChatMessage]
    tokens: int
    summary: str | None
    memories: tuple[Memory, ...]
    pending: int
    omitted: int
    awaiting: tuple[str, ...]


class TurnAsked(_Request, frozen=True):
    """A request of the user.

    `query`: what to recall memories for, null for the message itself; `recall` false: for nothing.
    """

    message: Said
    query: _Text | None = None
    recall: bool = True
    max_tokens: _Count | None = None


class Reply(_Request, frozen=True):
    """What the assistant says, calls or is told by tools in answer to `message`.

    `stored` is how many replies of this turn the sender knows of: a reply that is sent again is
    not stored twice.
    """

    message: Said
    reply: Said
    stored: _Count = 0


class TurnShown(msgspec.Struct, frozen=True):
    """A turn: `answered` if its last reply is there; `replies` has those that are stored.

    `context` is null in the answer to a reply, and for a turn that was answered before.
    """

    answered: bool
    replies: list[Message]
    context: ContextShown | None


class Cleared(msgspec.Struct, frozen=True):
    """How many messages left the buffer."""

    messages: int


class Erased(msgspec.Struct, frozen=True):
    """How many rows were erased: of the journal, by table, and of long-term memory."""

    journal: dict[str, int]
    long_term: int


class Listing(_Request, frozen=True):
    """A page: ids that begin with `prefix`, behind the cursor `after`, at most `limit`."""

    prefix: Annotated[str, msgspec.Meta(max_length=512)] = ""
    order: Literal["name", "newest", "oldest"] = "name"
    limit: _Limit = 100
    after: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class UserItem(msgspec.Struct, frozen=True):
    """A user, with the number of sessions and the time of the newest message."""

    user: str
    sessions: int
    last_at: datetime | None


class UserPage(msgspec.Struct, frozen=True):
    """Users; `after` asks for the next page, and is null on the last."""

    users: list[UserItem]
    after: str | None


class SessionItem(msgspec.Struct, frozen=True):
    """A session, with the number of messages and the time of the newest."""

    session: str
    messages: int
    last_at: datetime


class SessionPage(msgspec.Struct, frozen=True):
    """Sessions; `after` asks for the next page, and is null on the last."""

    sessions: list[SessionItem]
    after: str | None


class Recall(_Request, frozen=True):
    """A question, and how many memories at most."""

    query: _Text
    limit: _Limit = 5


class Recalled(msgspec.Struct, frozen=True):
    """Memories, the best first, or the oldest first where none was searched for."""

    memories: list[Memory]


class MemoryAsked(_Request, frozen=True):
    """How many memories at most, without messages unless `messages` is set."""

    limit: _Limit = 100
    messages: bool = False


class Remember(_Request, frozen=True):
    """A memory to store; the same text is one memory.

    `key` names it; `replace`: another one under its key takes its place.
    """

    content: _Text
    type: str = "fact"
    importance: float | None = None
    session: str | None = None
    key: str | None = None
    metadata: dict[str, Any] | None = None
    replace: bool = False


class Remembered(msgspec.Struct, frozen=True):
    """The memory's id."""

    id: str


class MemoryChange(_Request, frozen=True):
    """What to change of a memory; what is not given stays."""

    content: _Text | None = None
    importance: float | None = None
    metadata: dict[str, Any] | None = None


class Deleted(msgspec.Struct, frozen=True):
    """How many were deleted."""

    deleted: int
