"""The page, as Markdown: what it is given, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed.claim import Claim, higher_is_better
from benchmarks.speed.results import Figures, Spread, ratios, spread

__all__ = ["case_text", "figure_text", "rendered", "spread_text"]

_ABOUT = """\
# Speed

This page compares remora with other libraries and with the limits of the machine. *remora* is
`Runtime(directory)` without configuration. It counts tokens, summarizes, and indexes into long-term
memory. *remora-bare* neither summarizes nor indexes, and neither do the others here. *limit* is the
least that the machine needs for the work.

Every measurement ran in a process of its own, and contestants took turns. Figures are medians.
*remora ÷ this* is the ratio of the rates, or of the first figures where there is no rate. It is
taken within each repeat, since a shared machine changes between repeats. Its least and most stand
in brackets.

"""
_MEASURED = """\
## How it was measured

`python -m benchmarks.speed` measures this and writes the page. [speed.json](data/speed.json) has
every repeat, all other figures, versions, and the machine's speed and load in each run.
"""
_IN_DATA = frozenset(
    (
        "append_p50_ms",
        "append_unfolded_p50_ms",
        "append_unfolded_p99_ms",
        "bare_ms",
        "bytes_kept_by_allocators",
        "cpu_us_per",
        "disk_mb",
        "each_us",
        "first_per_s",
        "jobs_s",
        "lag_p99_ms",
        "load_p50_ms",
        "load_unfolded_p50_ms",
        "load_unfolded_p99_ms",
        "objects_passivated",
        "of_allowance",
        "open_with_jobs_s",
        "over_bare_ms",
        "p50_ms",
        "resident_mb",
        "rows_per_commit",
        "rss_mb",
        "sessions_s",
        "steady_per_s",
        "summaries",
    )
)
"""Figures that explain others; the page leaves them to its data."""


_NOTHING = 0.0005  # of what is counted in seconds, or in milliseconds
_EVEN = 1.02  # times; less cannot be told from noise


def figure_text(name: str, value: float) -> str:
    """A figure, rounded to what can be told from noise."""
    if abs(value) < _NOTHING:
        return "0"
    if name.startswith("bytes") or name.endswith("per_s") or abs(value) >= 1_000:
        return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rendered(
    results: Mapping[str, Any],
    claims: Mapping[str, Claim],
    plots: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The whole page.

    Args:
        results: what `--json` writes: ``runs``, ``claims``, ``sizes`` and ``failures``.
        claims: by name; those without results are left out.
        plots: addresses of pictures by claim.
    """
    shown = {name: claim for name, claim in claims.items() if name in results["claims"]}
    lines = [_ABOUT.strip(), ""]
    for name, claim in shown.items():
        cases, sizes = results["claims"][name], results["sizes"].get(name, {})
        lines += [f"## {claim.TITLE}", "", claim.WORK, ""]
        for address in (plots or {}).get(name, ()):
            lines += [f"![{claim.TITLE}]({address})", ""]
        lines += [*_contestants(claim, cases, results["failures"].get(name, {}), sizes), ""]
        if faster := [*_faster(claim, cases, sizes)]:
            lines += [*faster, ""]
    lines += [_MEASURED, "| date | command |", "|---|---|"]
    lines += [f"| {run['date']} | {run.get('command', '')} |" for run in results["runs"]]
    if machines := dict.fromkeys(run["machine"] for run in results["runs"] if "machine" in run):
        lines += ["", f"Machine: {'; '.join(machines)}."]
    return "\n".join(lines) + "\n"


def _faster(claim: Claim, cases: Figures, sizes: Mapping[str, Any]) -> Iterator[str]:
    """A line for each contestant that is faster somewhere: where, and why."""
    for contestant in _ordered(claim, {one for found in cases.values() for one in found}):
        if contestant == "remora" or contestant.startswith("limit"):
            continue
        places = []
        for case, found in cases.items():
            ours, theirs = found.get("remora", {}), found.get(contestant, {})
            paired = _paired(ours, theirs)
            if paired is None:
                continue
            times = 1 / paired.median if higher_is_better(_compared(theirs)) else paired.median
            if times > _EVEN:
                places.append(f"{times:.3g} times at {case_text(case, sizes.get(case, {}))}")
        if places:
            yield f"- *{contestant}* is faster, {', '.join(places)}: {claim.FASTER[contestant]}."


def _compared(figures: Mapping[str, Sequence[float | None]]) -> str:
    """The figure of which ratios are shown."""
    return "per_s" if "per_s" in figures else next(iter(figures))


def _paired(
    ours: Mapping[str, Sequence[float | None]], theirs: Mapping[str, Sequence[float | None]]
) -> Spread | None:
    """The default install by a contestant; None where one was not measured."""
    if not ours or not theirs:
        return None
    figure = _compared(theirs)
    return spread(ratios(ours.get(figure, []), theirs[figure]))


def case_text(name: str, sizes: Mapping[str, float]) -> str:
    """A case's name; one that is a bare number says of what."""
    if not name.isdecimal():
        return name
    of = next(iter(sizes), "")
    of = of.removesuffix("s") if int(name) == 1 else of
    return f"{int(name):,} {of}".strip()


def spread_text(name: str, found: Spread | None) -> str:
    """A figure, with its least and its most."""
    if found is None:
        return "-"
    text = figure_text(name, found.median)
    return (
        text
        if found.count == 1
        else f"{text} ({figure_text(name, found.least)}-{figure_text(name, found.most)})"
    )


def _median(name: str, values: Sequence[float | None]) -> str:
    found = spread(values)
    return figure_text(name, found.median) if found else "-"


def _contestants(
    claim: Claim, cases: Mapping[str, Any], failures: Mapping[str, Any], sizes: Mapping[str, Any]
) -> list[str]:
    """A table: a row per case and contestant, a column per figure that any of them has."""
    names = list(
        dict.fromkeys(
            figure
            for case in cases.values()
            for found in case.values()
            for figure in found
            if figure not in _IN_DATA
        )
    )
    labels = {case: case_text(case, sizes.get(case, {})) for case in cases}
    lines = [
        "| case | contestant | " + " | ".join(names) + " | remora ÷ this |",
        "|---|---|" + "---:|" * (len(names) + 1),
    ]
    for case, contestants in cases.items():
        ours = contestants.get("remora", {})
        for contestant in _ordered(claim, {*contestants, *failures.get(case, {})}):
            found = contestants.get(contestant, {})
            paired = None if contestant == "remora" else _paired(ours, found)
            cells = [_median(name, found[name]) if name in found else "" for name in names]
            words = failures.get(case, {}).get(contestant)
            cells.append(spread_text("", paired) if paired else "")
            if words:
                said = "; ".join(dict.fromkeys(words)).replace("|", "\\|")
                cells[-1 if found else 0] += f" ({len(words)} failed: {said})" if found else said
            lines.append(f"| {labels[case]} | {contestant} | " + " | ".join(cells) + " |")
    return lines


def _ordered(claim: Claim, names: Iterable[str]) -> list[str]:
    there = set(names)
    return [name for name in claim.CONTESTANTS if name in there] + sorted(
        there - set(claim.CONTESTANTS)
    )
