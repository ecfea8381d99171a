"""One virtual environment for each library, made once and kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["python_of"]

_INSTALL_LIMIT_S = 1_800


def python_of(requirements: Sequence[str], directory: Path) -> Path:
    """The interpreter of the environment, which is made if it is not there or not of these
    requirements.

    Args:
        requirements: what pip is given, the first of which names the environment; none for the one
            that runs the script.
        directory: where environments are kept.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired: pip could not install it.
    """
    if not requirements:
        return Path(sys.executable)
    home = directory / re.sub(r"[^\w.]+", "-", requirements[0])
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, wanted = home / "requirements.txt", "\n".join(requirements) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=True, clear=True)
        command = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            *requirements,
        ]
        subprocess.run(command, check=True, timeout=_INSTALL_LIMIT_S, stdout=sys.stderr)
        stamp.write_text(wanted)
    return python.absolute()
