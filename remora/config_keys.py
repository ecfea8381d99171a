"""Which remora key is meant by a key that is written: MUXI's names for it, and the nearest one to a
misspelt one.

MUXI's document configures memory in a tree of its own, under ``memory:``. It is read like this:

==============================================
===================================================================== memory.buffer.{size,
multiplier}                buffer.{size, multiplier}; `buffer.policy` becomes ring, unless given
memory.buffer.vector_search                     buffer.vector_search memory.buffer.embedding_model
models.embedder and models.embedding_model memory.working.{max_memory_mb, …}
working.{max_memory_mb, fifo_interval_min} memory.working.vector_dimension
models.embedding_dimension memory.persistent.{enabled, connection_string}  long_term.{enabled, uri}
memory.persistent.provider                      must be lancedb memory.persistent.user_isolation
must be true memory.synopsis.{identity_ttl, …}               synopsis.{identity_ttl, context_ttl,
refresh_on_access} ==============================================
=====================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from remora.errors import ConfigError

__all__ = ["TranslatedKeys", "section", "translate_muxi", "unknown_key"]


class TranslatedKeys(NamedTuple):
    """A tree in remora's own keys.

    Attributes:
        tree: two levels of dicts, where the source had sections.
        written_as: for each key that was translated, its dotted path in the source.
    """

    tree: dict[str, Any]
    written_as: dict[str, str]


def unknown_key(path: str, key: object, known: Iterable[str]) -> ConfigError:
    """The error for a key that means nothing, with the nearest that does.

    Args:
        path: dotted path of the section with a dot at its end, or the empty string.
        key: as it was written.
        known: the section's keys.
    """
    import difflib  # noqa: PLC0415  # for who mistypes a key; nobody else need load it

    names = sorted(known)
    near = difflib.get_close_matches(str(key), names, n=1)
    hint = f"did you mean {path}{near[0]}?" if near else f"known here: {', '.join(names)}"
    return ConfigError(f"unknown configuration key {path}{key}; {hint}", key=f"{path}{key}")


def section(value: object, key: str) -> Mapping[str, Any]:
    """The value, which must be a mapping.

    Raises:
        ConfigError: it is none.
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
        f"{key} must be openai/NAME, for any OpenAI-compatible endpoint, or wordllama, not "
        f"{value!r}; "
        "another embedder is handed over as an object: Runtime(…, embedder=…)",
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
            f"{key} must be true, not {value!r}: isolation of users cannot be switched off", key=key
        )
    return {}


_Rule: TypeAlias = str | Callable[[object, str], dict[str, object]]
_MUXI: dict[str, dict[str, _Rule]] = {
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


def translate_muxi(tree: Mapping[str, Any]) -> TranslatedKeys:
    """The tree with what stands under ``memory:`` moved to remora's own sections.

    Raises:
        ConfigError: a key there that MUXI does not have, a value that remora has nothing for, or
            one that is given both there and in remora's own section.
    """
    own: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in tree.items()
    }
    written_as: dict[str, str] = {}
    if "memory" not in own:
        return TranslatedKeys(own, written_as)
    for part, keys in section(own.pop("memory"), "memory").items():
        if part not in _MUXI:
            raise unknown_key("memory.", part, _MUXI)
        for key, value in section(keys, f"memory.{part}").items():
            written = f"memory.{part}.{key}"
            rule = _MUXI[part].get(key)
            if rule is None:
                raise unknown_key(f"memory.{part}.", key, _MUXI[part])
            for target, meant in (
                {rule: value} if isinstance(rule, str) else rule(value, written)
            ).items():
                _put(own, target, meant, written)
                written_as[target] = written
        if part == "buffer" and isinstance(own.setdefault("buffer", {}), dict):
            own["buffer"].setdefault("policy", "ring")
    return TranslatedKeys(own, written_as)


def _put(tree: dict[str, Any], target: str, value: object, written: str) -> None:
    part, _, key = target.partition(".")
    keys = tree.setdefault(part, {})
    if isinstance(keys, dict):  # otherwise the check of the whole tree refuses it
        if key in keys:
            raise ConfigError(f"{target} is given twice: as such, and as {written}", key=target)
        keys[key] = value
