"""Plots of the results, as SVG: rates and latencies by load, costs by size.

The same figures give the same bytes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.claim import Claim
from benchmarks.speed.results import spread

__all__ = ["drawn", "missing"]

_UNITS = {"per_s": "per second", "_us": "µs", "_ms": "ms", "_s": "s"}
_DRAWN = frozenset(("per_s", "p99_ms", "p50_us"))
"""Figures with a picture."""


def missing() -> str:
    """What to install, where matplotlib is not there."""
    if importlib.util.find_spec("matplotlib"):
        return ""
    return (
        "plots need matplotlib: pip install 'remora[plots]', "
        "or pip install --constraint constraints.txt matplotlib"
    )


def drawn(
    results: Mapping[str, Any], claims: Mapping[str, Claim], directory: Path
) -> dict[str, list[Path]]:
    """One picture for each figure of each claim whose cases differ in a number.

    Args:
        results: what `--json` writes.
        claims: by name.
        directory: where pictures are written, ``claim-figure-by-size.svg``.

    Returns:
        The files, by claim.
    """
    import matplotlib as mpl  # noqa: PLC0415  # an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[Path]] = {}
    # Without these two each drawing has other ids and a date of its own.
    with mpl.rc_context({"svg.hashsalt": "remora", "svg.fonttype": "none", "font.size": 8}):
        for name, claim in claims.items():
            for (figure, axis), lines in curves(results, name).items():
                picture = Figure(figsize=(6.4, 3.6), layout="constrained")
                axes = picture.add_subplot()
                shown = [one for one in claim.CONTESTANTS if one in lines]
                for number, contestant in enumerate(shown):
                    points = lines[contestant]
                    ours = contestant.startswith("remora")
                    axes.plot(
                        [x for x, *_ in points],
                        [y for _, y, *_ in points],
                        label=contestant,
                        marker="o",
                        markersize=3,
                        color=f"C{number % 10}",
                        linewidth=2.2 if contestant == "remora" else 1.2 if ours else 0.9,
                        linestyle="-" if ours else ("--", ":", "-.")[number % 3],
                    )
                axes.set(
                    xscale="log",
                    yscale="log",
                    xlabel=axis,
                    ylabel=_label(figure),
                    title=f"{claim.TITLE}: {figure}",
                )
                sizes = sorted({x for points in lines.values() for x, _ in points})
                axes.set_xticks(sizes, [f"{size:,.0f}".replace(",", " ") for size in sizes])
                axes.set_xticks([], minor=True)
                axes.grid(visible=True, which="major", linewidth=0.3)
                picture.legend(loc="outside right upper", frameon=False)
                file = directory / f"{name}-{figure}-by-{axis}.svg"
                picture.savefig(file, metadata={"Date": None})
                files.setdefault(name, []).append(file)
    return files


def curves(
    results: Mapping[str, Any], name: str
) -> dict[tuple[str, str], dict[str, list[tuple[float, float]]]]:
    """Points of a claim by figure and first size, and by contestant: that size of each case, and
    the figure's median.

    Only positive ones; and only contestants that have the figure at two sizes or more, and once at
    each: cases that differ in something else are no curve.
    """
    found: dict[tuple[str, str], dict[str, list[tuple[float, float]]]] = {}
    for case, contestants in results["claims"].get(name, {}).items():
        axis, x = next(iter(results["sizes"][name].get(case, {}).items()), ("", 0))
        for contestant, figures in contestants.items():
            for figure, values in figures.items():
                middle = spread(values)
                if figure in _DRAWN and x > 0 and middle and middle.median > 0:
                    found.setdefault((figure, axis), {}).setdefault(contestant, []).append(
                        (x, middle.median)
                    )
    drawn = {}
    for key, lines in found.items():
        whole = {
            one: sorted(points)
            for one, points in lines.items()
            if len({x for x, _ in points}) == len(points) > 1
        }
        if whole:
            drawn[key] = whole
    return drawn


def _label(figure: str) -> str:
    return next(
        (unit for end, unit in _UNITS.items() if figure.endswith(end)),
        "bytes" if "bytes" in figure else figure,
    )
