"""The table of the frameworks' suites, and its place in a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["insert_table", "render"]

_BEGIN = "<!-- written by benchmarks.frameworks -->"
_END = "<!-- until here -->"


def render(results: Mapping[str, Any]) -> str:
    """The rows, by suite."""
    lines = [
        "| suite | version | lines | tests | its own | with remora | cannot apply, why | fail |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in sorted(results.items()):
        why = "; ".join(
            f"{len(tests)}: {reason}" for reason, tests in sorted(row["inapplicable"].items())
        )
        if row["failed_there_too"]:
            both = f"{len(row['failed_there_too'])} fail or are skipped with its own as well"
            why = f"{why}; {both}" if why else both
        lines.append(
            f"| {name} | {row['version']} | {row['lines']} | {row['tests']} | "
            f"{'' if row['own'] is None else row['own']} | **{row['passed']}** | "
            f"{why} | {len(row['failed'])} |"
        )
    return "\n".join(lines)


def insert_table(page: Path, results: Mapping[str, Any]) -> None:
    """Write the table between its marks in a page."""
    before, _, rest = page.read_text().partition(_BEGIN)
    _, _, behind = rest.partition(_END)
    page.write_text(f"{before}{_BEGIN}\n\n{render(results)}\n\n{_END}{behind}")
