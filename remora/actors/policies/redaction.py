"""Redaction: a hook removes what must not be kept, before anything keeps it.

A hook is a plain function from text to text. It gets every text of a message, those of unknown keys
included, except roles, ids, types, names of tools, and media.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from remora.errors import ConfigError, RedactionFailed
from remora.messages import ChatDict
from remora.messages.chat import call_keys
from remora.messages.text import MEDIA_PARTS
from remora.runtime.guard import is_requested

_MESSAGE = frozenset({"role", "tool_call_id"})
_PART = frozenset({"type", "cache_control", "signature", "encrypted_content"})
_CALL = frozenset({"id", "type"})
_FUNCTION = frozenset({"name"})


def redact_chat(chat: ChatDict, redact: Callable[[str], str]) -> ChatDict:
    """A new chat dict whose texts went through `redact`.

    Args:
        chat: a message that was checked (`remora.messages.encode_message`). It is not changed;
            media parts are shared with it.
        redact: see `validate_hook`.

    Raises:
        RedactionFailed: the hook raised or returned no text.
    """
    fresh = _mapping(chat, redact, but=_MESSAGE | {"content", "tool_calls"})
    content = chat.get("content")
    if isinstance(content, str):
        fresh["content"] = redact_text(content, redact)
    elif content:
        fresh["content"] = [
            part if part["type"] in MEDIA_PARTS else redact_value(part, redact, but=_PART)
            for part in content
        ]
    if calls := chat.get("tool_calls"):
        fresh["tool_calls"] = [
            {
                **_mapping(call, redact, but=_CALL | {key}),
                key: _mapping(call[key], redact, but=_FUNCTION),
            }
            for call in calls
            for key, _ in [call_keys(call.get("type"))]
        ]
    return fresh


def redact_metadata(metadata: Mapping[str, Any], redact: Callable[[str], str]) -> dict[str, Any]:
    """A new dict whose texts, at any depth, went through `redact`; keys are kept.

    Raises:
        RedactionFailed: the hook raised or returned no text.
    """
    return _mapping(metadata, redact)


def validate_hook(hook: Callable[[str], str]) -> Callable[[str], str]:
    """Return `hook` if it can be one.

    Raises:
        ConfigError: it cannot be called, or it is async: a message is redacted without waiting.
    """
    if not callable(hook):
        raise ConfigError(
            f"a redaction hook must be a function from text to text, not a {type(hook).__name__}",
            key="redact",
        )
    for one in (hook, getattr(hook, "__call__", None)):  # noqa: B004
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(
                f"the redaction hook {_name(hook)} is async; it must be a plain function",
                key="redact",
            )
    return hook


class BackgroundHook:
    """A hook that runs in nobody's call: also `SystemExit` is only a failure of what it is for.

    Args:
        hook: the hook.

    Raises:
        ConfigError: see `validate_hook`.
    """

    def __init__(self, hook: Callable[[str], str]) -> None:
        self._hook = validate_hook(hook)
        self.__qualname__ = _name(hook)

    def __call__(self, text: str) -> str:
        """Return what the hook makes of a text."""
        return self._hook(text)


def _mapping(
    values: Mapping[str, Any], redact: Callable[[str], str], *, but: Collection[str] = ()
) -> dict[str, Any]:
    return {
        key: value if key in but else redact_value(value, redact) for key, value in values.items()
    }


def redact_value(value: object, redact: Callable[[str], str], *, but: Collection[str] = ()) -> Any:
    """A value with every text in it redacted, however deep; keys of mappings are kept.

    Args:
        value: JSON-like data.
        redact: the hook.
        but: keys whose values are left as they are, at every depth.

    Raises:
        RedactionFailed: the hook raised or returned no text.
    """
    if isinstance(value, str):
        return redact_text(value, redact)
    if isinstance(value, Mapping):
        return {
            key: one if key in but else redact_value(one, redact, but=but)
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redact_value(one, redact, but=but) for one in value]
    return value


def redact_text(text: str, redact: Callable[[str], str]) -> str:
    """The hook's result for one text.

    Raises:
        RedactionFailed: the hook raised or returned no text.
        KeyboardInterrupt, SystemExit: the hook raised it, and is no `BackgroundHook`.
    """
    # Raised outside of `except`: the hook's own error may quote the text and must not be chained.
    try:
        result: Any = redact(text)
    except BaseException as e:
        ends = isinstance(e, (KeyboardInterrupt, SystemExit))
        if is_requested(e) or (ends and not isinstance(redact, BackgroundHook)):
            raise
        problem = f"raised {type(e).__name__}"
    else:
        if isinstance(result, str):
            return str(result)
        if inspect.iscoroutine(result):
            result.close()
        problem = f"returned a {type(result).__name__}, not text"
    raise RedactionFailed(
        f"the redaction hook {_name(redact)} {problem}; the message was refused", hook=_name(redact)
    )


def _name(hook: Callable[[str], str]) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))
