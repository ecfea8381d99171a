"""Server-sent events: what a session is told, as it is stored."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

import anyio
import msgspec

from remora.api.session import Following, start_following
from remora.errors import InvalidInput
from remora.messages import Message
from remora.rest.operation import SESSION, Asked
from remora.rest.shapes import Count, Request

_BEAT_S = 15.0
_CURSOR = re.compile(r"(\d{1,18})\.(\d{1,18})")


class Followed(Request, frozen=True):
    """Messages after number `after`; without it, those that come from now on.

    `cursor`: the id of the last event that was received, as `Last-Event-ID` has it, instead.
    """

    after: Count | None = None
    cursor: Annotated[str, msgspec.Meta(max_length=40)] | None = None


class EventStream(NamedTuple):
    """A path whose answer goes on.

    Attributes:
        path: with names in braces.
        name: its id in the description.
        summary: what it does, for the description.
        query: the type of the query's parameters.
        events: what there is, and the type of its data.
        method: of HTTP.
    """

    path: str
    name: str
    summary: str
    query: type
    events: dict[str, type]
    method: str = "GET"


class Begun(msgspec.Struct, frozen=True):
    """The stream begins behind this number."""

    after: int | None


class Ended(msgspec.Struct, frozen=True):
    """The session was erased."""


EVENTS = EventStream(
    SESSION + "/events",
    "follow_session",
    "Follow a session: its messages as they become durable",
    Followed,
    {"begun": Begun, "message": Message, "erased": Ended},
)


async def send_events(
    asked: Asked, send: Callable[[bytes], Awaitable[None]], check: Callable[[], Awaitable[None]]
) -> None:
    """Send a session's messages until it is erased.

    Args:
        asked: the request.
        send: takes bytes of the answer.
        check: raises when the client may not read any more; called at least every 15 seconds while
            nothing comes.
    """
    following = _start(asked)
    first = await following.read() if following.after is None else []
    await send(_event("begun", following, Begun(following.after)))
    while first is not None:
        with anyio.move_on_after(_BEAT_S) as waiting:
            found = await following.read()
        await check()
        if waiting.cancelled_caught:
            await send(b": still here\n\n")  # a connection that is gone is noticed by writing to it
            continue
        if found is None:
            break
        for message in found:
            await send(_event("message", following, message, message.seq))
    await send(_event("erased", following, Ended()))


def _start(asked: Asked) -> Following:
    given = asked.given
    if given.cursor is None:
        return start_following(asked.session, given.after, 0)
    match = _CURSOR.fullmatch(given.cursor)
    if match is None:
        raise InvalidInput("`cursor` is the id of an event of this stream")
    return start_following(asked.session, int(match[2]), int(match[1]))


def _event(kind: str, following: Following, data: Any, seq: int | None = None) -> bytes:
    after = following.after if seq is None else seq
    body = msgspec.json.encode(data)
    return b"id: %d.%d\nevent: %s\ndata: %s\n\n" % (
        following.sid,
        after or 0,
        kind.encode(),
        body,
    )
