"""Other rights of the system, for tests that root runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

__all__ = ["ANOTHER", "bound_by_permissions", "require_interpreter_for_another"]

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


def bound_by_permissions(*command: str) -> list[str]:
    """The command as one that root runs without its right to write everywhere.

    Skips the test where root cannot give the right up.
    """
    if os.geteuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("root may write anywhere, and there is no setpriv")
    return [setpriv, "--bounding-set=-dac_override", *command]
