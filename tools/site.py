"""Build the documents as a static site, and check it.

    python -m tools.site [--into DIR]

Sphinx makes the pages from README.md, docs/ and the docstrings; a warning of it, such as a link
that leads nowhere, is a failure. Then each public name, method and attribute must be described, no
page may load anything from elsewhere, and each must be in the search, in llms.txt, and have its
text next to it (`tools.site_texts`).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["MODULES", "described", "main", "problems", "public"]

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "remora",
    "remora.blocking",
    "remora.blocks",
    "remora.config",
    "remora.errors",
    "remora.formats",
    "remora.results",
    "remora.storage.ports",
    "remora.testing",
    "remora.testing.simulation",
    "remora.transfer",
)
"""Modules whose ``__all__`` is the public API."""
_FACES = ("remora.blocking.", "remora.testing.")
_LOADED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*?\b(?:src|href)\s*=\s*["']((?:https?:)?//[^"']+)"""
)
_STYLE = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')]+)""")


def build(into: Path) -> None:
    """Make the site anew in a directory."""
    shutil.rmtree(into, ignore_errors=True)
    options = ("-b", "html", "-q", "-j", "auto", "--fail-on-warning", "--keep-going", "-c", "docs")
    command = [sys.executable, "-m", "sphinx", *options, ".", str(into)]
    if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit(code)


def public(modules: Sequence[str] = MODULES) -> Iterator[list[str]]:
    """What users call and read: for each thing, the dotted names that it may be described by.

    A class that two modules export has two names; a member may be described where it is inherited
    from.
    """
    names: dict[int, list[str]] = {}
    things: dict[int, object] = {}
    for path in modules:
        module = importlib.import_module(path)
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.ismodule(thing):
                things[id(thing)] = thing
                names.setdefault(id(thing), []).append(f"{path}.{name}")
    for key, thing in things.items():
        yield names[key]
        # faces and the simulation's parts have the members of what they stand for
        if isinstance(thing, type) and not names[key][0].startswith(_FACES):
            owners = [owner for base in thing.__mro__ for owner in names.get(id(base), ())]
            yield from ([f"{o}.{member}" for o in owners] for member in _members(thing))


def _members(of: type) -> list[str]:
    return [
        name
        for name in dir(of)
        if not name.startswith("_")
        and any(name in vars(k) and k.__module__.startswith("remora") for k in of.__mro__)
    ]


def described(site: Path) -> set[str]:
    """The dotted names that the site describes, from its inventory (``objects.inv``)."""
    content = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(content).decode().splitlines()
    return {line.split(" ")[0] for line in lines if " py:" in line}


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, a line each."""
    known = described(site)
    found = [f"the API does not describe {n[0]}" for n in public() if known.isdisjoint(n)]
    for page in sorted((*site.rglob("*.html"), *site.rglob("*.css"))):
        pattern = _LOADED if page.suffix == ".html" else _STYLE
        found += [
            f"{page.relative_to(site)} loads {address}"
            for address in pattern.findall(page.read_text(encoding="utf-8"))
        ]
    return [*found, *_text_problems(site)]


def _text_problems(site: Path) -> Iterator[str]:
    """Pages that a reader finds in no list, by no search, or not as text."""
    listed = re.findall(r"\]\((.+?)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    searched = _searched(site)
    for name in listed:
        if not (site / name).is_file():
            yield f"llms.txt lists {name}, which is not there"
    for page in sorted(site.rglob("*.html")):
        name = page.relative_to(site).with_suffix("").as_posix()
        texts = [name + suffix for suffix in (".md", ".txt") if (site / (name + suffix)).exists()]
        if name in {"index", "search"}:
            continue
        if name not in searched:
            yield f"search finds no word of {name}.html"
        if not texts:
            yield f"{name}.html has no text beside it"
        elif texts[0] not in listed:
            yield f"llms.txt does not list {texts[0]}"
        elif f'href="{Path(texts[0]).name}"' not in page.read_text(encoding="utf-8"):
            yield f"{name}.html does not link its text"


def _searched(site: Path) -> set[str]:
    """Pages of which the search's index has a word."""
    text = (site / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    pages = [[at] if isinstance(at, int) else at for at in index["terms"].values()]
    return {index["docnames"][page] for word in pages for page in word}


def main(arguments: Sequence[str] | None = None) -> int:
    """Build and check; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "site", metavar="DIR")
    into = parser.parse_args(arguments).into
    build(into)
    found = problems(into)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"built {into / 'index.html'}")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
