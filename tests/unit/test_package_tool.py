"""The script that builds and checks the distribution; `tasks.py build` runs it on the real one."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.npm_package import manifest
from tools.package import differences, problems_of_sdist, problems_of_wheel

pytestmark = pytest.mark.blocking  # reads and writes archives
INFO = "remora-1.dist-info"
HEAD = """Metadata-Version: 2.5
Requires-Python: >=3.11
License-Expression: Apache-2.0
Requires-Dist: anyio
Author: contributors
Description-Content-Type: text/markdown
"""
WHEEL = {
    "remora/__init__.py": "",
    "remora/py.typed": "",
    "remora_pytest.py": "",
    f"{INFO}/METADATA": f"{HEAD}\n# remora\n",
    f"{INFO}/licenses/LICENSE": "",
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"remora/py.typed": None}, ["the wheel lacks remora/py.typed"]),
        ({"remora/__init__.py": None}, ["the wheel lacks remora/__init__.py"]),
        ({"tests/conftest.py": ""}, ["the wheel has tests/conftest.py"]),
        ({f"{INFO}/licenses/LICENSE": None}, ["the wheel lacks its license"]),
        ({f"{INFO}/METADATA": f"{HEAD}\n"}, ["the metadata lacks the README"]),
        (
            {f"{INFO}/METADATA": f"{HEAD}\n# remora\n[a](docs/a.md) [b](https://h) [c](#c)"},
            ["the README of the metadata links to docs/a.md, which leads nowhere at an index"],
        ),
        (
            {f"{INFO}/METADATA": HEAD.replace("Requires-Dist: anyio\n", "") + "\n# remora"},
            ["the metadata lacks Requires-Dist"],
        ),
    ],
)
def test_wheels(tmp_path: Path, changed: dict[str, str | None], found: list[str]) -> None:
    """What a wheel lacks, and what is in it and should not be."""
    with zipfile.ZipFile(tmp_path / "remora.whl", "w") as archive:
        for name, text in {**WHEEL, **changed}.items():
            if text is not None:
                archive.writestr(name, text)
    assert problems_of_wheel(tmp_path / "remora.whl", ["remora/__init__.py"]) == found


def test_sdists(tmp_path: Path) -> None:
    """An sdist has what its tests need, and no leftovers."""
    names = ["README.md", "SECURITY.md", "CHANGELOG.md", "pyproject.toml", "constraints.txt"]
    names += ["tasks.py", "tests/conftest.py", "docs/index.md", "tests/__pycache__/x.pyc"]
    with tarfile.open(tmp_path / "remora.tar.gz", "w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(f"remora-1/{name}"), io.BytesIO())
    assert problems_of_sdist(tmp_path / "remora.tar.gz") == [
        "the sdist lacks LICENSE",
        "the sdist has tests/__pycache__/x.pyc",
    ]


def test_builds_that_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bytes have one hash, which is printed; other bytes are a failure."""
    paths = [tmp_path / build / name for build in ("1", "2") for name in ("a.whl", "a.tar.gz")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text(path.name)
    assert differences(paths[:2], paths[2:]) == []
    assert capsys.readouterr().out.splitlines() == [
        f"{hashlib.sha256(name.encode()).hexdigest()}  {name}" for name in ("a.whl", "a.tar.gz")
    ]
    paths[3].write_text("other")
    (found,) = differences(paths[:2], paths[2:])
    assert found.startswith("a.tar.gz is not reproducible")


def test_the_npm_package_says_what_pyproject_says() -> None:
    """Version and repository are in one place; what developers need stays out."""
    about = {"version": "1.2", "urls": {"Repository": "https://host/owner/remora"}}
    made = manifest({"name": "remora-client", "devDependencies": {"typescript": "7"}}, about)
    assert made == {
        "name": "remora-client",
        "version": "1.2",
        "repository": {
            "type": "git",
            "url": "git+https://host/owner/remora.git",
            "directory": "clients/typescript",
        },
    }
