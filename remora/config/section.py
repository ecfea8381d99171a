"""The base of every section of the configuration."""

from __future__ import annotations

import math

import msgspec

from remora.errors import ConfigError

__all__ = ["Section"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One level of the tree. Its numbers must be finite, and positive unless listed below."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if not math.isfinite(value):
                    raise ConfigError(f"{name} must be a finite number, not {value}", key=name)
                if value < 0 or (value == 0 and name not in _MAY_BE_ZERO):
                    bound = "at least 0" if name in _MAY_BE_ZERO else "over 0"
                    raise ConfigError(f"{name} must be {bound}, not {value}", key=name)


_MAY_BE_ZERO = frozenset(
    {
        "age_days",
        "answer_bonus",
        "batch_ms",
        "cache",
        "dedup_window",
        "hot_mb",
        "jitter",
        "lock_wait_s",
        "max_waiting",
        "max_user_rows",
        "neighbour_bonus",
        "question_penalty",
        "session_messages",
        "total_mb",
        "turn_weight",
        "vector_agreement",
        "vector_weight",
        "warm_up_s",
        "weight",
        "window_weight",
    }
)
