"""Measure the house: how many rooms a plain append enters, and how large the package is.

    python -m tools.house [--json]

An append is traced on the event loop of a runtime in a directory, once it is warm: the modules of
`remora` whose functions are called, the calls, and the moves from one module to another.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from remora import Config, Runtime

__all__ = ["count_untyped", "main", "measure", "trace_append"]

_ROOT = Path(__file__).parent.parent
_PACKAGE = _ROOT / "remora"
_WARM_UP, _TRACED = 20, 5  # appends
_IMPORTED = "import remora, sys; print(sum(n.split('.')[0] == 'remora' for n in sys.modules))"


def trace_append() -> list[str]:
    """Return the module of each call of a function of remora in one append, in order.

    Of several appends it is the one with the fewest: something else may run in between.
    """
    calls: list[list[str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith("remora."):
                calls[-1].append(name)

    async def append(directory: str) -> None:
        config = Config.from_dict({"models": {"embedder": "none"}})
        async with Runtime(directory, config=config) as runtime:
            await runtime.ready()
            chat = runtime.session("ada", "one")
            for number in range(_WARM_UP):
                await chat.append({"role": "user", "content": f"Hello, for the time {number}."})
            await runtime.settle()
            for _ in range(_TRACED):
                calls.append([])
                sys.setprofile(note)
                await chat.append({"role": "user", "content": "Hello."})
                sys.setprofile(None)

    with tempfile.TemporaryDirectory() as directory:
        anyio.run(append, directory)
    return min(calls, key=lambda one: (len({*one}), len(one)))


def count_untyped() -> int:
    """Return how many parameters of functions have `Any` as their whole type."""
    found = 0
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = node.args
                for one in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                    found += isinstance(one.annotation, ast.Name) and one.annotation.id == "Any"
    return found


def count_public_tests() -> tuple[int, int]:
    """Return how many test files import only modules that the API reference has, and how many are.

    A module whose name is imported from its package counts as that module.
    """
    pages = (_ROOT / "docs" / "reference" / "api").glob("*.rst")
    public = {"remora"}
    for page in pages:
        public.update(re.findall(r"module:: (\S+)", page.read_text(encoding="utf-8")))
    files = [*(_ROOT / "tests").glob("*/test_*.py")]
    return sum(_imported(path) <= public for path in files), len(files)


def _imported(path: Path) -> set[str]:
    """Return the modules of remora that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for one in node.names:
                place = _ROOT.joinpath(*node.module.split("."), one.name)
                is_module = place.is_dir() or place.with_suffix(".py").exists()
                found.add(f"{node.module}.{one.name}" if is_module else node.module)
    return {module for module in found if module.partition(".")[0] == "remora"}


def measure() -> dict[str, int]:
    """Return the figures, by name."""
    calls = trace_append()
    lines = [path.read_bytes().count(b"\n") for path in _PACKAGE.rglob("*.py")]
    public_tests, test_files = count_public_tests()
    imported = subprocess.run(
        [sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True, cwd=_ROOT
    )
    return {
        "modules that an append enters": len({*calls}),
        "calls of an append": len(calls),
        "moves of an append": sum(one != other for one, other in pairwise(calls)),
        "parameters whose type is Any": count_untyped(),
        "modules": len(lines),
        "lines": sum(lines),
        "modules that `import remora` loads": int(imported.stdout),
        "test files": test_files,
        "test files that import public modules alone": public_tests,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    figures = measure()
    if parser.parse_args().json:
        print(json.dumps(figures, indent=1))
    else:
        for name, figure in figures.items():
            print(f"{figure:>8,}  {name}")


if __name__ == "__main__":
    main()
