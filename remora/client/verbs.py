"""Verbs of a memory over HTTP, made from the verbs of handles and the table of operations.

``recall = served(User.recall)`` in a class of the client is a method with the signature of
`remora.User.recall`. Its arguments become the fields of the operation's body, checked by what these
may hold, and its result is what the handle's verb returns.
"""

from __future__ import annotations

import inspect
import typing
from collections import abc
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, reduce, wraps
from math import isfinite
from operator import or_
from types import NoneType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec
from msgspec.inspect import BoolType, FloatType, IntType, StrType, Type, UnionType, type_info

from remora.api.deletion import Deletable, parse_which
from remora.api.memories import MemoryLike
from remora.client.messages import all_messages, plain_messages
from remora.client.service import Service
from remora.errors import InvalidInput
from remora.ids import validate_id
from remora.messages import MessageLike
from remora.rest.operation import Operation
from remora.rest.operations import OPERATIONS
from remora.services.arguments import (
    MAX_IDS,
    MAX_INT,
    check_choice,
    check_flag,
    check_int,
    check_text,
    collect,
)
from remora.services.metadata import copy_json
from remora.services.recording import check_importance
from remora.services.state_values import MAX_LEVELS, check_key

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Prepare = Callable[[Any, str], Any]

ERASURE_S = 300.0  # files are rewritten
MOST = 10_000  # memories of one answer


class _Handle(Protocol):
    """A handle of the client; `_names` are what its paths name."""

    _service: Service

    @property
    def _names(self) -> dict[str, str]: ...


def served(
    verb: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
    *,
    timeout_s: float | None = None,
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """Return the verb of a handle as a request.

    Args:
        verb: of a handle in `remora.api`.
        timeout_s: seconds, for a verb without that parameter; None for the client's own.

    Raises:
        TypeError: no operation takes all of its arguments.
    """
    _, *parameters = inspect.signature(verb).parameters.values()
    wanted = [one.name for one in parameters]
    rows = {row.owners: row for row in OPERATIONS if row.verb is verb and row.takes(wanted)}
    if not rows:
        raise TypeError(f"no operation takes all arguments of {verb.__qualname__}")
    row = next(iter(rows.values()))
    kind: Any = row.body or row.query
    bind, fields = _binder(verb.__name__, parameters), _fields(verb, row)
    named = [(one, parameter, _NAMES[one]) for one, parameter in row.named.items()]

    @wraps(verb)
    async def request(
        self: _Handle, /, *positional: Arguments.args, **others: Arguments.kwargs
    ) -> Result:
        given = bind(*positional, **others)
        names = dict(self._names)
        called = rows[tuple(names)]
        for one, parameter, check in named:
            names[one] = check(getattr(given, parameter))
        body = kind and kind(
            **{field: make(getattr(given, one), one) for field, one, make in fields}
        )
        result: Result = await self._service.ask(
            called,
            names,
            body,
            key=given.key if called.keyed else None,
            timeout_s=getattr(given, "timeout_s", timeout_s),
        )
        return result

    return request


def composed(
    verb: Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """Return a verb of a handle that only calls other verbs of it, as it is."""
    return verb


def _binder(name: str, parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """Return what takes the arguments of a call as the verb does."""
    by_name: list[Any] = []
    by_place: list[Any] = []
    for one in parameters:
        default = msgspec.NODEFAULT if one.default is one.empty else one.default
        field = (one.name, Any, msgspec.field(default=default))
        (by_name if one.kind is one.KEYWORD_ONLY else by_place).append(field)
    base = msgspec.defstruct(name, by_name, kw_only=True)
    return msgspec.defstruct(name, by_place, bases=(base,))


# -- arguments as a body has them ------------------------------------------------------------------


def _fields(verb: Callable[..., Any], row: Operation) -> list[tuple[str, str, Prepare]]:
    """Each field of the body, its parameter, and what makes the one of the other."""
    if row.body is None and row.query is None:
        return []
    hints = typing.get_type_hints(verb)
    shape: Any = type_info(row.body or row.query)
    return [
        (field.name, parameter, _prepare(parameter, hints[parameter], field.type))
        for field in shape.fields
        if (parameter := row.arguments[field.name])
    ]


def _prepare(name: str, hint: object, kind: Type) -> Prepare:
    """Return what checks an argument, and makes plain data of it."""
    parts: Any = typing.get_args(hint)
    optional = NoneType in parts
    if optional:
        hint = reduce(or_, [one for one in parts if one is not NoneType])
    prepare: Prepare
    match typing.get_origin(hint):
        case typing.Literal:
            prepare = partial(_choose, choices=typing.get_args(hint))
        case abc.Mapping:
            prepare = _PACKED.get(hint, _as_dict)
        case _:
            prepare = _PACKED.get(hint) or (hint is str and _IDS.get(name)) or _checking(kind)
    if not optional:
        return prepare
    return lambda value, name: None if value is None else prepare(value, name)


def _checking(kind: Type) -> Prepare:
    """Return what checks a value by the type of its field; the server checks what is not here."""
    match kind:
        case UnionType(types=(one, msgspec.inspect.NoneType())):
            return _checking(one)
        case IntType(ge=low, le=high):
            return partial(check_int, low=low or 0, high=high or MAX_INT)
        case FloatType():
            return _check_finite
        case BoolType():
            return check_flag
        case StrType():
            return check_text
        case _:
            return lambda value, _: value


def _choose(value: str, name: str, *, choices: tuple[str, ...]) -> str:
    check_choice(value, name, choices)
    return value


def _check_dict(value: object, name: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{name} must be a dict, not {type(value).__name__}")
    return value


def _as_dict(value: object, name: str) -> Any:
    return copy_json(_check_dict(value, name))


def _by_key(values: object, name: str) -> dict[str, Any]:
    """Values of keyed state."""
    pairs = _check_dict(values, name).items()
    return {check_key(key): copy_json(value, MAX_LEVELS) for key, value in pairs}


def _as_id(value: object, _: str, *, what: str) -> str:
    if value == "":  # some verbs take it for none
        return ""
    return validate_id(value, what)


def _as_texts(value: str | Iterable[str], name: str) -> list[str]:
    """One text or several, as a list."""
    return [value] if isinstance(value, str) else collect(value, name, check_text)


def _as_memories(content: MemoryLike | Iterable[MemoryLike], name: str) -> Any:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return [_as_memory(content)]
    return [
        _as_memory(one) if isinstance(one, Mapping) else check_text(one, "a memory")
        for one in collect(content, name)
    ]


def _as_memory(given: Mapping[str, Any]) -> dict[str, Any]:
    check_importance(given.get("importance"))
    metadata = given.get("metadata")
    return {**given, **({"metadata": copy_json(metadata)} if metadata else {})}


def _check_finite(value: object, name: str) -> object:
    if isinstance(value, float) and not isfinite(value):
        raise InvalidInput(f"{name} must be a number, not {value}")
    return value


_PACKED: Mapping[Any, Prepare] = {
    Deletable | Iterable[Deletable]: lambda which, _: [id_ for _, id_ in parse_which(which)],
    Iterable[str]: partial(collect, check=lambda key, _: check_key(key), most=MAX_IDS),
    Mapping[str, int]: _by_key,
    Mapping[str, object]: _by_key,
    MemoryLike | Iterable[MemoryLike]: _as_memories,
    MessageLike | Iterable[MessageLike]: lambda messages, _: plain_messages(messages),
    object: lambda value, _: copy_json(value, MAX_LEVELS),
    Sequence[MessageLike]: lambda messages, _: all_messages(messages),
    str | Iterable[str]: _as_texts,
}
_IDS: Mapping[str, Prepare] = {
    "agent": partial(_as_id, what="an agent's id"),
    "by": partial(_as_id, what="an agent's id"),
    "key": partial(_as_id, what="a memory's key"),
    "session": partial(_as_id, what="a session id"),
    "source": partial(_as_id, what="a source"),
    "to": partial(_as_id, what="an agent's id"),
}
"""Arguments that name something."""
_NAMES: Mapping[str, Callable[[object], str]] = {
    "key": check_key,
    "memory": partial(validate_id, what="a memory's id"),
}
"""Arguments that a path has."""
