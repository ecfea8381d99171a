"""Errors about keys of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from remora.errors import ConfigError


def unknown_key(path: str, key: object, known: Iterable[str]) -> ConfigError:
    """The error for an unknown key; it names the nearest known one.

    Args:
        path: dotted path of the section with a dot at its end, or the empty string.
        key: the unknown key.
        known: the section's keys.
    """
    import difflib  # noqa: PLC0415  # only a mistake needs it

    names = sorted(known)
    near = difflib.get_close_matches(str(key), names, n=1)
    hint = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(names)}"
    return ConfigError(f"unknown configuration key {path}{key}; {hint}", key=f"{path}{key}")


def require_section(value: object, key: str) -> Mapping[str, Any]:
    """The value, which must be a mapping.

    Raises:
        ConfigError: it is not.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} must be a section of keys, not {type(value).__name__}", key=key)
    return value
