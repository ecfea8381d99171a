"""LangChain's chat message history over a remora session.

Needs the extra: ``pip install "remora[langchain]"``.

Each LangChain message becomes an equivalent chat message, so that `Session.load`, summaries and
recall work on it. If the chat message cannot be converted back exactly, the original is stored in
its metadata.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, cast

from remora.adapters.sessions import Conversation, take_session
from remora.adapters.versions import warn_if_untested
from remora.blocking import Session as BlockingSession
from remora.errors import InvalidMessage, NotFound
from remora.messages import ChatDict, Message

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import (
        BaseMessage,
        convert_to_messages,
        convert_to_openai_messages,
        message_to_dict,
        messages_from_dict,
    )
except ImportError as e:
    raise ImportError(
        'a chat message history of LangChain needs it: pip install "remora[langchain]"'
    ) from e

__all__ = [
    "RemoraChatMessageHistory",
    "chat_of_message",
    "delete_branch",
    "message_of_stored",
    "store_messages",
]

warn_if_untested("langchain-core")

_KEY = "langchain"
_THREAD = "langgraph_thread"
_SUMMARY = "summarization"
_PARTS = frozenset({"text", "refusal", "image_url", "video_url", "input_audio", "file"})


class RemoraChatMessageHistory(BaseChatMessageHistory):
    """A session as LangChain's `BaseChatMessageHistory`.

    On an event loop, use the async methods. The others (`messages`, `add_messages`, `clear`) work
    in every other thread, and raise on the event loop of the runtime: a call that blocks it would
    wait for itself. With a session of `remora.blocking`, all of them work in a program without an
    event loop, and on every event loop. With one of `remora.Client`, only the async ones do.

    Args:
        session: the conversation, of `remora.Runtime`, `remora.Client` or
            `remora.blocking.Runtime`.

    Raises:
        InvalidInput: it is no session.
    """

    def __init__(self, session: Conversation | BlockingSession) -> None:
        super().__init__()
        self.session, self._await, self._call = take_session(session)

    def __repr__(self) -> str:
        return f"RemoraChatMessageHistory({self.session!r})"

    __str__ = __repr__  # LangChain's own reads all messages

    async def aget_messages(self) -> list[BaseMessage]:
        """The summary, as a message, and the buffer."""
        return cast("list[BaseMessage]", await self._await(self._read))

    async def _read(self) -> list[BaseMessage]:
        summaries, messages = await self.session.contents()
        return [
            *convert_to_messages(summaries),
            *(message_of_stored(message) for message in messages),
        ]

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages: all of them, or none.

        Raises:
            InvalidMessage: one of them is not a message, or has a role that chat APIs do not know;
                nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if messages:
            given = [chat_of_message(message, index) for index, message in enumerate(messages)]
            await self._await(self.session.append, given)

    async def aclear(self) -> None:
        """Empty the buffer and the summary; see `remora.Session.clear`."""
        await self._await(self.session.clear)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """`aget_messages`, for threads.

        Raises:
            WrongLoop: called on the event loop.
        """
        return cast("list[BaseMessage]", self._call(self._read))

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """`aadd_messages`, for threads.

        Raises:
            WrongLoop: called on the event loop; nothing was written.
        """
        if messages:
            given = [chat_of_message(message, index) for index, message in enumerate(messages)]
            self._call(self.session.append, given)

    def clear(self) -> None:
        """`aclear`, for threads.

        Raises:
            WrongLoop: called on the event loop; nothing was changed.
        """
        self._call(self.session.clear)


async def store_messages(
    session: Conversation, messages: Sequence[BaseMessage], thread: str | None = None
) -> None:
    """Append messages, all or none; those whose ids the session has are changed where they stand.

    Summaries that LangChain made are left out: nobody said them.

    Args:
        session: the conversation.
        messages: of LangChain.
        thread: of LangGraph, for `delete_branch`.

    Raises:
        InvalidMessage: one of them is no message; nothing was written.
        MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
    """
    given: list[Any] = []
    for index, message in enumerate(messages):
        if message.additional_kwargs.get("lc_source") != _SUMMARY:
            chat = chat_of_message(message.model_copy(update={"id": None}), index)
            if thread is not None:
                chat["metadata"] = {**cast("Any", chat.get("metadata") or {}), _THREAD: thread}
            given.append({**chat, "id": message.id} if message.id else chat)
    if given:
        await session.append(given, replace=True)


async def delete_branch(session: Conversation, thread: str, kept: Collection[str]) -> None:
    """Delete the messages that were stored for a thread, except those with the ids `kept`."""
    left = [
        one
        for one in await session.history()
        if (one.metadata or {}).get(_THREAD) == thread and one.id not in kept
    ]
    if left:
        with suppress(NotFound):
            await session.delete(left)


def chat_of_message(message: BaseMessage, index: int) -> ChatDict:
    """An equivalent chat message, as `Session.append` takes it.

    Raises:
        InvalidMessage: it is no message of LangChain; `index` says which one of a batch.
    """
    found: object = message
    if not isinstance(found, BaseMessage):
        raise InvalidMessage(
            f"message {index} is a {type(found).__name__}, not a message of LangChain", index=index
        )
    chat = _chat(message)
    return (
        chat
        if _round_trips(chat, message)
        else {**chat, "metadata": {_KEY: message_to_dict(message)}}
    )


def _chat(message: BaseMessage) -> ChatDict:
    chat: ChatDict = convert_to_openai_messages(message)
    content = chat.get("content")
    if isinstance(content, list):
        chat["content"] = [
            part if part.get("type") in _PARTS else _placeholder(part) for part in content
        ]
    if not content and chat.get("tool_calls"):
        chat["content"] = None
    return chat


def _placeholder(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "text", "text": f"[{part.get('type')}]"}


def _round_trips(chat: ChatDict, message: BaseMessage) -> bool:
    try:
        return bool(convert_to_messages([chat])[0] == message)
    except ValueError:
        return False  # LangChain has no message of this role


def message_of_stored(message: Message) -> BaseMessage:
    """The message that a stored one was made from; an equivalent one for others."""
    kept = (message.metadata or {}).get(_KEY)
    if kept is not None:
        return messages_from_dict([kept])[0]
    return convert_to_messages([message.to_chat()])[0]
