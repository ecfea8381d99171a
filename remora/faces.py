"""Public classes and functions show the path that users import them from.

Otherwise tracebacks, reprs and documents would name the module of remora that defines them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

__all__ = ["publish"]


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
            home = thing.__module__
            thing.__annotations__ = {
                key: typing.ForwardRef(value, is_argument=False, module=home, is_class=True)
                if isinstance(value, str)
                else value
                for key, value in annotations.items()
            }
        thing.__module__ = face
