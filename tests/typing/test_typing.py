"""Type checkers accept what programs write, and refuse what they misspell."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHECKERS = {
    "mypy": ("mypy", "tests/typing/use.py", "examples"),  # strict: pyproject.toml
    "pyright": ("pyright", "--project", "tests/typing", "--pythonpath", sys.executable),
}


@pytest.mark.nightly
@pytest.mark.blocking
@pytest.mark.parametrize("checker", CHECKERS)
def test_programs_and_examples(checker: str) -> None:
    """`use.py` and the examples, strictly: no error, and each refused line is refused. The examples
    ignore nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for example in (ROOT / "examples").rglob("*.py"):
        assert "ignore[" not in example.read_text()
