"""Types of messages for type checkers: nothing here does anything at run time.

Messages come in as literals, whose roles and keys are checked, as `dict[str, Any]`, which is
checked at run time only, or as objects with `model_dump`. They go out to any client library: each
has types of its own for the same dicts, other ones in each version, and invariant. So what goes out
has a base of `Any`, which every checker accepts for them, and types its keys for its readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NotRequired,
    Protocol,
    Required,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    overload,
)

from remora.messages.chat import ChatDict, Message, Role


class _Untyped:
    """No value is one, but values of type `Any` are accepted for it."""


_UntypedDict: TypeAlias = Mapping[str, _Untyped]
"""A ``dict[str, Any]``, and no literal: a misspelt key makes no literal one of these."""


class _ImageUrl(TypedDict, total=False):
    url: Required[str]
    detail: str


class _VideoUrl(TypedDict):
    url: str


class _TextPart(TypedDict):
    type: Literal["text"]
    text: str


class _RefusalPart(TypedDict):
    type: Literal["refusal"]
    refusal: str


class _ImagePart(TypedDict):
    type: Literal["image_url"]
    image_url: _ImageUrl


class _VideoPart(TypedDict):
    type: Literal["video_url"]
    video_url: _VideoUrl


class _Audio(TypedDict):
    data: str
    format: str


class _AudioPart(TypedDict):
    type: Literal["input_audio"]
    input_audio: _Audio


class _File(TypedDict, total=False):
    file_data: str
    file_id: str
    filename: str


class _FilePart(TypedDict):
    type: Literal["file"]
    file: _File


class _Function(TypedDict):
    name: str
    arguments: str


class _ToolCall(TypedDict):
    id: str
    type: NotRequired[Literal["function"]]
    function: _Function


class _Envelope(TypedDict, total=False):
    id: str
    created_at: datetime | str | float
    metadata: Mapping[str, Any]


class SystemMessageDict(_Envelope):
    """A system or developer message."""

    role: Literal["system", "developer"]
    content: str | Iterable[_TextPart | _UntypedDict]
    name: NotRequired[str]


class UserMessageDict(_Envelope):
    """A user message."""

    role: Literal["user"]
    content: (
        str | Iterable[_TextPart | _ImagePart | _VideoPart | _AudioPart | _FilePart | _UntypedDict]
    )
    name: NotRequired[str]


class AssistantMessageDict(_Envelope):
    """An assistant message; its content may be left out only if it has tool calls."""

    role: Literal["assistant"]
    content: NotRequired[str | Iterable[_TextPart | _RefusalPart | _UntypedDict] | None]
    name: NotRequired[str]
    refusal: NotRequired[str | None]
    tool_calls: NotRequired[Iterable[_ToolCall | _UntypedDict | MessageObject] | None]


class ToolMessageDict(_Envelope):
    """The result of a tool call."""

    role: Literal["tool"]
    content: str | Iterable[_TextPart | _UntypedDict]
    tool_call_id: str


MessageDict: TypeAlias = (
    SystemMessageDict | UserMessageDict | AssistantMessageDict | ToolMessageDict
)
"""A chat dict, with the keys of its role."""


class MessageObject(Protocol):
    """A message of a client library: ``response.choices[0].message`` of OpenAI's, for instance."""

    def model_dump(self) -> dict[str, Any]:
        """Return its fields, as pydantic gives them."""
        ...


MessageLike: TypeAlias = Message | MessageDict | _UntypedDict | MessageObject
"""One message to append: a chat dict, a `Message`, or a message of OpenAI's client."""


if TYPE_CHECKING:

    class ContextMessage(dict[str, Any], Any):  # type: ignore[misc]
        """A chat dict of a context."""

        @overload  # type: ignore[override]
        def __getitem__(self, key: Literal["role"], /) -> Role: ...
        @overload
        def __getitem__(self, key: Literal["content"], /) -> Any: ...  # text, parts or None
        @overload
        def __getitem__(self, key: Literal["name", "refusal", "tool_call_id"], /) -> str: ...
        @overload
        def __getitem__(self, key: Literal["tool_calls"], /) -> list[dict[str, Any]]: ...
        def __getitem__(self, key: str, /) -> Any: ...

    class ContextMessages(list[ContextMessage]):
        """The chat dicts of a context, for any client library."""

        def append(self, message: MessageLike | ContextMessage, /) -> None:
            """Add a message at the end."""

        def extend(self, messages: Iterable[MessageLike | ContextMessage], /) -> None:
            """Add messages at the end."""

        def insert(self, index: SupportsIndex, message: MessageLike | ContextMessage, /) -> None:
            """Add a message before the one at `index`."""

else:
    ContextMessage = ChatDict
    ContextMessages = list[ChatDict]
