"""Messages of Strands Agents as chat messages, and back.

A message becomes one chat message, or several if it has results of tools: one for each. The first
one has the record of Strands in its metadata, without its text if the chat message has that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from remora.errors import InvalidMessage
from remora.messages import ChatDict, Message, plain_text

try:
    from strands.types.session import SessionMessage
except ImportError as e:
    raise ImportError('sessions of Strands Agents need it: pip install "remora[strands]"') from e

__all__ = ["Stored", "chat_messages", "digest_of", "newest_versions", "stored_versions"]

_KEY = "strands"
_SILENT = ("reasoningContent", "cachePoint")


class Stored(NamedTuple):
    """A version of a message, as a session has it.

    Attributes:
        number: the message's index in the conversation of its agent.
        version: 0, and one more with each update.
        seq: where it is in the session.
        ids: of its chat messages.
        record: of Strands, as `SessionMessage.from_dict` takes it.
    """

    number: int
    version: int
    seq: int
    ids: list[str]
    record: dict[str, Any]

    def to_session_message(self) -> SessionMessage:
        """The message as Strands has it."""
        return SessionMessage.from_dict({**self.record, "message_id": self.number})


def chat_messages(given: object, number: int, version: int, id_: str) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Args:
        given: a `SessionMessage`. What a redacted one said is in its record alone.
        number: the message's index, whatever the record says.
        version: see `Stored`.
        id_: of the first chat message.

    Raises:
        InvalidMessage: it is no message of Strands, or has what cannot be written as JSON.
    """
    record = _record(given)
    shown = record["redact_message"] or record["message"]
    chats = _chats(shown, id_)
    kept = {"number": number, "version": version, "record": record}
    if shown["content"] == [{"text": chats[0]["content"]}]:
        field = "redact_message" if record["redact_message"] else "message"
        rest = {name: value for name, value in shown.items() if name != "content"}
        kept = {**kept, "record": {**record, field: rest}, "text_of": field}
    first = {**chats[0], "id": id_, "metadata": {_KEY: kept}}
    return [
        first,
        *(
            {**chat, "id": f"{id_}.{place}", "metadata": {_KEY: {"part_of": id_}}}
            for place, chat in enumerate(chats[1:], start=1)
        ),
    ]


def digest_of(given: object) -> str:
    """Return a digest that tells a message from others with the same index."""
    record = _record(given)
    said = [record["message"], record["redact_message"]]
    return blake2b(msgspec.json.encode(said, order="sorted"), digest_size=12).hexdigest()


def stored_versions(messages: Iterable[Message]) -> list[Stored]:
    """The messages that chat messages were made from, each in all its versions, as they came.

    For a text of the user or the assistant that something else has stored, an equivalent one with
    the next index.
    """
    found: dict[str, Stored] = {}
    number = -1
    for message in messages:
        id_, seq = message.id or "", message.seq or 0
        kept = (message.metadata or {}).get(_KEY)
        if kept is None:
            if message.role in ("user", "assistant") and (text := plain_text(message.to_chat())):
                number += 1
                found[id_] = Stored(number, 0, seq, [id_], _equivalent(message, text))
        elif "part_of" in kept:
            if kept["part_of"] in found:
                found[kept["part_of"]].ids.append(id_)
        else:
            record = kept["record"]
            if field := kept.get("text_of"):
                content = [{"text": plain_text(message.to_chat())}]
                record = {**record, field: {**record[field], "content": content}}
            found[id_] = Stored(kept["number"], kept["version"], seq, [id_], record)
            number = max(number, kept["number"])
    return list(found.values())


def newest_versions(stored: Iterable[Stored]) -> list[Stored]:
    """Return those that no later version replaces, by index."""
    every = list(stored)
    newest: dict[int, int] = {}
    for one in every:
        newest[one.number] = max(newest.get(one.number, 0), one.version)
    shown = [one for one in every if one.version == newest[one.number]]
    return sorted(shown, key=lambda one: (one.number, one.seq))


def _record(given: object) -> dict[str, Any]:
    if not isinstance(given, SessionMessage):
        raise InvalidMessage(f"a {type(given).__name__} is no SessionMessage of Strands", index=0)
    try:
        record: dict[str, Any] = given.to_dict()
        msgspec.json.encode(record)
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"the message cannot be written as JSON: {e}", index=0) from e
    for message in (record["message"], record["redact_message"] or record["message"]):
        blocks = message.get("content") if isinstance(message, dict) else None
        if (
            not isinstance(blocks, list)
            or not all(isinstance(block, dict) for block in blocks)
            or message.get("role") not in ("user", "assistant")
        ):
            raise InvalidMessage(
                "a message of Strands has a role, user or assistant, and a list of content blocks",
                index=0,
            )
    return record


def _chats(message: Mapping[str, Any], id_: str) -> list[ChatDict]:
    blocks = message["content"]
    called = [block["toolUse"] for block in blocks if "toolUse" in block]
    results = [block["toolResult"] for block in blocks if "toolResult" in block]
    said = "\n".join(
        filter(None, (_text(one) for one in blocks if not {"toolUse", "toolResult"} & one.keys()))
    )
    if called and message["role"] == "assistant":
        calls = [
            {
                "id": str(one.get("toolUseId") or f"{id_}.{place}"),
                "type": "function",
                "function": {
                    "name": str(one.get("name") or ""),
                    "arguments": msgspec.json.encode(one.get("input") or {}).decode(),
                },
            }
            for place, one in enumerate(called)
        ]
        return [{"role": "assistant", "content": said or None, "tool_calls": calls}]
    chats: list[ChatDict] = [
        {
            "role": "tool",
            "tool_call_id": str(one.get("toolUseId") or f"{id_}.{place}"),
            "content": "\n".join(map(_text, one.get("content") or ())),
        }
        for place, one in enumerate(results)
    ]
    if said or not chats:
        chats.append({"role": message["role"], "content": said or "[message]"})
    return chats


def _text(block: Any) -> str:
    """Return what a block says; for a file, its kind."""
    if not isinstance(block, dict):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if "json" in block:
        return msgspec.json.encode(block["json"]).decode()
    kind = next(iter(block), "message")
    value = block.get(kind)
    if kind in _SILENT:
        return ""
    if isinstance(value, dict):  # text to guard, or text with citations
        inner = [value.get("text"), *(value.get("content") or ())]
        texts = [one["text"] for one in inner if isinstance(one, dict) and "text" in one]
        if texts and all(isinstance(one, str) for one in texts):
            return "\n".join(texts)
    return f"[{kind}]"


def _equivalent(message: Message, text: str) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if message.created_at is not None:
        at = message.created_at.isoformat()
        known = {"created_at": at, "updated_at": at}
    said = {"role": message.role, "content": [{"text": text}], "tracking_id": message.id or ""}
    return {"message": said, "redact_message": None, **known}
