"""Taking out of a text what must not be kept, before anything keeps it (S4.43)."""

from __future__ import annotations

from collections.abc import Callable

from remora.errors import RedactionFailed

__all__ = ["redacted_text"]


def redacted_text(text: str, redact: Callable[[str], str]) -> str:
    """What the hook makes of a text.

    Raises:
        RedactionFailed: it raised, or returned no text.
    """
    try:
        result = redact(text)
    except Exception as e:
        raise RedactionFailed(f"the redaction hook failed with {type(e).__name__}; nothing was stored") from e
    if not isinstance(result, str):
        raise RedactionFailed(f"the redaction hook returned {type(result).__name__} instead of text; nothing was stored")
    return result
