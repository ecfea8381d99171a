"""Pages lead somewhere, are listed, and show code that is an example's own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tools.figures import differences
from tools.figures import figures as measured
from tools.lint.source import ROOT, Source

__all__ = ["examples", "figures", "installs", "links", "listings"]

GUIDES = {
    "docs/how-to/cookbook.md",
    "docs/how-to/fastapi.md",
    "docs/how-to/keyed-state.md",
    "docs/how-to/migration.md",
    "docs/reference/storage-ports.md",
    "docs/tutorial/an-agent-that-remembers.md",
}
"""Pages of which every block of Python names its example."""


def links(files: Sequence[Source]) -> Iterator[str]:
    """Every relative link in a document points at a file of the repository, and at a heading."""
    for file in files:
        if not file.name.endswith(".md") or file.name.startswith("tests/"):
            continue
        path = ROOT / file.name
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]+))?\)", file.text):
            where = path.parent / target if target else path
            if not where.exists():
                yield f"{file.name}: links to {target}, which is not there"
            elif anchor and anchor not in _anchors(where.read_text(encoding="utf-8")):
                yield f"{file.name}: links to #{anchor}, which {where.name} lacks"


def _anchors(text: str) -> set[str]:
    """The names that a page's headings have in links."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def examples(files: Sequence[Source]) -> Iterator[str]:
    """What a page says is of an example is in it; code in a guide names its example."""
    for file in files:
        if not file.name.endswith(".md"):
            continue
        marked = r"^( *)<!-- (examples/[\w./]+) -->\n *```\w+\n(.*?)```"
        for indent, path, block in re.findall(marked, file.text, re.DOTALL | re.MULTILINE):
            code = re.sub(f"^{indent}", "", block, flags=re.MULTILINE).rstrip()
            if not code or code not in (ROOT / path).read_text(encoding="utf-8"):
                yield f"{file.name}: this is not in {path}:\n{code}"
        if file.name in GUIDES:
            every = len(re.findall(r"^ *```python$", file.text, re.MULTILINE))
            named = len(re.findall(r" -->\n *```python$", file.text, re.MULTILINE))
            if not every or named != every:
                yield f"{file.name}: {every - named} of {every} blocks of Python name no example"


def figures(files: Sequence[Source]) -> Iterator[str]:
    """A figure that names its measurement is the one in docs/evidence/data."""
    known = measured()
    for file in files:
        if file.name.endswith(".md"):
            yield from (f"{file.name}: {line}" for line in differences(file.text, known))
            for found in re.finditer(r"^[ >*-]*<!--figure:\S+", file.text, re.MULTILINE):
                yield f"{file.name}: {found[0].strip()} begins a line: Markdown then shows no text"


def installs(files: Sequence[Source]) -> Iterator[str]:
    """Until there is a release, the name on the package index may be somebody else's."""
    for file in files:
        for found in re.findall(r"pip install [^`\n]*?[ \"']remora\b[^`\n]*", file.text):
            if file.name.endswith(".md") and file.name != "CHANGELOG.md":
                yield f"{file.name}: installs by name, and not from the clone: {found}"


def listings(files: Sequence[Source]) -> Iterator[str]:
    """A reader finds every page from the index, and every example with what it shows."""
    texts = {file.name: file.text for file in files}
    for name in texts:
        folder, _, last = name.rpartition("/")
        page = name.startswith("docs/") and name.endswith(".md") and name != "docs/index.md"
        example = folder == "examples" and last.endswith(".py") and last != "__init__.py"
        if page and f"({name.removeprefix('docs/')})" not in texts.get("docs/index.md", ""):
            yield f"{name}: is not in docs/index.md"
        if example and f"[{last}]({last})" not in texts.get("examples/README.md", ""):
            yield f"{name}: is not in examples/README.md"
