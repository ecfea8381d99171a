"""Which directory a runtime opens is what its caller means, and decided when it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Runtime
from remora.errors import DirectoryUnusable, InvalidInput
from remora.services.metadata import check_where


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_path_is_no_directory(empty: str) -> None:
    with pytest.raises(InvalidInput, match=r'pass "\."'):
        Runtime(empty)


def test_a_relative_path_is_that_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runtime = Runtime("memory")
    monkeypatch.chdir("/")
    assert runtime.path == tmp_path / "memory"


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Runtime("~/memory").path == tmp_path / "memory"


def test_an_operator_is_no_name() -> None:
    """It would match nothing, and nobody would know why."""
    wrong: list[dict[str, Any]] = [{"$or": [{"a": 1}]}, {"$and": []}, {"$gt": 3}]
    for where in wrong:
        with pytest.raises(InvalidInput, match="all must hold"):
            check_where(where)


@pytest.mark.anyio
@pytest.mark.blocking
@pytest.mark.parametrize("kind", ["file", "dangling link", "TMPDIR"])
async def test_what_is_no_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """At the opening, with the path; nothing is made in its place."""
    path = tmp_path / "memory"
    if kind == "file":
        path.write_text("mine")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    else:
        monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DirectoryUnusable, match="nowhere" if kind == "TMPDIR" else "memory"):
        await Runtime(path).start()
    assert sorted(tmp_path.iterdir()) == before
