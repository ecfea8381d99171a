"""Memory for agents of Pydantic AI: a capability.

Needs the extra: ``pip install "remora[pydantic-ai]"``.

`RemoraMemory` gives the model the conversation so far, within a budget, with what is recalled for
the user's new message, and stores the messages of a run when it has succeeded. The messages of the
two libraries are converted in `remora.adapters.pydantic_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

from remora.adapters.given import Conversation, find_session
from remora.adapters.pydantic_messages import chat_messages, model_messages
from remora.adapters.recalled import load_stored
from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of
from remora.api.tools import MemoryTools
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
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
