"""Keep the measured figures of the pages equal to the data files of the evidence.

    python -m tools.figures            write the figures of docs/evidence/data into the pages
    python -m tools.figures --check    print each that differs; exit with 1 if there is one

A page marks a figure with its id: ``<!--figure:overload.sent-->107,989<!--/-->``. The id begins
with the name of a file in docs/evidence/data. Such a file has ``runs`` (command, date, commit,
machine) and ``figures``: a value, its unit and its run for each id. The results of
`benchmarks.speed` are a data file as they are: ``speed.CLAIM.CASE.CONTESTANT.FIGURE`` is a median.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.results import spread
from benchmarks.speed.table import figure_text

__all__ = ["MARK", "differences", "figures", "main", "written"]

ROOT = Path(__file__).resolve().parents[1]
MARK = re.compile(r"<!--figure:(?P<id>[\w.,-]+)-->(?P<text>.*?)<!--/-->", re.DOTALL)
_RUN = {"command", "date", "machine"}


def figures(data: Path = ROOT / "docs" / "evidence" / "data") -> dict[str, str]:
    """Every figure of the data files as its page shows it, by id.

    Raises:
        ValueError: a figure names no run, or a run lacks its command, date or machine.
    """
    found: dict[str, str] = {}
    for file in sorted(data.glob("*.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        if "claims" in content:
            found.update(_medians(file.stem, content["claims"]))
        elif "figures" in content:
            for id_, figure in content["figures"].items():
                run = content["runs"].get(figure["run"], {})
                if not run.keys() >= _RUN:
                    raise ValueError(f"{file.name}: {id_}: its run lacks command, date or machine")
                found[f"{file.stem}.{id_}"] = _text(figure["value"])
    return found


def _medians(name: str, claims: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The medians of the speed suite's results, a blank in a name replaced by an underscore."""
    for claim, cases in claims.items():
        for case, contestants in cases.items():
            for contestant, values in contestants.items():
                for figure, repeats in values.items():
                    if middle := spread(repeats):
                        place = f"{name}.{claim}.{case}.{contestant}.{figure}"
                        yield place.replace(" ", "_"), figure_text(figure, middle.median)


def _text(value: str | float) -> str:
    """A value as it is shown: whole numbers with commas, texts as they are."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def written(text: str, known: Mapping[str, str]) -> str:
    """A page with the figures of its marks; a mark of an unknown id stays as it is."""
    return MARK.sub(
        lambda mark: f"<!--figure:{mark['id']}-->{known.get(mark['id'], mark['text'])}<!--/-->",
        text,
    )


def differences(text: str, known: Mapping[str, str]) -> Iterator[str]:
    """A line for each mark that has no figure, or another one than the data."""
    for mark in MARK.finditer(text):
        if mark["id"] not in known:
            yield f"{mark['id']}: no data file has this figure"
        elif mark["text"] != known[mark["id"]]:
            yield f"{mark['id']}: the page says {mark['text']}, the data {known[mark['id']]}"


def main() -> int:
    """Write the figures, or check them; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; print what differs")
    options = parser.parse_args()
    known, wrong = figures(), []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        if options.check:
            wrong += [f"{page.relative_to(ROOT)}: {line}" for line in differences(text, known)]
        elif (new := written(text, known)) != text:
            page.write_text(new, encoding="utf-8")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
