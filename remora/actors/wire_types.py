"""The messages that handles send to actors, and the replies, as unions: one decoder each.

Every member is tagged, and is an array on the wire, so a message is its tag and its fields. Golden
bytes (tests/golden) show that what was sent once can be read. A new field comes last and has a
default; a tag is never used for another struct. Messages that only the runtime sends itself, such
as the results of jobs, are not among them: no other process can send those.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec.structs import astuple

from remora.actors.keyed_state import (
    ChangeValues,
    DeleteValue,
    ReadNamed,
    ReadValue,
    ReadValues,
    SetValue,
    StaleKey,
    StaleVersion,
    StoredValue,
    StoredValues,
)
from remora.actors.session.messages import (
    Append,
    Clear,
    FindTurn,
    Flush,
    Inspect,
    Load,
    Remove,
    Replace,
    Rewind,
    SessionView,
    Snapshot,
    StoredTurn,
    Truncate,
    TurnReceipt,
)
from remora.actors.user.messages import (
    ChangedMemory,
    ChangeMemory,
    DeleteMemories,
    ExpireSynopsis,
    Grant,
    InspectUser,
    Learn,
    ReadGrants,
    Remember,
    RememberReceipt,
    ScoredItems,
    SearchWorking,
    UserView,
)
from remora.messages import Receipt

SessionMessage: TypeAlias = (
    Append
    | FindTurn
    | Load
    | Clear
    | Flush
    | Inspect
    | Remove
    | Truncate
    | Rewind
    | Replace
    | ReadValue
    | ReadValues
    | SetValue
    | DeleteValue
    | ReadNamed
    | ChangeValues
)
"""What a handle asks of a session's actor."""

UserMessage: TypeAlias = (
    Learn
    | SearchWorking
    | Remember
    | ChangeMemory
    | DeleteMemories
    | ExpireSynopsis
    | Grant
    | ReadGrants
    | InspectUser
    | ReadValue
    | ReadValues
    | SetValue
    | DeleteValue
    | ReadNamed
    | ChangeValues
)
"""What a handle asks of a user's own actor, or of a shared scope's."""


class SentReceipt(Receipt, frozen=True, array_like=True, tag=101, gc=False):
    """A `Receipt` on the wire. Those of the application are no arrays when it encodes them."""


class SentSessionView(SessionView, frozen=True, array_like=True, tag=105):
    """A `SessionView` on the wire."""


class SentUserView(UserView, frozen=True, array_like=True, tag=124):
    """A `UserView` on the wire."""


Reply: TypeAlias = (
    SentReceipt
    | TurnReceipt
    | StoredTurn
    | Snapshot
    | SentSessionView
    | StoredValue
    | StoredValues
    | StaleVersion
    | StaleKey
    | RememberReceipt
    | ChangedMemory
    | ScoredItems
    | SentUserView
    | dict[str, str]
    | int
    | str
    | bool
    | None
)
"""What an actor replies to any of them."""

_SENT: dict[type, Any] = {
    Receipt: SentReceipt,
    SessionView: SentSessionView,
    UserView: SentUserView,
}
_SHOWN: dict[type, Any] = {sent: shown for shown, sent in _SENT.items()}


def to_sent(reply: Any) -> Any:
    """A reply as it crosses."""
    sent = _SENT.get(type(reply))
    return reply if sent is None else sent(*astuple(reply))


def to_shown(reply: Any) -> Any:
    """Return what crossed, as the actor replied it."""
    shown = _SHOWN.get(type(reply))
    return reply if shown is None else shown(*astuple(reply))
