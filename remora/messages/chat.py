"""The public message type, in the OpenAI chat format."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec

Role: TypeAlias = Literal["system", "developer", "user", "assistant", "tool"]
T = TypeVar("T")
INSTRUCTING_ROLES = frozenset({"system", "developer"})
"""The roles of messages that a model obeys."""
ChatDict: TypeAlias = dict[str, Any]
"""One message as a chat API takes it."""


class ToolFunction(msgspec.Struct, frozen=True, omit_defaults=True):
    """The function that a model wants to call.

    Attributes:
        name: of the function, or of the custom tool.
        arguments: JSON text, as the model wrote it; of a custom tool, any text.
        extra: what else a provider says of it, unchanged.
    """

    name: str
    arguments: str
    extra: dict[str, Any] | None = None


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call of an assistant message. Different calls of a conversation may share an id.

    Attributes:
        id: pairs the call with its result.
        function: what is called.
        type: ``function``, or ``custom``.
        extra: what else a provider says of the call, unchanged: Gemini's thought signatures.
    """

    id: str
    function: ToolFunction
    type: str = msgspec.field(default_factory=lambda: "function")  # so it is not omitted
    extra: dict[str, Any] | None = None

    @classmethod
    def from_chat(cls, call: Mapping[str, Any]) -> Self:
        """The call of a chat dict, which was checked."""
        rest = {**call}
        kind = rest.pop("type", "function")
        key, text_key = call_keys(kind)
        function = {**rest.pop(key)}
        name, text = function.pop("name"), function.pop(text_key)
        of_function = ToolFunction(name, text, function or None)
        return cls(id=rest.pop("id"), function=of_function, type=kind, extra=rest or None)

    def to_chat(self) -> ChatDict:
        """The plain dict that a chat API takes."""
        function = self.function
        key, text_key = call_keys(self.type)
        named = {"name": function.name, text_key: function.arguments, **(function.extra or {})}
        return {"id": self.id, "type": self.type, key: named, **(self.extra or {})}


def call_keys(kind: str | None) -> tuple[str, str]:
    """Under which key a tool call of a type names its tool, and under which its input is there."""
    return ("custom", "input") if kind == "custom" else ("function", "arguments")


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A chat message with its envelope: id, time, metadata and number.

    Attributes:
        role: ``system``, ``developer``, ``user``, ``assistant`` or ``tool``.
        content: text, or a list of OpenAI content parts; None only for an assistant that calls
            tools.
        name: the speaker's name, where several share a role.
        tool_calls: the calls that an assistant asks for.
        tool_call_id: the call that a tool message answers.
        id: the sender's own id; without one, the session gives ``msg_…``.
        created_at: aware UTC time; without one, the time at which `append` was called.
        metadata: any JSON-like dict of the sender's.
        seq: the message's number in its session, from 1; set by the session, ignored on append.
        extra: keys of the chat dict that this type does not name, unchanged.
    """

    role: Role
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    id: str | None = None
    created_at: datetime | None = None
    metadata: dict[str, Any] | None = None
    seq: int | None = None
    extra: dict[str, Any] | None = None

    @classmethod
    def system(cls, content: str) -> Self:
        """A system message."""
        return cls(role="system", content=content)

    @classmethod
    def user(cls, content: str) -> Self:
        """A user message."""
        return cls(role="user", content=content)

    @classmethod
    def assistant(cls, content: str) -> Self:
        """An assistant message."""
        return cls(role="assistant", content=content)

    @classmethod
    def human(cls, content: str) -> Self:
        """A user message, under its LangChain name."""
        return cls.user(content)

    @classmethod
    def ai(cls, content: str) -> Self:
        """An assistant message, under its LangChain name."""
        return cls.assistant(content)

    @classmethod
    def tool(cls, content: str, *, tool_call_id: str) -> Self:
        """The result of a tool call."""
        return cls(role="tool", content=content, tool_call_id=tool_call_id)

    def to_chat(self) -> ChatDict:
        """The plain dict that a chat API takes, without the envelope."""
        chat: ChatDict = {"role": self.role, "content": self.content}
        if self.name is not None:
            chat["name"] = self.name
        if self.tool_calls is not None:
            chat["tool_calls"] = [call.to_chat() for call in self.tool_calls]
        if self.tool_call_id is not None:
            chat["tool_call_id"] = self.tool_call_id
        if self.extra:
            chat.update(self.extra)
        return chat


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The result of `append`: its messages are durable at the runtime's durability level.

    Attributes:
        seqs: the sequence numbers, in the order given.
        ids: the message ids, in the same order.
        duplicate: the key was seen before; `seqs` and `ids` are those of the first append.
    """

    seqs: tuple[int, ...]
    ids: tuple[str, ...]
    duplicate: bool = False


def open_calls(messages: Iterable[Message]) -> list[tuple[Message, ToolCall]]:
    """The tool calls that have no result yet, each with its message, in order.

    Calls of different messages may share an id: a result is of the newest message that has an open
    call of its id.
    """
    opened: list[tuple[Message, ToolCall]] = []
    for message in messages:
        opened.extend((message, call) for call in message.tool_calls or ())
        if message.role != "tool":
            continue
        places = [n for n, (_, call) in enumerate(opened) if call.id == message.tool_call_id]
        if places:
            newest = opened[places[-1]][0]
            del opened[next(n for n in places if opened[n][0] is newest)]
    return opened


def loop_begin(messages: Sequence[T], role_of: Callable[[T], str]) -> int:
    """Return where the current loop of tools begins: at the message of the user that led to it.

    What a user says behind a tool's result, before the assistant answers, interrupts a loop and
    begins none: providers join it with the result, and want the signed reasoning before it.
    0 if there is no message of the user.
    """
    begin, waiting = 0, False  # for what stands before the newest messages of a user
    for place in range(len(messages) - 1, -1, -1):
        role = role_of(messages[place])
        if role == "user":
            begin, waiting = begin if waiting else place, True
        elif waiting and role != "tool":
            return begin
        else:
            waiting = False
    return begin
