"""Zep: sessions (or threads) with their messages, and facts, as its API answers them.

A file is an array or JSON lines of sessions, messages and facts, or an object that has them under
``sessions`` (``threads``), ``messages`` and ``facts`` (``edges``). Messages may be in their session
or name it; in the second case the file is read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from remora.errors import InvalidInput
from remora.maintenance.importing.files import Records, decode, open_json
from remora.maintenance.importing.records import (
    Conversation,
    Found,
    Notes,
    Remembered,
    Said,
    read_time,
    shown,
    stable_id,
)
from remora.messages import ChatDict

_ROLES = {
    **dict.fromkeys(("user", "human", "norole"), "user"),
    **dict.fromkeys(("assistant", "ai"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function"), "tool"),
}
_NAME = re.compile(r"[^A-Za-z0-9_-]+")


class _Item(msgspec.Struct):
    """A session, a message or a fact; their fields have different names."""

    session_id: str | None = None
    thread_id: str | None = None
    user_id: str | None = None
    uuid: str | None = None
    created_at: str | None = None
    messages: list[_Item] | None = None
    facts: list[str | _Item] | None = None
    summary: Any = None
    role: str | None = None
    role_type: str | None = None
    name: str | None = None
    content: Any = None
    metadata: dict[str, Any] | None = None
    fact: str | None = None
    valid_at: str | None = None
    invalid_at: str | None = None
    expired_at: str | None = None

    @property
    def session(self) -> str:
        """The session's id."""
        return self.session_id or self.thread_id or ""


class _File(msgspec.Struct):
    sessions: list[msgspec.Raw] | None = None
    threads: list[msgspec.Raw] | None = None
    messages: list[msgspec.Raw] | None = None
    facts: list[msgspec.Raw] | None = None
    edges: list[msgspec.Raw] | None = None


@contextmanager
def open_records(path: Path) -> Iterator[Records]:
    """The sessions and facts of a file."""
    with open_json(path, take_object=_take) as records:
        yield Records(_grouped(records.each))


def _take(raw: bytes) -> Records | None:
    file = decode(raw, _File)
    sessions = [*(file.sessions or ()), *(file.threads or ())]
    if not sessions and file.messages is not None and decode(raw, _Item).session:
        return None  # the object is a session itself
    lists = {
        "session": sessions,
        "message": file.messages or [],
        "fact": [*(file.facts or ()), *(file.edges or ())],
    }
    found = [
        (f"{name} {number}", b'{"fact":%b}' % bytes(one) if bytes(one)[:1] == b'"' else bytes(one))
        for name, each in lists.items()
        for number, one in enumerate(each, start=1)
    ]
    return Records(iter(found), len(found))


def _grouped(each: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes | _Item]]:
    """Whole sessions and facts as they come, then the sessions whose messages stand apart."""
    parts: dict[str, _Item] = {}
    places: dict[str, str] = {}
    for place, raw in each:
        try:
            item = decode(raw, _Item)
        except InvalidInput:
            yield place, raw  # to be named as broken
            continue
        if item.messages or item.fact or not item.session:
            yield place, item
            continue
        held = parts.setdefault(item.session, _Item(session_id=item.session, messages=[]))
        places.setdefault(item.session, place)
        if item.content is not None and held.messages is not None:
            held.messages.append(item)
        held.user_id = held.user_id or item.user_id
        held.facts = [*(held.facts or ()), *(item.facts or ())]
        held.summary = held.summary or item.summary
    for session, item in parts.items():
        yield places[session], item


def translate(raw: bytes | _Item, notes: Notes) -> Iterator[Found]:
    """The session with its facts, or the fact.

    Raises:
        InvalidInput: it has another shape.
    """
    item = decode(raw, _Item) if isinstance(raw, bytes) else raw
    if item.fact:
        yield from _fact(item, item.user_id, item.session, notes)
        return
    if not item.session:
        raise InvalidInput("it has no session_id or thread_id, and is no fact")
    session = stable_id(item.session, "session_id")
    for fact in item.facts or ():
        one = _Item(fact=fact) if isinstance(fact, str) else fact
        yield from _fact(one, one.user_id or item.user_id, session, notes)
    if item.summary:
        notes.leave_out("summary of a session")
    said = [_said(one, number) for number, one in enumerate(item.messages or ()) if one.content]
    yield Conversation(session, said, item.user_id or "")


def _fact(item: _Item, user: str | None, session: str, notes: Notes) -> Iterator[Remembered]:
    text = item.fact or item.content
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput("a fact has no text")
    if item.invalid_at or item.expired_at:
        notes.leave_out("fact that no longer holds")
        return
    at = read_time(item.created_at or item.valid_at, "created_at")
    session = stable_id(session, "session_id") if session else ""
    yield Remembered(text, user or "", at, session=session)


def _said(item: _Item, number: int) -> Said:
    kind = (item.role_type or item.role or "").removesuffix("Role").lower()
    if (role := _ROLES.get(kind)) is None:
        raise InvalidInput(f"message {number} has the role {shown(kind)}, which is not known")
    if not isinstance(item.content, str):
        raise InvalidInput(f"message {number} has no text")
    chat: ChatDict = {"role": role, "content": item.content}
    name = item.name or (item.role if item.role_type else None)
    if role == "tool":
        chat["tool_call_id"] = f"zep-{number}"  # Zep does not keep which call it answers
    elif name and name.lower() not in _ROLES:
        chat["name"] = _NAME.sub("_", name)[:64]
    if item.metadata:
        chat["metadata"] = item.metadata
    return Said(chat, item.uuid or "", read_time(item.created_at, "created_at"))
