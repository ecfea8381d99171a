"""A session of the OpenAI Agents SDK over a remora session.

Needs the extra: ``pip install "remora[openai-agents]"``.

The SDK uses items of the Responses API, remora chat messages. Each item becomes an equivalent
message, so that `Session.load`, summaries and recall work on it; an item that cannot be converted
back exactly is stored in the message's metadata. Parallel function calls become one message, as a
chat API wants them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, cast

import anyio

from remora.adapters.sessions import Conversation, recalled_message, take_session
from remora.adapters.versions import warn_if_untested
from remora.api.session import Session
from remora.api.threads import awaiter_of, original_of
from remora.api.tools import MemoryTools
from remora.blocking import MemoryTools as BlockingMemoryTools
from remora.blocking import Session as BlockingSession
from remora.errors import InvalidInput, NotFound
from remora.formats.agent_items import KEY, chat_messages, item_text, response_items
from remora.messages import REPEATED, ChatDict

try:
    from agents import FunctionTool, SessionSettings, TResponseInputItem
except ImportError as e:
    raise ImportError(
        'a session of the OpenAI Agents SDK needs it: pip install "remora[openai-agents]"'
    ) from e

__all__ = ["RemoraSession", "chat_messages", "memory_tools", "response_items"]

warn_if_untested("openai-agents")


class RemoraSession:
    """The SDK's ``Session`` protocol, for ``Runner.run(agent, input, session=…)``.

    `get_items` returns the summary, as a message, and the buffer: a run sees as much as the
    session's policy keeps, for any length of conversation. Several sessions may run at once, and
    several runs may use one; `Session.exclusive` has them take turns.

    Args:
        session: the conversation, of `remora.Runtime` or `remora.Client`. With one of
            `remora.blocking`, runs work on any event loop, so ``Runner.run_sync`` does as well.
        session_settings: the SDK's own, or a dict of them; ``limit`` holds where `get_items` is
            given none.
        opaque: keep items that have neither a role nor a known type, such as those of the SDK's
            ``EncryptedSession``; otherwise they are refused. They count towards the tokens of a
            context, which shows a word in their place.

    Raises:
        InvalidInput: it is no session.
        TypeError: there are no such settings.
    """

    def __init__(
        self,
        session: Conversation | BlockingSession,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        opaque: bool = False,
    ) -> None:
        self.session, self._await, _ = take_session(session)
        self.session_id = f"{self.session.key.user}/{self.session.key.session}"
        if not isinstance(session_settings, SessionSettings):
            session_settings = SessionSettings().resolve(session_settings)
        self.session_settings: SessionSettings | None = session_settings
        self._opaque = opaque

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """The summary and the buffer as items, or the newest of them, `limit` at most.

        With a limit, the parallel calls of a message come together or not at all, and no result
        comes without its call, which the API refuses.

        Raises:
            InvalidInput: a negative limit.
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit must not be negative, not {limit}")
        summaries, messages = await self._await(self.session.contents)
        items: list[list[TResponseInputItem]] = [
            [cast("TResponseInputItem", summary)] for summary in summaries
        ]
        items += map(response_items, messages)
        return list(chain.from_iterable(items)) if limit is None else _newest_items(items, limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items: all of them, or none.

        Raises:
            InvalidMessage: one of them is not an item; nothing was written.
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.append`.
        """
        if items:
            await self._await(self.session.append, chat_messages(items, opaque=self._opaque))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove and return the newest item; None if the buffer is empty.

        It is removed from `history` and long-term memory as well.
        """
        return cast("TResponseInputItem | None", await self._await(self._pop))

    async def _pop(self) -> TResponseInputItem | None:
        while newest := await self.session.get_messages(limit=1):
            message = newest[0]
            items = response_items(message)
            assert message.id is not None
            if len(items) > 1:  # one of several parallel calls: the others stay
                rest = chat_messages(items[:-1], opaque=self._opaque)
                # with a key, since another call may take the same message
                await self.session.append(rest, key=f"{KEY}.pop.{message.seq}")
            with suppress(NotFound):  # another call has taken it
                await self.session.delete(message)
                return cast("TResponseInputItem", items[-1])
        return None

    async def clear_session(self) -> None:
        """Empty the buffer and the summary; see `remora.Session.clear`."""
        await self._await(self.session.clear)

    async def _atomic_replace_items(self, items: list[TResponseInputItem]) -> bool:
        """Replace all items, as the SDK's ``OpenAIResponsesCompactionSession`` asks for it.

        What it compacts leaves the buffer, as by a compaction of remora's: it stays in `history`
        and is recalled. What comes in its place repeats or summarizes it, and is not. Without this,
        the SDK would clear the session.
        """
        if not isinstance(self.session, Session):
            return False  # a service has no such call
        chats = chat_messages(items, opaque=self._opaque)
        await self._await(self._replace, self.session, chats)
        return True

    async def _replace(self, session: Session, chats: list[ChatDict]) -> None:
        for chat in chats:
            known = cast("dict[str, Any]", chat.get("metadata") or {})
            chat["metadata"] = {**known, REPEATED: True}
        before = await session.state_dict()
        await session.truncate_to_size(0)
        try:
            await session.load_state_dict({"messages": chats})  # without the summary
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.load_state_dict(before)
            raise

    async def recall(
        self, history: list[TResponseInputItem], new: list[TResponseInputItem]
    ) -> list[TResponseInputItem]:
        """History, what is recalled for the user's new message, and the new items.

        A ``session_input_callback``: ``RunConfig(session_input_callback=session.recall)``. What is
        recalled is for the model alone; the session does not keep it. Without long-term memory
        nothing is recalled.

        Raises:
            MailboxFull, OutcomeUnknown, CommitFailed: see `remora.Session.load`.
        """
        said = [item for item in new if item.get("role") == "user"]
        query = item_text(said[-1].get("content")) if said else ""
        found = await self._await(recalled_message, self.session, query)
        if found is not None:
            # The SDK appends to the session what is neither new nor in the history that it gave.
            history.append(cast("TResponseInputItem", found))
        return [*history, *new]


def memory_tools(tools: MemoryTools | BlockingMemoryTools) -> list[FunctionTool]:
    """Tools of the SDK by which an agent uses its own long-term memory.

    ``Agent(…, tools=memory_tools(user.tools()))``. A tool that fails tells the model why, and the
    run goes on.

    Args:
        tools: of `User.tools` or `Agent.tools`; with those of `remora.blocking`, they work on any
            event loop.
    """
    original: MemoryTools = original_of(tools)
    run = awaiter_of(tools)

    def make(name: str, description: str, parameters: dict[str, Any]) -> FunctionTool:
        async def invoke(_context: Any, arguments: str) -> str:
            return cast("str", await run(original.call, name, arguments))

        return FunctionTool(name, description, parameters, invoke, strict_json_schema=False)

    return [
        make(one["name"], one["description"], one["parameters"]) for one in original.responses()
    ]


def _newest_items(
    messages: Sequence[Sequence[TResponseInputItem]], limit: int
) -> list[TResponseInputItem]:
    """The items of the newest messages, whole messages only, and no result without its call."""
    first, left = len(messages), limit
    while first and len(messages[first - 1]) <= left:
        first -= 1
        left -= len(messages[first])
    calls: list[object] = []
    items: list[TResponseInputItem] = []
    for item in chain.from_iterable(messages[first:]):
        if (id_ := item.get("call_id")) is not None:
            if not str(item.get("type")).endswith("_output"):
                calls.append(id_)
            elif id_ in calls:
                calls.remove(id_)
            else:
                continue
        items.append(item)
    return items
