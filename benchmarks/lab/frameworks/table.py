"""The tables of the frameworks' suites, and their places in a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.lab.frameworks.conformance import render_cells

__all__ = ["insert_table", "render"]

_MARKS = {
    "<!-- written by benchmarks.lab.frameworks -->": "<!-- until here -->",
    "<!-- cells of benchmarks.lab.frameworks -->": "<!-- until here, cells -->",
}


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
    """Write both tables between their marks in a page."""
    text = page.read_text()
    for (begin, end), table in zip(
        _MARKS.items(), (render(results), render_cells(results)), strict=True
    ):
        before, _, rest = text.partition(begin)
        _, _, behind = rest.partition(end)
        text = f"{before}{begin}\n\n{table}\n\n{end}{behind}"
    page.write_text(text)
