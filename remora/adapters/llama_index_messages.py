"""Messages of LlamaIndex as chat messages, and back.

A chat message that cannot be converted back exactly has the original in its metadata.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from remora.errors import InvalidMessage
from remora.messages import ChatDict, Message, plain_text, tool_calls

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
