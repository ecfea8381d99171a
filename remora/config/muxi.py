"""MUXI's names for remora's configuration keys.

MUXI's document configures memory in a tree of its own, under ``memory:``. It is read as follows:

==============================================  ==============================================
MUXI                                            remora
==============================================  ==============================================
memory.buffer.{size, multiplier}                buffer.{size, multiplier}; buffer.policy
                                                becomes ring, unless it is given
memory.buffer.vector_search                     buffer.vector_search
memory.buffer.embedding_model                   models.embedder and models.embedding_model
memory.working.{max_memory_mb, …}               working.{max_memory_mb, fifo_interval_min}
memory.working.vector_dimension                 models.embedding_dimension
memory.persistent.{enabled, connection_string}  long_term.{enabled, uri}
memory.persistent.provider                      must be lancedb
memory.persistent.user_isolation                must be true
memory.synopsis.{identity_ttl, …}               synopsis.{identity_ttl, context_ttl,
                                                refresh_on_access}
==============================================  ==============================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from remora.errors import ConfigError

# -- errors about keys of the configuration --------------------------------------------------------


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


def _embedding_model(value: object, key: str) -> dict[str, object]:
    match str(value).partition("/"):
        case ("openai", "/", name) if name:
            return {"models.embedder": "openai", "models.embedding_model": name}
        case ("wordllama", "", ""):
            return {"models.embedder": "wordllama"}
    raise ConfigError(
        f"{key} must be openai/NAME, for any OpenAI-compatible endpoint, or wordllama, "
        f"not {value!r}; pass another embedder as an object: Runtime(…, embedder=…)",
        key=key,
    )


def _provider(value: object, key: str) -> dict[str, object]:
    if value != "lancedb":
        raise ConfigError(
            f"{key} must be lancedb, not {value!r}: the long-term store is LanceDB; "
            "another one can be plugged in through the port LongTermStore",
            key=key,
        )
    return {}


def _user_isolation(value: object, key: str) -> dict[str, object]:
    if value is not True:
        raise ConfigError(
            f"{key} must be true, not {value!r}: isolation of users cannot be switched off",
            key=key,
        )
    return {}


_Rule: TypeAlias = str | Callable[[object, str], dict[str, object]]
_RULES: Mapping[str, Mapping[str, _Rule]] = {
    "buffer": {
        "size": "buffer.size",
        "multiplier": "buffer.multiplier",
        "vector_search": "buffer.vector_search",
        "embedding_model": _embedding_model,
    },
    "working": {
        "max_memory_mb": "working.max_memory_mb",
        "fifo_interval_min": "working.fifo_interval_min",
        "vector_dimension": "models.embedding_dimension",
    },
    "persistent": {
        "enabled": "long_term.enabled",
        "provider": _provider,
        "connection_string": "long_term.uri",
        "user_isolation": _user_isolation,
    },
    "synopsis": {
        "identity_ttl": "synopsis.identity_ttl",
        "context_ttl": "synopsis.context_ttl",
        "refresh_on_access": "synopsis.refresh_on_access",
    },
}


def translate_muxi(tree: dict[str, Any]) -> dict[str, str]:
    """Move the keys under ``memory:`` to remora's own sections.

    Args:
        tree: a configuration, which is changed.

    Returns:
        For each translated key, its dotted path in the source.

    Raises:
        ConfigError: a key that MUXI does not have, a value that remora does not support, or one
            that is given in remora's own section as well.
    """
    written_as: dict[str, str] = {}
    for part, keys in require_section(tree.pop("memory"), "memory").items():
        if part not in _RULES:
            raise unknown_key("memory.", part, _RULES)
        for key, value in require_section(keys, f"memory.{part}").items():
            written = f"memory.{part}.{key}"
            rule = _RULES[part].get(key)
            if rule is None:
                raise unknown_key(f"memory.{part}.", key, _RULES[part])
            targets = {rule: value} if isinstance(rule, str) else rule(value, written)
            for target, meant in targets.items():
                _put(tree, target, meant, written)
                written_as[target] = written
        if part == "buffer" and isinstance(tree.setdefault("buffer", {}), dict):
            tree["buffer"].setdefault("policy", "ring")
    return written_as


def _put(tree: dict[str, Any], target: str, value: object, written: str) -> None:
    part, _, key = target.partition(".")
    keys = tree.setdefault(part, {})
    if isinstance(keys, dict):  # otherwise the check of the whole tree refuses it
        if key in keys:
            raise ConfigError(f"{target} is given twice: as such, and as {written}", key=target)
        keys[key] = value
