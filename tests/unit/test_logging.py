"""Where log lines go: the host's own processors, or the standard library; and what they say."""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from remora.logging import get_logger
from remora.storage.ports import SessionKey, UserKey

ROOT = Path(__file__).parents[2]

HOST = """
import asyncio, logging, sys
import remora

host = logging.StreamHandler(sys.stdout)
if sys.argv[1] == "before":
    logging.basicConfig(handlers=[host], level=logging.ERROR)
before = (list(logging.root.handlers), logging.root.level, logging.basicConfig)

async def main():
    async with remora.Runtime.in_memory() as runtime:
        alice = runtime.user("alice")
        await alice.remember("Alice likes tea.")
        await alice.settle()
        assert await alice.recall("tea")

asyncio.run(main())
assert "wordllama" not in sys.modules
after = (list(logging.root.handlers), logging.root.level, logging.basicConfig)
assert after == before, after
"""


@pytest.mark.cold
@pytest.mark.parametrize("configured", ["never", "before"])
def test_the_root_logger_is_the_hosts(configured: str) -> None:
    """The embedded embedder's package would configure it: none of its code runs."""
    done = subprocess.run(
        [sys.executable, "-c", HOST, configured],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def configured() -> Iterator[list[dict[str, Any]]]:
    """A host whose structlog keeps events in a list."""
    kept: list[dict[str, Any]] = []

    def keep(_: Any, method: str, event: Any) -> Any:
        kept.append({"level": method, **event})
        raise structlog.DropEvent

    structlog.configure(processors=[structlog.processors.add_log_level, keep])
    yield kept
    structlog.reset_defaults()


def test_a_host_with_structlog(configured: list[dict[str, Any]]) -> None:
    """Its processors get the fields; ids are replaced before that, and floats are rounded."""
    logger = get_logger("remora.test")
    key = SessionKey("alice", "chat")
    try:
        raise ValueError(f"{key!r} failed")
    except ValueError:
        logger.exception("job_failed", session=key, seconds=0.06100430699984827)
    (event,) = configured
    assert event["event"] == "job_failed"
    assert event["session"] == key.pseudonym
    assert event["seconds"] == 0.061
    assert event["logger"] == "remora.test"
    assert "ValueError" in event["exception"]
    assert "alice" not in str(event)
    structlog.reset_defaults()
    logger.warning("job_failed")
    assert len(configured) == 1


def test_a_host_with_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    """Text for people, and a dict for formatters that write JSON."""
    with caplog.at_level(logging.INFO):
        get_logger("remora.test").info("journal_created", user=UserKey("alice"), seconds=1.23456)
        get_logger("remora.test").debug("not_shown")
    (record,) = caplog.records
    pseudonym = UserKey("alice").pseudonym
    assert record.getMessage() == f"event=journal_created user={pseudonym} seconds=1.235"
    fields = vars(record)["remora"]
    assert fields == {"event": "journal_created", "user": pseudonym, "seconds": 1.235}
    assert json.dumps(fields)


def logged_events() -> dict[str, set[str]]:
    """Every event that a module logs, and its levels."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "remora").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = ast.unparse(node.func)
            values: list[tuple[ast.expr, str]] = []
            if call := re.fullmatch(r"_logger\.(debug|info|warning|error|exception)", name):
                values = [(node.args[0], call[1].replace("exception", "error"))]
            elif name == "OutageLog":
                words = {one.arg: one.value for one in node.keywords}
                level = ast.literal_eval(words.get("level", ast.Constant("error")))
                values = [(one, level) for one in node.args[1:2]] + [(words["ended"], "info")]
            for value, level in values:
                for one in ast.walk(value):
                    if isinstance(one, ast.Constant) and re.fullmatch(r"\w+_\w+", str(one.value)):
                        found.setdefault(str(one.value), set()).add(level)
    return found


LEVELS = {"Errors": "error", "Warnings": "warning", "Information": "info", "Debugging": "debug"}
"""Of an event, by its heading in docs/reference/logging.md."""


def test_every_event_is_in_the_documents() -> None:
    """Each event is in docs/reference/logging.md once, under a level that it has."""
    page = (ROOT / "docs" / "reference" / "logging.md").read_text()
    events = logged_events()
    listed = []
    for title, level in LEVELS.items():
        section = page.split(f"### {title}\n")[1].split("\n### ")[0]
        for event in re.findall(r"^- `(\w+)`: ", section, re.MULTILINE):
            listed.append(event)
            assert level in events.get(event, ()), f"{event} is not logged as {level}"
    assert len(listed) == len(set(listed))
    assert set(listed) == set(events)
