"""The messages that handles send to actors, and the replies, as unions: one decoder each.

Their structs have a tag, a number, and are arrays on the wire: messages have tags below 100,
replies from 100 on. Golden bytes (tests/golden) show that what was sent once can be read. A new
field comes last and has a default; a tag is never used for another struct. Messages that only the
runtime sends itself, such as the results of jobs, have no tag: no other process can send those.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import astuple

from remora.actors import keyed_state
from remora.actors.session import messages as of_session
from remora.actors.session.messages import SessionView
from remora.actors.user import messages as of_user
from remora.actors.user.messages import UserView
from remora.messages import Receipt
from remora.runtime.actor import Asked


class SentReceipt(Receipt, frozen=True, array_like=True, tag=101, gc=False):
    """A `Receipt` on the wire. Those of the application are no arrays when it encodes them."""


class SentSessionView(SessionView, frozen=True, array_like=True, tag=105):
    """A `SessionView` on the wire."""


class SentUserView(UserView, frozen=True, array_like=True, tag=124):
    """A `UserView` on the wire."""


def _tagged(tags: range) -> Any:
    """Return the union of the structs that have one of these tags."""
    found = [
        one
        for module in (of_session, of_user, keyed_state)
        for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct)
    ]
    return reduce(or_, dict.fromkeys(one for one in found if one.__struct_config__.tag in tags))


if TYPE_CHECKING:
    ActorMessage: TypeAlias = Asked[Any]
    Reply: TypeAlias = Any
else:
    ActorMessage = _tagged(range(1, 100))
    """A message that a handle sends to an actor."""
    Reply = (
        _tagged(range(100, 200))
        | SentReceipt
        | SentSessionView
        | SentUserView
        | dict[str, str]
        | int
        | str
        | bool
        | None
    )
    """A reply of an actor to any of them."""

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
