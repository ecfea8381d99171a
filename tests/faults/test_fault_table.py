"""The fault table's command, on a small scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_the_table(tmp_path: Path) -> None:
    """G3, G4: a line for each fault, nothing lost, doubled or torn; the same figures as JSON."""
    names = ["broken-sync", "long-term-moved", "large-journal"]
    words = ["--smoke", "--only", *names, "--json", str(tmp_path / "faults.json")]
    command = [sys.executable, "-m", "benchmarks.faults", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    head, _, *lines = done.stdout.splitlines()
    assert head.startswith("| fault | injected |")
    assert len(lines) == len(names)
    found = json.loads((tmp_path / "faults.json").read_text())["faults"]
    assert list(found) == names
    for line, name in zip(lines, names, strict=True):
        cells = [cell.strip() for cell in line.split("|")]
        if found[name]["injected"]:
            assert cells[4:7] == ["0", "0", "0"], line
        else:
            assert "not injected" in line
