"""How fast remora is: remora, its peers and its physical limits do the same work in turn.

    python -m benchmarks.speed                everything; three repeats take about an hour
    python -m benchmarks.speed --smoke        remora and the limits, small, under a minute
    python -m benchmarks.speed --claims append,turn --peers redis --repeat 5
    python -m benchmarks.speed --json docs/evidence/data/speed.json \
        --table docs/evidence/speed.md --plots docs/evidence/plots
    python -m benchmarks.speed --check docs/evidence/data/speed.json
    python -m benchmarks.speed --claims append --json new.json
    python -m benchmarks.speed --render docs/evidence/data/speed.json new.json \
        --json docs/evidence/data/speed.json --table docs/evidence/speed.md \
        --plots docs/evidence/plots

The fifth says which bars of benchmarks/bars.toml the figures meet, and exits with 1 if one is
missed; with --against FILE, if one became worse than in that file. The last two measure one claim
of the page again: a case is that of the last run that measured it.

All in one run, on one disk. Each measurement runs in a process of its own, for at most its case's
time limit. Peers run in virtual environments of their own, which the first run makes under
build/peers with pip; later runs need no network. If a library cannot be installed, or a measurement
fails or takes too long, the table says so and the rest continues. Ctrl-C ends the run and still
writes the results so far.

On a shared machine, rows that only the disk decides vary tenfold within minutes. The ratios, which
are taken within a repeat, compare.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from benchmarks.peers.environments import python_of
from benchmarks.peers.pins import LIBRARIES
from benchmarks.speed.bars import check, read_bars
from benchmarks.speed.claim import Case
from benchmarks.speed.claims import CLAIMS, claim
from benchmarks.speed.machine import described_machine, measured_machine
from benchmarks.speed.measuring import ENVIRONMENTS, ROOT, in_smoke, measured
from benchmarks.speed.results import joined
from benchmarks.speed.table import figure_text, rendered
from benchmarks.speed.vocabularies import laid_out

console = Console(stderr=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="remora and the limits alone, once, in small sizes: does it all work?",
    )
    parser.add_argument(
        "--claims", default="", metavar="A,B", help=f"only these: {', '.join(CLAIMS)}"
    )
    parser.add_argument(
        "--peers",
        default=None,
        metavar="X,Y",
        help=f"only these libraries, or none: {', '.join(ENVIRONMENTS)}",
    )
    parser.add_argument(
        "--contestants",
        default="",
        metavar="X,Y",
        help="only these contestants, in the order of the table",
    )
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="NAME", help="only the cases of these names"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        metavar="N",
        help="repeats of each case; some have more (default: 3)",
    )
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="of texts and orders (default: 1)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="on the disk that is measured (default: the temporary directory)",
    )
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="conversations with questions, as benchmarks.recall reads them, for recall",
    )
    parser.add_argument(
        "--venvs",
        type=Path,
        default=ROOT / "build" / "peers",
        metavar="DIR",
        help="peers' environments",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="write the page there (Markdown); otherwise it is printed",
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="DIR",
        help="draw plots there (SVG; needs the extra remora[plots])",
    )
    parser.add_argument(
        "--render",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="measure nothing; make --json, table and plots of these --json files: a case that "
        "several have is the last one's",
    )
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE",
        help="measure nothing; say which bars the figures of this --json file meet, and exit with "
        "1 if one is missed",
    )
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="with --check: the --json file of an earlier run; exit with 1 only if a figure is "
        "worse than it was there, by more than a tenth beyond the repeats",
    )
    options = parser.parse_args()
    if options.check:
        bars = read_bars()
        files = [options.check, *([options.against] if options.against else [])]
        try:
            found, *recorded = [json.loads(file.read_text()) for file in files]
            table, verdicts = check(found, bars, *recorded)
        except (OSError, ValueError, KeyError, TypeError) as e:
            names = " or ".join(map(str, files))
            parser.error(f"{names} is no file of --json: {type(e).__name__}: {e}")
        Console().print(table)
        left_out = sum(map(len, bars.values())) - len(verdicts)
        missed = sum(one.met is False for one in verdicts)
        worse = sum(one.worse for one in verdicts)
        Console().print(
            f"{missed} of {len(verdicts)} bars missed; {left_out} are of cases that this file does "
            "not have" + (f"; {worse} worse than before" if recorded else "")
        )
        sys.exit(1 if not verdicts or (worse if recorded else missed) else 0)
    os.environ["SPEED_DATA"] = os.pathsep.join(str(file.resolve()) for file in options.data)
    if options.plots:
        from benchmarks.speed.plots import missing  # noqa: PLC0415  # only where it is wanted

        if hint := missing():
            parser.error(hint)  # before an hour of measuring, not after
    results = (
        joined([json.loads(path.read_text()) for path in options.render])
        if options.render
        else run(options)
    )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    claims = {name: claim(name) for name in CLAIMS}
    plots: dict[str, list[str]] = {}
    if options.plots:
        from benchmarks.speed.plots import drawn  # noqa: PLC0415

        plots = {
            name: [
                os.path.relpath(path, options.table.parent if options.table else Path.cwd())
                for path in paths
            ]
            for name, paths in drawn(results, claims, options.plots).items()
        }
    page = rendered(results, claims, plots)
    if options.table:
        options.table.write_text(page)
    else:
        print(page)


def chosen(names: str, known: Sequence[str], what: str) -> list[str]:
    """The names that were asked for, all of them otherwise; unknown ones end the program."""
    asked = [name for name in names.split(",") if name] or list(known)
    if unknown := [name for name in asked if name not in known]:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return asked


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all that was asked for."""
    names = chosen(options.claims, CLAIMS, "claim")
    peers = (
        []
        if options.smoke or options.peers == "none"
        else chosen(options.peers or "", list(ENVIRONMENTS), "peer")
    )
    plan = planned(names, peers, options)
    begun, load = time.time(), os.getloadavg()[0]
    about: dict[str, Any] = {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": f"`python -m benchmarks.speed {' '.join(what_is_measured(sys.argv[1:]))}`",
        "repeats": "1, in the sizes of a smoke run: its bars say nothing"
        if options.smoke
        else options.repeat,
        "seed": options.seed,
        "machine": described_machine(),
        "speed": measured_machine(options.dir),
        "versions": {},
        "cases": {},
    }
    results: dict[str, Any] = {
        "runs": [about],
        "claims": {},
        "sizes": {},
        "failures": {},
    }
    vocabularies = laid_out(options.venvs / "vocabularies")
    pythons = environments({contestant for *_, contestant in plan}, options.venvs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        tempfile.TemporaryDirectory(prefix="speed-", dir=options.dir) as root,
        Progress(*columns, console=console) as progress,
    ):
        task = progress.add_task("measuring", total=len(plan))
        try:
            for case, repeat, contestant in plan:
                progress.update(
                    task, description=f"{case.claim} {case.name} {contestant}"[:48].ljust(48)
                )
                python = pythons[contestant]
                found = (
                    {"failed": python}
                    if isinstance(python, str)
                    else measured(
                        case,
                        contestant,
                        python,
                        directory=Path(root),
                        seed=options.seed + repeat,
                        smoke=options.smoke,
                        vocabularies=vocabularies,
                        **shown(contestant),
                    )
                )
                keep(results, case, repeat, contestant, found)
                progress.console.print(
                    f"{case.claim:10} {case.name:14} {contestant:18} {words(found)}",
                    highlight=False,
                    soft_wrap=True,
                )
                progress.advance(task)
        except KeyboardInterrupt:
            console.print("[yellow]ended early; what was measured is kept")
            about["ended"] = "early"
    about["took"] = f"{(time.time() - begun) / 60:.1f} min"
    about["load"] = f"{load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end"
    about["cases"] = {claim: list(cases) for claim, cases in results["sizes"].items()}
    return results


def what_is_measured(words: Sequence[str]) -> list[str]:
    """The command's words without the places of what it reads and writes."""
    kept, places = [], 0
    for word in words:
        name = word.partition("=")[0]
        if name in {"--json", "--table", "--plots", "--dir", "--venvs"}:
            places = "=" not in word
        elif name == "--data":
            places = len(words)
        elif places and not word.startswith("--"):
            places -= 1
        else:
            places = 0
            kept.append(word)
    return kept


def planned(
    names: Sequence[str], peers: Sequence[str], options: argparse.Namespace
) -> list[tuple[Case, int, str]]:
    """Every measurement, in order: within a repeat of a case contestants by turns, each repeat
    beginning with another one.
    """
    plan = []
    wanted = [name for name in options.contestants.split(",") if name]
    for name in names:
        module = claim(name)
        for case in module.cases(options.smoke):
            if options.cases and case.name not in options.cases:
                continue
            contestants = [
                one
                for one in case.contestants or module.CONTESTANTS
                if (in_smoke(one) if options.smoke else one not in ENVIRONMENTS or one in peers)
                and (not wanted or one in wanted)
            ]
            repeats = 1 if options.smoke else max(options.repeat, case.least_repeats)
            for repeat in range(repeats):
                turn = repeat % max(len(contestants), 1)
                plan += [(case, repeat, one) for one in contestants[turn:] + contestants[:turn]]
    return plan


def environments(contestants: set[str], directory: Path) -> dict[str, Path | str]:
    """An interpreter for each contestant, or what kept its environment from being made."""
    made: dict[str, Path | str] = {}
    for contestant in sorted(contestants):
        library = ENVIRONMENTS.get(contestant)
        if library is not None and library not in made:
            console.print(f"environment of {library} …")
            try:
                made[library] = python_of(LIBRARIES[library].requirements, directory)
            except Exception as e:
                made[library] = f"no environment: {e}"
    return {
        one: made[ENVIRONMENTS[one]] if one in ENVIRONMENTS else Path(sys.executable)
        for one in contestants
    }


def shown(contestant: str) -> dict[str, tuple[str, ...]]:
    return (
        {"shown": LIBRARIES[ENVIRONMENTS[contestant]].shown} if contestant in ENVIRONMENTS else {}
    )


def keep(
    results: dict[str, Any], case: Case, repeat: int, contestant: str, found: Mapping[str, Any]
) -> None:
    """Enter one measurement: its figures at its repeat's place, or why there are none."""
    for about in results["runs"]:
        about["versions"].update(found.get("versions", {}))
    results["sizes"].setdefault(case.claim, {})[case.name] = case.sizes
    contestants = results["claims"].setdefault(case.claim, {}).setdefault(case.name, {})
    for name, value in found.get("figures", {}).items():
        values = contestants.setdefault(contestant, {}).setdefault(name, [])
        values += [None] * (repeat - len(values))
        values.append(value)
    if why := found.get("failed") or (found.get("skipped") and f"skipped: {found['skipped']}"):
        results["failures"].setdefault(case.claim, {}).setdefault(case.name, {}).setdefault(
            contestant, []
        ).append(why)


def words(found: Mapping[str, Any]) -> str:
    """One measurement in a line."""
    if "figures" in found:
        return ", ".join(
            f"{name} {figure_text(name, value)}" for name, value in found["figures"].items()
        )
    return f"skipped: {found['skipped']}" if "skipped" in found else f"FAILED {found.get('failed')}"


if __name__ == "__main__":
    main()
