"""Arguments of the public verbs, checked before anything is asked or written."""

from __future__ import annotations

from remora.errors import InvalidInput

__all__ = ["check_int", "check_text"]


def check_int(value: object, name: str, *, low: int = 0) -> int:
    """`value`, if it is an integer of at least `low` that the journal can hold.

    Raises:
        InvalidInput: it is another type (a bool included), or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(f"{name} must be a whole number, not {type(value).__name__}")
    if not low <= value < 1 << 62:
        raise InvalidInput(
            f"{name} must be {'positive' if low == 1 else f'at least {low}'}, not {value}"
        )
    return value


def check_text(value: object, name: str) -> str:
    """`value`, if it is text.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be text, not {type(value).__name__}")
    return value
