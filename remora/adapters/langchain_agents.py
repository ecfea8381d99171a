"""Memory for LangChain's agents: a middleware, and tools.

Needs the extra: ``pip install "remora[langchain-agents]"``.

`RemoraMiddleware` gives the model the conversation so far, within a budget, with what is recalled
for the user's new message, and stores what was said when the agent has answered.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NotRequired, TypeAlias, cast

from remora.adapters.langchain import delete_branch, message_of_stored, store_messages
from remora.adapters.sessions import Conversation, find_session, load_stored
from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of, waiter_of
from remora.api.tools import MemoryTools
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
from remora.messages import Message
from remora.services.arguments import MAX_TEXT_CHARACTERS, check_int

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState
    from langchain.agents.middleware.types import ModelRequest, ModelResponse, PrivateStateAttr
    from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
    from langchain_core.tools import BaseTool, StructuredTool
    from langgraph.config import get_config
    from langgraph.runtime import Runtime
except ImportError as e:
    raise ImportError(
        'memory for LangChain\'s agents needs it: pip install "remora[langchain-agents]"'
    ) from e

__all__ = ["RemoraMiddleware", "RemoraState", "SessionLike", "memory_tools"]

warn_if_untested("langchain")

SessionLike: TypeAlias = (
    Conversation | BlockingSession | Callable[[Runtime[Any]], Conversation | BlockingSession]
)
"""A session, or a function that gives the session of a run: ``lambda runtime: …``."""


class RemoraState(AgentState[Any]):
    """The agent's state, with the ids of those of its messages that the session has."""

    remora_stored: NotRequired[Annotated[list[str], PrivateStateAttr]]


class RemoraMiddleware(AgentMiddleware[RemoraState, Any, Any]):
    """A conversation as the memory of ``create_agent(model, middleware=[…])``.

    Pass the user's new message alone: ``agent.ainvoke({"messages": [question]})``. Each call of the
    model is shown what `Session.load` gives for it, then what is recalled, then the messages of
    this run. When the agent has answered, the messages of the run are stored in one append, so that
    several runs of one session at once do not mix. A run that fails stores nothing.

    With a checkpointer, whose state has earlier messages, only those that the session does not have
    are stored and shown as the run's. A run that goes on from an earlier checkpoint, which its
    ``checkpoint_id`` names, deletes what was stored of the branch that it leaves.

    Args:
        session: the conversation, or a function of LangGraph's ``Runtime`` that gives it. With one
            of `remora.blocking`, ``agent.invoke`` works, and every event loop; with one of
            `remora.Client`, only ``agent.ainvoke`` does.
        max_tokens: the budget of what is shown before the messages of the run; None for
            `buffer.token_limit`.
        recall: also show what other sessions and older messages have on the user's new message.
        tools: of `User.tools` or `Agent.tools`, for the agent.
    """

    state_schema = RemoraState

    def __init__(
        self,
        session: SessionLike,
        *,
        max_tokens: int | None = None,
        recall: bool = True,
        tools: MemoryTools | BlockingMemoryTools | None = None,
    ) -> None:
        super().__init__()
        self._session = session
        self._max_tokens = None if max_tokens is None else check_int(max_tokens, "max_tokens")
        self._recall = recall
        self.tools: Sequence[BaseTool] = [] if tools is None else memory_tools(tools)

    # -- LangChain's interface ---------------------------------------------------------------------

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """Call the model with the conversation and what is recalled before the run's messages."""
        given = find_session(self._session, request.runtime)
        run = _of_run(request.messages, request.state)
        shown = await given.run(self._show, given.session, run, _branch(request.state))
        return await handler(request.override(messages=[*shown, *run]))

    def wrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """`awrap_model_call`, for threads."""
        given = find_session(self._session, request.runtime)
        run = _of_run(request.messages, request.state)
        shown = given.call(self._show, given.session, run, _branch(request.state))
        return handler(request.override(messages=[*shown, *run]))

    async def aafter_agent(
        self, state: RemoraState, runtime: Runtime[Any]
    ) -> dict[str, Any] | None:
        """Store the messages of the run, all or none.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        given = find_session(self._session, runtime)
        messages = state["messages"]
        run = _of_run(messages, state)
        await given.run(store_messages, given.session, run, _thread(runtime))
        return _note(messages) if run else None

    def after_agent(self, state: RemoraState, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """`aafter_agent`, for threads."""
        given = find_session(self._session, runtime)
        messages = state["messages"]
        run = _of_run(messages, state)
        given.call(store_messages, given.session, run, _thread(runtime))
        return _note(messages) if run else None

    # -- on the runtime's event loop ---------------------------------------------------------------

    async def _show(
        self,
        session: Conversation,
        run: Sequence[BaseMessage],
        branch: tuple[str, list[str]] | None,
    ) -> list[BaseMessage]:
        if branch is not None:
            await delete_branch(session, *branch)
        asked = next((one for one in reversed(run) if isinstance(one, HumanMessage)), None)
        query = str(asked.text)[:MAX_TEXT_CHARACTERS] if asked is not None and self._recall else ""
        found, recalled = await load_stored(session, query, max_tokens=self._max_tokens)
        shown: list[BaseMessage] = []
        for one in found:
            if isinstance(one, Message):
                shown.append(message_of_stored(one))
            else:
                shown += convert_to_messages([one])
        return [*shown, *convert_to_messages([] if recalled is None else [recalled])]


def memory_tools(tools: MemoryTools | BlockingMemoryTools) -> list[BaseTool]:
    """LangChain's tools by which an agent uses its own long-term memory.

    ``create_agent(model, tools=memory_tools(user.tools()))``. A tool that fails tells the model
    why, and the run goes on.

    Args:
        tools: of `User.tools` or `Agent.tools`; with those of `remora.blocking` they work in
            threads and on any event loop.
    """
    original: MemoryTools = original_of(tools)
    blocking = isinstance(tools, BlockingMemoryTools)

    def make(one: dict[str, Any]) -> BaseTool:
        async def run(**arguments: Any) -> str:
            return cast("str", await awaiter_of(tools)(original.call, one["name"], arguments))

        def wait(**arguments: Any) -> str:
            return cast("str", waiter_of(tools)(original.call, one["name"], arguments))

        return StructuredTool(
            name=one["name"],
            description=one["description"],
            args_schema=one["parameters"],
            coroutine=run,
            func=wait if blocking else None,
        )

    return [make(one) for one in original.responses()]


def _of_run(messages: Sequence[BaseMessage], state: Any) -> list[Any]:
    """The messages that the session does not have, without summaries that LangChain made of it."""
    stored = set(state.get("remora_stored") or ())
    return [
        one
        for one in messages
        if one.id not in stored and one.additional_kwargs.get("lc_source") != "summarization"
    ]


def _thread(runtime: Runtime[Any]) -> str | None:
    """The thread of a run with a checkpointer."""
    return runtime.execution_info.thread_id if runtime.execution_info is not None else None


def _branch(state: Any) -> tuple[str, list[str]] | None:
    """The thread, and the ids that it keeps, of a run that goes on from an earlier checkpoint."""
    named = get_config().get("metadata") or {}
    noted = state.get("remora_stored") or []
    if "checkpoint_id" not in named or "thread_id" not in named:
        return None
    return str(named["thread_id"]), noted


def _note(messages: Sequence[BaseMessage]) -> dict[str, Any]:
    return {"remora_stored": [one.id for one in messages if one.id]}
