"""The bars of `benchmarks/bars.toml`, and which of them are met."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.speed.claim import Bar
from benchmarks.speed.results import Verdict, held
from benchmarks.speed.table import case_text, spread_text

__all__ = ["FILE", "check", "read_bars"]

FILE = Path(__file__).resolve().parents[1] / "bars.toml"
_VERDICTS = {True: "met", False: "[bold]missed[/]", None: "not measured"}


def read_bars(file: Path = FILE) -> Mapping[str, Sequence[Bar]]:
    """The bars, by claim."""
    found = tomllib.loads(file.read_text("utf-8"))
    return {claim: [bar for one in bars for bar in _bars(one)] for claim, bars in found.items()}


def _bars(written: Mapping[str, Any]) -> Iterator[Bar]:
    """The bar of each case."""
    others = written.get("than_cases", [None] * len(written["cases"]))
    for case, than_case in zip(written["cases"], others, strict=True):
        yield Bar(
            case,
            written["bar"],
            written["figure"],
            tuple(written["than"]) if "than" in written else None,
            least=written.get("least"),
            most=written.get("most"),
            than_case=than_case,
            contestant=written.get("contestant", "remora"),
        )


def check(
    results: Mapping[str, Any],
    bars: Mapping[str, Sequence[Bar]],
    recorded: Mapping[str, Any] | None = None,
) -> tuple[Table, Sequence[Verdict]]:
    """Hold results against the bars of what was measured, and against an earlier run.

    Returns:
        A table, and a verdict for each of its rows.
    """
    table = Table("claim", "case", "bar", "measured", "", *([] if recorded is None else ["before"]))
    verdicts = []
    before = {} if recorded is None else recorded["claims"]
    for claim, cases in results["claims"].items():
        sizes = results["sizes"].get(claim, {})
        for bar in bars.get(claim, ()):
            if bar.case not in cases:
                continue
            verdict = held(bar, cases, before.get(claim))
            figure = "" if bar.others else bar.figure
            measured = spread_text(figure, verdict.measured)
            case = case_text(bar.case, sizes.get(bar.case, {}))
            row = [claim, case, bar.text, measured, _VERDICTS[verdict.met]]
            if recorded is not None:
                mark = " [bold]worse[/]" if verdict.worse else ""
                row.append(spread_text(figure, verdict.recorded) + mark)
            table.add_row(*row)
            verdicts.append(verdict)
    return table, verdicts
