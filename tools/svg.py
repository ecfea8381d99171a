"""Pictures of the documents: one file each, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

__all__ = ["picture"]


def picture(width: int, height: int, title: str, style: str, parts: Sequence[str]) -> str:
    """An SVG of these parts; `title` says what it shows to those who do not see it."""
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title">',
        f'<title id="title">{escape(title)}</title>',
        f"<style>{style}</style>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
