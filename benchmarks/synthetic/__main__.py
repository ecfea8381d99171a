"""Write the conversations."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.synthetic.chats import make_chats, to_jsonl

CHATS = Path(__file__).parent / "chats.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the synthetic conversations.")
    parser.add_argument("out", nargs="?", type=Path, default=CHATS, help="default: %(default)s")
    out: Path = parser.parse_args().out
    rows = make_chats()
    out.write_text(to_jsonl(rows), encoding="utf-8")
    asked = sum(row.get("type") == "qa" for row in rows)
    print(f"{out}: {len(rows) - asked:,} messages, {asked:,} questions")


if __name__ == "__main__":
    main()
