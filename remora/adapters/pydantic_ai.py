"""Memory for agents of Pydantic AI: a capability.

Needs the extra: ``pip install "remora[pydantic-ai]"``.

`RemoraMemory` gives the model the conversation so far, within a budget, with what is recalled for
the user's new message, and stores the messages of a run when it has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import msgspec

from remora.adapters.sessions import Conversation, find_session, load_stored
from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of
from remora.api.tools import MemoryTools
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
from remora.errors import InvalidMessage
from remora.messages import ChatDict, Message, plain_text, tool_calls
from remora.services.arguments import MAX_TEXT_CHARACTERS, check_int

try:
    from pydantic_ai import RunContext
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.messages import (
        InstructionBaselinePart,
        InstructionDeltaPart,
        ModelMessage,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        SystemPromptPart,
        TextContent,
        ToolReturnPart,
    )
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.run import AgentRunResult
    from pydantic_ai.tools import Tool
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as e:
    raise ImportError(
        'memory for agents of Pydantic AI needs it: pip install "remora[pydantic-ai]"'
    ) from e

__all__ = ["RemoraMemory", "SessionLike", "chat_messages", "memory_tools", "model_messages"]

warn_if_untested("pydantic-ai-slim")

SessionLike: TypeAlias = (
    Conversation | BlockingSession | Callable[[RunContext[Any]], Conversation | BlockingSession]
)
"""A session, or a function that gives the session of a run: ``lambda ctx: …``."""

_INSTRUCTIONS = (SystemPromptPart, InstructionBaselinePart, InstructionDeltaPart)


class RemoraMemory(AbstractCapability[Any]):
    """A conversation as the memory of ``Agent(model, capabilities=[…])``.

    Pass the user's new message alone: ``agent.run(question)``. Each request to the model has the
    agent's system prompt, what `Session.load` gives, what is recalled, and the messages of this
    run. When the run has succeeded, its messages are stored in one append, so that several runs of
    one session at once do not mix. A run that fails stores nothing. The agent's system prompt and
    instructions are not stored, since each run has its own.

    A ``message_history`` is not stored, nor shown, since the session has the conversation. To go on
    with a run that deferred its tools, pass its messages as Pydantic AI wants it: the calls that
    the run's results belong to are shown.

    Args:
        session: the conversation, or a function of the run's context that gives it. With one of
            `remora.blocking`, ``agent.run_sync`` works, and every event loop.
        max_tokens: the budget of what is shown before the messages of the run; None for
            `buffer.token_limit`.
        recall: also show what other sessions and older messages have on the user's new message.
        tools: of `User.tools` or `Agent.tools`, for the agent.
    """

    def __init__(
        self,
        session: SessionLike,
        *,
        max_tokens: int | None = None,
        recall: bool = True,
        tools: MemoryTools | BlockingMemoryTools | None = None,
    ) -> None:
        self._session = session
        self._max_tokens = None if max_tokens is None else check_int(max_tokens, "max_tokens")
        self._recall = recall
        self._tools = [] if tools is None else memory_tools(tools)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """None: a session cannot be written into an agent's specification."""
        return None

    def get_toolset(self) -> FunctionToolset[Any] | None:
        """The memory tools, if there are any."""
        return FunctionToolset(self._tools) if self._tools else None

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Put the conversation and what is recalled before the run's messages, for the model.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.load`.
        """
        given = find_session(self._session, ctx)
        prompts, run = _of_run(request_context.messages, ctx)
        query = _text(ctx.prompt)[:MAX_TEXT_CHARACTERS] if self._recall else ""
        shown, recalled = await given.run(
            load_stored, given.session, query, max_tokens=self._max_tokens
        )
        known = model_messages([*shown, *([] if recalled is None else [recalled])])
        first = [ModelRequest(parts=prompts)] if prompts else []
        return replace(request_context, messages=[*first, *known, *run])

    async def after_run(
        self, ctx: RunContext[Any], *, result: AgentRunResult[Any]
    ) -> AgentRunResult[Any]:
        """Store the messages of the run, all or none.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        given = find_session(self._session, ctx)
        messages = [said for one in result.new_messages() if (said := _without_instructions(one))]
        if messages:
            await given.run(given.session.append, chat_messages(messages))
        return result


def memory_tools(tools: MemoryTools | BlockingMemoryTools) -> list[Tool[Any]]:
    """Tools of Pydantic AI by which an agent uses its own long-term memory.

    ``Agent(…, tools=memory_tools(user.tools()))``. A tool that fails tells the model why, and the
    run goes on.

    Args:
        tools: of `User.tools` or `Agent.tools`; with those of `remora.blocking`, they work on any
            event loop.
    """
    original: MemoryTools = original_of(tools)

    def make(one: dict[str, Any]) -> Tool[Any]:
        async def run(**arguments: Any) -> str:
            return cast("str", await awaiter_of(tools)(original.call, one["name"], arguments))

        return Tool.from_schema(run, one["name"], one["description"], one["parameters"])

    return [make(one) for one in original.responses()]


def _of_run(
    messages: Sequence[ModelMessage], ctx: RunContext[Any]
) -> tuple[list[ModelRequestPart], list[ModelMessage]]:
    """The system prompt, and the messages of this run, with the calls that its results answer.

    Other results of these calls came in an earlier run, which waited for the deferred ones.
    """
    prompts: list[ModelRequestPart] = []
    run: list[ModelMessage] = []
    called: list[ModelMessage] = []
    for message in messages:
        ours = message.run_id == ctx.run_id
        if isinstance(message, ModelResponse):
            called = [] if ours else [message]
            run += [message] if ours else []
            continue
        found = [part for part in message.parts if isinstance(part, SystemPromptPart)]
        prompts += found
        rest = [part for part in message.parts if part not in found]
        if ours:
            if any(isinstance(part, ToolReturnPart) for part in rest):
                run += called
            called = []
            run.append(replace(message, parts=rest))
        elif called and rest:
            called.append(replace(message, parts=rest))
    return prompts, run


def _without_instructions(message: ModelMessage) -> ModelMessage | None:
    """Return what the conversation has of a message; None for nothing."""
    if isinstance(message, ModelResponse):
        return message
    parts = [part for part in message.parts if not isinstance(part, _INSTRUCTIONS)]
    return replace(message, parts=parts, instructions=None) if parts else None


def _text(prompt: Any) -> str:
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    said = (one.content if isinstance(one, TextContent) else one for one in prompt)
    return "\n".join(one for one in said if isinstance(one, str))


# -- messages of Pydantic AI as chat messages, and back --------------------------------------------
#
# A `ModelRequest` has parts of several kinds: prompts of the user, results of tools, feedback. Each
# becomes a chat message, and a `ModelResponse` becomes one, so that `Session.load`, summaries and
# recall work on them. What a chat message cannot say is stored in its metadata: there, a part has
# no ``content`` if that is the text of the chat message, and an image no ``data`` if the chat
# message has it. So the text is stored once, and a redaction hook changes it for both.

try:
    from pydantic import ValidationError
    from pydantic_ai.messages import (
        BinaryContent,
        ImageUrl,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        RetryFeedbackPart,
        RetryPromptPart,
        SpeechPart,
        SystemPromptPart,
        TextContent,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
except ImportError as e:
    raise ImportError(
        'memory for agents of Pydantic AI needs it: pip install "remora[pydantic-ai]"'
    ) from e

__all__ = ["chat_messages", "model_messages"]

_KEY = "pydantic_ai"
_TEXTS = frozenset(
    {"system-prompt", "user-prompt", "tool-return", "retry-prompt", "retry-feedback", "text"}
)  # kinds of parts whose content is the text of a chat message


def chat_messages(messages: Iterable[ModelMessage]) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not a message of Pydantic AI, or has content that Pydantic AI
            cannot write as JSON.
    """
    chats: list[ChatDict] = []
    for index, message in enumerate(messages):
        found: object = message
        if not isinstance(found, (ModelRequest, ModelResponse)):
            raise InvalidMessage(
                f"message {index} is a {type(found).__name__}, not a message of Pydantic AI",
                index=index,
            )
        try:
            dumped = ModelMessagesTypeAdapter.dump_python([message], mode="json")[0]
        except (ValueError, TypeError) as e:
            raise InvalidMessage(
                f"message {index} cannot be written as JSON: {e}", index=index
            ) from e
        parts = [_compact(part) for part in dumped.pop("parts")]
        if isinstance(message, ModelResponse):
            made = [(_chat_of_response(message), parts)]
        else:
            made = _chats_of_request(message.parts, parts)
        header = _compact(dumped)
        for place, (chat, kept) in enumerate(made):
            for part in kept:
                _leave_out(part, chat)
            meta = {"message": header, "parts": kept, "place": place}
            chats.append({**chat, "metadata": {_KEY: meta}})
    return chats


def model_messages(messages: Iterable[Message | ChatDict]) -> list[ModelMessage]:
    """The messages that stored ones were made from; equivalent ones for other messages.

    For ``agent.run(…, message_history=model_messages(await session.get_messages()))``.
    """
    found: list[dict[str, Any]] = []
    open_: tuple[Any, int] | None = None  # of the message before: its header and its place
    names: dict[str, str] = {}  # of tools, by the id of the call
    for message in messages:
        chat = message.to_chat() if isinstance(message, Message) else message
        names |= {one.id: one.name for one in tool_calls(chat)}
        meta = (message.metadata or {}).get(_KEY) if isinstance(message, Message) else None
        if meta is None:
            open_ = None
            made = ModelMessagesTypeAdapter.dump_python([_equivalent(chat, names)], mode="json")
            found.append(made[0])
            continue
        parts = [_restore(part, chat) for part in meta["parts"]]
        if meta["place"] and open_ == (meta["message"], meta["place"] - 1):
            found[-1]["parts"] += parts  # the next part of the same request
        else:
            found.append({**meta["message"], "parts": parts})
        open_ = (meta["message"], meta["place"])
    return ModelMessagesTypeAdapter.validate_json(msgspec.json.encode(found))


def _compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is None by default; a content or an id may be None itself."""
    return {key: one for key, one in values.items() if one is not None or key in {"content", "id"}}


# -- to a chat -------------------------------------------------------------------------------------


def _chat_of_response(message: ModelResponse) -> ChatDict:
    text = "\n".join(
        part.content for part in message.parts if isinstance(part, (TextPart, SpeechPart))
    )
    calls = [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    if calls:
        return {"role": "assistant", "content": text or None, "tool_calls": calls}
    kinds = " ".join(f"[{part.part_kind}]" for part in message.parts)
    return {"role": "assistant", "content": text or kinds}


def _chats_of_request(
    parts: Sequence[ModelRequestPart], dumped: Sequence[dict[str, Any]]
) -> list[tuple[ChatDict, list[dict[str, Any]]]]:
    """A chat message for each part that says something; the others are kept with the one before."""
    made: list[tuple[ChatDict, list[dict[str, Any]]]] = []
    silent: list[dict[str, Any]] = []
    for part, kept in zip(parts, dumped, strict=True):
        chat = _chat_of_part(part)
        if chat is not None:
            made.append((chat, [*silent, kept]))
            silent = []
        elif made:
            made[-1][1].append(kept)
        else:
            silent.append(kept)
    if not made:
        kinds = " ".join(f"[{part.part_kind}]" for part in parts)
        made.append(({"role": "user", "content": kinds}, silent))
    return made


def _chat_of_part(part: ModelRequestPart) -> ChatDict | None:
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _content(part)}
    if isinstance(part, ToolReturnPart):
        content = part.model_response_str()
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        content = part.model_response()
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": content}
    if isinstance(part, (RetryPromptPart, RetryFeedbackPart)):
        return {"role": "user", "content": part.model_response()}
    if isinstance(part, SpeechPart):
        return {"role": "user", "content": part.content or "[speech]"}
    return None


def _content(part: UserPromptPart) -> str | list[dict[str, Any]]:
    if isinstance(part.content, str):
        return part.content
    return [_chat_part(one) for one in part.content] or ""


def _chat_part(one: Any) -> dict[str, Any]:
    if isinstance(one, (str, TextContent)):
        return {"type": "text", "text": one if isinstance(one, str) else one.content}
    if isinstance(one, ImageUrl):
        return {"type": "image_url", "image_url": {"url": one.url}}
    if isinstance(one, BinaryContent) and one.is_image:
        return {"type": "image_url", "image_url": {"url": one.data_uri}}
    return {"type": "text", "text": f"[{one.kind}]"}


# -- what the chat message has already -------------------------------------------------------------


def _leave_out(part: dict[str, Any], chat: ChatDict) -> None:
    content, said = part.get("content"), chat.get("content")
    if isinstance(content, str) and content == said and part["part_kind"] in _TEXTS:
        del part["content"]
    elif isinstance(content, list) and isinstance(said, list):
        part["content"] = [
            {key: value for key, value in one.items() if key != "data"} if _is_image(one) else one
            for one in content
        ]


def _restore(part: Mapping[str, Any], chat: ChatDict) -> dict[str, Any]:
    said = chat.get("content")
    if "content" not in part and part["part_kind"] in _TEXTS:
        return {**part, "content": said if isinstance(said, str) else plain_text(chat)}
    content = part.get("content")
    if not (isinstance(content, list) and isinstance(said, list)):
        return {**part}
    whole = [
        {**one, "data": shown["image_url"]["url"].partition(",")[2]}
        if _is_image(one) and "data" not in one and shown.get("type") == "image_url"
        else one
        for one, shown in zip(content, said, strict=False)
    ]
    return {**part, "content": whole}


def _is_image(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and one.get("kind") == "binary"
        and str(one.get("media_type")).startswith("image/")
    )


# -- from other chat messages ----------------------------------------------------------------------


def _equivalent(chat: ChatDict, names: Mapping[str, str]) -> ModelMessage:
    role, content = chat["role"], chat.get("content")
    if role == "assistant":
        parts: list[ModelResponsePart] = []
        if text := plain_text({"role": role, "content": content}):
            parts.append(TextPart(text))
        parts.extend(ToolCallPart(name, text, id_) for id_, name, text in tool_calls(chat))
        return ModelResponse(parts or [TextPart("")])
    if role == "tool":
        id_ = str(chat.get("tool_call_id"))
        name = names.get(id_) or str(chat.get("name") or "tool")
        return ModelRequest([ToolReturnPart(name, plain_text(chat), id_)])
    if role in {"system", "developer"}:
        return ModelRequest([SystemPromptPart(plain_text(chat))])
    if isinstance(content, list):
        return ModelRequest([UserPromptPart([_user_content(part) for part in content])])
    return ModelRequest([UserPromptPart(plain_text(chat))])


def _user_content(part: Mapping[str, Any]) -> Any:
    if part.get("type") == "text":
        return cast("str", part["text"])
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        try:
            return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)
        except (ValueError, ValidationError):
            return "[image_url]"
    return f"[{part.get('type')}]"
