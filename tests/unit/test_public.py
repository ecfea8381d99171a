"""Every module says what is public, and is listed where a reader looks for it."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest

import remora

MODULES = [
    name
    for _, name, _ in pkgutil.walk_packages(remora.__path__, "remora.")
    if not name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name: str) -> None:
    """Each module's `__all__` names what it defines, sorted; each public thing has a docstring."""
    module = importlib.import_module(name)
    assert module.__doc__
    path = Path(str(module.__file__))
    if path.name == "__init__.py" and name != "remora.testing":
        return
    assert module.__all__ == sorted(
        module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )
    for public in module.__all__:
        thing = getattr(module, public)
        if callable(thing) and getattr(thing, "__module__", "").startswith("remora"):
            assert thing.__doc__, f"{name}.{public}"
