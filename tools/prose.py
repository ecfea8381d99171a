"""Show the prose counts of pages, and lower those in docs/prose.toml.

    python -m tools.prose                 the counts that are too high, and those that may fall
    python -m tools.prose --update        lower the table to what pages have; it raises nothing
    python -m tools.prose docs/PAGE.md    each place of a page that is counted

Without a table, ``--update`` writes one of what pages have.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tools.lint.prose import COUNTS, TABLE, Page, lowered, prose, table
from tools.lint.source import ROOT, Source, sources

__all__ = ["main"]

HEAD = """\
# Counts of pages that are above the targets in tools/lint/prose.py; a page may have no more.
# Lower them with `python -m tools.prose --update`. To raise one is an edit by hand.
"""


def written(counts: dict[str, dict[str, int]]) -> str:
    """The table as TOML, a line for each page."""
    lines = [
        f'"{page}" = {{ {", ".join(f"{name} = {number}" for name, number in row.items())} }}\n'
        for page, row in counts.items()
    ]
    return HEAD + "".join(lines)


def places(page: Page) -> list[str]:
    """A line for each count of a page, and for each sentence that is counted."""
    lines = []
    for name, count in COUNTS.items():
        lines.append(f"{page.name}: {name} {count.number(page)}, target {count.target(page)}")
        lines += [
            f"{page.name}:{line}: {name}: {sentence}"
            for line, sentence in page.sentences
            if count.times(sentence)
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and update; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", metavar="docs/PAGE.md")
    parser.add_argument("--update", action="store_true", help="lower the table")
    options = parser.parse_args(arguments)
    for name in options.pages:
        text = (ROOT / name).read_text(encoding="utf-8")
        print("\n".join(places(Page(Source(name, text)))))
    if options.pages:
        return 0
    files, known = sources(), table()
    new = lowered(files, known)
    if options.update:
        TABLE.write_text(written(new), encoding="utf-8")
    failures = list(prose(files))
    print("\n".join(failures) or f"{len(new)} pages are above a target, and none above its number")
    if new != known and not options.update:
        print("some counts have fallen: python -m tools.prose --update lowers them")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
