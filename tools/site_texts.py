"""Texts of the site for programs that read: each page's own, llms.txt and llms-full.txt.

A page ``docs/how-to/http.html`` has its Markdown next to it, ``docs/how-to/http.md``; a page of the
API, which is made from docstrings, has plain text. Links in the Markdown lead to these files.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Entry", "first_sentence", "text_of", "write_texts"]

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
_GENERATED = re.compile(r"\s*<!-- (?:written|generated) by\b", re.IGNORECASE)


@dataclass(frozen=True)
class Entry:
    """A page of the site.

    Attributes:
        source: its path from the root of the repository.
        title: its heading.
        line: one sentence that says what it is about.
    """

    source: str
    title: str
    line: str


def text_of(source: str) -> str:
    """The path of a page's text in the site."""
    return re.sub(r"\.rst$", ".txt", source)


def first_sentence(text: str) -> str:
    """The first sentence of a paragraph, in one line."""
    line = " ".join(text.split())
    return re.split(r"(?<=[.!?:])\s+(?=[A-Z0-9\"“(])", line, maxsplit=1)[0]


def write_texts(site: Path, version: str, parts: Mapping[str, Sequence[Entry]]) -> None:
    """Write the Markdown of pages, and both files that list them, into a built site.

    Args:
        site: where it was built; texts of the API are there.
        version: of remora.
        parts: the pages below each heading of the navigation, in its order.
    """
    entries = [entry for part in parts.values() for entry in part]
    for entry in entries:
        if entry.source.endswith(".md"):
            _copy(entry.source, site)
    about = next(entry for entry in entries if entry.source == "README.md")
    lines = [
        f"# remora {version}\n",
        f"> {about.line}\n",
        "Each link leads to a page's text: Markdown, or plain text for the API.",
        "[llms-full.txt](llms-full.txt) has all pages that are written by hand, in this order.",
    ]
    for heading, part in parts.items():
        lines.append(f"\n## {heading}\n")
        lines += [f"- [{one.title}]({text_of(one.source)}): {one.line}" for one in part]
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text(
        f"<!-- remora {version}: each page begins with its path, as here -->\n\n"
        + "\n".join(
            f"<!-- {entry.source} -->\n\n{(ROOT / entry.source).read_text(encoding='utf-8')}"
            for entry in entries
            if _is_by_hand(entry.source)
        ),
        encoding="utf-8",
    )


def _is_by_hand(source: str) -> bool:
    """Evidence and pages that a program wrote are not; nor is the API."""
    if source.startswith("docs/evidence/") or not source.endswith(".md"):
        return False
    return not _GENERATED.match((ROOT / source).read_text(encoding="utf-8"))


def _copy(source: str, site: Path) -> None:
    """Copy a page's Markdown, and the files of the repository that it links."""
    page = ROOT / source
    text = page.read_text(encoding="utf-8")
    for _, link, _ in _LINK.findall(text):
        linked = (page.parent / link).resolve()
        if linked.is_file() and linked.suffix not in {".md", ".rst"}:
            target = site / linked.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, target)
    (site / source).parent.mkdir(parents=True, exist_ok=True)
    text = _LINK.sub(lambda link: link[1] + text_of(link[2]) + link[3], text)
    (site / source).write_text(text, encoding="utf-8")
