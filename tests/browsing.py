"""The page of ``remora view`` in a real browser, for tests.

It needs Debian's Chromium and Playwright; without them, tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.configs import LEAN_ENVIRONMENT

playwright_api: Any = pytest.importorskip("playwright.sync_api", reason="Playwright is missing")
axe: Any = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")

BROWSER = next(
    filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None
)
MARKS = [
    pytest.mark.blocking,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here"),
    pytest.mark.skipif(sys.version_info >= (3, 14), reason="tried with Python 3.11 to 3.13"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Playwright's own process
]
WAYS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 360, "height": 740}},
    "narrow dark": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}
EACH_WAY = [
    pytest.param(way, id=name, marks=[pytest.mark.nightly] if name in {"dark", "narrow"} else [])
    for name, way in WAYS.items()
]
"""Each width and each scheme once, and in the nightly run all of them."""
ENVIRONMENT = {
    **LEAN_ENVIRONMENT,
    "REMORA_BUFFER__TOKEN_LIMIT": "600",
    "REMORA_BUFFER__SUMMARY_TOKENS": "120",
}
"""Of the commands that serve pages."""
WAIT_MS = 250_000  # two CPUs may have forty busy processes, and the server gives way to all


@contextmanager
def served(directory: Path, *more: str, **variables: str) -> Iterator[str]:
    """The address of a page that is served, with the environment's variables changed."""
    command = [sys.executable, "-m", "remora", "view", str(directory), "--json", *more]
    environment = {**os.environ, **ENVIRONMENT, **variables}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield msgspec.json.decode(process.stdout.readline())["address"]
        finally:
            process.terminate()


@contextmanager
def started_browser() -> Iterator[Any]:
    """A browser without a window."""
    with playwright_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(
            executable_path=BROWSER, args=arguments, timeout=WAIT_MS
        )
        yield started
        started.close()


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page of a memory that has users; see `opened_empty`."""
    with opened_empty(browser, address, **options) as page:
        page.wait_for_selector("#users a", state="attached")
        yield page


@contextmanager
def opened_empty(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page, which must say nothing on the console."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(address)
    yield page
    assert not said, said
    context.close()


def visit(page: Any, user: str, session: str) -> None:
    """Choose a user and a session as people do."""
    choose(page, "users", user)
    choose(page, "sessions", session)
    page.locator("h1", has_text=f"/ {session}").wait_for()  # nothing of an earlier one is left
    page.wait_for_selector(".strip[aria-valuemax]")
    page.wait_for_selector("#context-size", state="attached")


def choose(page: Any, listing: str, prefix: str) -> None:
    """Search one of the lists, and click on the first that is found."""
    show_list(page)
    if listing == "users" and page.locator(".back").is_visible():
        page.click(".back")
        page.wait_for_selector("h1:text-is('Overview')")
        show_list(page)
    page.fill(f"#{listing}-search", prefix)
    # a click on what moves up because others leave the list is lost
    page.locator(f"#{listing} a").filter(has_not_text=prefix).first.wait_for(state="detached")
    page.locator(f"#{listing} a", has_text=prefix).first.click()


def show_list(page: Any) -> None:
    """Open the menu of a narrow window."""
    if page.locator("#menu[aria-expanded=false]").is_visible():
        page.click("#menu")


def show(page: Any, part: str) -> None:
    """Choose a part of a session by its tab."""
    page.click(f"#tab-{part}")
    page.wait_for_selector(f"#{part}:visible")


def violations(page: Any, **options: object) -> list[tuple[str, str]]:
    """What axe-core finds wrong: its rule and the first element."""
    found = axe.Axe().run(page, options=options).response["violations"]
    return [(one["id"], one["nodes"][0]["html"]) for one in found]


def is_wider(page: Any) -> bool:
    """Whether something is wider than the window."""
    root = "document.documentElement"
    return bool(page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))
