"""Draw the layers of the package, and how much each imports of those below.

    python -m tools.layers

writes docs/layers.svg, from the import contract in pyproject.toml and the imports of the modules.
The lines at the right are imports: from the layer that imports down to the one that is imported,
thicker for more modules. The picture fits light and dark pages.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tools.svg import picture

__all__ = ["Layer", "draw", "main", "read"]

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "layers.svg"
_WIDTH, _ROW, _BOX, _GAP, _CURVE = 820, 44, 34, 12, 190
_FACES = "public import paths"
_CHARACTERS = 52  # of what is said of a layer
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f; } .name { font-weight: 600; }
.note { fill: #57606a; } .box { fill: #f6f8fa; stroke: #d0d7de; }
path { fill: none; stroke: #2f7f85; stroke-opacity: .45; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #a9afb6; } .box { fill: #1f242b; stroke: #3d444d; }
  path { stroke: #4fb3ba; }
}
"""


class Layer(NamedTuple):
    """A layer: its packages, a sentence about them, and how many modules they have."""

    packages: tuple[str, ...]
    about: str
    modules: int


def read() -> tuple[list[Layer], Counter[tuple[int, int]]]:
    """The layers from top to bottom, and the number of imports from one to another."""
    contracts: Any = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    names = [re.split(r"\s*[|:]\s*", one) for one in contracts["contracts"][0]["layers"]]
    place = {name: number for number, row in enumerate(names) for name in row}
    modules: Counter[int] = Counter()
    imports: Counter[tuple[int, int]] = Counter()
    for path in sorted((ROOT / "remora").rglob("*.py")):
        parts = path.relative_to(ROOT / "remora").with_suffix("").parts
        if parts[0] not in place:
            continue
        here = place[parts[0]]
        modules[here] += 1
        for top in _imported(path):
            if top in place and place[top] != here:
                imports[here, place[top]] += 1
    layers = [Layer(tuple(row), _about(row), modules[number]) for number, row in enumerate(names)]
    return layers, imports


def _imported(path: Path) -> set[str]:
    """The packages of remora that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remora."):
            found.add(str(node.module).split(".")[1])
    return found


def _about(packages: list[str]) -> str:
    """The first sentence of the docstring of the packages."""
    said = []
    for name in packages:
        folder = ROOT / "remora" / name
        file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
        doc = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
        said.append(re.split(r"(?<=[^.])[.:](?:\s|$)", doc)[0].replace("`", ""))
    about = "; ".join(said) if len(said) < 4 else _FACES
    return (
        about
        if len(about) < _CHARACTERS
        else textwrap.shorten(about, _CHARACTERS, placeholder=" …")
    )


def draw(layers: list[Layer], imports: Counter[tuple[int, int]]) -> str:
    """The picture."""
    boxes, curves = [], []
    right = _WIDTH - _CURVE
    for number, layer in enumerate(layers):
        y = _GAP + number * _ROW
        name = ", ".join(layer.packages) if len(layer.packages) < 4 else _FACES
        size = f"{layer.modules} module{'s' if layer.modules != 1 else ''}"
        about = "" if name == _FACES else layer.about
        boxes.append(
            f'<rect class="box" x="8" y="{y}" width="{right - 16}" height="{_BOX}" rx="5"/>'
            f'<text class="name" x="20" y="{y + 22}">{escape(name)}</text>'
            f'<text class="note" x="170" y="{y + 22}">{escape(about)}</text>'
            f'<text class="note" x="{right - 20}" y="{y + 22}" text-anchor="end">{size}</text>'
        )
    for (above, below), count in sorted(imports.items()):
        if below <= above:
            continue
        start, end = (_GAP + place * _ROW + _BOX / 2 for place in (above, below))
        out = right - 8 + min(_CURVE - 12, 14 + (below - above) * 11)
        width = min(0.6 + count / 14, 6)
        curves.append(
            f'<path d="M{right - 8} {start:g} C{out} {start:g} {out} {end:g} {right - 8} {end:g}" '
            f'stroke-width="{width:.1f}"/>'
        )
    height = 2 * _GAP + len(layers) * _ROW
    title = "The layers of remora, from the command line at the top to errors at the bottom"
    return picture(_WIDTH, height, title, _STYLE, [*boxes, *curves])


def main() -> None:
    """Write the picture."""
    TARGET.write_text(draw(*read()), encoding="utf-8")


if __name__ == "__main__":
    main()
