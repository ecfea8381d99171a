"""Write the conversations."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.synthetic.chats import make_chats, to_jsonl
from benchmarks.synthetic.daily import make_daily
from benchmarks.synthetic.desk import make_desk

CHATS = Path(__file__).parent / "chats.jsonl"
DESK = Path(__file__).parent / "desk.jsonl"
DAILY = Path(__file__).parent / "daily.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the synthetic conversations.")
    parser.add_argument(
        "out", nargs="?", type=Path, default=CHATS.parent, help="folder (default: %(default)s)"
    )
    out: Path = parser.parse_args().out
    for path, rows in ((CHATS, make_chats()), (DESK, make_desk()), (DAILY, make_daily())):
        written = out / path.name
        written.write_text(to_jsonl(rows), encoding="utf-8")
        asked = sum(row.get("type") == "qa" for row in rows)
        print(f"{written}: {len(rows) - asked:,} messages, {asked:,} questions")


if __name__ == "__main__":
    main()
