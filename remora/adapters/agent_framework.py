"""Memory for agents of Microsoft's Agent Framework: a history, a context provider, and tools.

Needs the extra: ``pip install "remora[agent-framework]"``.

`RemoraHistoryProvider` keeps conversations. `RemoraContextProvider` gives long-term memory to
agents whose conversations are kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from remora.adapters.sessions import (
    Conversation,
    GivenSession,
    find_session,
    load_stored,
    recalled_message,
)
from remora.adapters.versions import warn_if_untested
from remora.api.threads import awaiter_of, original_of
from remora.api.tools import MemoryTools
from remora.api.user import User
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
from remora.blocking import User as BlockingUser
from remora.errors import InvalidInput, InvalidMessage
from remora.messages import ChatDict, Message, open_calls, plain_text, tool_calls
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


# -- messages of Microsoft's Agent Framework as chat messages, and back ----------------------------
#
# A message of the framework has contents of several kinds. It becomes one chat message; one with
# results of tools becomes a chat message for each result. What a chat message cannot say is stored
# in its metadata: there, a field that is null (``text``, ``result``, ``uri``) is what the chat
# message has. So a text is stored once, and a redaction hook changes it for both.

try:
    from agent_framework import Content
    from agent_framework import Message as FrameworkMessage
    from agent_framework.exceptions import ContentError
except ImportError as e:
    raise ImportError(
        'memory for the Agent Framework needs it: pip install "remora[agent-framework]"'
    ) from e

__all__ = ["chat_messages", "framework_messages"]

_KEY = "agent_framework"
_Record = dict[str, Any]  # a message or a content as the framework writes it


def chat_messages(messages: Iterable[FrameworkMessage]) -> list[ChatDict]:
    """Equivalent chat messages, as `Session.append` takes them.

    Raises:
        InvalidMessage: one of them is not a message of the Agent Framework, or has what cannot be
            written as JSON.
    """
    chats: list[ChatDict] = []
    for index, message in enumerate(messages):
        record = _record(message, index)
        contents = record["contents"]
        made = _chats_of_results(contents) if record["role"] == "tool" else []
        if not made:
            made = [(_chat(record["role"], contents), contents)]
        if len(made) == 1 and _equivalent(made[0][0]) == record:
            chats.append(made[0][0])
            continue
        header = {name: value for name, value in record.items() if name != "contents"}
        for place, (chat, kept) in enumerate(made):
            shown = [_leave_out(one, chat, number) for number, one in enumerate(kept)]
            meta = {"message": header, "contents": shown, "place": place}
            chats.append({**chat, "metadata": {_KEY: meta}})
    return chats


def framework_messages(messages: Iterable[Message | ChatDict]) -> list[FrameworkMessage]:
    """The messages that stored ones were made from; equivalent ones for other messages."""
    found: list[_Record] = []
    before: tuple[Any, int] | None = None  # the header and the place of the message before
    for message in messages:
        chat = message.to_chat() if isinstance(message, Message) else message
        meta = (message.metadata or {}).get(_KEY) if isinstance(message, Message) else None
        if meta is None:
            before = None
            found.append(_equivalent(chat))
            continue
        contents = [_restore(one, chat, number) for number, one in enumerate(meta["contents"])]
        if meta["place"] and before == (meta["message"], meta["place"] - 1):
            found[-1]["contents"] += contents  # the next result of the same message
        else:
            found.append({**meta["message"], "contents": contents})
        before = (meta["message"], meta["place"])
    return [FrameworkMessage.from_dict(one) for one in found]


def _record(message: object, index: int) -> _Record:
    if not isinstance(message, FrameworkMessage):
        raise InvalidMessage(
            f"message {index} is a {type(message).__name__}, not a Message of the Agent Framework",
            index=index,
        )
    try:
        record: _Record = msgspec.json.decode(msgspec.json.encode(message.to_dict()))
    except (TypeError, ValueError, RecursionError) as e:
        raise InvalidMessage(f"message {index} cannot be written as JSON: {e}", index=index) from e
    return record


# -- to a chat -------------------------------------------------------------------------------------


def _chats_of_results(contents: Sequence[_Record]) -> list[tuple[ChatDict, list[_Record]]]:
    """A chat message for each result, with the other contents that stand before or behind it."""
    made: list[tuple[ChatDict, list[_Record]]] = []
    others: list[_Record] = []  # those before the first result
    for one in contents:
        if one["type"] == "function_result" and one.get("call_id"):
            said = one.get("result")
            text = said if isinstance(said, str) else msgspec.json.encode(said).decode()
            chat: ChatDict = {"role": "tool", "tool_call_id": one["call_id"], "content": text}
            made.append((chat, [*others, one]))
            others = []
        elif made:
            made[-1][1].append(one)
        else:
            others.append(one)
    return made


def _chat(role: str, contents: Sequence[_Record]) -> ChatDict:
    texts = [one["text"] for one in contents if one["type"] == "text"]
    if role == "assistant":
        text = "\n".join(texts)
        if calls := [_call(one) for one in contents if _is_call(one)]:
            return {"role": role, "content": text or None, "tool_calls": calls}
        return {"role": role, "content": text or _kinds(contents)}
    if len(texts) == len(contents) == 1:
        return {"role": "system" if role == "system" else "user", "content": texts[0]}
    if role == "system":
        return {"role": role, "content": "\n".join(texts) or _kinds(contents)}
    return {"role": "user", "content": [_part(one) for one in contents] or ""}


def _is_call(one: _Record) -> bool:
    """Return whether the application calls the tool, and a result follows."""
    elsewhere = one.get("hosted") or one.get("informational_only")
    return one["type"] == "function_call" and bool(one.get("call_id")) and not elsewhere


def _call(one: _Record) -> dict[str, Any]:
    given = one.get("arguments") or {}
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    function = {"name": one.get("name") or "tool", "arguments": arguments}
    return {"id": one["call_id"], "type": "function", "function": function}


def _part(one: _Record) -> dict[str, Any]:
    if one["type"] == "text":
        return {"type": "text", "text": one["text"]}
    if _is_image(one):
        return {"type": "image_url", "image_url": {"url": one["uri"]}}
    return {"type": "text", "text": f"[{one['type']}]"}


def _is_image(one: _Record) -> bool:
    return bool(one.get("uri")) and str(one.get("media_type")).startswith("image/")


def _kinds(contents: Sequence[_Record]) -> str:
    return " ".join(f"[{one['type']}]" for one in contents)


# -- what the chat message has already -------------------------------------------------------------


def _leave_out(one: _Record, chat: ChatDict, number: int) -> _Record:
    """A content, with null for what `_restore` takes from the chat message."""
    said = chat.get("content")
    if isinstance(said, list):
        if one["type"] == "text":
            return {**one, "text": None}
        return {**one, "uri": None} if said[number]["type"] == "image_url" else one
    if one["type"] == "text" and one["text"] == said:
        return {**one, "text": None}
    if one["type"] == "function_result" and _result(said) == {
        name: one.get(name) for name in ("result", "items")
    }:
        rest = {name: value for name, value in one.items() if name != "items"}
        return {**rest, "result": None}
    return one


def _restore(one: Mapping[str, Any], chat: ChatDict, number: int) -> _Record:
    said = chat.get("content")
    part = said[number] if isinstance(said, list) and number < len(said) else {}
    text = said if isinstance(said, str) else str(part.get("text") or "")
    if "text" in one and one["text"] is None:
        return {**one, "text": text}
    if "result" in one and one["result"] is None:
        return {**one, **_result(text)}
    if "uri" in one and one["uri"] is None:
        return {**one, "uri": part["image_url"]["url"]} if "image_url" in part else _text(text)
    return {**one}


def _result(text: Any) -> _Record:
    return {"result": text, "items": [_text(text)]}


def _text(text: Any) -> _Record:
    return {"type": "text", "text": text, "additional_properties": {}}


# -- from other chat messages ----------------------------------------------------------------------


def _equivalent(chat: ChatDict) -> _Record:
    role, content = chat["role"], chat.get("content")
    if role == "tool":
        id_ = str(chat.get("tool_call_id"))
        contents = [Content.from_function_result(id_, result=plain_text(chat))]
    elif isinstance(content, list):
        contents = [_content(part) for part in content]
    else:
        contents = [Content.from_text(content)] if content else []
        contents.extend(
            Content.from_function_call(id_, name, arguments=arguments)
            for id_, name, arguments in tool_calls(chat)
        )
    known = "system" if role == "developer" else role
    record: _Record = FrameworkMessage(known, contents).to_dict()
    return record


def _content(part: Mapping[str, Any]) -> Content:
    if part.get("type") == "image_url":
        url = part["image_url"]["url"]
        try:
            return Content.from_uri(url, media_type=None if url.startswith("data:") else "image/*")
        except ContentError:
            return Content.from_text("[image_url]")
    return Content.from_text(part["text"] if "text" in part else f"[{part.get('type')}]")
