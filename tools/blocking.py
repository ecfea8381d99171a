"""Write ``remora/blocking.pyi``: the signatures of `remora.blocking`, for checkers and editors.

The classes of `remora.blocking` get their methods from the async classes when the module is
imported, which no type checker sees. ``python tools/blocking.py`` writes the file again;
``--check`` fails if it is not what would be written.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

STUB = Path(__file__).parents[1] / "remora" / "blocking.pyi"
_HEAD = """# Written by tools/blocking.py.
# ruff: noqa: A002 - parameters have the names that the async methods give them
"""
_Imports = dict[str, str]
"""The modules that names are imported from."""


def render() -> str:
    """The text of the stub."""
    blocking = importlib.import_module("remora.blocking")
    threads = importlib.import_module("remora.api.threads")
    kinds: dict[type, type] = threads.Mirror.kinds
    own = {kind.__name__ for kind in kinds.values()}
    imports: _Imports = {"Self": "typing"}
    classes = [_render_class(original, kind, own, imports) for original, kind in kinds.items()]
    functions = (
        "def connect(target: str | Path) -> Runtime: ...\n"
        "def view(runtime: _AsyncRuntime | _Connected) -> Runtime: ...\n"
    )
    listed = f"__all__ = {sorted(blocking.__all__)!r}\n"
    lines = sorted(
        f"from {module} import {name}" if module else f"import {name}"
        for name, module in imports.items()
    )
    lines.append("from remora.api.runtime import Runtime as _AsyncRuntime")
    lines.append("from remora.cluster.connected import ConnectedRuntime as _Connected")
    text = "\n".join([_HEAD, *lines, "", listed, *classes, functions])
    return _format(text)


def _render_class(original: type, kind: type, own: set[str], imports: _Imports) -> str:
    lines = [f"class {kind.__name__}:"]
    for name in sorted({*dir(original), *vars(kind)}):
        if not name.startswith("_") or name in {"__init__", "__enter__", "__exit__"}:
            lines.extend(_render_member(name, original, kind, own, imports))
    return "\n".join([*lines, ""])


def _render_member(
    name: str, original: type, kind: type, own: set[str], imports: _Imports
) -> Iterator[str]:
    defined = vars(kind).get(name)
    member = inspect.getattr_static(original, name, defined)
    if inspect.isfunction(defined) and not hasattr(defined, "__wrapped__") and name != "__init__":
        member = defined
    if not hasattr(kind, name) or (name == "__init__" and defined is None):
        return
    if name == "__enter__":
        yield "    def __enter__(self) -> Self: ..."
    elif name == "__exit__":
        yield "    def __exit__(self, *error: object) -> None: ..."
    elif isinstance(member, classmethod):
        yield "    @classmethod"
        yield f"    def {name}{_signature(member.__func__, own, imports)}: ..."
    elif inspect.isfunction(member):
        yield f"    def {name}{_signature(member, own, imports)}: ..."
    else:
        returned = _type_of(member, original, name)
        source: Any = member.fget if isinstance(member, property) else _init_of(original)
        _collect(returned, sys.modules[source.__globals__["__name__"]], own, imports)
        yield "    @property"
        yield f"    def {name}(self) -> {returned}: ..."


def _init_of(original: type) -> Any:
    return inspect.getattr_static(original, "__init__")


def _type_of(member: Any, original: type, name: str) -> str:
    """The type of a property, or of an attribute that ``__init__`` assigns from a parameter."""
    if isinstance(member, property):
        return str(inspect.get_annotations(member.fget)["return"])  # type: ignore[arg-type]
    parameters = inspect.get_annotations(_init_of(original))
    return str(parameters.get(name) or parameters[f"{name}_"])


def _signature(function: Callable[..., Any], own: set[str], imports: _Imports) -> str:
    """Parameters and result as text; a default is an ellipsis, as in every stub."""
    function = inspect.unwrap(function)
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    node.args.defaults = [ast.Constant(...) for _ in node.args.defaults]
    node.args.kw_defaults = [one and ast.Constant(...) for one in node.args.kw_defaults]
    parameters, returned = ast.unparse(node.args), ast.unparse(node.returns or ast.Constant(None))
    module = sys.modules[function.__globals__["__name__"]]
    for one in ast.walk(node.args):
        if isinstance(one, ast.arg) and one.annotation is not None:
            _collect(ast.unparse(one.annotation), module, own, imports)
    _collect(returned, module, own, imports)
    return f"({parameters}) -> {returned}"


def _collect(annotation: str, module: Any, own: set[str], imports: _Imports) -> None:
    """Note where the names of an annotation come from."""
    for node in ast.walk(ast.parse(annotation, mode="eval")):
        if isinstance(node, ast.Name) and node.id not in own and not hasattr(builtins, node.id):
            imports[node.id] = _origin(node.id, module)


def _origin(name: str, module: Any) -> str:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and name in {one.name for one in node.names}:
            return str(node.module)
        if isinstance(node, ast.Import) and name in {one.name for one in node.names}:
            return ""  # a module of its own
    return str(module.__name__)


def _format(text: str) -> str:
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        text = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", STUB, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=STUB.parents[1],
        ).stdout
    return text


def main() -> int:
    """Write the stub, or compare it."""
    text = render()
    if "--check" not in sys.argv[1:]:
        STUB.write_text(text, encoding="utf-8")
        return 0
    if STUB.read_text(encoding="utf-8") == text:
        return 0
    print("remora/blocking.pyi is not what tools/blocking.py writes: run it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
