"""Every module says what is public, and is listed where a reader looks for it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import remora
import tests.checker

MODULES = [
    name
    for package in (remora, tests.checker)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
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
        if callable(thing) and getattr(thing, "__module__", "").startswith(("remora", "tests.")):
            assert thing.__doc__, f"{name}.{public}"


@pytest.mark.blocking
def test_the_package_does_not_need_its_tests() -> None:
    """What judges remora (`tests.checker`) is not part of what is installed."""
    assert remora.__file__
    for path in Path(remora.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in {"tests", "benchmarks", "tools"}, (
                    path
                )
