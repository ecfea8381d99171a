"""An environment of its own for each framework, over that of remora's developers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["make_environment"]

CONSTRAINTS = Path(__file__).resolve().parent / "constraints.txt"
_LIMIT_S = 300
_PIP = ("--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "30")


def make_environment(requirements: Sequence[str], directory: Path) -> Path:
    """The interpreter of an environment with these requirements, which is made if it is not there.

    It finds what is installed for the running interpreter, remora among it; pip installs only what
    is missing there or has another release. So it is made in seconds, and changes nothing else.

    Args:
        requirements: what pip is given, the first of which names the environment.
        directory: where environments are kept.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired: pip could not install it.
    """
    home = directory / re.sub(r"[^\w.]+", "-", requirements[0])
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = home / "requirements.txt"
    wanted = "\n".join((*requirements, sys.prefix, CONSTRAINTS.read_text()))
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=False, clear=True)
        paths = {"base": str(home), "platbase": str(home)}
        own = Path(sysconfig.get_path("purelib", "venv", paths))
        # also what is installed there in a way that changes the path, as remora itself
        shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (own / "developers.pth").write_text(shared)
        command = [sys.executable, "-m", "pip", "--python", str(python), "install", *_PIP]
        command += ["--constraint", str(CONSTRAINTS), *requirements]
        subprocess.run(command, check=True, timeout=_LIMIT_S, capture_output=True, text=True)
        stamp.write_text(wanted)
    return python.absolute()
