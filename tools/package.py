"""Build the sdist and the wheel, check what is in them, and try the wheel by itself.

    python -m tools.package [--into DIR]

The wheel is built from the sdist, so the sdist is complete. It is installed into a new virtual
environment, without the extras and the tools of development, and there it must import, answer on
the command line, run the tutorial's program, and bring its fixtures to pytest.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["build", "main", "problems_of_sdist", "problems_of_wheel", "try_wheel"]

ROOT = Path(__file__).resolve().parents[1]
_SECTIONS = ("Requires-Python", "License-Expression", "Description-Content-Type", "Requires-Dist")


def build(into: Path) -> tuple[Path, Path]:
    """The sdist and the wheel, newly built in a directory."""
    for old in (*into.glob("remora-*.tar.gz"), *into.glob("remora-*.whl")):
        old.unlink()
    _run(sys.executable, "-m", "build", "--outdir", into, ROOT)
    (sdist,), (wheel,) = into.glob("remora-*.tar.gz"), into.glob("remora-*.whl")
    return sdist, wheel


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


def try_wheel(wheel: Path, version: str) -> None:
    """Install a wheel where nothing else is, and use it.

    Raises:
        SystemExit: something does not work; its output was shown.
    """
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        venv.create(directory / "venv", with_pip=True)
        bin_ = directory / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
        python = bin_ / "python"
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        constraints = ("--constraint", ROOT / "constraints.txt")
        _run(*pip, "install", *constraints, wheel, "pytest", in_=directory)
        _run(*pip, "check", in_=directory)
        told = f"import remora, sys; assert remora.__version__ == {version!r}"
        loaded = "assert not {'lancedb', 'pyarrow', 'numpy'} & sys.modules.keys()"
        _run(python, "-I", "-c", f"{told}; {loaded}", in_=directory)
        _run(bin_ / "remora", "--version", in_=directory)
        for example in ("quickstart.py", "tested_agent.py"):
            shutil.copy(ROOT / "examples" / example, directory)
        _run(python, "-I", "quickstart.py", in_=directory)
        _run(python, "-I", "-m", "pytest", "-q", "tested_agent.py", in_=directory)


def _run(*command: str | Path, in_: Path = ROOT) -> None:
    print("+", *command, flush=True)
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=in_, check=False)  # commands of ours
    if done.returncode:
        raise SystemExit(done.returncode)


def main(words: Sequence[str] | None = None) -> None:
    """Build, check and try; exit with 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="default: dist/")
    into = parser.parse_args(words).into
    sdist, wheel = build(into)
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "remora").rglob("*.py"))
    found = problems_of_sdist(sdist) + problems_of_wheel(wheel, modules)
    if found:
        raise SystemExit("\n".join(found))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    try_wheel(wheel, project["version"])
    print(f"{sdist.name} and {wheel.name} are in {into}")


if __name__ == "__main__":
    main()
