"""Bodies of requests for memories, keyed state and shared scopes, and of their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from remora.actors.policies.pruning import PruningStrategy
from remora.actors.user.messages import Right
from remora.api.keyed_state import StateValue
from remora.recall.memory import Memory
from remora.rest.shapes import ChatMessage, Count, Limit, Request, Text, WorkingShown

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
