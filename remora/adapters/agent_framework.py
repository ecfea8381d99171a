"""Memory for agents of Microsoft's Agent Framework: a history, a context provider, and tools.

Needs the extra: ``pip install "remora[agent-framework]"``.

`RemoraHistoryProvider` keeps conversations. `RemoraContextProvider` gives long-term memory to
agents whose conversations are kept elsewhere. The messages of the two libraries are converted in
`remora.adapters.agent_framework_messages`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

from remora.adapters.agent_framework_messages import chat_messages, framework_messages
from remora.adapters.given import Conversation, GivenSession, find_session
from remora.adapters.recalled import load_stored, recalled_message
from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of
from remora.api.tools import MemoryTools
from remora.api.user import User
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput
from remora.messages import ChatDict, Message, open_calls
from remora.recall.memory import Memory, quote_memories
from remora.services.arguments import MAX_TEXT_CHARACTERS, check_int, check_result_count

try:
    from agent_framework import (
        AgentSession,
        ContextProvider,
        FunctionTool,
        HistoryProvider,
        SessionContext,
    )
    from agent_framework import Message as FrameworkMessage
except ImportError as e:
    raise ImportError(
        'memory for the Agent Framework needs it: pip install "remora[agent-framework]"'
    ) from e

__all__ = [
    "RemoraContextProvider",
    "RemoraHistoryProvider",
    "SessionsLike",
    "UserLike",
    "chat_messages",
    "framework_messages",
    "memory_tools",
]

warn_if_untested("agent-framework-core")

SessionsLike: TypeAlias = User | BlockingUser | Callable[[str], Conversation | BlockingSession]
"""A user, whose sessions have the ids of the framework's; or a function from id to session."""

UserLike: TypeAlias = User | BlockingUser | Callable[[str], User | BlockingUser]
"""A user, or a function that gives the user of a session of the framework, by its id."""


class RemoraHistoryProvider(HistoryProvider):
    """Conversations, as the history of ``Agent(client, context_providers=[…])``.

    Pass the new message alone, and a session with an id of yours: ``agent.run(question,
    session=AgentSession(session_id="chat-42"))``. The model is shown what `Session.load` gives,
    what is recalled for the new message, and the messages of this run. When the agent has answered,
    the messages of the run are stored in one append, so that several runs of one session at once do
    not mix. A run that fails stores nothing.

    With ``require_per_service_call_history_persistence=True``, each call of the model loads the
    conversation and stores what is new: a run is several appends then.

    Args:
        sessions: whose they are: a user, or a function that gives the session for an id, as
            `session` of a user of `remora.Client` does. With those of `remora.blocking` it works on
            every event loop.
        source_id: of the framework: which messages came from here.
        max_tokens: the budget of the conversation that is shown; None for `buffer.token_limit`.
        recall: also show what other sessions and older messages have on the new message.
        options: of the framework's `HistoryProvider`, such as ``store_outputs``.
    """

    def __init__(
        self,
        sessions: SessionsLike,
        source_id: str = "remora",
        *,
        max_tokens: int | None = None,
        recall: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self._session_of: Any = (
            sessions.session
            if isinstance(sessions, (User, BlockingUser))
            else _check_callable(sessions)
        )
        self._max_tokens = None if max_tokens is None else check_int(max_tokens, "max_tokens")
        self._recall = recall

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - remora keeps none there
        **_options: Any,
    ) -> list[FrameworkMessage]:
        """Return what a model should see of the conversation: the summary and the recent messages.

        Raises:
            InvalidInput, InvalidId: there is no session with this id.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.load`.
        """
        given = self._find(session_id)
        shown, _ = await given.run(load_stored, given.session, "", max_tokens=self._max_tokens)
        return framework_messages(shown)

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[FrameworkMessage],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - remora keeps none there
        **_options: Any,
    ) -> None:
        """Append messages to the conversation, all or none.

        Raises:
            InvalidInput, InvalidId: there is no session with this id.
            InvalidMessage: one of them is none, or cannot be written as JSON.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        given = self._find(session_id)
        if messages:
            await given.run(given.session.append, chat_messages(messages))

    async def before_run(
        self, *, agent: Any, session: AgentSession, context: SessionContext, state: dict[str, Any]
    ) -> None:
        """Put the conversation and what is recalled before the new message.

        If that has results of tools or an approval, also the calls that it answers, which
        `Session.load` leaves out until they have results.
        """
        await super().before_run(agent=agent, session=session, context=context, state=state)
        given = self._find(context.session_id)
        more: list[Message | ChatDict] = []
        if answered := _answered(context.input_messages):
            more += await given.run(_open_calls, given.session, answered)
        query = _question(context) if self._recall else ""
        if query.strip():
            recalled = await given.run(recalled_message, given.session, query)
            more += [recalled] if recalled is not None else []
        if more:
            context.extend_messages(self, framework_messages(more))

    def _find(self, session_id: str | None) -> GivenSession:
        if session_id is None:
            raise InvalidInput("pass a session to the run: AgentSession(session_id=…)")
        return find_session(self._session_of, session_id)


class RemoraContextProvider(ContextProvider):
    """A user's long-term memory, for agents whose conversations are kept elsewhere.

    It shows the model what was said in the user's other conversations, or remembered, and matches
    the new message; each message that it adds names the sessions that it is from. What the user and
    the agent say is remembered when the agent has answered, without a call of a model.

    An agent with a `RemoraHistoryProvider` does not need it: that one recalls as well.

    Args:
        user: whose memory it is, or a function that gives the user for the id of the framework's
            session. With one of `remora.blocking` it works on every event loop.
        source_id: of the framework: which messages came from here.
        limit: how many memories are shown, at most.
        record: remember what is said.
    """

    def __init__(
        self,
        user: UserLike,
        source_id: str = "remora_memory",
        *,
        limit: int = 5,
        record: bool = True,
    ) -> None:
        super().__init__(source_id)
        given = isinstance(user, (User, BlockingUser))
        self._user_of = (lambda _: user) if given else _check_callable(user)
        self._limit = check_result_count(limit, "limit")
        self._record = record

    async def before_run(
        self,
        *,
        agent: Any,  # noqa: ARG002 - of the framework's interface
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002 - remora keeps none there
    ) -> None:
        """Put what is recalled before the new message.

        Raises:
            LongTermError, ModelError: see `remora.User.recall`.
        """
        query = _question(context)
        if not query.strip():
            return
        user = self._find(session)
        found: list[Memory] = await awaiter_of(user)(
            original_of(user).recall, query, limit=self._limit
        )
        # the agent has what was said in its own conversation
        other = [one for one in found if one.session != session.session_id]
        if other:
            shown = FrameworkMessage("user", [quote_memories(other)])
            origins = [one.session for one in other if one.session]
            context.extend_messages(self, [shown], origin_session_ids=origins)

    async def after_run(
        self,
        *,
        agent: Any,  # noqa: ARG002 - of the framework's interface
        session: AgentSession,
        context: SessionContext,
        state: dict[str, Any],  # noqa: ARG002 - remora keeps none there
    ) -> None:
        """Remember what the user and the agent said; the same text once.

        Raises:
            InvalidMessage: a message cannot be written as JSON; nothing was written.
            RecordingFailed, MailboxFull: see `remora.User.record`.
        """
        answers = context.response.messages if context.response else []
        said = chat_messages([*context.input_messages, *answers]) if self._record else []
        texts = [
            {"role": one["role"], "content": one["content"]}
            for one in said
            if one["role"] in ("user", "assistant") and one.get("content")
        ]
        if texts:
            user = self._find(session)
            await awaiter_of(user)(original_of(user).record, texts, session=session.session_id)

    def _find(self, session: AgentSession) -> User | BlockingUser:
        user: object = self._user_of(session.session_id)
        if not isinstance(user, (User, BlockingUser)):
            raise InvalidInput(f"user gave a {type(user).__name__}, not a user")
        return user


def memory_tools(tools: MemoryTools | BlockingMemoryTools) -> list[FunctionTool]:
    """Tools of the Agent Framework by which an agent uses its own long-term memory.

    ``Agent(client, tools=memory_tools(user.tools()))``. A tool that fails tells the model why, and
    the run goes on.

    Args:
        tools: of `User.tools` or `Agent.tools`; with those of `remora.blocking`, they work on any
            event loop.
    """
    original: MemoryTools = original_of(tools)

    def make(one: dict[str, Any]) -> FunctionTool:
        async def run(**arguments: Any) -> str:
            return cast("str", await awaiter_of(tools)(original.call, one["name"], arguments))

        return FunctionTool(
            name=one["name"],
            description=one["description"],
            func=run,
            input_model=one["parameters"],
        )

    return [make(one) for one in original.responses()]


def _answered(messages: Sequence[FrameworkMessage]) -> set[str]:
    """The ids of calls that messages have results of, or an approval."""
    contents = [one for message in messages for one in message.contents]
    calls = [one.function_call for one in contents if one.type == "function_approval_response"]
    results = [one for one in contents if one.type == "function_result"]
    return {one.call_id for one in (*calls, *results) if one is not None and one.call_id}


async def _open_calls(session: Conversation, answered: set[str]) -> list[Message]:
    """The messages that made calls, of which the session has no results yet."""
    _, buffer = await session.contents()
    found = [message for message, call in open_calls(buffer) if call.id in answered]
    return [one for n, one in enumerate(found) if n == 0 or one is not found[n - 1]]


def _check_callable(value: Any) -> Callable[[str], Any]:
    if not callable(value):
        raise InvalidInput(f"a {type(value).__name__} is neither a user nor a function")
    return cast("Callable[[str], Any]", value)


def _question(context: SessionContext) -> str:
    """The text of the newest message that the user sends."""
    said = (one.text for one in reversed(context.input_messages) if one.role == "user")
    return str(next(said, ""))[:MAX_TEXT_CHARACTERS]
