"""What stands in which module: private parts, loggers, and what the package may import."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import remora.errors
from tools.lint.source import Source

__all__ = ["errors", "loggers", "private_parts", "separation"]

PUBLIC = {"_asdict", "_exit", "_replace"}
"""Public, although they begin with an underscore: of named tuples, of `os`."""

EXCEPTIONS = {
    "tests/example_runs.py": "hypothesis has no public way to seed and to keep failures at once",
    "tests/property/test_linearizable.py": "trio has no public way to seed its schedule",
    "tests/zygote.py": "subprocess has no public way to start a process otherwise",
}


def separation(files: Sequence[Source]) -> Iterator[str]:
    """What tests remora, or measures it, is not part of what is installed."""
    for file in files:
        if file.name.startswith("remora/") and file.name.endswith(".py"):
            for _, node in file.nodes:
                if isinstance(node, ast.ImportFrom):
                    folder = (node.module or "").split(".")[0]
                    if folder in {"tests", "benchmarks", "tools"}:
                        yield f"{file.name}:{node.lineno}: the package imports {node.module}"


def loggers(files: Sequence[Source]) -> Iterator[str]:
    """A filter on `remora.runtime` gets the kernel, and a name in a log leads to a file."""
    for file in files:
        if file.name.startswith("remora/") and file.name.endswith(".py"):
            for _, node in file.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    call = ast.unparse(node.value)
                    if call.startswith("get_logger(") and call != "get_logger(__name__)":
                        yield f"{file.name}:{node.lineno}: a logger is named by __name__"


def private_parts(files: Sequence[Source]) -> Iterator[str]:
    """No test uses a private part of another module, or of an object that is not its own."""
    for file in files:
        tests = file.name.startswith("tests/") and file.name.endswith(".py")
        if tests and file.name not in EXCEPTIONS:
            for _, node in file.nodes:
                for name in _used_by(node):
                    if name.startswith("_") and not name.startswith("__") and name not in PUBLIC:
                        yield f"{file.name}:{getattr(node, 'lineno', 1)}: private: {name}"


IDS = re.compile(
    r"(.*\.)?_?(user|session|scope|who)(_id)?|(state|cell|job|self|session)\.key"
    r"|\w+\['(user|session)'\]"
)
"""Expressions that are an id of a user, a session or a shared scope, or hold one."""
OTHERS = ("remora/cli/", "remora/testing/", "remora/adapters/strands.py")
"""What somebody typed, no memory of users, and the words of Strands."""


def errors(files: Sequence[Source]) -> Iterator[str]:
    """The text of an error has no id of a user or a session: who logs it logs none."""
    for file in files:
        if file.name.startswith("remora/") and not file.name.startswith(OTHERS):
            for _, node in file.nodes if file.name.endswith(".py") else ():
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func).split(".")[-1] in remora.errors.__all__
                ):
                    for one in (shown for text in node.args for shown in ast.walk(text)):
                        if isinstance(one, ast.FormattedValue):
                            what = ast.unparse(one.value)
                            if IDS.fullmatch(what):
                                yield f"{file.name}:{one.lineno}: an error shows {what}"


def _used_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Attribute(value=owner, attr=name):
            own = isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
            parent = isinstance(owner, ast.Call) and ast.unparse(owner) == "super()"
            return [] if own or parent else [name]
        case ast.ImportFrom(names=aliases):
            return [alias.name for alias in aliases]
        case ast.Call(func=ast.Name(id="getattr" | "setattr"), args=[owner, *rest]):
            return [] if ast.unparse(owner) in {"self", "cls"} else _texts(rest[:1])
        case ast.Call(func=ast.Attribute(attr="setattr"), args=arguments):
            return [text.rpartition(".")[2] for text in _texts(arguments[:2])]
    return []


def _texts(nodes: Sequence[ast.expr]) -> list[str]:
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
