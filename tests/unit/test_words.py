"""Product text uses the words of docs/reference/glossary.md: retired words stay out."""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATED = {"checklist.md", "speed.md", "speed-2026-11-22.md", "correctness.md", "testing.md"}
"""In part, from the tests."""

RETIRED = re.compile(
    r"\b(anew|whoever|whosever|amiss|for good|farewell|onlooker|burial|buried|by and by|beside"
    r"|meanwhile|hand(?:s|ed|ing)? over|looked through|expulsion|expelled|hastened|at the door"
    r"|one's own|an extract stands in|owed|landed|under way|put aside|let go of)\b",
    re.IGNORECASE,
)
STORED = re.compile(r"(?<![.\w])(facets?|lanes?|outlines?|settled)\b", re.IGNORECASE)
"""Words that stored data and public names keep; prose says state item, queue, scan, drained."""
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|JOIN|AS)\b")
NAMES = re.compile(r"`+[^`]*`+|{[^}]*}|(?m:^ +[\w, ]+:)|\b\w+:\w\b")
"""Names of code, arguments, attributes, and columns with their kind."""
STRINGS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

LEFT = {"remora/storage": 1}  # a comment in SQL, which SQLite stores with the schema
"""How many of them each folder still has: only ever fewer."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a document; the comments and string literals of a module."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text().splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in STRINGS:
            yield token.start[0], token.string


def product() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    yield from (p for p in sorted((ROOT / "docs").rglob("*.md")) if p.name not in GENERATED)
    yield from sorted((ROOT / "examples").glob("*.py"))
    yield from sorted((ROOT / "remora").rglob("*.py"))


def folder(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if parts[0] == "remora" and len(parts) > 2 else parts[0]


def prose(path: Path, text: str) -> str:
    """The text without names of code; nothing of SQL, or of a string that is one name."""
    if path.suffix == ".py" and (SQL.search(text) or " " not in text.strip()):
        return ""
    return NAMES.sub("", text)


def test_retired_words_stay_out() -> None:
    """No document, comment, docstring or message uses a retired word."""
    found: dict[str, list[str]] = {}
    for path in product():
        for line, text in texts(path):
            # a word may be wrapped over two lines
            matches = [
                *RETIRED.finditer(re.sub(r"\s+", " ", text)),
                *STORED.finditer(prose(path, text)),
            ]
            for match in matches:
                where = f"{path.relative_to(ROOT)}:{line}: {match[0]}"
                found.setdefault(folder(path), []).append(where)
    counts = Counter({name: len(places) for name, places in found.items()})
    worse = [name for name, count in counts.items() if count > LEFT.get(name, 0)]
    assert not worse, "\n".join(place for name in worse for place in found[name])
