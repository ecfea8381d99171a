"""Every module stands in a layer, and imports between folders point downward: what `lint-imports`
checks, without its help.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import remora

PACKAGE = Path(remora.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"


def layers() -> dict[str, int]:
    """Each folder or top-level module, with the height of its layer."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    lines = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {name: -i for i, line in enumerate(lines) for name in re.split(r" [:|] ", line)}


def imported(path: Path) -> Iterator[str]:
    """The folders or top-level modules of remora that a file imports, late imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [n.name for n in node.names]
            if isinstance(node, ast.Import)
            else []
        )
        yield from (name.split(".")[1] for name in names if name.startswith("remora."))


def test_no_module_is_outside_a_layer() -> None:
    names = {
        path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")
    } - {"__init__"}
    assert names == set(layers())


def test_imports_between_folders_point_downward() -> None:
    height = layers()
    upward: defaultdict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        home = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if home != "__init__":  # the face of the whole
            upward[home] |= {
                other for other in imported(path) if other != home and height[other] > height[home]
            }
    assert not {home: others for home, others in upward.items() if others}


def test_loggers_are_named_after_their_modules() -> None:
    """A filter on `remora.runtime` gets the kernel, and a name in a log leads to a file."""
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"= get_logger\((.+)\)", path.read_text()):
            assert name == "__name__", path
