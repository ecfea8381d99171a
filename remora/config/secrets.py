"""Secrets of the configuration: written as ``${{ secrets.NAME }}``, and never printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from remora.errors import ConfigError

_STARS = "***"
_REFERENCE = re.compile(r"\$\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")
_OPENED = re.compile(r"\$\{\{\s*secrets\b")


class Secret:
    """A text that prints as stars everywhere: in ``repr``, ``str``, f-strings, logs.

    It is not a ``str``, so that joining or encoding it by accident fails instead of disclosing it;
    `reveal` is the only way to the text. It can be copied but not pickled, unless it is empty; it
    is false then.

    Raises:
        TypeError: the value is not text, or a secret that is not empty is pickled.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        if not isinstance(text, str):
            raise TypeError(f"a secret is text, not {type(text).__name__}")
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __str__(self) -> str:
        return _STARS if self._text else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Secret:
        return self

    def __reduce__(self) -> tuple[type[Secret], tuple[()]]:
        if self._text:
            raise TypeError(
                "a configuration with a secret cannot be pickled, which would write the secret in "
                "clear: pass the path of its file, where it is ${{ secrets.NAME }}, or set the "
                "secret in the environment of the other process"
            )
        return Secret, ()


def refers_to_secret(text: str) -> bool:
    """Return whether the text contains ``${{ secrets.…``."""
    return _OPENED.search(text) is not None


def resolve_secret(
    text: str, *, key: str, secrets: Mapping[str, str] | None, environment: Mapping[str, str]
) -> Secret:
    """The text with each ``${{ secrets.NAME }}`` replaced; values are not expanded again.

    Args:
        text: the value in the configuration.
        key: dotted path of its key.
        secrets: where a name is looked up first; None if there are none.
        environment: where it is looked up next.

    Raises:
        ConfigError: a name without a value, ``${{`` with other content, or stars, the printed form
            of a secret. No error shows the text.
    """
    if text == _STARS:
        raise ConfigError(
            f"{key} is {_STARS}, which is how remora prints a secret, and not the secret itself",
            key=key,
        )
    if "${{" in _REFERENCE.sub("", text):
        raise ConfigError(
            f"{key}: only ${{{{ secrets.NAME }}}} is understood, with a NAME of letters, "
            "digits and _",
            key=key,
        )

    def value(reference: re.Match[str]) -> str:
        name = reference[1]
        found: object = (secrets or {}).get(name) or environment.get(name)
        if not found:
            looked = (
                "the given secrets do not have it"
                if secrets is not None
                else "no secrets were given"
            )
            raise ConfigError(
                f"{key} needs the secret {name}: {looked}, and the environment has no {name}",
                key=key,
            )
        if not isinstance(found, str):
            raise ConfigError(
                f"{key} needs the secret {name}, which must be text, not {type(found).__name__}",
                key=key,
            )
        return found

    return Secret(_REFERENCE.sub(value, text))
