"""The page, as Markdown: what it is given, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.speed.claim import Bar, Claim
from benchmarks.speed.results import Figures, Spread, Verdict, held, ratios, spread

__all__ = ["figure_text", "rendered"]

_ABOUT = """\
# Speed

Written by `python -m benchmarks.speed`; do not edit. Every measurement ran in a process of its
own, contestants in turn, their order rotated by repeat. Figures are medians over the repeats, with
the least and the most in brackets. *remora ÷ this* is the ratio of the first figure, taken within
each repeat, and then the median of those: on a shared machine only measurements of one repeat
compare.
"""


BARE = "remora-bare"
_BARS = """\
## Bars

*Default install* is `Runtime(directory)` with no configuration: it summarizes, and indexes into
long-term memory. *Bare* does neither, as most of the others here.
"""


def figure_text(name: str, value: float) -> str:
    """A figure, rounded to what can be told from noise."""
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
    verdicts = {
        name: [held(bar, results["claims"][name]) for bar in claim.BARS]
        for name, claim in shown.items()
    }
    lines = [_ABOUT]
    for number, run in enumerate(results["runs"], start=1):
        facts = (f"{name} {value}" for name, value in run.items() if isinstance(value, str | int))
        lines.append(f"- run {number}: {'; '.join(facts)}")
    lines += [f"- versions: {_versions(results['runs'])}", ""]
    lines += [_BARS, "| claim | case | bar | default install | | bare | |"]
    lines += ["|---|---|---|---:|---|---:|---|"]
    for name, claim in shown.items():
        cases, sizes = results["claims"][name], results["sizes"].get(name, {})
        link = f"[{claim.TITLE}](#{_anchor(claim.TITLE)})"
        lines += [
            _bar(link, one, held_bare(one.bar, cases), sizes.get(one.bar.case, {}))
            for one in verdicts[name]
            if one.bar.case in cases
        ]
    for name, claim in shown.items():
        cases, sizes = results["claims"][name], results["sizes"].get(name, {})
        lines += ["", f"## {claim.TITLE}", "", claim.WORK, ""]
        lines += _contestants(claim, cases, results["failures"].get(name, {}), sizes)
        for note, missed in _missed(verdicts[name], sizes).items():
            lines += ["", f"Missed at {'; '.join(missed)}: {note}"]
        for address in (plots or {}).get(name, ()):
            lines += ["", f"![{claim.TITLE}]({address})"]
    return "\n".join(lines) + "\n"


def _versions(runs: Sequence[Mapping[str, Any]]) -> str:
    """Each distribution's versions, most often one."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run["versions"].items():
            found.setdefault(name, []).append(version)
    return ", ".join(f"{one} {' and '.join(dict.fromkeys(found[one]))}" for one in sorted(found))


def case_text(name: str, sizes: Mapping[str, float]) -> str:
    """A case's name; one that is a bare number says of what."""
    return (
        f"{int(name):,} {next(iter(sizes), '')}".replace(",", " ").strip()
        if name.isdecimal()
        else name
    )


def _missed(
    verdicts: Sequence[Verdict], sizes: Mapping[str, Mapping[str, float]]
) -> dict[str, list[str]]:
    """The bars that are missed, by what is said of them."""
    missed: dict[str, list[str]] = {}
    for bar in [one.bar for one in verdicts if one.met is False and one.bar.note]:
        case = case_text(bar.case, sizes.get(bar.case, {}))
        missed.setdefault(bar.note, []).append(f"{case}, *{bar.text}*")
    return missed


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")


def held_bare(bar: Bar, figures: Figures) -> Verdict | None:
    """The bare configuration, held against the bar; None where it is the other side of it."""
    if bar.contestant != "remora" or BARE in bar.others:
        return None
    others = BARE if bar.others == (bar.contestant,) else bar.than
    return held(replace(bar, contestant=BARE, than=others), figures)


def _bar(link: str, verdict: Verdict, bare: Verdict | None, sizes: Mapping[str, float]) -> str:
    bar = verdict.bar
    cells = [link, case_text(bar.case, sizes), bar.text, *_verdict(verdict)]
    cells += ["", ""] if bare is None or bare.measured is None else _verdict(bare)
    return f"| {' | '.join(cells)} |"


def _verdict(verdict: Verdict) -> tuple[str, str]:
    met = {True: "met", False: "**missed**", None: "not measured"}[verdict.met]
    return _spread("" if verdict.bar.others else verdict.bar.figure, verdict.measured), met


def _spread(name: str, found: Spread | None) -> str:
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
            first = next(iter(found), None)
            paired = (
                spread(ratios(ours.get(first, []), found[first]))
                if first and contestant != "remora"
                else None
            )
            cells = [
                _spread(name, spread(found.get(name, []))) if name in found else ""
                for name in names
            ]
            words = failures.get(case, {}).get(contestant)
            cells.append(_spread("", paired) if paired else "")
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
