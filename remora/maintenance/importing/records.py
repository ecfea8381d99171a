"""The records that a foreign file becomes, and what of it is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from remora.errors import InvalidId, InvalidInput
from remora.ids import validate_id
from remora.messages import ChatDict

_MAX_REASONS = 100
_MAX_EXAMPLES = 3
_MAX_TEXT = 80


class Said(msgspec.Struct):
    """One message.

    Attributes:
        chat: the chat dict; a key ``metadata`` in it becomes the message's metadata.
        id: the foreign id; empty for none.
        at: when it was said; None for when the one before it was.
    """

    chat: ChatDict
    id: str = ""
    at: datetime | None = None


class Conversation(msgspec.Struct):
    """A conversation, which becomes a session.

    Attributes:
        id: the session's.
        messages: oldest first.
        user: whose it is; empty if the file does not say it.
        title: the session's keyed state ``title``; empty for none.
    """

    id: str
    messages: list[Said]
    user: str = ""
    title: str = ""


class Remembered(msgspec.Struct):
    """A memory of a user.

    Attributes:
        text: what is remembered.
        user: whose it is; empty if the file does not say it.
        at: when it was learned.
        agent: the agent that it belongs to; empty for all.
        session: where it was learned; empty for none.
        type: one of `remora.jobs.rows.MEMORY_TYPES`.
        metadata: of the foreign memory.
    """

    text: str
    user: str = ""
    at: datetime | None = None
    agent: str = ""
    session: str = ""
    type: str = "fact"
    metadata: Mapping[str, Any] = {}


Found: TypeAlias = Conversation | Remembered


class LeftOut(msgspec.Struct):
    """The content that cannot be carried over for one reason.

    Attributes:
        count: how many.
        examples: names of the first of them.
    """

    count: int = 0
    examples: list[str] = []


class Notes:
    """The content of a file that is left out, by reason."""

    def __init__(self) -> None:
        self.left_out: dict[str, LeftOut] = {}

    def leave_out(self, reason: str, example: str = "", count: int = 1) -> None:
        """Note that something is left out."""
        reason = shown(reason)
        if reason not in self.left_out and len(self.left_out) >= _MAX_REASONS:
            reason = "other content"
        found = self.left_out.setdefault(reason, LeftOut())
        found.count += count
        example = shown(example)
        if example and len(found.examples) < _MAX_EXAMPLES and example not in found.examples:
            found.examples.append(example)

    def add(self, other: Notes) -> None:
        """Add the notes of one record."""
        for reason, left in other.left_out.items():
            self.leave_out(reason, count=left.count)
            for example in left.examples:
                self.leave_out(reason, example, count=0)


def shown(text: str) -> str:
    """The text as a report shows it: one line, of bounded length."""
    line = "".join(one if one.isprintable() else "?" for one in text[: _MAX_TEXT + 1])
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"


def stable_id(value: object, what: str) -> str:
    """An id made of a foreign one: the same, if it may be one, otherwise a digest of it.

    Raises:
        InvalidInput: there is none.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"it has no {what}")
    try:
        return validate_id(value, what)
    except InvalidId:
        return digest(value.encode(errors="surrogatepass"))


def digest(data: bytes) -> str:
    """An id for what has none: 32 hex characters."""
    return blake2b(data, digest_size=16, person=b"remora.import").hexdigest()


def read_time(value: object, what: str = "time") -> datetime | None:
    """A time: ISO 8601 text, in UTC if it names no zone, or seconds since 1970; None for none.

    Raises:
        InvalidInput: it is something else.
    """
    if value is None or value == "":
        return None
    try:
        if isinstance(value, str):
            at = datetime.fromisoformat(value)
            return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError) as e:
        raise InvalidInput(f"the {what} {shown(str(value))} is not a time: {e}") from e
    raise InvalidInput(f"the {what} is a {type(value).__name__}, not ISO 8601 text or seconds")


def tool_call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as a chat message has it."""
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def json_arguments(value: object) -> str:
    """Arguments of a call as JSON text; a text that is no JSON object is under ``input``."""
    if isinstance(value, str):
        try:
            if isinstance(msgspec.json.decode(value), dict):
                return value
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            pass
        value = {"input": value}
    return msgspec.json.encode(value if isinstance(value, dict) else {"input": value}).decode()


def join_texts(texts: Iterable[str]) -> str:
    """The texts that are not blank, one a paragraph."""
    return "\n\n".join(text for text in texts if text.strip())


class Answers:
    """The calls of a conversation that wait for their results.

    A result that names no call answers the oldest one of its tool; one that names no tool either,
    the oldest of all.
    """

    def __init__(self) -> None:
        self._open: dict[str, str] = {}

    def ask(self, id_: str, name: str) -> None:
        """Note a call."""
        self._open[id_] = name

    def take(self, name: str = "", id_: str = "") -> str:
        """The id of the call that a result answers; empty for none."""
        if id_:
            self._open.pop(id_, None)
            return id_
        family = name.partition(".")[0]  # web answers web.run
        found = next((key for key, tool in self._open.items() if tool == name or not name), "")
        found = found or next(
            (key for key, tool in self._open.items() if tool.partition(".")[0] == family), ""
        )
        self._open.pop(found, None)
        return found
