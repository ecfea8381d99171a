"""Bodies of requests for sessions and turns, and of their answers.

msgspec checks them, and writes their schema for OpenAPI. `remora.rest.memory_shapes` has those of
memories and keyed state.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from remora.actors.user.messages import Synopsis
from remora.messages import Message, Role
from remora.recall.context import ContextEntry, Sources
from remora.recall.memory import Memory

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=100_000)]
Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
ChatMessage: TypeAlias = dict[str, Any]
"""A message in the OpenAI chat format."""
Said: TypeAlias = str | ChatMessage | list[ChatMessage]
"""Text, one message, or several."""


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A key that is not known is an error: a typing mistake must not be ignored."""


class Append(Request, frozen=True):
    """Messages to add; `allow_duplicates`: add one although a message has its id.

    `replace`: change a message that has its id and says something else.
    """

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    allow_duplicates: bool = False
    replace: bool = False


class Appended(msgspec.Struct, frozen=True):
    """The messages' numbers and ids; `duplicate`: the request came before."""

    seqs: tuple[int, ...]
    ids: tuple[str, ...]
    duplicate: bool


class Messages(Request, frozen=True):
    """Messages after number `after`, at most `limit`; `archived`: also what left the buffer.

    `at`: the session as it was when this message was the newest. `attachments`: with the bytes of
    attachments; otherwise a few words stand in their place.
    """

    after: Count = 0
    limit: Limit = 100
    archived: bool = True
    at: Count | None = None
    attachments: bool = False


class MessagePage(msgspec.Struct, frozen=True):
    """Messages, oldest first; `after` asks for the next page, and is null on the last."""

    messages: list[Message]
    after: int | None


class ContextAsked(Request, frozen=True):
    """The question to recall memories for, the budget in tokens, and the message as of which it is.

    `override`: a conversation to show instead of the session's own. `messages`: what memory blocks
    are asked about instead.
    """

    query: Text | None = None
    max_tokens: Count | None = None
    at: Count | None = None
    override: list[ChatMessage] | None = None
    messages: list[ChatMessage] | None = None


class WorkingShown(msgspec.Struct, frozen=True):
    """An item of working memory; `created_at_us` in microseconds since the epoch."""

    id: str
    text: str
    source: str
    session: str
    created_at_us: int
    tokens: int
    score: float


class ContextShown(msgspec.Struct, frozen=True):
    """A context for a model.

    `messages` are ready to send and have `tokens` tokens; `entries` says which stored message each
    of them is, null for what was written for the context. `pending` messages wait for their
    summary; `omitted` ones did not fit; `awaiting` are tool calls without a result, withheld;
    `orphans` are tool calls and results that lost their counterpart. `sources` says what each tier
    of memory gave.
    """

    messages: list[ChatMessage]
    tokens: int
    summary: str | None
    memories: tuple[Memory, ...]
    sources: Sources
    prefix_changed: bool
    pending: int
    omitted: int
    awaiting: tuple[str, ...]
    orphans: int
    working: tuple[WorkingShown, ...]
    synopsis: Synopsis | None
    entries: tuple[ContextEntry | None, ...]


class TurnAsked(Request, frozen=True):
    """A request of the user.

    `query`: what to recall memories for, null for the message itself; `recall` false: for nothing.
    """

    message: Said
    query: Text | None = None
    recall: bool = True
    max_tokens: Count | None = None


class Reply(Request, frozen=True):
    """The messages of the assistant and of tools in answer to `message`.

    `stored` is how many replies of this turn the sender knows of: a reply that is sent again is
    not stored twice.
    """

    message: Said
    reply: Said
    stored: Count = 0


class TurnShown(msgspec.Struct, frozen=True):
    """A turn: `answered` if its last reply is there; `replies` has those that are stored.

    `resumed`: the turn was begun before. `context` is null in the answer to a reply, and for a turn
    that was answered before; `stored` has the numbers and ids of what a reply stored.
    """

    answered: bool
    replies: list[Message]
    context: ContextShown | None
    resumed: bool = False
    stored: Appended | None = None


class Cleared(msgspec.Struct, frozen=True):
    """How many messages left the buffer."""

    messages: int


class Erased(msgspec.Struct, frozen=True):
    """How many rows were erased: of the journal, by table, and of long-term memory.

    `actors` were evicted from memory, and `jobs` were cancelled. `erased_by` says when the bytes
    are gone from the files at the latest; null if they are gone.
    """

    journal: dict[str, int]
    long_term: int
    actors: int = 0
    jobs: int = 0
    erased_by: datetime | None = None


class Listing(Request, frozen=True):
    """A page: ids that begin with `prefix`, behind the cursor `after`, at most `limit`."""

    prefix: Annotated[str, msgspec.Meta(max_length=512)] = ""
    order: Literal["name", "newest", "oldest"] = "name"
    limit: Limit = 100
    after: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class SessionsListing(Listing, frozen=True):
    """A page of sessions; `empty`: also those that have state and no message."""

    empty: bool = False


class UserItem(msgspec.Struct, frozen=True):
    """A user, with the number of sessions and the time of the newest message.

    `cursor` asks for those behind this one.
    """

    user: str
    sessions: int
    last_at: datetime | None
    cursor: str


class UserPage(msgspec.Struct, frozen=True):
    """Users; `after` asks for the next page, and is null on the last."""

    users: list[UserItem]
    after: str | None


class SessionItem(msgspec.Struct, frozen=True):
    """A session, with the number of messages and the time of the newest.

    `cursor` asks for those behind this one.
    """

    session: str
    messages: int
    last_at: datetime
    cursor: str


class SessionPage(msgspec.Struct, frozen=True):
    """Sessions; `after` asks for the next page, and is null on the last."""

    sessions: list[SessionItem]
    after: str | None


class Deleted(msgspec.Struct, frozen=True):
    """How many were deleted."""

    deleted: int


class Buffer(Request, frozen=True):
    """Messages of the buffer: of a role, with these pairs in their metadata, the newest `limit`."""

    role: Role | None = None
    filter_metadata: dict[str, Any] | None = None
    limit: Count | None = None


class Buffered(msgspec.Struct, frozen=True):
    """Messages of the buffer, oldest first."""

    messages: list[Message]


class ContentsAsked(Request, frozen=True):
    """The text before the summaries; null for their own words."""

    summary_prefix: str | None = None


class Contents(msgspec.Struct, frozen=True):
    """The whole buffer, oldest first, and the summaries as messages, as of one moment."""

    summaries: list[ChatMessage]
    messages: list[Message]


class BufferSearch(Request, frozen=True):
    """A search in the buffer; `semantic`: by meaning, null for as it is configured."""

    query: Text
    limit: Limit = 5
    semantic: bool | None = None


class Hit(msgspec.Struct, frozen=True):
    """A message that a search found; scores of one search can be compared."""

    message: Message
    score: float


class Hits(msgspec.Struct, frozen=True):
    """The results of a search, best first."""

    hits: list[Hit]


class Deletion(Request, frozen=True):
    """Messages to delete: by `ids`, or by `positions` in the buffer, from 0, oldest first."""

    ids: list[str] | None = None
    positions: list[int] | None = None


class Rewinding(Request, frozen=True):
    """The number of the message that is the newest afterwards."""

    to: Count


class Truncation(Request, frozen=True):
    """How many messages stay in the buffer at most."""

    keep: Count


class Forking(Request, frozen=True):
    """The id of the copy, and which message is its newest; null for all of them."""

    session: str
    at: Count | None = None


class Forked(msgspec.Struct, frozen=True):
    """The id of the copy."""

    session: str
