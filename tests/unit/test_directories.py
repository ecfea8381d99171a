"""Which directory a runtime opens is what its caller means, and decided when it is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora import Runtime, connect
from remora.cluster.target import read_target
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
    (tmp_path / "remora.yaml").write_text("directory: ~/memory")
    for target in ("~/memory", Path("~/memory"), "~/remora.yaml"):
        assert read_target(target).directory == tmp_path / "memory"


def test_an_operator_is_no_name() -> None:
    """It would match nothing, and nobody would know why."""
    wrong: list[dict[str, Any]] = [{"$or": [{"a": 1}]}, {"$and": []}, {"$gt": 3}]
    for where in wrong:
        with pytest.raises(InvalidInput, match="all must hold"):
            check_where(where)


@pytest.mark.anyio
@pytest.mark.blocking
@pytest.mark.parametrize("opens", ["Runtime", "connect"])
@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("file", "/file is a file"),
        ("dangling", "/dangling is a link to nowhere, which does not exist"),
        ("file/below", "/file is a file, not a directory"),
        ("dangling/below", "/dangling is a link to nowhere, which does not exist"),
    ],
)
async def test_what_is_no_directory_is_refused(
    tmp_path: Path, opens: str, name: str, cause: str
) -> None:
    """At the opening, with the path that is the cause; nothing is made in its place."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    with pytest.raises((DirectoryUnusable, InvalidInput), match=cause):
        if opens == "Runtime":
            await Runtime(tmp_path / name).start()
        else:
            async with connect(tmp_path / name):
                pass
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.anyio
@pytest.mark.blocking
async def test_a_tmpdir_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the opening: LanceDB would fail at each write."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(DirectoryUnusable, match="nowhere"):
        await Runtime(tmp_path / "memory").start()
    assert not list(tmp_path.iterdir())
