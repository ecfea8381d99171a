"""Public classes and functions show the path that users import them from.

Otherwise tracebacks, reprs and documents would name the module of remora that defines them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any


def publish(face: str, names: Sequence[str], namespace: Mapping[str, Any]) -> None:
    """Set `__module__` of what a public module imports and lists.

    Annotations that are text are resolved in the module that defines the class, as before: msgspec
    and `typing.get_type_hints` would look them up in `face`.

    Args:
        face: the public module's name.
        names: its ``__all__``.
        namespace: its ``globals()``.
    """
    for name in names:
        thing = namespace[name]
        if not isinstance(thing, (type, FunctionType)) or not thing.__module__.startswith("remora"):
            continue
        if isinstance(thing, type) and (annotations := inspect.get_annotations(thing)):
            _bind_annotations(thing, annotations)
        thing.__module__ = face


def _bind_annotations(defined: type, annotations: Mapping[str, Any]) -> None:
    """Have a class's annotations that are text resolved in the module that it is now in."""
    bound = {
        key: typing.ForwardRef(value, is_argument=False, module=defined.__module__, is_class=True)
        if isinstance(value, str)
        else value
        for key, value in annotations.items()
    }
    if sys.version_info >= (3, 14):
        # A name that a resolver is given counts more there than a reference's own module: the
        # class resolves them itself, when they are first asked for.
        del defined.__annotations__
        defined.__annotate__ = _annotate(defined, bound)
    else:
        defined.__annotations__ = bound


def _annotate(defined: type, bound: Mapping[str, Any]) -> Callable[[int], dict[str, Any]]:
    """The ``__annotate__`` of a class (PEP 649), from Python 3.14 on."""
    home = vars(sys.modules[defined.__module__])

    def annotate(format_: int, /) -> dict[str, Any]:
        formats: Any = importlib.import_module("annotationlib").Format
        if format_ == formats.VALUE_WITH_FAKE_GLOBALS:
            raise NotImplementedError
        references = {key: one for key, one in bound.items() if isinstance(one, typing.ForwardRef)}
        if format_ == formats.STRING:
            return {**bound, **{key: one.__forward_arg__ for key, one in references.items()}}
        resolve: Any = vars(typing)["evaluate_forward_ref"]
        return {
            **bound,
            **{key: resolve(one, owner=defined, globals=home) for key, one in references.items()},
        }

    return annotate
