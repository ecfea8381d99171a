"""The files that the rules read, each parsed once."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

__all__ = ["ROOT", "Function", "Rule", "Source", "functions_of", "sources"]

ROOT = Path(__file__).resolve().parents[2]
Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Source:
    """A file of the repository.

    Attributes:
        name: its path from the root, with slashes.
        text: what is in it.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text

    @cached_property
    def tree(self) -> ast.Module:
        """Of a module of Python."""
        return ast.parse(self.text, filename=self.name)

    @cached_property
    def nodes(self) -> list[tuple[Function | None, ast.AST]]:
        """Every node with the function that it stands in."""
        return list(functions_of(self.tree))


Rule: TypeAlias = Callable[[Sequence[Source]], Iterator[str]]
"""Yields a line for each violation in all files: ``path:line: what``."""


def sources() -> list[Source]:
    """The modules and pages that rules are about."""
    files = [*ROOT.glob("*.md"), ROOT / "tasks.py"]
    for folder in ("remora", "tests", "examples", "docs"):
        files += [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".md"}]
    return [
        Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(files)
    ]


def functions_of(tree: ast.AST) -> Iterator[tuple[Function | None, ast.AST]]:
    """Every node with the function that it stands in; a decorator stands outside."""
    left: list[tuple[Function | None, ast.AST]] = [(None, tree)]
    while left:
        inside, node = left.pop()
        yield inside, node
        own = node if isinstance(node, Function) else None
        for child in ast.iter_child_nodes(node):
            of_body = own is not None and child in own.body
            left.append((own if of_body else inside, child))
