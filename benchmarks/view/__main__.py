from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import benchmarks.view
from benchmarks.view.owner import measure_owner
from benchmarks.view.paint import measure_paint


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.view",
        description=benchmarks.view.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    paint = commands.add_parser("paint", help="how soon the page shows")
    paint.add_argument("--sessions", type=int, default=10_000)
    paint.add_argument("--messages", type=int, default=100_000)
    paint.add_argument("--repeat", type=int, default=9)
    paint.add_argument("--owned", action="store_true", help="a process has the memory open")
    owner = commands.add_parser("owner", help="what an open page costs the process that appends")
    owner.add_argument("--pairs", type=int, default=9)
    owner.add_argument("--seconds", type=float, default=4.0)
    owner.add_argument("--sessions", type=int, default=16)
    owner.add_argument("--page", choices=["session", "home"], default="session")
    for one in (paint, owner):
        one.add_argument("--json", type=Path, help="write the figures to this file, too")
    given = parser.parse_args()
    found: dict[str, Any]
    if given.command == "paint":
        found = measure_paint(given.sessions, given.messages, given.repeat, owned=given.owned)
    else:
        found = measure_owner(given.pairs, given.seconds, given.sessions, given.page)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
