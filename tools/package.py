"""Build the sdist and the wheel twice, check what is in them, list their parts, try the wheel.

    python -m tools.package [--into DIR]

The second build is made from the sdist in another directory, and must have the same bytes: so the
sdist is complete, and whoever has it can build the wheel again. Times in the archives are those of
the commit (``SOURCE_DATE_EPOCH``), and the build backend has the version of constraints.txt.

The wheel is installed into a new virtual environment, without the extras and the tools of
development. What is there then is written to ``sbom/`` in the directory, as CycloneDX; and there
the wheel must import, answer on the command line, run the tutorial's program, and bring its
fixtures to pytest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "build",
    "differences",
    "install_tools",
    "main",
    "problems_of_sdist",
    "problems_of_wheel",
    "program",
    "project",
    "try_wheel",
]

ROOT = Path(__file__).resolve().parents[1]
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_SECTIONS = (
    "Author",
    "Description-Content-Type",
    "License-Expression",
    "Requires-Dist",
    "Requires-Python",
)


def project() -> dict[str, Any]:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def build(into: Path, source: Path = ROOT, epoch_s: str | None = None) -> tuple[Path, Path]:
    """Build the sdist and the wheel in a directory.

    Args:
        into: where they go; what an earlier build left there is deleted.
        source: the tree that they are made of.
        epoch_s: time of all files in them, in seconds since 1970; without it, the build backend's.
    """
    for old in (*into.glob("remora-*.tar.gz"), *into.glob("remora-*.whl")):
        old.unlink()
    environment = {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    if epoch_s is not None:
        environment["SOURCE_DATE_EPOCH"] = epoch_s
    _run(sys.executable, "-m", "build", "--outdir", into, source, environment=environment)
    (sdist,), (wheel,) = into.glob("remora-*.tar.gz"), into.glob("remora-*.whl")
    return sdist, wheel


def _epoch_s() -> str | None:
    """The time of the last commit; in an sdist, as the environment says."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    if (ROOT / ".git").exists() and shutil.which("git") is not None:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return os.environ.get("SOURCE_DATE_EPOCH")


def differences(built: Sequence[Path], again: Sequence[Path]) -> list[str]:
    """The files of two builds that do not have the same bytes; prints the hashes of all."""
    found = []
    for first, second in zip(built, again, strict=True):
        one, other = (hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second))
        print(f"{one}  {first.name}", flush=True)
        if one != other:
            found.append(f"{first.name} is not reproducible: built again, its SHA-256 is {other}")
    return found


def _build_again(sdist: Path, into: Path, epoch_s: str | None) -> tuple[Path, Path]:
    """Build from what is in an sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(into, filter="data")
    (source,) = into.iterdir()
    return build(into, source, epoch_s)


# -- what is in them -------------------------------------------------------------------------------


def problems_of_wheel(wheel: Path, modules: Iterable[str]) -> list[str]:
    """What a wheel lacks, and what it should not have.

    Args:
        wheel: the file.
        modules: files that must be in it, by path.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        info = next((name for name in names if name.endswith(".dist-info/METADATA")), None)
        metadata = archive.read(info).decode() if info is not None else ""
    wanted = {"remora/py.typed", "remora_pytest.py", *modules}
    found = [f"the wheel lacks {name}" for name in sorted(wanted - names)]
    found += [
        f"the wheel has {name}"
        for name in sorted(names)
        if not name.startswith(("remora/", "remora-")) and name != "remora_pytest.py"
    ]
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        found.append("the wheel lacks its license")
    head, _, readme = metadata.partition("\n\n")
    found += [f"the metadata lacks {name}" for name in _SECTIONS if f"\n{name}: " not in head]
    if not readme.startswith("# remora"):
        found.append("the metadata lacks the README")
    found += [
        f"the README of the metadata links to {path}, which leads nowhere at an index"
        for path in re.findall(r"\]\((?!\w+:|#)([^)]+)\)", readme)
    ]
    return found


def problems_of_sdist(sdist: Path) -> list[str]:
    """What is missing for someone who builds and tests remora from an sdist."""
    wanted = {"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "pyproject.toml"}
    wanted |= {"constraints.txt", "tasks.py", "tests/conftest.py", "docs/index.md"}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    found = [f"the sdist lacks {name}" for name in sorted(wanted - names)]
    caches = {name for name in names if "__pycache__" in name or name.startswith(("build/", "."))}
    return found + [f"the sdist has {name}" for name in sorted(caches - {".gitignore"})]


# -- by itself -------------------------------------------------------------------------------------


def try_wheel(wheel: Path, version: str, bill: Path) -> None:
    """Install a wheel where nothing else is, list what came with it, and use it.

    Args:
        wheel: the file.
        version: what it must say that it is.
        bill: where the list of all that was installed goes, as CycloneDX JSON.

    Raises:
        SystemExit: something does not work; its output was shown.
    """
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        venv.create(directory / "venv")  # pip would be in the list
        python = program(directory / "venv", "python")
        pip = (*_PIP, "--python", python)
        constraints = ("--constraint", ROOT / "constraints.txt")
        _run(*pip, "install", *constraints, wheel, in_=directory)
        _run(*pip, "check", in_=directory)
        _list_parts(python, bill)
        told = f"import remora, sys; assert remora.__version__ == {version!r}"
        loaded = "assert not {'lancedb', 'pyarrow', 'numpy'} & sys.modules.keys()"
        _run(python, "-I", "-c", f"{told}; {loaded}", in_=directory)
        _run(program(directory / "venv", "remora"), "--version", in_=directory)
        for example in ("quickstart.py", "tested_agent.py"):
            shutil.copy(ROOT / "examples" / example, directory)
        _run(python, "-I", "quickstart.py", in_=directory)
        _run(*pip, "install", *constraints, "pytest", in_=directory)
        _run(python, "-I", "-m", "pytest", "-q", "tested_agent.py", in_=directory)


def install_tools(directory: Path) -> None:
    """Install what releases need into a new virtual environment.

    Raises:
        SystemExit: pip cannot install it; its output was shown.
    """
    venv.create(directory)
    tools = project()["dependency-groups"]["release"]
    python = program(directory, "python")
    _run(*_PIP, "--python", python, "install", "--quiet", *tools)


def program(environment: Path, name: str) -> Path:
    """The path of a program in a virtual environment."""
    if sys.platform == "win32":
        return environment / "Scripts" / f"{name}.exe"
    return environment / "bin" / name


def _list_parts(python: Path, bill: Path) -> None:
    """Write what is installed for a Python; the same parts give the same bytes."""
    bill.parent.mkdir(parents=True, exist_ok=True)
    about = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
    written = ("--output-reproducible", "--output-format", "JSON", "--output-file", bill)
    with tempfile.TemporaryDirectory() as tools:
        install_tools(Path(tools))
        lister = program(Path(tools), "cyclonedx-py")
        _run(lister, "environment", *about, *written, python)


def _run(
    *command: str | Path, in_: Path = ROOT, environment: Mapping[str, str] | None = None
) -> None:
    print("+", *command, flush=True)
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=in_, env={**os.environ, **(environment or {})}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def main(words: Sequence[str] | None = None) -> None:
    """Build, check and try; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="default: dist/")
    into = parser.parse_args(words).into.resolve()
    epoch_s = _epoch_s()
    sdist, wheel = build(into, epoch_s=epoch_s)
    with tempfile.TemporaryDirectory() as elsewhere:
        again = _build_again(sdist, Path(elsewhere), epoch_s)
        print(f"SOURCE_DATE_EPOCH={epoch_s}", flush=True)
        found = differences((sdist, wheel), again)
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "remora").rglob("*.py"))
    found += problems_of_sdist(sdist) + problems_of_wheel(wheel, modules)
    if found:
        raise SystemExit("\n".join(found))
    version = project()["project"]["version"]
    bill = into / "sbom" / f"remora-{version}.cdx.json"
    try_wheel(wheel, version, bill)
    parts = len(json.loads(bill.read_text(encoding="utf-8"))["components"])
    print(f"{sdist.name} and {wheel.name} are in {into}, built twice with the same bytes")
    print(f"their {parts} parts are in {bill}")


if __name__ == "__main__":
    main()
