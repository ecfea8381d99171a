"""What handles ask of actors, and what they reply, as unions: one decoder each.

Every member is tagged, and is an array on the wire, so a message is its tag and its fields. Golden
bytes (tests/golden) show that what was sent once can be read. A new field comes last and has a
default; a tag is never used for another struct. Messages that only the runtime sends itself, such
as the results of jobs, are not among them: no other process can send those.
"""

from __future__ import annotations

from typing import TypeAlias

from remora.actors.keyed_state import (
    DeleteValue,
    ReadValue,
    ReadValues,
    SetValue,
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

__all__ = ["Reply", "SessionMessage", "UserMessage"]

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
)
"""What a handle asks of a user's own actor, or of a shared scope's."""

Reply: TypeAlias = (
    Receipt
    | TurnReceipt
    | StoredTurn
    | Snapshot
    | SessionView
    | StoredValue
    | StoredValues
    | StaleVersion
    | RememberReceipt
    | ChangedMemory
    | ScoredItems
    | UserView
    | dict[str, str]
    | int
    | str
    | bool
    | None
)
"""What an actor replies to any of them."""
