"""Contents of Gemini's API (google-genai)."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from remora.errors import InvalidMessage
from remora.formats.plain import (
    OPENING,
    ChatMessages,
    chat_content,
    checked,
    data_field,
    data_url,
    dict_field,
    is_same,
    json_text,
    merge,
    no_form,
    opened,
    parse_arguments,
    parts_of,
    plain_list,
    split_data_url,
    text_field,
    text_of,
    with_kept,
)
from remora.messages import ChatDict, tool_calls

_API = "gemini"
_ROLES = {"user": "user", "model": "assistant", "function": "user", None: "user"}
_AUDIO = {"audio/wav": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}
_ABOUT = frozenset({"thought", "thought_signature", "video_metadata", "media_resolution"})
"""Keys of a part that say something about it; the others are the part itself."""
_CAMEL = re.compile(r"(?<=[a-z])([A-Z])")


class GeminiPrompt(TypedDict):
    """The arguments of ``client.models.generate_content``.

    ``system_instruction`` belongs into its ``config``, and is left out if there is none.
    """

    system_instruction: NotRequired[str]
    contents: list[Any]


def from_gemini(contents: object, *, opaque: bool = False) -> list[ChatDict]:
    """Chat messages of Gemini's contents, for `Session.append`.

    A call without an id gets its function's name as its id (``name#2`` for a second one of the same
    content), and so does its result.

    Args:
        contents: one or many: dicts (with keys in either spelling), objects, or a whole response.
        opaque: keep contents with thoughts or their signatures, and with parts that have no form
            in a chat, as they came. Otherwise thoughts and signatures are left out, and other such
            parts are refused.

    Raises:
        InvalidMessage: one of them is no content, or has a part without a form in a chat.
    """
    chats: list[ChatDict] = []
    for index, one in enumerate(plain_list(contents, "contents of Gemini")):
        content = _first_candidate(one)
        role, parts = text_field(content, "role", index), content.get("parts")
        if role not in _ROLES or not isinstance(parts, list):
            raise InvalidMessage(
                f"content {index} is no content of Gemini: it needs parts, and the role user or "
                "model",
                index=index,
            )
        given = [_named(part, index) for part in parts]
        chats.extend(checked(_read(_ROLES[role], given, index, opaque=opaque), index))
    return chats


def _first_candidate(one: dict[str, Any]) -> dict[str, Any]:
    """The content of a response's first candidate; any other dict unchanged."""
    candidates = one.get("candidates")
    if isinstance(candidates, list) and candidates and isinstance(candidates[0], dict):
        content = candidates[0].get("content")
        return content if isinstance(content, dict) else {}
    return one


def _named(part: object, index: int) -> dict[str, Any]:
    """A part with the spelling of Python's keys, without what is not set."""
    if isinstance(part, str):
        return {"text": part}
    if not isinstance(part, dict):
        raise InvalidMessage(
            f"content {index} has a part that is a {type(part).__name__}", index=index
        )
    return {_snake(key): _with_snakes(value) for key, value in part.items() if value is not None}


def _snake(key: str) -> str:
    return _CAMEL.sub(r"_\1", key).lower()


def _with_snakes(value: object) -> Any:
    """The keys of a part's value; what is inside arguments and responses stays as it is."""
    if isinstance(value, dict):
        return {_snake(key): one for key, one in value.items() if one is not None}
    return value


def _read(role: str, given: list[dict[str, Any]], index: int, *, opaque: bool) -> list[ChatDict]:
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    results: list[ChatDict] = []
    named: Counter[str] = Counter()
    for part in given:
        if part.get("thought"):
            continue
        if call := dict_field(part, "function_call", index):
            function = {
                "name": call.get("name"),
                "arguments": json_text(call.get("args") or {}, "args", index),
            }
            calls.append({"id": _id(call, named, index), "type": "function", "function": function})
        elif result := dict_field(part, "function_response", index):
            answer = _read_result(result, named, index)
            [shown] = checked([answer], index)
            made = _result_part(shown, shown["tool_call_id"].partition("#")[0])
            keep = opaque and not is_same([made], [part])
            results.append(with_kept(answer, _API, [part]) if keep else answer)
        elif (read := _read_part(part, index)) is not None:
            parts.append(read)
        else:
            kind = next(iter(part.keys() - _ABOUT), "part")
            if not opaque:
                raise no_form("Gemini", index, kind)
            parts.append({"type": "text", "text": f"[{kind}]"})
    said = [part for part in given if "function_response" not in part]
    if not parts and not calls:
        if results or role == "user":
            return results
        parts.append({"type": "text", "text": "[thought]" if opaque and said else ""})
    chat: ChatDict = {"role": role, "content": chat_content(parts)}
    if calls:
        chat["tool_calls"] = calls
    keep = opaque and not is_same(_model_parts(*checked([chat], index)), said)
    return [*results, with_kept(chat, _API, said) if keep else chat]


def _id(call: Mapping[str, Any], named: Counter[str], index: int) -> str:
    name = str(text_field(call, "name", index))
    named[name] += 1
    id_ = text_field(call, "id", index)
    return id_ or (name if named[name] == 1 else f"{name}#{named[name]}")


def _read_result(result: Mapping[str, Any], named: Counter[str], index: int) -> ChatDict:
    response = result.get("response")
    output = response.get("output") if isinstance(response, dict) and len(response) == 1 else None
    text = output if isinstance(output, str) else json_text(response or {}, "response", index)
    return {"role": "tool", "tool_call_id": _id(result, named, index), "content": text}


def _read_part(part: Mapping[str, Any], index: int) -> dict[str, Any] | None:
    """The content part of a part; None if there is none."""
    if isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if isinstance(blob := part.get("inline_data"), dict):
        media_type = text_field(blob, "mime_type", index) or ""
        data = data_field(blob, index)
        if isinstance(data, str):  # base64, at times of the kind for URLs
            data = data.replace("-", "+").replace("_", "/")
        url = data_url(media_type, data)
        if media_type.startswith("image/"):
            return {"type": "image_url", "image_url": {"url": url}}
        if media_type in _AUDIO:
            audio = {"data": url.partition(",")[2], "format": _AUDIO[media_type]}
            return {"type": "input_audio", "input_audio": audio}
        file: dict[str, Any] = {"file_data": url}
        if name := text_field(blob, "display_name", index):
            file["filename"] = name
        return {"type": "file", "file": file}
    if isinstance(linked := part.get("file_data"), dict) and (
        uri := text_field(linked, "file_uri", index)
    ):
        if (text_field(linked, "mime_type", index) or "").startswith("image/"):
            return {"type": "image_url", "image_url": {"url": uri}}
        return {"type": "file", "file": {"file_id": uri}}
    return None


def to_gemini(messages: ChatMessages) -> GeminiPrompt:
    """The system instruction and the contents for ``client.models.generate_content``.

    System messages are joined, wherever they stand. Roles alternate: neighbours of one role are one
    content, and tool results are the user's. A conversation that begins with the model gets a user
    message in front. Names of speakers have no place there.

    Args:
        messages: a context, or messages of a context or of a history.

    Raises:
        InvalidMessage: one of them is not a chat message.
    """
    system: list[str] = []
    turns: list[tuple[str, list[Any]]] = []
    functions: dict[str, str] = {}
    for chat, kept in opened(messages, _API):
        functions.update((one.id, one.name) for one in tool_calls(chat))
        match chat["role"]:
            case "system" | "developer":
                system.extend(map(text_of, parts_of(chat)))
            case "assistant":
                turns.append(("model", _restored(kept) if kept else _model_parts(chat)))
            case "tool":
                name = functions.get(chat["tool_call_id"]) or chat.get("name")
                made = _result_part(chat, name or chat["tool_call_id"])
                seen = [_part(one) for one in parts_of(chat) if one["type"] == "image_url"]
                turns.append(("user", _restored(kept) if kept else [made, *seen]))
            case _:
                said = _restored(kept) if kept else [*map(_part, parts_of(chat))]
                turns.append(("user", said))
    merged = merge(turns)
    if merged and merged[0][0] == "model":  # the API refuses a call of a function there
        merged.insert(0, ("user", [{"text": OPENING}]))
    prompt: GeminiPrompt = {"contents": [{"role": role, "parts": parts} for role, parts in merged]}
    if system:
        prompt["system_instruction"] = "\n\n".join(system)
    return prompt


def _model_parts(chat: Mapping[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [*map(_part, parts_of(chat))]
    for id_, name, arguments in tool_calls(chat):
        made: dict[str, Any] = {"name": name, "args": parse_arguments(arguments)}
        parts.append({"function_call": _with_id(made, id_)})
    return parts


def _result_part(chat: Mapping[str, Any], name: str) -> dict[str, Any]:
    content = chat.get("content")
    text = content if isinstance(content, str) else "\n".join(map(text_of, parts_of(chat)))
    made: dict[str, Any] = {"name": name, "response": {"output": text}}
    return {"function_response": _with_id(made, chat["tool_call_id"])}


def _with_id(made: dict[str, Any], id_: str) -> dict[str, Any]:
    """With its id, unless `from_gemini` made the id of the name."""
    return made if id_.partition("#")[0] == made["name"] else {"id": id_, **made}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "image_url":
            return _blob(part["image_url"]["url"], "image/jpeg")
        case "video_url":
            return _blob(part["video_url"]["url"], "video/mp4")
        case "input_audio":
            audio = part["input_audio"]
            return _blob(data_url(f"audio/{audio['format']}", audio["data"]), "")
        case "file" if url := part["file"].get("file_data") or part["file"].get("file_id"):
            return _blob(url, "application/octet-stream", part["file"].get("filename"))
    return {"text": text_of(part)}


def _blob(url: str, media_type: str, name: str | None = None) -> dict[str, Any]:
    if (found := split_data_url(url)) is None:
        guessed = mimetypes.guess_type(url.partition("?")[0])[0]
        return {"file_data": {"file_uri": url, "mime_type": guessed or media_type}}
    blob: dict[str, Any] = {"mime_type": found[0], "data": _bytes(found[1])}
    if name:
        blob["display_name"] = name
    return {"inline_data": blob}


def _restored(kept: list[Any]) -> list[Any]:
    """Parts as they came: what they have in base64 is bytes again."""
    parts: list[Any] = []
    for part in kept:
        restored = dict(part)
        if isinstance(signature := restored.get("thought_signature"), str):
            restored["thought_signature"] = _bytes(signature)
        blob = restored.get("inline_data")
        if isinstance(blob, dict) and isinstance(data := blob.get("data", ""), str):
            restored["inline_data"] = {**blob, "data": _bytes(data)}
        parts.append(restored)
    return parts


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/") + "==")
    except (binascii.Error, ValueError):
        return b""
