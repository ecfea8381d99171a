"""Messages of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict

from remora.errors import InvalidMessage
from remora.formats.plain import (
    OPENING,
    ChatMessages,
    call_id,
    chat_content,
    checked,
    data_field,
    data_url,
    dict_field,
    dicts_in,
    is_same,
    json_text,
    merge,
    no_form,
    opened,
    parse_arguments,
    parts_of,
    plain_list,
    renamed_calls,
    split_data_url,
    text_field,
    text_of,
    with_kept,
)
from remora.messages import ChatDict, tool_calls

_API = "anthropic"
_REASONING = frozenset({"thinking", "redacted_thinking"})
_MEDIA = frozenset({"image", "document"})
_LONGEST_NAME = 128
_EPHEMERAL = {"type": "ephemeral"}


class AnthropicPrompt(TypedDict):
    """Arguments of ``client.messages.create``.

    ``system`` is left out if there is none.
    """

    system: NotRequired[str | list[Any]]
    messages: list[Any]


def from_anthropic(messages: object, *, opaque: bool = False) -> list[ChatDict]:
    """Chat messages of Anthropic's, for `Session.append`.

    A user message with tool results becomes a tool message for each, and a user message of the
    rest.

    Args:
        messages: one or many: dicts, or objects such as the answer of ``client.messages.create``.
        opaque: keep messages with reasoning, and with parts that have no form in a chat, as they
            came. Otherwise reasoning is left out, and other such parts are refused.

    Raises:
        InvalidMessage: one of them is no message of Anthropic's, or has a part without a form in a
            chat.
    """
    chats: list[ChatDict] = []
    for index, message in enumerate(plain_list(messages, "messages of Anthropic")):
        role, blocks = message.get("role"), message.get("content")
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if (
            role not in ("user", "assistant")
            or not isinstance(blocks, list)
            or not all(isinstance(block, dict) for block in blocks)
        ):
            raise InvalidMessage(
                f"message {index} is no message of Anthropic: it needs the role user or assistant, "
                "and text or blocks as its content",
                index=index,
            )
        read = _read_assistant if role == "assistant" else _read_user
        chats.extend(read(blocks, index, opaque=opaque))
    return chats


def _read_assistant(blocks: list[dict[str, Any]], index: int, *, opaque: bool) -> list[ChatDict]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = text_field(block, "type", index)
        if kind == "text":
            parts.append({"type": "text", "text": block.get("text")})
        elif kind == "tool_use":
            function = {
                "name": block.get("name"),
                "arguments": json_text(block.get("input") or {}, "input", index),
            }
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in _REASONING:
            if not opaque:
                raise no_form("Anthropic", index, kind)
            parts.append({"type": "text", "text": f"[{kind}]"})
    if blocks and opaque and not parts and not calls:
        parts.append({"type": "text", "text": "[thinking]"})
    chat: ChatDict = {"role": "assistant", "content": chat_content(parts)}
    if calls:
        chat["tool_calls"] = calls
    [chat] = checked([chat], index)
    keep = opaque and not is_same(_assistant_blocks(chat), blocks)
    return [with_kept(chat, _API, blocks) if keep else chat]


def _read_user(blocks: list[dict[str, Any]], index: int, *, opaque: bool) -> list[ChatDict]:
    results: list[ChatDict] = []
    said: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") == "tool_result":
            results.append(_read_result(block, index, opaque=opaque))
            continue
        said.append(block)
    parts = []
    for block in said:
        if (part := _read_part(block, index)) is None:
            if not opaque:
                raise no_form("Anthropic", index, block.get("type"))
            part = {"type": "text", "text": f"[{block.get('type')}]"}
        parts.append(part)
    if not parts:
        return results
    [chat] = checked([{"role": "user", "content": chat_content(parts)}], index)
    keep = opaque and not is_same(map(_block, parts_of(chat)), said)
    return [*results, with_kept(chat, _API, said) if keep else chat]


def _read_result(block: dict[str, Any], index: int, *, opaque: bool) -> ChatDict:
    content = block.get("content") or ""
    if isinstance(content, str):
        given = [{"type": "text", "text": content}]
    else:
        given = dicts_in(block, "content", index)
    parts = []
    for one in given:
        if (part := _read_part(one, index)) is None:
            if not opaque:
                raise no_form("Anthropic", index, one.get("type"))
            part = {"type": "text", "text": f"[{one.get('type')}]"}
        parts.append(part)
    chat: ChatDict = {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": chat_content(parts) or "",
    }
    [chat] = checked([chat], index)
    keep = block.get("is_error") or (opaque and not is_same([_result_block(chat)], [block]))
    return with_kept(chat, _API, [block]) if keep else chat


def _read_part(block: dict[str, Any], index: int) -> dict[str, Any] | None:
    """The content part of a block; None if there is none."""
    has_source = block.get("type") in _MEDIA  # a search result's is a text
    source = dict_field(block, "source", index) if has_source else {}
    media_type = text_field(source, "media_type", index)
    match block.get("type"), source.get("type"):
        case "text", _:
            return {"type": "text", "text": block.get("text")}
        case "image", "base64" if media_type:
            url = data_url(media_type, data_field(source, index))
            return {"type": "image_url", "image_url": {"url": url}}
        case "image", "url":
            return {"type": "image_url", "image_url": {"url": source.get("url")}}
        case "document", "base64" if media_type:
            file = {"file_data": data_url(media_type, data_field(source, index))}
            if title := text_field(block, "title", index):
                file["filename"] = title
            return {"type": "file", "file": file}
        case (("image" | "document"), "file"):
            return {"type": "file", "file": {"file_id": text_field(source, "file_id", index)}}
    return None


def to_anthropic(messages: ChatMessages, *, cache: bool = False) -> AnthropicPrompt:
    """The system prompt and the messages for ``client.messages.create(…, **prompt)``.

    System messages are joined, wherever they stand. Roles alternate: neighbours of one role are one
    message, and tool results are the user's. A conversation that begins with the assistant gets a
    user message in front. Names of speakers have no place there; sounds are shown as a word. Ids
    and names of calls get the characters that Anthropic takes.

    Args:
        messages: a context, or messages of a context or of a history.
        cache: mark with ``cache_control`` what the next call begins with as well: the system prompt
            and everything before the newest message of the user.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    system: list[str] = []
    turns: list[tuple[str, list[Any]]] = []
    chats = [*opened(messages, _API)]
    rename = renamed_calls(kept for _, kept in chats)
    for chat, kept in chats:
        match chat["role"]:
            case "system" | "developer":
                system.extend(map(text_of, parts_of(chat)))
            case "assistant":
                turns.append(("assistant", kept or _assistant_blocks(chat, rename)))
            case "tool":
                turns.append(("user", kept or [_result_block(chat, rename)]))
            case _:
                turns.append(("user", kept or [*map(_block, parts_of(chat))]))
    merged = merge(turns)
    if merged and merged[0][0] == "assistant":
        merged.insert(0, ("user", [{"type": "text", "text": OPENING}]))
    prompt: AnthropicPrompt = {
        "messages": [{"role": role, "content": blocks} for role, blocks in merged]
    }
    if system:
        prompt["system"] = "\n\n".join(system)
    if cache:
        for message in prompt["messages"]:
            message["content"] = [
                {key: value for key, value in block.items() if key != "cache_control"}
                for block in message["content"]
            ]
        _mark(prompt)
    return prompt


def _mark(prompt: AnthropicPrompt) -> None:
    """Set the breakpoints of Anthropic's prompt cache, of which four are allowed.

    Tools come before the system prompt, and the system prompt before the messages.
    """
    system, messages = prompt.get("system"), prompt["messages"]
    if isinstance(system, str):
        prompt["system"] = [{"type": "text", "text": system, "cache_control": {**_EPHEMERAL}}]
    end = len(messages) - 1
    asked = next((n for n in range(end, -1, -1) if _asks(messages[n])), 0)
    for place in {asked - 1, end}:
        blocks = messages[place]["content"] if place >= 0 else []
        last = next((n for n in range(len(blocks) - 1, -1, -1) if _may_be_marked(blocks[n])), None)
        if last is not None:
            blocks[last] = {**blocks[last], "cache_control": {**_EPHEMERAL}}


def _may_be_marked(block: dict[str, Any]) -> bool:
    return block.get("type") not in _REASONING and block.get("text") != ""


def _asks(message: dict[str, Any]) -> bool:
    """Return whether it is what a user says, and not only results of tools."""
    return message["role"] == "user" and any(
        block.get("type") != "tool_result" for block in message["content"]
    )


def _assistant_blocks(
    chat: Mapping[str, Any], rename: Callable[[str], str] = call_id
) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": text_of(part)} for part in parts_of(chat)
    ]
    for id_, name, arguments in tool_calls(chat):
        call = {
            "id": rename(id_),
            "name": call_id(name, most=_LONGEST_NAME),
            "input": parse_arguments(arguments),
        }
        blocks.append({"type": "tool_use", **call})
    return blocks


def _result_block(
    chat: Mapping[str, Any], rename: Callable[[str], str] = call_id
) -> dict[str, Any]:
    content = chat.get("content")
    shown = content if isinstance(content, str) else [*map(_block, parts_of(chat))]
    return {"type": "tool_result", "tool_use_id": rename(chat["tool_call_id"]), "content": shown}


def _block(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "image_url":
            url = part["image_url"]["url"]
            return {"type": "image", "source": _source(url)}
        case "file" if data := part["file"].get("file_data"):
            block: dict[str, Any] = {"type": "document", "source": _source(data)}
            if name := part["file"].get("filename"):
                block["title"] = name
            return block
        case "file" if file_id := part["file"].get("file_id"):
            return {"type": "document", "source": {"type": "file", "file_id": file_id}}
    return {"type": "text", "text": text_of(part)}


def _source(url: str) -> dict[str, Any]:
    if (found := split_data_url(url)) is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": found[0], "data": found[1]}
