"""Memory for agents of LlamaIndex: a memory, and a chat store for LlamaIndex's own.

Needs the extra: ``pip install "remora[llama-index]"``.

`RemoraMemory` is what ``agent.run(question, memory=…)`` takes; `RemoraSerializer` writes a context
that has one; `RemoraChatStore` is where LlamaIndex's ``Memory`` keeps its messages. The facade with
LlamaIndex's names that needs no extra is `remora.adapters.llama_index`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn, Self, cast

import msgspec

from remora.adapters.sessions import stored_messages
from remora.adapters.versions import warn_if_untested
from remora.api.session import Session
from remora.api.threads import awaiter_of, original_of, waiter_of
from remora.api.user import User
from remora.blocking import Session as BlockingSession
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, InvalidMessage, NotFound
from remora.messages import ChatDict, Message, plain_text, tool_calls
from remora.services.arguments import MAX_TEXT_CHARACTERS, check_int

try:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.memory import BaseMemory
    from llama_index.core.storage.chat_store.base_db import AsyncDBChatStore, MessageStatus
    from llama_index.core.workflow import JsonSerializer
except ImportError as e:
    raise ImportError(
        'memory for agents of LlamaIndex needs it: pip install "remora[llama-index]"'
    ) from e

__all__ = ["RemoraChatStore", "RemoraMemory", "RemoraSerializer", "chat_messages", "llama_messages"]

warn_if_untested("llama-index-core")


class RemoraMemory(BaseMemory):
    """A session as LlamaIndex's `BaseMemory`.

    An agent stores the question, reads the memory for each call of its model, and stores its calls,
    their results and its answer at the end. Several sessions may run at once; of several runs in
    one session at once nothing is lost, and `Session.exclusive` has them take turns.

    On an event loop, use the async methods, as agents do. The others work in every other thread;
    with a session of `remora.blocking`, all work in a program without an event loop.

    LlamaIndex writes a context and reads it again to go on with a run, and for each run after the
    first in one context: the memory is written as the ids of its session, which `RemoraSerializer`
    finds again.

    Args:
        session: the conversation, of `remora.Runtime` or of `remora.blocking.Runtime`.
        token_limit: the budget of `aget`; None for `buffer.token_limit`.
        recall: also give what other sessions and older messages have on the user's new message.
    """

    _session: Any = PrivateAttr()
    _await: Any = PrivateAttr()
    _call: Any = PrivateAttr()
    _limit: int | None = PrivateAttr()
    _recall: bool = PrivateAttr()

    def __init__(
        self,
        session: Session | BlockingSession,
        *,
        token_limit: int | None = None,
        recall: bool = True,
    ) -> None:
        if not isinstance(session, (Session, BlockingSession)):
            raise InvalidInput(f"session must be a session, not a {type(session).__name__}")
        super().__init__()
        self._session = original_of(session)
        self._await, self._call = awaiter_of(session), waiter_of(session)
        self._limit = None if token_limit is None else check_int(token_limit, "token_limit")
        self._recall = recall

    @classmethod
    def class_name(cls) -> str:
        """LlamaIndex's name for the class."""
        return "RemoraMemory"

    def to_dict(self, **_options: Any) -> dict[str, Any]:
        """Names the memory, for `RemoraSerializer`."""
        user, session = self._session.key
        return {
            "user": user,
            "session": session,
            "token_limit": self._limit,
            "recall": self._recall,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], **_options: Any) -> NoReturn:
        """Not possible: LlamaIndex's own serializers do not know the runtime.

        Raises:
            InvalidInput: always.
        """
        del data
        raise InvalidInput(
            "a RemoraMemory is read by RemoraSerializer: give one to Context(agent, serializer=…) "
            "or Context.from_dict(…, serializer=…)"
        )

    @classmethod
    def from_defaults(
        cls, session: Session | BlockingSession | None = None, **options: Any
    ) -> Self:
        """The constructor, under LlamaIndex's name.

        Raises:
            InvalidInput: no session is given.
        """
        return cls(cast("Session", session), **options)

    async def aget(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002
        """The conversation within the budget, and what is recalled for the user's newest message.

        Args:
            input: what to recall for, in place of the newest message.
        """
        return cast("list[ChatMessage]", await self._await(self._load, input))

    async def _load(self, query: str | None) -> list[ChatMessage]:
        session: Session = self._session
        if query is None and self._recall:
            asked = await session.get_messages("user", limit=1)
            query = plain_text(asked[0].to_chat()) if asked else None
        query = query[:MAX_TEXT_CHARACTERS] if query and query.strip() and self._recall else None
        context = await session.load(query, max_tokens=self._limit)
        return llama_messages(await stored_messages(session, context))

    async def aget_all(self) -> list[ChatMessage]:
        """The summary, as a message, and the buffer, without a budget."""
        return cast("list[ChatMessage]", await self._await(self._read))

    async def _read(self) -> list[ChatMessage]:
        summaries, messages = await self._session.contents()
        return llama_messages([*summaries, *messages])

    async def aput(self, message: ChatMessage) -> None:
        """Store a message; see `aput_messages`."""
        await self.aput_messages([message])

    async def aput_messages(self, messages: Sequence[ChatMessage]) -> None:
        """Store messages: all of them, or none.

        Raises:
            InvalidMessage: one of them is not a message; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if messages:
            await self._await(self._session.append, chat_messages(messages))

    async def aset(self, messages: Sequence[ChatMessage]) -> None:
        """Replace the conversation by these messages; see `remora.Session.load_state_dict`."""
        await self._await(self._session.load_state_dict, {"messages": chat_messages(messages)})

    async def areset(self) -> None:
        """Empty the buffer and the summary; see `remora.Session.clear`."""
        await self._await(self._session.clear)

    def get(self, input: str | None = None, **_options: Any) -> list[ChatMessage]:  # noqa: A002
        """`aget`, for threads. Raises `WrongLoop` on the event loop."""
        return cast("list[ChatMessage]", self._call(self._load, input))

    def get_all(self) -> list[ChatMessage]:
        """`aget_all`, for threads. Raises `WrongLoop` on the event loop."""
        return cast("list[ChatMessage]", self._call(self._read))

    def put(self, message: ChatMessage) -> None:
        """`aput`, for threads. Raises `WrongLoop` on the event loop; nothing was written."""
        self.put_messages([message])

    def put_messages(self, messages: Sequence[ChatMessage]) -> None:
        """`aput_messages`, for threads. Raises `WrongLoop` on the event loop."""
        if messages:
            self._call(self._session.append, chat_messages(messages))

    def set(self, messages: Sequence[ChatMessage]) -> None:
        """`aset`, for threads. Raises `WrongLoop` on the event loop; nothing was changed."""
        self._call(self._session.load_state_dict, {"messages": chat_messages(messages)})

    def reset(self) -> None:
        """`areset`, for threads. Raises `WrongLoop` on the event loop; nothing was changed."""
        self._call(self._session.clear)


class RemoraSerializer(JsonSerializer):
    """LlamaIndex's `JsonSerializer`, which finds the session of a `RemoraMemory` again.

    ``ctx = Context.from_dict(agent, data, serializer=RemoraSerializer(alice))`` goes on with a run,
    in any process. For several runs in one context: ``Context(agent,
    serializer=RemoraSerializer(alice))``.

    Args:
        user: whose sessions the memories are.
        allowed_types: LlamaIndex's own.
    """

    def __init__(
        self,
        user: User | BlockingUser,
        *,
        allowed_types: Iterable[type[Any] | str] | None = None,
    ) -> None:
        self._user = _check_user(user)
        self._types = None if allowed_types is None else tuple(allowed_types)
        super().__init__(allowed_types=self._types)

    def with_types(self, *classes: type[Any]) -> JsonSerializer:
        """See LlamaIndex."""
        if self._types is None:
            return self
        return RemoraSerializer(self._user, allowed_types=(*self._types, *classes))

    def deserialize_value(self, data: Any) -> Any:
        """See LlamaIndex.

        Raises:
            InvalidInput, InvalidId: a memory is another user's, or what is written of it is not
                valid.
        """
        if not (isinstance(data, dict) and data.get("qualified_name") == _NAME):
            return super().deserialize_value(data)
        named = data.get("value")
        if not isinstance(named, dict) or named.get("user") != self._user.id:
            raise InvalidInput("the memory of this context is not one of the serializer's user")
        return RemoraMemory(
            self._user.session(named.get("session")),  # type: ignore[arg-type]
            token_limit=named.get("token_limit"),
            recall=bool(named.get("recall", True)),
        )


_NAME = f"{RemoraMemory.__module__}.{RemoraMemory.__name__}"


class RemoraChatStore(AsyncDBChatStore):
    """A user's sessions as LlamaIndex's chat store: ``Memory.from_defaults(chat_store=…)``.

    A key is the session of the same id. Active messages are its buffer, archived ones those that
    have left it. With the policy `BufferPolicy.keep_all`, LlamaIndex's ``Memory`` alone decides
    what leaves.

    Args:
        user: of `remora.Runtime` or of `remora.blocking.Runtime`.
    """

    _user: Any = PrivateAttr()
    _await: Any = PrivateAttr()

    def __init__(self, user: User | BlockingUser) -> None:
        super().__init__()
        self._user = original_of(_check_user(user))
        self._await = awaiter_of(user)

    @classmethod
    def class_name(cls) -> str:
        """LlamaIndex's name for the class."""
        return "RemoraChatStore"

    async def get_messages(
        self,
        key: str,
        status: MessageStatus | None = MessageStatus.ACTIVE,
        limit: int | None = None,
        offset: int | None = None,
    ) -> list[ChatMessage]:
        """Messages of this status, or all, oldest first."""
        found = (await self._await(self._find, key, status))[offset or 0 :]
        return llama_messages(found if limit is None else found[:limit])

    async def _find(self, key: str, status: MessageStatus | None) -> list[Message]:
        session: Session = self._user.session(key)
        if status == MessageStatus.ACTIVE:
            return await session.get_messages()
        history = await session.history()
        if status is None:
            return history
        active = {message.seq for message in await session.get_messages()}
        return [message for message in history if message.seq not in active]

    async def count_messages(
        self, key: str, status: MessageStatus | None = MessageStatus.ACTIVE
    ) -> int:
        """How many messages have this status."""
        return len(await self._await(self._find, key, status))

    async def add_message(
        self, key: str, message: ChatMessage, status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Store a message; see `add_messages`."""
        await self.add_messages(key, [message], status)

    async def add_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Store active messages: all of them, or none.

        Raises:
            InvalidInput: another status; messages become archived by `archive_oldest_messages`.
            InvalidMessage: one of them is not a message; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        _check_active(status)
        if messages:
            session: Session = self._user.session(key)
            await self._await(session.append, chat_messages(messages))

    async def set_messages(
        self, key: str, messages: list[ChatMessage], status: MessageStatus = MessageStatus.ACTIVE
    ) -> None:
        """Replace the active messages by these, at once.

        Those that were active become archived.

        Raises:
            InvalidInput: another status.
            InvalidMessage: one of them is not a message; nothing was changed.
        """
        _check_active(status)
        session: Session = self._user.session(key)
        await self._await(session.load_state_dict, {"messages": chat_messages(messages)})

    async def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete the active message with this number (`Message.seq`), and return it."""
        for message in await self._await(self._find, key, MessageStatus.ACTIVE):
            if message.seq == idx and await self._await(self._delete, key, [message]):
                return llama_messages([message])[0]
        return None

    async def _delete(self, key: str, messages: list[Message]) -> int:
        ids = [message.id for message in messages if message.id is not None]
        with suppress(NotFound):
            return (await self._user.session(key).delete(ids)).deleted if ids else 0
        return 0

    async def delete_messages(self, key: str, status: MessageStatus | None = None) -> None:
        """Delete the active messages, or all.

        Raises:
            InvalidInput: only the archived ones, which cannot be deleted alone.
        """
        session: Session = self._user.session(key)
        if status is None:
            await self._await(self._delete_all, session)
        else:
            _check_active(status)
            await self._await(self._delete, key, await self._await(session.get_messages))

    async def _delete_all(self, session: Session) -> None:
        if await session.history():
            await session.clear()
            await session.rewind(0)

    async def delete_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Delete the `n` oldest active messages, and return them."""
        oldest = (await self._await(self._find, key, MessageStatus.ACTIVE))[: check_int(n, "n")]
        await self._await(self._delete, key, oldest)
        return llama_messages(oldest)

    async def archive_oldest_messages(self, key: str, n: int) -> list[ChatMessage]:
        """Archive the `n` oldest active messages, and return them.

        Also the rest of a group of tool calls and results that would be split.
        """
        return llama_messages(await self._await(self._archive, key, check_int(n, "n")))

    async def _archive(self, key: str, n: int) -> list[Message]:
        session: Session = self._user.session(key)
        before = await session.get_messages()
        left = await session.truncate_to_size(max(len(before) - n, 0))
        return before[:left]

    async def get_keys(self) -> list[str]:
        """The ids of the user's sessions that have messages."""
        return [one.session for one in await self._await(self._user.sessions)]


def _check_user(user: User | BlockingUser) -> User | BlockingUser:
    if not isinstance(user, (User, BlockingUser)):
        raise InvalidInput(f"user must be a user, not a {type(user).__name__}")
    return user


def _check_active(status: MessageStatus) -> None:
    if status != MessageStatus.ACTIVE:
        raise InvalidInput(
            "archived messages are what archive_oldest_messages makes of active ones: they are "
            "neither added, replaced nor deleted alone"
        )


# -- messages of LlamaIndex as chat messages, and back ---------------------------------------------
#
# A chat message that cannot be converted back exactly has the original in its metadata.

try:
    from llama_index.core.base.llms.types import (
        ChatMessage,
        ImageBlock,
        MessageRole,
        TextBlock,
        ToolCallBlock,
    )
except ImportError as e:
    raise ImportError(
        'memory for agents of LlamaIndex needs it: pip install "remora[llama-index]"'
    ) from e

__all__ = ["chat_messages", "llama_messages"]

_KEY = "llama_index"
_ROLES = {
    MessageRole.SYSTEM: "system",
    MessageRole.DEVELOPER: "system",
    MessageRole.USER: "user",
    MessageRole.ASSISTANT: "assistant",
    MessageRole.CHATBOT: "assistant",
    MessageRole.MODEL: "assistant",
}


def chat_messages(messages: Iterable[ChatMessage]) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not a message of LlamaIndex, or has what LlamaIndex cannot
            write as JSON.
    """
    chats: list[ChatDict] = []
    for index, message in enumerate(messages):
        if not isinstance(message, ChatMessage):
            raise InvalidMessage(
                f"message {index} is a {type(message).__name__}, not a ChatMessage of LlamaIndex",
                index=index,
            )
        try:
            original = message.model_dump(mode="json", exclude_none=True)
        except ValueError as e:
            raise InvalidMessage(
                f"message {index} cannot be written as JSON: {e}", index=index
            ) from e
        chat = _chat(message, original)
        again = _message(chat).model_dump(mode="json", exclude_none=True)
        chats.append(chat if again == original else {**chat, "metadata": {_KEY: original}})
    return chats


def llama_messages(messages: Iterable[Message | ChatDict]) -> list[ChatMessage]:
    """The messages that stored ones were made from; equivalent ones for other messages."""
    found = []
    for message in messages:
        kept = (message.metadata or {}).get(_KEY) if isinstance(message, Message) else None
        chat = message.to_chat() if isinstance(message, Message) else message
        found.append(_message(chat) if kept is None else ChatMessage.model_validate(kept))
    return found


def _chat(message: ChatMessage, original: Mapping[str, Any]) -> ChatDict:
    known = original["additional_kwargs"]
    called = [block for block in message.blocks if isinstance(block, ToolCallBlock)]
    parts = [_part(block) for block in message.blocks if not isinstance(block, ToolCallBlock)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    text = "\n".join(texts)
    role = _ROLES.get(message.role)
    if role is None:  # the result of a tool, or of a function
        id_ = known.get("tool_call_id")
        if isinstance(id_, str):
            return {"role": "tool", "tool_call_id": id_, "content": text}
        return {"role": "user", "content": f"[{message.role.value}]\n{text}".rstrip()}
    calls = [
        {
            "id": block.tool_call_id or f"call_{place}",
            "type": "function",
            "function": {"name": block.tool_name, "arguments": _arguments(block.tool_kwargs)},
        }
        for place, block in enumerate(called)
    ] or _older_calls(known.get("tool_calls"))
    if role == "assistant" and calls:
        return {"role": role, "content": text or None, "tool_calls": calls}
    if role == "user" and len(texts) < len(parts):
        return {"role": role, "content": parts}
    return {"role": role, "content": text}


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else msgspec.json.encode(given).decode()


def _older_calls(calls: Any) -> list[Any]:
    """Calls in the form of a chat API, which some of its models keep apart from blocks."""
    if not isinstance(calls, list):
        return []
    return [
        {"id": one["id"], "type": "function", "function": one["function"]}
        for one in calls
        if isinstance(one, dict) and isinstance(one.get("function"), dict) and one.get("id")
    ]


def _part(block: Any) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageBlock) and block.url is not None:
        return {"type": "image_url", "image_url": {"url": str(block.url)}}
    if isinstance(block, ImageBlock) and block.image is not None:
        kind = block.image_mimetype or "image/png"
        url = f"data:{kind};base64,{block.image.decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": f"[{block.block_type}]"}


def _message(chat: ChatDict) -> ChatMessage:
    role, content = chat["role"], chat.get("content")
    blocks: list[Any] = []
    if isinstance(content, list):
        blocks = [_block(part) for part in content]
    elif content is not None:
        blocks = [TextBlock(text=content)]
    for id_, name, arguments in tool_calls(chat):
        try:
            given: Any = msgspec.json.decode(arguments, type=dict[str, Any])
        except msgspec.MsgspecError:
            given = arguments
        blocks.append(ToolCallBlock(tool_call_id=id_, tool_name=name, tool_kwargs=given))
    known = {"tool_call_id": chat["tool_call_id"]} if role == "tool" else {}
    return ChatMessage(role=MessageRole(role), blocks=blocks, additional_kwargs=known)


def _block(part: Mapping[str, Any]) -> Any:
    if part.get("type") == "text":
        return TextBlock(text=part["text"])
    if part.get("type") == "image_url":
        url = cast("str", part["image_url"]["url"])
        kind, _, data = url.removeprefix("data:").partition(";base64,")
        if url.startswith("data:") and data:
            return ImageBlock(image=base64.b64decode(data), image_mimetype=kind)
        return ImageBlock(url=url)
    return TextBlock(text=plain_text({"role": "user", "content": [dict(part)]}))
