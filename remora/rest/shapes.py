"""Bodies of requests for sessions, turns, memories, keyed state and shared scopes, and of answers.

msgspec checks them, and writes their schema for OpenAPI.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from remora.actors.policies.pruning import PruningStrategy
from remora.actors.user.messages import Right, Synopsis
from remora.api.keyed_state import StateValue
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


Many: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
"""Memories of a list that has no pages."""


class Recall(Request, frozen=True):
    """A question, and how many memories at most.

    Only those of these `types`, of this `session`, of this `agent`, whose metadata match `where`.
    """

    query: Text
    limit: Limit = 5
    types: list[str] | None = None
    session: str | None = None
    agent: str | None = None
    where: dict[str, Any] | None = None


class Recalled(msgspec.Struct, frozen=True):
    """Memories, the best first, or the oldest first where none was searched for."""

    memories: list[Memory]


class MemoryAsked(Request, frozen=True):
    """Which memories; without messages unless `messages` is set.

    `types` are separated by commas, and decide instead of `messages`.
    """

    limit: Many = 100
    messages: bool = False
    types: str | None = None
    order: Literal["created", "importance"] = "created"
    session: str | None = None
    agent: str | None = None


class MemoryPageAsked(Request, frozen=True):
    """A page of what was recorded: behind the cursor `after`, at most `limit`."""

    limit: Limit = 100
    after: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    types: list[str] | None = None
    session: str | None = None
    agent: str | None = None
    where: dict[str, Any] | None = None


class MemoryNamed(Request, frozen=True):
    """The key of a memory, and its agent."""

    key: str
    agent: str | None = None


class MemoryFound(msgspec.Struct, frozen=True):
    """The memory; null if there is none."""

    memory: Memory | None


class Remember(Request, frozen=True):
    """A memory to store, or several: all or none; the same text is one memory.

    `content` is a text, or a list of texts and of objects with ``content`` and fields of their own.
    `key` names one; `replace`: another one under its key takes its place.
    """

    content: Text | list[Text | dict[str, Any]]
    type: str = "fact"
    importance: float | None = None
    session: str | None = None
    agent: str | None = None
    key: str | None = None
    metadata: dict[str, Any] | None = None
    replace: bool = False


class Remembered(msgspec.Struct, frozen=True):
    """The memories' ids, in their order."""

    ids: list[str]


class Recording(Request, frozen=True):
    """Messages of a conversation that is kept elsewhere."""

    messages: list[ChatMessage]
    session: str | None = None
    agent: str | None = None


class MemoryChange(Request, frozen=True):
    """The changes of a memory; what is not given stays."""

    content: Text | None = None
    importance: float | None = None
    metadata: dict[str, Any] | None = None


class MemoryIds(Request, frozen=True):
    """Memories by id."""

    ids: list[str]


class UserDeletion(Request, frozen=True):
    """Memories and messages by id; `saved_only`: only what was remembered, not what was said."""

    ids: list[str]
    saved_only: bool = False


class Pruning(Request, frozen=True):
    """Which memories go; `wait`: answer when they are gone."""

    keep: Count | None = None
    strategy: PruningStrategy | None = None
    max_age_s: float | None = None
    types: list[str] | None = None
    wait: bool = True


class Done(msgspec.Struct, frozen=True):
    """It is done."""


class SynopsisAsked(Request, frozen=True):
    """`refresh`: write it again."""

    refresh: bool = False


class Learning(Request, frozen=True):
    """Texts for working memory: where they come from, and for which session."""

    texts: list[Text]
    source: str = "application"
    session: str = ""


class Learned(msgspec.Struct, frozen=True):
    """The items' ids."""

    ids: list[str]


class WorkingSearch(Request, frozen=True):
    """A search in working memory; `session`: only what is of this one, or of none."""

    query: Text
    limit: Limit = 5
    session: str | None = None


class WorkingFound(msgspec.Struct, frozen=True):
    """The found items, best first; `tokens` is 0."""

    items: list[WorkingShown]


# -- keyed state -----------------------------------------------------------------------------------


class StateAsked(Request, frozen=True):
    """Values by key: those that begin with `prefix`, behind `after`, at most `limit`."""

    prefix: str = ""
    limit: Limit = 100
    after: str | None = None
    backward: bool = False


class StateShown(msgspec.Struct, frozen=True):
    """Values, in the order of their keys."""

    values: list[StateValue]


class StateFound(msgspec.Struct, frozen=True):
    """The value; null if there is none."""

    value: StateValue | None


class StateKeys(Request, frozen=True):
    """Which values to read, as of one moment."""

    keys: list[str]


class ValueSet(Request, frozen=True):
    """A value; `version`: what the present one must have, 0 for none, null for any."""

    value: Any
    version: Count | None = None


class ValueVersion(Request, frozen=True):
    """The version that the value must have; null for any."""

    version: Count | None = None


class StateRemoved(msgspec.Struct, frozen=True):
    """The result of a removal: there was a value, or not."""

    deleted: bool


class StateChange(Request, frozen=True):
    """Values to set and keys to delete, all or none; `versions`: what present ones must have."""

    put: dict[str, Any] = msgspec.field(default_factory=dict)
    delete: list[str] = msgspec.field(default_factory=list)
    versions: dict[str, Count] | None = None


# -- shared scopes ---------------------------------------------------------------------------------


class Sharing(Request, frozen=True):
    """Memories for all members: a text, or a list of texts and of objects with ``content``."""

    content: Text | list[Text | dict[str, Any]]
    type: str = "fact"
    importance: float | None = None


class SharedRecall(Request, frozen=True):
    """A question, and how many memories at most; `by`: only what this agent recorded."""

    query: Text
    limit: Limit = 5
    types: list[str] | None = None
    by: str | None = None


class SharedAsked(Request, frozen=True):
    """Which shared memories; `types` are separated by commas."""

    limit: Many = 100
    types: str | None = None


class Members(msgspec.Struct, frozen=True):
    """Each agent's right."""

    members: dict[str, str]


class GrantGiven(Request, frozen=True):
    """Whom to let do what."""

    to: str
    right: Right = "read"


class MemberNamed(Request, frozen=True):
    """Whose rights to take away."""

    to: str
