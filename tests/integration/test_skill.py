"""The skill for coding agents: whoever copies its files has a server that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.workers import OWNERS

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "remora" / "SKILL.md"
SEVERAL = "server.py, several workers"
pytestmark = pytest.mark.blocking


def written() -> dict[str, str]:
    """Each file that the skill has, by what its first line says."""
    blocks = re.findall(r"```(?:python|yaml)\n# ([^\n]*)\n(.*?)```", SKILL.read_text(), re.DOTALL)
    return dict(blocks)


def run_its_tests(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        if name != SEVERAL:
            (directory / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
    options = ("-q", "-W", "ignore", "-p", "no:cacheprovider", "-p", "no:randomly")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "test_server.py"],
        cwd=directory, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_front_matter() -> None:
    """What agents choose a skill by; and it is short."""
    _, head, body = SKILL.read_text().split("---\n", 2)
    about = yaml.safe_load(head)
    assert about["name"] == SKILL.parent.name
    assert 50 < len(about["description"]) <= 1024
    assert len(body.split()) <= 700


def test_its_server(tmp_path: Path) -> None:
    files = written()
    assert set(files) == {"remora.yaml", "memory.py", "server.py", "test_server.py", SEVERAL}
    run_its_tests(tmp_path, files)


@pytest.mark.skipif(OWNERS[1].args[0], reason="owners need Linux")
def test_its_server_with_an_owner_of_its_own(tmp_path: Path) -> None:
    """As several workers have it."""
    files = written()
    files["server.py"], changed = re.subn(
        r"    async with runtime\(\) as app.state.memory:.*\n        yield\n",
        files[SEVERAL],
        files["server.py"],
    )
    assert changed == 1
    run_its_tests(tmp_path, files)
