"""Errors are plain data: what another process is told of one makes the same error there."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

from remora import errors

SAMPLES: dict[str, Any] = {
    "Any": {"a": [1]},
    "Path | str": "memory",
    "bool": True,
    "float": 0.5,
    "int": 7,
    "int | None": None,
    "str": "ada",
    "str | None": None,
    "tuple[int, ...]": (3, 4),
    "tuple[str, ...]": ("a", "b"),
}
"""A value of each type that an attribute may have."""


def attributes_of(kind: type[errors.RemoraError]) -> dict[str, Any]:
    """A value for each argument but the text."""
    first = next(one for one in kind.__mro__ if "__init__" in vars(one))
    if not issubclass(first, errors.RemoraError):
        return {}
    _, text, *others = inspect.signature(kind.__init__).parameters.values()
    assert text.name == "text"
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in others)
    return {one.name: SAMPLES[one.annotation] for one in others}


def test_an_error_is_its_class_text_and_attributes() -> None:
    """A directory is named by text."""
    for kind in (getattr(errors, name) for name in errors.__all__):
        given = attributes_of(kind)
        error = kind("what happened", **given)
        assert (str(error), vars(error)) == ("what happened", given)
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(vars(error)))
        received = {
            name: tuple(value) if isinstance(value, list) else value for name, value in sent.items()
        }
        again = kind("what happened", **received)
        assert (again.args, vars(again)) == (error.args, vars(error))
    locked = errors.DirectoryLocked("locked", path=Path("memory"), pid=7, since=None)
    assert locked.path == "memory"
