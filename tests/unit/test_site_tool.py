"""The script that builds the documents as a site."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tools import site

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference" / "api"


def made(directory: Path, *names: str, page: str = "") -> Path:
    """A site that describes these names."""
    lines = "".join(f"{name} py:class 1 api.html#$ -\n" for name in names).encode()
    head = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# zlib\n"
    (directory / "objects.inv").write_bytes(head + zlib.compress(lines))
    (directory / "index.html").write_text(page)
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
