"""The base of every section of the configuration."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import msgspec

from remora.config.secrets import Secret
from remora.errors import ConfigError


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the tree. Its numbers must be finite, and positive unless listed below.

    Values have the types of their keys, also where a section is made without `Config.from_dict`.
    """

    def __post_init__(self) -> None:
        self._check_types()
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if not math.isfinite(value):
                    raise ConfigError(f"{name} must be a finite number, not {value}", key=name)
                if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                    bound = "at least 0" if name in _MAY_BE_ZERO else "over 0"
                    raise ConfigError(f"{name} must be {bound}, not {value}", key=name)

    def _check_types(self) -> None:
        for name, default in zip(self.__struct_fields__, self.__struct_defaults__, strict=True):
            if (value := getattr(self, name)) is default:
                continue
            kind = _types(type(self))[name]
            if isinstance(kind, type) and issubclass(kind, (Section, Secret)):
                if not isinstance(value, kind):
                    raise ConfigError(
                        f"{name} must be a {kind.__name__}, not {type(value).__name__}; "
                        "Config.from_dict takes a tree of dicts",
                        key=name,
                    )
                continue
            try:
                msgspec.convert(value, kind, dec_hook=_same)
            except msgspec.ValidationError as e:
                text = str(e)
                raise ConfigError(f"{name}: {text[:1].lower()}{text[1:]}", key=name) from e


@cache
def _types(section: type[Section]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(section)}


def _same(kind: type, value: object) -> object:
    """A value of a type that msgspec does not know."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


_MAY_BE_ZERO = frozenset(
    {
        "age_days",
        "instructions_share",
        "answer_bonus",
        "identifier_bonus",
        "batch_ms",
        "cache",
        "dedup_window",
        "forgotten_s",
        "gather_s",
        "hot_mb",
        "jitter",
        "linger_s",
        "list_spread",
        "lock_wait_s",
        "unindexed_rows",
        "max_waiting",
        "max_user_rows",
        "neighbour_bonus",
        "near_words",
        "question_penalty",
        "relevance",
        "floor",
        "rerank_weight",
        "session_weight",
        "session_messages",
        "summary_tokens",
        "total_mb",
        "turn_weight",
        "vector_agreement",
        "vector_weight",
        "warm_up_s",
        "weight",
        "window_weight",
    }
)
