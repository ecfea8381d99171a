"""Pages are short and plain: counts of each page, which may only fall.

A count that exceeds its target stands in docs/prose.toml, and a page may have no more than that.
A page that is not in the table begins at the targets. ``python -m tools.prose --update`` lowers the
table; to raise a number is an edit by hand.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tools.lint.source import ROOT, Source

__all__ = ["COUNTS", "TABLE", "Count", "Page", "lowered", "pages", "prose", "table"]

TABLE = ROOT / "docs" / "prose.toml"
TOTAL = 55_000
"""Words of all pages in docs/, generated ones included."""
WORDS = {"README.md": 700, "docs/tutorial/": 1_300, "docs/how-to/": 900, "docs/": 1_600}
"""Words of a page, by the beginning of its path: the first that fits."""
LONGEST = 25
"""Words of a sentence."""

_WRITTEN = re.compile(r"<!-- (?:(?:written|generated) by|cells of|\w+: begin)\b", re.IGNORECASE)
_UNTIL = re.compile(r"<!-- (?:until here|\w+: end)\b", re.IGNORECASE)
_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s+")
_END = re.compile(r"(?<=[.!?:])[)\"”]*\s+(?=[A-Z0-9\"“(\[])")
_WHAT = re.compile(r"\bwhat\b|\bthose (?:that|who|which|of)\b|\bthe ones? that\b", re.IGNORECASE)
_PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being) (?:not |never |then |\w+ly )?"
    r"(?:\w{2,}ed|begun|broken|brought|built|caught|chosen|cut|done|drawn|driven|forgotten|found"
    r"|given|held|hidden|kept|known|left|lost|made|meant|met|overwritten|paid|put|read|run|seen"
    r"|sent|set|shown|shut|spent|split|taken|thrown|told|torn|understood|withdrawn|written)\b"
)


class Page:
    """The prose of a page: paragraphs, items of lists and cells of tables.

    Code, headings, pictures, quotations and generated parts are none.

    Attributes:
        name: its path from the root.
        words: how many it has, code included; not of generated parts.
        before_code: how many come before its first block of code.
        sentences: each with the number of its line.
    """

    def __init__(self, file: Source) -> None:
        self.name = file.name
        self.words, self.before_code = 0, 0
        self.sentences: list[tuple[int, str]] = []
        self._text, self._line = "", 0
        fenced = coded = generated = False
        for number, line in enumerate(file.text.splitlines(), 1):
            generated = not _UNTIL.search(line) if generated else bool(_WRITTEN.search(line))
            is_fence = not generated and line.lstrip().startswith(("```", "~~~"))
            fenced, coded = fenced != is_fence, coded or is_fence
            if not generated:
                self.words += len(line.split())
                self.before_code += 0 if coded else len(line.split())
            self._add(number, "" if generated or fenced or is_fence else line)
        self._add(0, "")

    def _add(self, number: int, line: str) -> None:
        """Add a line to the paragraph, or end it."""
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|")) if line.startswith("|") else []
        is_prose = bool(line.strip()) and not line.startswith(("#", ">", "<", "![", "|"))
        if self._text and (not is_prose or _ITEM.match(line)):
            self.sentences += _sentences(self._line, self._text)
            self._text = ""
        if is_prose:
            self._line = self._line if self._text else number
            self._text += _ITEM.sub("", line, count=1) + "\n"
        for cell in cells:
            if cell.strip(" :-"):
                self.sentences += _sentences(number, cell)


def _sentences(line: int, text: str) -> Iterator[tuple[int, str]]:
    """The sentences of a paragraph that begins at a line; code counts as one word."""
    text = re.sub(r"`+[^`]*`+", lambda code: "X" + "\n" * code[0].count("\n"), text)
    text = re.sub(r"\]\([^)]*\)|[\[\]*]", "", text)
    begin = 0
    for end in [*(found.end() for found in _END.finditer(text)), len(text)]:
        if sentence := text[begin:end]:
            yield line + text.count("\n", 0, begin), " ".join(sentence.split())
        begin = end


@dataclass(frozen=True)
class Count:
    """A number of a page that has a target.

    Attributes:
        what: it counts, as a message says it.
        todo: how a page comes to have less.
        target: of a page.
        size: of a page, where no sentences are counted.
        times: how often it is in a sentence.
        step: the table has multiples of this.
    """

    what: str
    todo: str
    target: Callable[[Page], int]
    size: Callable[[Page], int] | None = None
    times: Callable[[str], int] = lambda _: 0
    step: int = 1

    def lines(self, page: Page) -> list[int]:
        """The line of each occurrence."""
        return [line for line, sentence in page.sentences for _ in range(self.times(sentence))]

    def number(self, page: Page) -> int:
        """The count of a page."""
        return self.size(page) if self.size else len(self.lines(page))


def _share(part: float) -> Callable[[Page], int]:
    """This part of a page's sentences, rounded up."""
    return lambda page: math.ceil(len(page.sentences) * part)


def _budget(page: Page) -> int:
    return next(words for begin, words in WORDS.items() if page.name.startswith(begin))


COUNTS = {
    "words": Count(
        "words", "take some out, or move them", _budget, lambda page: page.words, step=50
    ),
    "before_code": Count(
        "words before the first code or command",
        "show a command or its output earlier",
        lambda _: 100,
        lambda page: page.before_code if page.name.startswith("docs/how-to/") else 0,
        step=10,
    ),
    "long": Count(
        f"sentences of more than {LONGEST} words",
        "split some",
        _share(0.05),
        times=lambda sentence: len(re.findall(r"\S*\w\S*", sentence)) > LONGEST,
    ),
    "semicolons": Count(
        "semicolons",
        "write two sentences",
        lambda _: 0,
        times=lambda sentence: re.sub(r"&#?\w+;", "", sentence).count(";"),
    ),
    "what": Count(
        '"what" or "those that" for a thing',
        "name the thing",
        lambda _: 2,
        times=lambda sentence: 0 if sentence.endswith("?") else len(_WHAT.findall(sentence)),
    ),
    "passive": Count(
        "verbs in the passive",
        "say who does it, or use the imperative",
        _share(0.2),
        times=lambda sentence: len(_PASSIVE.findall(sentence)),
    ),
}
Table = Mapping[str, Mapping[str, int]]


def pages(files: Sequence[Source]) -> tuple[list[Page], int]:
    """Pages that have counts, and the words of all of docs/.

    Evidence is figures and how they were measured: its words count in the sum alone.
    """
    every = [file for file in files if re.fullmatch(r"README\.md|docs/.*\.md", file.name)]
    total = sum(len(file.text.split()) for file in every if file.name != "README.md")
    return [Page(file) for file in every if not file.name.startswith("docs/evidence/")], total


def table() -> Table:
    """The numbers above the targets, by page."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {}


def prose(files: Sequence[Source], known: Table | None = None) -> Iterator[str]:
    """No count of a page is above its target, or its number in docs/prose.toml."""
    known = table() if known is None else known
    found, total = pages(files)
    for page in found:
        for name, count in COUNTS.items():
            number = count.number(page)
            may = max(count.target(page), known.get(page.name, {}).get(name, 0))
            if number > may:
                lines = count.lines(page)
                at = f", in lines {', '.join(map(str, dict.fromkeys(lines)))}" if lines else ""
                yield (
                    f"{page.name}:{lines[0] if lines else 1}: {count.what}: {number}, and "
                    f"{may} are allowed: {count.todo}{at}"
                )
    may = max(TOTAL, known.get("docs/", {}).get("words", 0))
    if total > may:
        yield f"docs/: words of all pages: {total}, and {may} are allowed: shorten a page"
    names = {page.name for page in found} | {"docs/"}
    for name, row in known.items():
        if (name not in names and (ROOT / name).exists()) or not COUNTS.keys() >= row.keys():
            yield f"docs/prose.toml: {name}: not a page with counts, or not their names"


def lowered(files: Sequence[Source], known: Table) -> dict[str, dict[str, int]]:
    """The table with no number above what a page has; without a table, what each page has."""
    found, total = pages(files)
    new: dict[str, dict[str, int]] = {}
    for page in found:
        for name, count in COUNTS.items():
            number = -(-count.number(page) // count.step) * count.step
            if known:
                number = min(number, known.get(page.name, {}).get(name, 0))
            if number > count.target(page):
                new.setdefault(page.name, {})[name] = number
    number = -(-total // 500) * 500
    number = min(number, known.get("docs/", {}).get("words", 0)) if known else number
    return {"docs/": {"words": number}, **new} if number > TOTAL else new
