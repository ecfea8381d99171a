"""The same programs against remora and its peers, each in its own environment.

    python -m benchmarks.lab.correctness [--peers a,b] [--claims x,y] [--venvs DIR] [--repeat N]
        [--json FILE] [--data docs/evidence/data/correctness.json]
        [--table docs/evidence/correctness.md]

The first run makes the environments with pip. Later runs need no network.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.lab.correctness.claims import claims
from benchmarks.lab.correctness.peers import PEERS, Peer
from benchmarks.lab.correctness.programs import FULL, PROGRAMS, SMALL
from benchmarks.lab.correctness.table import rendered, tabled
from benchmarks.peers.environments import python_of

ROOT = Path(__file__).resolve().parents[3]


def run(peer: Peer, python: Path, program: str, *, small: bool, limit_s: float) -> dict[str, Any]:
    """One program against one subject, in a child.

    Returns:
        ``figures``, those that came before the limit; ``ended``, why it ended early; ``not
        applicable``, the reason; ``versions``, ``python`` and ``sqlite`` of the child.
    """
    found: dict[str, Any] = {"figures": {}}
    with tempfile.TemporaryDirectory(
        prefix="correctness-", ignore_cleanup_errors=True
    ) as temporary:
        home, directory = Path(temporary) / "home", Path(temporary) / "data"
        home.mkdir()
        directory.mkdir()
        secrets = ("_API_KEY", "_TOKEN")
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("REMORA_") and not name.endswith(secrets)
        }
        environment |= {
            "HOME": str(home),
            "PYTHONPATH": str(ROOT),
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "LANGSMITH_TRACING": "false",
        }
        command = [
            str(python),
            "-m",
            "benchmarks.lab.correctness.driver",
            peer.name,
            program,
            str(directory),
        ]
        command += ["--distributions", ",".join(peer.library.shown)] + ["--small"] * small
        with (Path(temporary) / "stderr").open("w+") as errors:
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            try:
                out, _ = child.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                child.kill()
                out, _ = child.communicate()
                found["ended"] = f"did not end within {limit_s:.0f} s"
            for line in out.splitlines():
                for kind, content in json.loads(line).items():
                    if kind == "figures":
                        found["figures"] |= content
                    else:
                        found["ended" if kind == "failed" else kind] = content
            if not {"done", "not applicable", "ended"} & set(found):
                errors.seek(0)
                found["ended"] = (
                    f"crashed: {(errors.read().strip().splitlines() or ['no word'])[-1][:120]}"
                )
    found.pop("done", None)
    return found


def about(
    command: Sequence[str], repeat: int, load: float, runs: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """When, where and how."""
    environments = {
        f"Python {one['python']}, SQLite {one['sqlite']}" for one in runs if "sqlite" in one
    }
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load "
        f"average {load:.1f} at the start",
        "environments": "; ".join(sorted(environments)),
        "command": f"`{' '.join(command)}`",
        "runs": f"{repeat} of each",
    }


def chosen(names: str, known: Sequence[str], what: str) -> list[str]:
    """The names that were asked for, all of them otherwise; unknown ones end the program."""
    asked = [name for name in names.split(",") if name] or list(known)
    if unknown := [name for name in asked if name not in known]:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return asked


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default="", help=", ".join(peer.name for peer in PEERS))
    parser.add_argument("--claims", default="", help=", ".join(PROGRAMS))
    parser.add_argument("--venvs", type=Path, default=ROOT / "build" / "peers", metavar="DIR")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="for one program"
    )
    parser.add_argument(
        "--small", action="store_true", help="a few messages of each, to see that it works"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="write each row in words there (JSON)"
    )
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument(
        "--render",
        type=Path,
        metavar="FILE",
        help="run nothing; make the page from this --json or --data FILE",
    )
    options = parser.parse_args()
    results = json.loads(options.render.read_text()) if options.render else measured(options)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    table = (
        results
        if "programs" in results
        else tabled(
            results, PEERS, claims(SMALL if results["about"].get("sizes") == "small" else FULL)
        )
    )
    if options.data:
        options.data.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")
    page = rendered(table)
    if options.table:
        options.table.write_text(page)
    else:
        print(page)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for, with progress on stderr."""
    programs = chosen(options.claims, list(PROGRAMS), "claim")
    names = chosen(options.peers, [peer.name for peer in PEERS], "peer")
    subjects: dict[str, Any] = {}
    load = os.getloadavg()[0]
    everything: list[dict[str, Any]] = []
    for peer in PEERS:
        if peer.name not in names:
            continue
        print(f"{peer.title}: environment", file=sys.stderr)
        python = python_of(peer.library.requirements, options.venvs)
        subject: dict[str, Any] = {"versions": {}, "claims": {}}
        for program in programs:
            for number in range(options.repeat):
                begun = time.perf_counter()
                found = run(peer, python, program, small=options.small, limit_s=options.limit)
                said = found.get("ended") or found.get("not applicable") or "ok"
                print(
                    f"  {program} {number + 1}/{options.repeat}: {said} "
                    f"({time.perf_counter() - begun:.1f} s)",
                    file=sys.stderr,
                )
                everything.append(found)
                subject["versions"] = found.pop("versions", None) or subject["versions"]
                subject["claims"].setdefault(program, []).append(found)
        subjects[peer.name] = subject
    command = ["python", "-m", "benchmarks.lab.correctness", *sys.argv[1:]]
    facts = about(command, options.repeat, load, everything) | (
        {"sizes": "small"} if options.small else {}
    )
    return {"about": facts, "subjects": subjects}


if __name__ == "__main__":
    main()
