"""The site of the documents in a real browser, from files and without a network."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browsing import MARKS, WAIT_MS, is_wider, started_browser, violations

pytest.importorskip("furo", reason="Sphinx and its theme are missing: tasks.py site installs them")
pytestmark = MARKS

ROOT = Path(__file__).parents[2]
PAGES = ["docs/index", "docs/how-to/http", "docs/how-to/view", "search"]
SIZES = {"narrow": {"width": 390, "height": 844}, "wide": {"width": 1280, "height": 900}}
THEME = "document.body.dataset.theme"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages without the API and the evidence, which take long to make."""
    into = tmp_path_factory.mktemp("site")
    pages = "README.md,docs/index.md,docs/how-to/**,docs/tutorial/**"
    options = ("-b", "html", "-Q", "-c", "docs", "-D", f"include_patterns={pages}")
    subprocess.run([sys.executable, "-m", "sphinx", *options, ".", str(into)], cwd=ROOT, check=True)
    return into


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as started:
        yield started


@contextmanager
def opened(browser: Any, page: Path, query: str = "", **options: Any) -> Iterator[Any]:
    """A page of the site, which must have no error or warning on the console."""
    context = browser.new_context(offline=True, **options)
    shown = context.new_page()
    shown.set_default_timeout(WAIT_MS)
    said: list[str] = []

    def note(line: Any) -> None:
        if line.type in {"error", "warning"}:
            said.append(line.text)

    shown.on("console", note)
    shown.on("pageerror", lambda error: said.append(str(error)))
    shown.goto(page.as_uri() + query)
    yield shown
    assert not said, said
    context.close()


def test_search_finds_a_page_that_leads_to_its_markdown(site: Path, browser: Any) -> None:
    """A reader types a word, follows the first result, and from there the link to the text."""
    with opened(browser, site / "docs" / "index.html") as page:
        page.fill(".sidebar-search", "postgresql")
        page.press(".sidebar-search", "Enter")
        page.locator("#search-results li a").first.click()
        page.locator("h1", has_text="PostgreSQL").wait_for()
        page.locator(".page-text a").first.click()
        page.wait_for_url("**/docs/how-to/postgresql.md")
    text = (site / "docs" / "how-to" / "postgresql.md").read_text()
    assert text == (ROOT / "docs" / "how-to" / "postgresql.md").read_text()


def test_the_switch_changes_colours_and_is_remembered(site: Path, browser: Any) -> None:
    """The page follows the system at first, then the reader."""
    colour = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, site / "README.html", color_scheme="dark") as page:
        dark = page.evaluate(colour)
        while page.evaluate(THEME) != "light":
            page.locator(".theme-toggle-content button").click()
        assert page.evaluate(colour) != dark
        page.goto((site / "docs" / "how-to" / "http.html").as_uri())
        assert page.evaluate(THEME) == "light"
        assert page.evaluate(colour) != dark


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("wide", "light"),
        ("narrow", "dark"),
        pytest.param("wide", "dark", marks=pytest.mark.nightly),
        pytest.param("narrow", "light", marks=pytest.mark.nightly),
    ],
)
def test_pages_are_accessible_and_fit(site: Path, browser: Any, size: str, scheme: str) -> None:
    """No violation of axe-core's rules, and nothing is wider than the window."""
    for name in PAGES:
        query = "?q=retry" if name == "search" else ""
        look = {"viewport": SIZES[size], "color_scheme": scheme}
        with opened(browser, site / f"{name}.html", query, **look) as page:
            if query:
                page.locator("#search-results li").first.wait_for()
            assert not is_wider(page), name
            # a browser lets no script read other files
            assert violations(page, preload=False) == [], name
