"""Which API an object is of: the module of its class says it, and no library is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from remora.formats.anthropic import from_anthropic
from remora.formats.gemini import from_gemini
from remora.formats.responses import from_responses
from remora.messages import ChatDict, chat_of_object, is_message_object

_MODULES: dict[str, Callable[..., list[ChatDict]]] = {
    "anthropic.": from_anthropic,
    "google.genai.": from_gemini,
    "openai.types.responses.": from_responses,
}


def as_chats(given: Iterable[Any]) -> list[Any]:
    """The messages of a batch: objects of client libraries become chat dicts, others stay.

    Objects of the same API that follow each other are converted together: calls of several tools
    are one message. What has no form in a chat is kept as it came.

    Raises:
        InvalidMessage: an object is no message.
    """
    messages: list[Any] = []
    for convert, run in groupby(given, key=_converter):
        if convert is None:
            messages.extend(chat_of_object(one) if is_message_object(one) else one for one in run)
        else:
            messages.extend(convert(list(run), opaque=True))
    return messages


def _converter(one: object) -> Callable[..., list[ChatDict]] | None:
    module = f"{type(one).__module__}."
    for prefix, convert in _MODULES.items():
        if module.startswith(prefix):
            return convert if is_message_object(one) else None
    return None
