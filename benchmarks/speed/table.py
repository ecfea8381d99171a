"""The page, as Markdown: what it is given, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.speed.claim import Claim, higher_is_better
from benchmarks.speed.results import Figures, Spread, ratios, spread

__all__ = ["case_text", "figure_text", "rendered", "spread_text"]

_ABOUT = """\
# Speed

remora beside what one would use instead. *remora* is `Runtime(directory)` with no configuration: it
counts tokens, summarizes, and indexes into long-term memory. *remora-bare* does neither of the
last two, as the others here. A name that begins with *limit* is no library: it is the least that
the machine needs for the work.

Every measurement ran in a process of its own, contestants in turn, their order rotated by repeat.
Figures are medians over the repeats, with the least and the most in brackets. *remora ÷ this* is
the ratio of the rate, or of the first figure where there is none, taken within each repeat, and
then the median of those: on a shared machine only measurements of one repeat compare. A time, or
bytes, of which remora has more give more than 1.

"""
_COLUMNS = {
    "settled_cpu_us_per, apart_cpu_us_per": (
        "microseconds of processor time an operation, until nothing is left to do: of the server's "
        "process, and of the process that computes for it; the cost is their sum"
    ),
    "per_s, p50_ms, p99_ms": "operations a second, and how long one takes",
    "cpu_us_per": (
        "microseconds of processor time of the server's process an operation, while they are "
        "measured"
    ),
    "lag_p99_ms": "how late a task wakes that sleeps 1 ms: how long the event loop does not turn",
    "rows_per_commit": "appends that share a commit",
    "rss_mb": "the most memory of the server's process",
    "behind_s": "how long background work goes on after the last operation",
    "each_us": "the time of all at once, divided by their number",
}
_MEASURED = """\
## How it was measured

`python -m benchmarks.speed` measures this and writes the page; `--help` says how to measure a part.
"""


_NOTHING = 0.0005  # of what is counted in seconds, or in milliseconds
_EVEN = 1.02  # times; less cannot be told from noise


def figure_text(name: str, value: float) -> str:
    """A figure, rounded to what can be told from noise."""
    if abs(value) < _NOTHING:
        return "0"
    if name.startswith("bytes") or name.endswith("per_s") or abs(value) >= 1_000:
        return f"{value:,.0f}".replace(",", " ") if abs(value) >= 10 else f"{value:.3g}"
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
    lines = [_ABOUT.strip(), "", "| column | what it is |", "|---|---|"]
    lines += [f"| {names} | {what} |" for names, what in _COLUMNS.items()]
    lines.append("")
    for name, claim in shown.items():
        cases, sizes = results["claims"][name], results["sizes"].get(name, {})
        lines += [f"## {claim.TITLE}", "", claim.WORK, ""]
        for address in (plots or {}).get(name, ()):
            lines += [f"![{claim.TITLE}]({address})", ""]
        lines += [*_contestants(claim, cases, results["failures"].get(name, {}), sizes), ""]
        if faster := [*_faster(claim, cases, sizes)]:
            lines += [*faster, ""]
    lines += [_MEASURED]
    for number, run in enumerate(results["runs"], start=1):
        facts = (f"{name} {value}" for name, value in run.items() if isinstance(value, str | int))
        lines.append(f"- run {number}: {'; '.join(facts)}")
    return "\n".join([*lines, f"- versions: {_versions(results['runs'])}"]) + "\n"


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


def _versions(runs: Sequence[Mapping[str, Any]]) -> str:
    """Each distribution's versions, most often one."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run["versions"].items():
            found.setdefault(name, []).append(version)
    return ", ".join(f"{one} {' and '.join(dict.fromkeys(found[one]))}" for one in sorted(found))


def case_text(name: str, sizes: Mapping[str, float]) -> str:
    """A case's name; one that is a bare number says of what."""
    if not name.isdecimal():
        return name
    of = next(iter(sizes), "")
    of = of.removesuffix("s") if int(name) == 1 else of
    return f"{int(name):,} {of}".replace(",", " ").strip()


def spread_text(name: str, found: Spread | None) -> str:
    """A figure, with its least and its most."""
    if found is None:
        return "-"
    text = figure_text(name, found.median)
    return (
        text
        if found.count == 1
        else f"{text} ({figure_text(name, found.least)} to {figure_text(name, found.most)})"
    )


def _contestants(
    claim: Claim, cases: Mapping[str, Any], failures: Mapping[str, Any], sizes: Mapping[str, Any]
) -> list[str]:
    """A table: a row per case and contestant, a column per figure that any of them has."""
    names = list(
        dict.fromkeys(
            figure for case in cases.values() for found in case.values() for figure in found
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
            cells = [
                spread_text(name, spread(found.get(name, []))) if name in found else ""
                for name in names
            ]
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
