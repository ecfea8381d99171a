"""The questions that are asked before a release (`tools.release`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.endpoints import Handler, listening
from tools.release import name, problems, summary

pytestmark = pytest.mark.blocking  # a server of HTTP in a thread
PAGES = {"/simple/taken-name/": {"versions": ["0.1", "0.2"], "files": [{}, {}, {}]}}


class Index(Handler):
    """The simple API, as PEP 691 has it."""

    def answer(self) -> None:
        page = PAGES.get(self.path)
        status = 500 if "broken" in self.path else 200 if page else 404
        self.send_json(json.dumps(page or {}).encode(), status)


@contextmanager
def index() -> Iterator[str]:
    with listening(Index) as address:
        yield f"{address}/simple"


@pytest.mark.parametrize(
    ("wanted", "code", "told"),
    [
        ("remora", 0, "remora is free at "),
        ("Taken_Name", 1, "taken-name is taken at "),
        ("broken", 0, "SKIPPED: "),
    ],
)
def test_names(capsys: pytest.CaptureFixture[str], wanted: str, code: int, told: str) -> None:
    """A name is free, taken, in whatever way it is written, or the index does not say."""
    with index() as address:
        assert name(wanted, address) == code
    said = capsys.readouterr().out
    assert said.startswith(told)
    assert ("3 files, versions: 0.1, 0.2" in said) == (code == 1)


def test_an_index_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with index() as address:
        pass
    assert name("remora", address) == 0
    assert capsys.readouterr().out.startswith("SKIPPED: ")


AUDITED = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("answered", "code", "last"),
    [
        ([AUDITED], 0, "1 of 1 parts audited, 0 vulnerabilities"),
        ([AUDITED, BAD], 1, "2 of 2 parts audited, 1 vulnerabilities"),
        ([AUDITED, UNKNOWN], 0, "1 of 2 parts audited, 0 vulnerabilities"),
        ([UNKNOWN], 0, "SKIPPED: no part was audited"),
    ],
)
def test_audits(
    capsys: pytest.CaptureFixture[str], answered: list[dict[str, Any]], code: int, last: str
) -> None:
    """A vulnerability fails; nothing audited is not "nothing found"."""
    assert summary(answered) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(last)
    assert ("b 2: PYSEC-1, fixed in 3" in lines) == (BAD in answered)
    assert ("not audited, as the service does not know them: c" in lines) == (UNKNOWN in answered)


RELEASED = "# Changelog\n\n## 1.2 (2026-12-01)\n"
WORKFLOW = {
    "GITHUB_SERVER_URL": "https://host",
    "GITHUB_REPOSITORY": "owner/remora",
    "GITHUB_REF_TYPE": "tag",
    "GITHUB_REF_NAME": "v1.2",
}


@pytest.mark.parametrize(
    ("address", "changelog", "environment", "found"),
    [
        ("https://host/owner/remora", RELEASED, WORKFLOW, None),
        ("https://host/owner/remora", RELEASED, {}, None),
        ("https://repository.invalid/remora", RELEASED, {}, "place-holder"),
        ("https://host/fork/remora", RELEASED, WORKFLOW, "this is https://host/owner/remora"),
        ("https://host/owner/remora", RELEASED, {**WORKFLOW, "GITHUB_REF_NAME": "1.2"}, "v1.2"),
        ("https://host/owner/remora", "## 1.2 (unreleased)\n", WORKFLOW, "CHANGELOG.md"),
        ("https://host/owner/remora", f"{RELEASED}no\nrelease yet", {}, "no release yet"),
    ],
)
def test_readiness(
    address: str, changelog: str, environment: dict[str, str], found: str | None
) -> None:
    pages = {"CHANGELOG.md": changelog, "README.md": "# remora"}
    lines = problems({"version": "1.2", "urls": {"Repository": address}}, pages, environment)
    assert len(lines) == (found is not None)
    assert all(found in line for line in lines if found is not None)
