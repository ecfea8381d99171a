"""A page that is served, and a browser that opens it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from playwright.sync_api import sync_playwright

from remora import Config

__all__ = ["browser_of", "config", "served"]

CONFIG: Mapping[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "long_term": {"enabled": False},
}
"""Without models: what is measured is the page."""
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")


def config() -> Config:
    """The configuration of owners."""
    return Config.from_dict(dict(CONFIG))


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a page that is served by a process of its own."""
    environment = {
        **os.environ,
        "REMORA_TOKENS__COUNTER": "heuristic",
        "REMORA_MODELS__EMBEDDER": "none",
        "REMORA_LONG_TERM__ENABLED": "false",
    }
    command = [sys.executable, "-m", "remora", "view", str(directory), "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield msgspec.json.decode(process.stdout.readline())["address"]
        finally:
            process.terminate()


@contextmanager
def browser_of() -> Iterator[Any]:
    """A browser.

    Raises:
        SystemExit: there is none.
    """
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("there is no Chromium: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()
