"""One virtual environment for each library, made once and kept; subjects of the same first requirement share it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.correctness.peers import Peer

__all__ = ["python_of"]

_INSTALL_LIMIT_S = 1_800


def python_of(peer: Peer, directory: Path) -> Path:
    """The interpreter of the peer's environment, which is made if it is not there or not of these requirements.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired: pip could not install it.
    """
    if not peer.requirements:
        return Path(sys.executable)
    home = directory / re.sub(r"[^\w.]+", "-", peer.requirements[0])
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp, wanted = home / "requirements.txt", "\n".join(peer.requirements) + "\n"
    if not stamp.exists() or stamp.read_text() != wanted:
        venv.create(home, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.requirements]
        subprocess.run(command, check=True, timeout=_INSTALL_LIMIT_S, stdout=sys.stderr)
        stamp.write_text(wanted)
    return python.absolute()
