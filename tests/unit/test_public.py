"""Every module says what is public, and is listed where a reader looks for it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import remora
import tests.checker
from benchmarks.frameworks.suites import OWN

MODULES = [
    name
    for package in (remora, tests.checker)
    for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not name.endswith("__main__")
]

NOT_FOR_DEVELOPERS = {f"remora.adapters.{name}" for suite in OWN.values() for name in suite.modules}
"""Adapters whose frameworks may be missing here: their tests have environments of their own."""


@pytest.mark.parametrize("name", MODULES)
def test_all_is_true(name: str) -> None:
    """Each module's `__all__` names what it defines, sorted; each public thing has a docstring."""
    try:
        module = importlib.import_module(name)
    except ImportError as e:
        if name not in NOT_FOR_DEVELOPERS or 'pip install "remora[' not in str(e):
            raise
        pytest.skip(str(e))
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


PUBLIC = {"_asdict", "_replace"}
"""Of named tuples: public, although they begin with an underscore."""

EXCEPTIONS = {
    "tests/property/test_linearizable.py": "trio has no public way to seed its schedule",
}


@pytest.mark.blocking
def test_tests_leave_what_is_private_alone() -> None:
    """No test imports, reads or replaces a private part of another module, or of an object that is
    not its own.
    """
    root = Path(__file__).parents[2]
    found = []
    for path in sorted((root / "tests").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in EXCEPTIONS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found += [f"{name}:{line}: {what}" for line, what in private_parts(tree)]
    assert found == []


def private_parts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private part that is used from outside."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name):
                own = isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
                parent = isinstance(owner, ast.Call) and ast.unparse(owner) == "super()"
                names = [] if own or parent else [name]
            case ast.ImportFrom(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[owner, *rest]):
                names = [] if ast.unparse(owner) in {"self", "cls"} else texts(rest[:1])
            case ast.Call(func=ast.Attribute(attr="setattr"), args=arguments):
                names = [text.rpartition(".")[2] for text in texts(arguments[:2])]
            case _:
                names = []
        for name in names:
            if name.startswith("_") and not name.startswith("__") and name not in PUBLIC:
                yield node.lineno, name  # type: ignore[attr-defined]


def texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def test_private_parts_are_found() -> None:
    """The rule above sees each way to reach one."""
    source = """
from remora.x import _a
journal._b = 1
setattr(journal, "_c", 2)
patch.setattr("remora.x._d", 3)
patch.setattr(remora.x, "_e", 4)
getattr(journal, "_f")
value._replace(a=self._own, b=super()._own, c=getattr(self, "_own"), d=value.__doc__)
"""
    found = {name for _, name in private_parts(ast.parse(source))}
    assert found == {"_a", "_b", "_c", "_d", "_e", "_f"}
