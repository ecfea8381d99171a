"""The table of what was found, as data, and the page that counts it: what they are given alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.lab.correctness.claims import Cell, Claim, Figures
from benchmarks.lab.correctness.peers import Peer

__all__ = ["rendered", "tabled"]

_ABOUT = """\
# Correctness

The script wrote this page: do not edit it. The same programs
(`benchmarks/lab/correctness/programs`) ran against each library, in its own virtual environment,
through its documented interface. Summarizers and embedders are local, and the same for all.
The summarizer forgets nothing, so a missing message was lost by the library and not by a model.

A program looks for several faults. A cell has the number of faults that were not found, and of all
that apply. **Bold**: none was found. A dash says that the library has nothing of the kind.
[correctness.json](data/correctness.json) has each row in words, such as *60 to 61 of 64 lost*.
"""
_CONFIGURED = """\
## Versions and configuration

Each library ran as its documents show it. [correctness.json](data/correctness.json) has the
configuration of each under `notes`. Bytes that deleted rows leave in a file depend on how SQLite
was built (`secure_delete`, off in many builds).

| library | versions | faults not found |
|---|---|---:|"""


def tabled(
    results: Mapping[str, Any], peers: Sequence[Peer], claims: Sequence[Claim]
) -> dict[str, Any]:
    """What was found, in words, by program, row and library.

    Args:
        results: what `python -m benchmarks.lab.correctness --json` writes: ``about`` (date,
            machine, command …) and ``subjects``: for each name its ``versions`` and ``claims``, a
            list of runs for each program.
        peers: the columns; those without results are left out.
        claims: the rows; programs that no subject ran are left out.

    Returns:
        ``about``; ``subjects``, with title, versions and notes; ``programs``, with title and rows,
        each a label and a cell for each subject: its text, and whether it ``passed``, None where
        the row looks for no fault or does not apply.
    """
    subjects = results["subjects"]
    shown = [peer for peer in peers if peer.name in subjects]
    programs = []
    for claim in claims:
        if not any(claim.program in subjects[peer.name]["claims"] for peer in shown):
            continue
        rows = []
        for label, key, words in claim.rows:
            cells = []
            for peer in shown:
                cell = _cell(subjects[peer.name]["claims"].get(claim.program, []), key, words, peer)
                cells.append({"text": cell.text, "passed": cell.flawless if cell.judged else None})
            rows.append({"label": label, "cells": cells})
        programs.append({"title": claim.title, "rows": rows})
    return {
        "about": results["about"],
        "subjects": [
            {
                "name": peer.name,
                "title": peer.title,
                "versions": subjects[peer.name]["versions"],
                "notes": peer.notes,
            }
            for peer in shown
        ],
        "programs": programs,
    }


def rendered(table: Mapping[str, Any]) -> str:
    """The page: how many faults of each program were not found, by library.

    Args:
        table: see `tabled`.
    """
    subjects, programs = table["subjects"], table["programs"]
    lines = [
        _ABOUT,
        "| | " + " | ".join(subject["title"] for subject in subjects) + " |",
        "|---|" + "---:|" * len(subjects),
    ]
    lines += [
        f"| {program['title']} | "
        + " | ".join(_counted(program["rows"], place) for place in range(len(subjects)))
        + " |"
        for program in programs
    ]
    if own := [*_missed(table, "remora")]:
        lines += ["", "Found in remora:", "", *own]
    lines += ["", _CONFIGURED]
    every = [row for program in programs for row in program["rows"]]
    for place, subject in enumerate(subjects):
        versions = ", ".join(f"{name} {number}" for name, number in subject["versions"].items())
        lines.append(f"| {subject['title']} | {versions} | {_counted(every, place)} |")
    lines += ["", *(f"- {name}: {value}" for name, value in table["about"].items())]
    return "\n".join(lines) + "\n"


def _missed(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """A line for each fault that was found in a subject."""
    for place, subject in enumerate(table["subjects"]):
        for program in table["programs"] if subject["name"] == name else ():
            for row in program["rows"]:
                if row["cells"][place]["passed"] is False:
                    yield f"- {program['title']}, {row['label']}: {row['cells'][place]['text']}."


def _counted(rows: Sequence[Mapping[str, Any]], place: int) -> str:
    """How many of a subject's rows passed, of those that apply."""
    judged = [one for row in rows if (one := row["cells"][place]["passed"]) is not None]
    text = f"{sum(judged)}/{len(judged)}"
    return f"**{text}**" if judged and all(judged) else text if judged else "-"


def _cell(runs: Sequence[Mapping[str, Any]], key: str, words: Any, peer: Peer) -> Cell:
    if not runs:
        return Cell("not run", judged=False)
    for run in runs:
        if "not applicable" in run:
            return Cell(f"does not apply: {run['not applicable']}", judged=False)
    figures = Figures([run["figures"] for run in runs if key in run["figures"]])
    ended = ", ".join(sorted({run["ended"] for run in runs if run.get("ended")}))
    if key not in figures:
        # A program that ran to its end and left this out had nothing to look at.
        return (
            Cell(ended, judged=True)
            if ended
            else Cell("does not apply: nothing of the kind", judged=False)
        )
    cell: Cell = words(figures, peer)
    return cell
