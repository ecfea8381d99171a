"""Product text uses the words of docs/reference/glossary.md: retired words stay out."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator, Sequence

from tools.lint.source import Function, Source

__all__ = ["docstrings", "words"]

GENERATED = {"speed.md", "correctness.md", "testing.md"}
"""In part, from the tests."""

RETIRED = re.compile(
    r"\b(anew|whoever|whosever|amiss|for good|farewell|onlooker|burial|buried|by and by|beside"
    r"|meanwhile|hand(?:s|ed|ing)? over|looked through|expulsion|expelled|hastened|at the door"
    r"|one's own|an extract stands in|owed|landed|under way|put aside|let go of)\b",
    re.IGNORECASE,
)
STORED = re.compile(r"(?<![.\w])(facets?|lanes?|outlines?|settled)\b", re.IGNORECASE)
"""Words that stored data and public names keep; prose says state item, queue, scan, drained."""
SQL = re.compile(r"\b(ALTER|SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|JOIN|AS)\b")
NAMES = re.compile(r"`+[^`]*`+|{[^}]*}|(?m:^ +[\w, ]+:)|\b\w+:\w\b")
"""Names of code, arguments, attributes, and columns with their kind."""
STRINGS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}

UNINDENTED = re.compile(r"^(async with|async def|await|from \w+ import) ", re.MULTILINE)
HALF_SENTENCE = re.compile(r"(?:What|Those|Its|Whether)\b")
NOT_CODE = re.compile(r"─|\w   +\w")
"""A diagram, a table."""


def words(files: Sequence[Source]) -> Iterator[str]:
    """No document, comment, docstring or message uses a retired word."""
    for file in files:
        folder, _, name = file.name.rpartition("/")
        page = file.name in {"README.md", "CONTRIBUTING.md"} or (
            file.name.startswith("docs/") and name not in GENERATED
        )
        example = folder == "examples" and name.endswith(".py")
        if page or example or file.name.startswith("remora/"):
            for line, text in _texts(file):
                # a word may be wrapped over two lines
                found = [
                    *RETIRED.finditer(re.sub(r"\s+", " ", text)),
                    *STORED.finditer(_prose(file, text)),
                ]
                yield from (f"{file.name}:{line}: retired word: {one[0]}" for one in found)


def _texts(file: Source) -> Iterator[tuple[int, str]]:
    """The paragraphs of a document; the comments and string literals of a module."""
    if file.name.endswith(".md"):
        for found in re.finditer(r"(?:^.*\S.*$\n?)+", file.text, re.MULTILINE):
            yield file.text.count("\n", 0, found.start()) + 1, found[0]
        return
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type in STRINGS:
            yield token.start[0], token.string


def _prose(file: Source, text: str) -> str:
    """The text without names of code; nothing of SQL, or of a string that is one name."""
    if file.name.endswith(".py") and (SQL.search(text) or " " not in text.strip()):
        return ""
    return NAMES.sub("", text)


def docstrings(files: Sequence[Source]) -> Iterator[str]:
    """Each begins with a verb or a thing; what a reader copies out of `help` is code."""
    for file in files:
        if not (file.name.startswith("remora/") or file.name == "tasks.py"):
            continue
        if not file.name.endswith(".py"):
            continue
        for _, node in file.nodes:
            if not isinstance(node, ast.Module | ast.ClassDef | Function):
                continue
            text = f"{ast.get_docstring(node) or ''}\n"
            where = f"{file.name}:{getattr(node, 'lineno', 1)}"
            if opening := HALF_SENTENCE.match(text):
                yield f"{where}: begins with {opening[0]!r}: write 'Return …', or 'The …'"
            if UNINDENTED.search(text):
                yield f"{where}: code that is not indented"
            for block in re.findall(r"::\n\n((?:    .*\n|\n)+)", text):
                if not NOT_CODE.search(block):
                    try:
                        compile(
                            textwrap.dedent(block), where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                        )
                    except SyntaxError as e:
                        yield f"{where}: this code does not compile: {e}"
