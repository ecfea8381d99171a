"""Another account of the system, for tests that root runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

__all__ = ["ANOTHER", "require_interpreter_for_another"]

ANOTHER = 65534
"""The id of an account that owns nothing: nobody's."""


def require_interpreter_for_another() -> None:
    """Skip the test where that account may not run this interpreter."""
    try:
        command = [sys.executable, "-c", ""]
        done = subprocess.run(command, user=ANOTHER, capture_output=True, check=False)
    except PermissionError:
        pytest.skip("another user cannot run this interpreter here")
    if done.returncode:
        pytest.skip("another user cannot run this interpreter here")
