"""The script that builds the documents as a site."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tools import site
from tools.site_texts import Entry, write_texts

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference" / "api"


def made(directory: Path, *names: str, page: str = "") -> Path:
    """A site that describes these names."""
    lines = "".join(f"{name} py:class 1 api.html#$ -\n" for name in names).encode()
    head = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# zlib\n"
    (directory / "objects.inv").write_bytes(head + zlib.compress(lines))
    (directory / "index.html").write_text(page)
    (directory / "llms.txt").write_text("- [One](docs/one.md): A page.\n")
    (directory / "searchindex.js").write_text(
        'Search.setIndex({"docnames":["docs/one"],"terms":{"page":0,"word":[0]}})'
    )
    (directory / "docs").mkdir(exist_ok=True)
    (directory / "docs" / "one.md").write_text("# One\n\nA page.\n")
    (directory / "docs" / "one.html").write_text('<a href="one.md">Markdown</a>')
    return directory


def test_each_public_name_must_be_described(tmp_path: Path) -> None:
    """A name is described by one of its names, a member where the class or its base has it."""
    names = [found[0] for found in site.public()]
    assert "remora.Session.append" in names
    assert "remora.results.SessionView" in names
    assert site.problems(made(tmp_path, *names)) == []
    names.remove("remora.Session.append")
    assert site.problems(made(tmp_path, *names)) == [
        "the API does not describe remora.Session.append"
    ]


@pytest.mark.parametrize(
    ("page", "loaded"),
    [
        ('<script src="https://cdn.test/x.js"></script>', "cdn.test/x.js"),
        ('<link rel="stylesheet" href="//fonts.test/a.css">', "//fonts.test/a.css"),
        ('<img alt="" src="http://pictures.test/a.png">', "pictures.test/a.png"),
        ('<a href="https://sqlite.org">SQLite</a><script src="_static/a.js"></script>', None),
    ],
)
def test_pages_load_nothing_from_elsewhere(tmp_path: Path, page: str, loaded: str | None) -> None:
    names = [found[0] for found in site.public()]
    found = site.problems(made(tmp_path, *names, page=page))
    assert len(found) == (loaded is not None)
    assert loaded is None or loaded in found[0]


def test_each_page_is_listed_searched_and_has_its_text(tmp_path: Path) -> None:
    names = [found[0] for found in site.public()]
    built = made(tmp_path, *names)
    assert site.problems(built) == []
    (built / "docs" / "one.html").write_text("no link")
    (built / "docs" / "two.html").write_text("")
    (built / "docs" / "three.html").write_text("")
    (built / "docs" / "three.txt").write_text("")
    (built / "llms.txt").write_text(
        "- [One](docs/one.md): A page.\n- [Four](docs/four.md): None.\n"
    )
    assert site.problems(built) == [
        "llms.txt lists docs/four.md, which is not there",
        "docs/one.html does not link its text",
        "search finds no word of docs/three.html",
        "llms.txt does not list docs/three.txt",
        "search finds no word of docs/two.html",
        "docs/two.html has no text beside it",
    ]


def test_texts_of_the_site(tmp_path: Path) -> None:
    """Every page is in llms.txt, every page that is written by hand in llms-full.txt, and links in
    the Markdown lead to files of the site.
    """
    parts = {
        "Start": [
            Entry("README.md", "remora", "A memory."),
            Entry("docs/index.md", "All", "Here."),
        ],
        "Rest": [
            Entry("examples/README.md", "Examples", "Programs."),
            Entry("docs/evidence/speed.md", "Speed", "Figures."),
            Entry("docs/reference/api/session.rst", "Sessions", "Session, Turn"),
        ],
    }
    write_texts(tmp_path, "1.2.3", parts)
    listing = (tmp_path / "llms.txt").read_text()
    assert listing.startswith("# remora 1.2.3\n\n> A memory.\n")
    assert "## Rest\n\n- [Examples](examples/README.md): Programs.\n" in listing
    assert "- [Sessions](docs/reference/api/session.txt): Session, Turn\n" in listing
    full = (tmp_path / "llms-full.txt").read_text()
    pages = [part.split(" -->")[0] for part in full.split("\n<!-- ") if ".md -->" in part[:80]]
    assert pages == ["README.md", "docs/index.md", "examples/README.md"]
    assert (tmp_path / "examples" / "quickstart.py").exists()
    assert "](reference/api/index.txt)" in (tmp_path / "docs" / "index.md").read_text()


def test_each_public_module_has_a_page() -> None:
    """The pages, which need Sphinx to be built, name each public module or what it exports."""
    text = "".join(page.read_text() for page in PAGES.glob("*.rst"))
    index = (PAGES / "index.rst").read_text()
    for page in PAGES.glob("*.rst"):
        assert page.stem == "index" or f"   {page.stem}\n" in index
    for names in site.public(["remora"]):
        if names[0].count(".") == 1 and names[0] != "remora.Config":
            assert f":: {names[0]}\n" in text, names[0]
    for module in site.MODULES[1:]:
        assert f".. automodule:: {module}\n" in text
