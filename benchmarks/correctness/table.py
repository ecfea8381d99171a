"""The table, as Markdown: what it is given, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.correctness.claims import Cell, Claim, Figures
from benchmarks.correctness.peers import Peer

__all__ = ["rendered"]

_ABOUT = """\
# Correctness, head to head

Written by the script; do not edit. The same programs (`benchmarks/correctness/programs`) ran
against each library, in its own virtual environment, through its documented interface. Nothing
reaches a network: summarizers and embedders are local, and the same for all. The summarizer forgets
nothing: a message that a summary was made from counts as there. So what is missing was lost by the
library, not by a model.

What deleted rows leave in a file of SQLite depends on how SQLite was built (`secure_delete`, off in
many builds): see below.

**Bold**: the row's fault was not found. *n/a*: the claim does not apply, and why. A range is over
the runs.
"""


def rendered(results: Mapping[str, Any], peers: Sequence[Peer], claims: Sequence[Claim]) -> str:
    """The whole page.

    Args:
        results: what `python -m benchmarks.correctness --json` writes: ``about`` (date, machine,
            command …) and ``subjects``: for each name its ``versions`` and ``claims``, a list of
            runs for each program.
        peers: the columns; those without results are left out.
        claims: the rows; programs that no subject ran are left out.
    """
    subjects = results["subjects"]
    shown = [peer for peer in peers if peer.name in subjects]
    lines = [_ABOUT]
    lines += [f"- {name}: {value}" for name, value in results["about"].items()]
    lines += [
        "",
        "| | " + " | ".join(peer.title for peer in shown) + " |",
        "|---|" + "---|" * len(shown),
    ]
    flawless = dict.fromkeys((peer.name for peer in shown), 0)
    applied = dict.fromkeys((peer.name for peer in shown), 0)
    for claim in claims:
        if not any(claim.program in subjects[peer.name]["claims"] for peer in shown):
            continue
        lines.append(f"| **{claim.title}** |" + " |" * len(shown))
        for label, key, words in claim.rows:
            cells = []
            for peer in shown:
                cell = _cell(subjects[peer.name]["claims"].get(claim.program, []), key, words, peer)
                cells.append(f"**{cell.text}**" if cell.flawless else cell.text)
                flawless[peer.name] += cell.flawless
                applied[peer.name] += cell.judged
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    lines += ["", "## How each was configured", ""]
    for peer in shown:
        versions = ", ".join(
            f"{name} {version}" for name, version in subjects[peer.name]["versions"].items()
        )
        lines.append(
            f"- **{peer.title}** ({versions}): {peer.notes} Bold in {flawless[peer.name]} of "
            f"{applied[peer.name]} rows."
        )
    return "\n".join(lines) + "\n"


def _cell(runs: Sequence[Mapping[str, Any]], key: str, words: Any, peer: Peer) -> Cell:
    if not runs:
        return Cell("not run", judged=False)
    for run in runs:
        if "not applicable" in run:
            return Cell(f"*n/a*: {run['not applicable']}", judged=False)
    figures = Figures([run["figures"] for run in runs if key in run["figures"]])
    ended = ", ".join(sorted({run["ended"] for run in runs if run.get("ended")}))
    if key not in figures:
        # A program that ran to its end and left this out had nothing to look at.
        return (
            Cell(ended, judged=True) if ended else Cell("*n/a*: nothing of the kind", judged=False)
        )
    cell: Cell = words(figures, peer)
    return cell
