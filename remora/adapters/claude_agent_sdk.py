"""A store of the Claude Agent SDK's transcripts.

Needs the extra: ``pip install "remora[claude-agent-sdk]"``.

Each entry of a transcript is a chat message with the entry in its metadata, so that what was said
is recalled in the user's other conversations. A transcript, and each one of a subagent, is a
session of the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from remora.adapters.versions import warn_if_untested
from remora.api.session import Session
from remora.api.threads import awaiter_of, original_of
from remora.api.user import User
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, InvalidMessage
from remora.messages import ChatDict, Message
from remora.storage.keyed_values import escape, unescape

try:
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStore,
        SessionStoreEntry,
        SessionStoreListEntry,
    )
except ImportError as e:
    raise ImportError(
        'a store of the Claude Agent SDK needs it: pip install "remora[claude-agent-sdk]"'
    ) from e

__all__ = ["RemoraSessionStore"]

warn_if_untested("claude-agent-sdk")

_KEY = "claude_agent_sdk"


class RemoraSessionStore(SessionStore):
    """The SDK's `SessionStore`: ``ClaudeAgentOptions(session_store=RemoraSessionStore(alice))``.

    A batch of entries is one durable append, and an entry whose ``uuid`` the transcript has is not
    stored again. A transcript that is deleted is erased, with those of its subagents, as by
    `Session.forget`. Summaries of sessions are made by the SDK.

    Args:
        user: whose transcripts they are; with one of `remora.blocking`, it works on any event loop.
    """

    def __init__(self, user: User | BlockingUser) -> None:
        if not isinstance(user, (User, BlockingUser)):
            raise InvalidInput(f"user must be a user, not a {type(user).__name__}")
        self._user: User = original_of(user)
        self._await = awaiter_of(user)

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Store entries: all of them, or none.

        Raises:
            InvalidMessage: one of them is not an entry; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if entries:
            await self._await(self._session(key).append, _chat_messages(entries), replace=True)

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries of a transcript, as they were given; None if there are none."""
        history: list[Message] = await self._await(self._session(key).history)
        kept = [(message.metadata or {}).get(_KEY) for message in history]
        return [cast("SessionStoreEntry", one) for one in kept if one is not None] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """A project's transcripts, without those of subagents, with the time of the last entry."""
        prefix = f"{escape(project_key)}/"
        return [
            {
                "session_id": unescape(one.session.removeprefix(prefix)),
                "mtime": int(one.last_at.timestamp() * 1_000),
            }
            for one in await self._await(self._user.sessions, prefix=prefix)
            if "/" not in one.session.removeprefix(prefix)
        ]

    async def delete(self, key: SessionKey) -> None:
        """Erase a transcript and those of its subagents; with a ``subpath``, that one alone."""
        sessions = [self._session(key)]
        if "subpath" not in key:
            sessions += [
                self._session({**key, "subpath": one})
                for one in await self.list_subkeys(
                    {"project_key": key["project_key"], "session_id": key["session_id"]}
                )
            ]
        for session in reversed(
            sessions
        ):  # the main one last: after a crash, a retry finds the rest
            await self._await(session.forget)

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a transcript's subagents."""
        prefix = f"{_id(key['project_key'], key['session_id'])}/"
        found = await self._await(self._user.sessions, prefix=prefix)
        return [unescape(one.session.removeprefix(prefix)) for one in found]

    def _session(self, key: SessionKey) -> Session:
        parts = [key["project_key"], key["session_id"]]
        return self._user.session(_id(*parts, *([key["subpath"]] if "subpath" in key else [])))


def _id(*parts: str) -> str:
    """The id of a session; parts have no slashes, so that ids of different keys differ."""
    return "/".join(map(escape, parts))


def _chat_messages(entries: Sequence[Any]) -> list[ChatDict]:
    chats: dict[object, ChatDict] = {}  # of entries with one id, the last
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise InvalidMessage(
                f"entry {index} is no dict with a type, as transcripts have", index=index
            )
        role = "user" if entry["type"] == "user" else "assistant"
        text = _text(entry) or f"[{entry['type']}]"
        chat: ChatDict = {"role": role, "content": text, "metadata": {_KEY: entry}}
        id_ = entry.get("uuid")
        chats[id_ or index] = {**chat, "id": id_} if id_ else chat
    return list(chats.values())


def _text(entry: dict[str, Any]) -> str:
    """Return what the user or the model said in an entry: its texts, and the names of tools."""
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    said = []
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and isinstance(block.get("text"), str):
            said.append(block["text"])
        elif isinstance(block, dict):
            called = f": {block['name']}" if block.get("name") else ""
            said.append(f"[{block.get('type')}{called}]")
    return "\n".join(said)
