"""Runs the notebooks of `examples/notebooks` without Jupyter, which developers do not install.

``python -m tests.notebooks`` runs them all, and writes their outputs into them.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.programs import ROOT

__all__ = ["NOTEBOOKS", "outputs", "run_notebook"]

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def outputs(notebook: Any) -> list[str]:
    """The text that each code cell shows, as it is stored."""
    return ["".join(_shown(cell)) for cell in _code_cells(notebook)]


async def run_notebook(notebook: Any) -> list[str]:
    """The text that each code cell shows, run in order in one namespace, as Jupyter runs it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [await _run("".join(cell["source"]), names) for cell in _code_cells(notebook)]


async def _run(source: str, names: dict[str, Any]) -> str:
    module = ast.parse(source)
    last = module.body.pop() if isinstance(module.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as shown:
        await _execute(module, "exec", names)
        if isinstance(last, ast.Expr):
            value = await _execute(ast.Expression(last.value), "eval", names)
            if value is not None:
                shown.write(f"{value!r}\n")
    return shown.getvalue()


async def _execute(tree: ast.Module | ast.Expression, mode: str, names: dict[str, Any]) -> Any:
    code = compile(tree, "<cell>", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    value = eval(code, names)
    return await value if code.co_flags & inspect.CO_COROUTINE else value


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _shown(cell: Any) -> list[str]:
    return [line for output in cell["outputs"] for line in output["text"]]


def _write(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    shown = asyncio.run(run_notebook(notebook))
    for number, (cell, text) in enumerate(zip(_code_cells(notebook), shown, strict=True), 1):
        lines = text.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["execution_count"], cell["outputs"] = number, [stream] if lines else []
    path.write_text(f"{json.dumps(notebook, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


if __name__ == "__main__":
    for one in NOTEBOOKS:
        _write(one)
