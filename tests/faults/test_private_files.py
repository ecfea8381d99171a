"""The files of a memory are their owner's alone, and no link leads a write elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import remora
from remora import Config, Runtime
from remora.errors import DirectoryUnusable
from remora.maintenance.verify import verify
from remora.testing import HashEmbedder
from tests.configs import PLAIN
from tests.harness import user

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
    pytest.mark.skipif(os.name == "nt", reason="modes of POSIX"),
]

CONFIG = Config.from_dict({"long_term": {"batch_ms": 1}, "tokens": {"counter": "heuristic"}})


@pytest.fixture(params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@asynccontextmanager
async def filled(where: Path) -> AsyncIterator[Runtime]:
    """A runtime that has messages and a memory in long-term memory."""
    async with Runtime(where, config=CONFIG, embedder=HashEmbedder()) as runtime:
        await runtime.session("alice", "s").append(user("a number"))
        await runtime.session("alice", "s").flush()
        await runtime.user("alice").remember("keeps bees")
        await runtime.settle()
        yield runtime


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def exposed(where: Path) -> list[str]:
    """What another account could read: everything but what is in a directory of mode 0700."""
    if mode(where) == 0o700:
        inner = [one for one in where.iterdir() if one.is_file()]
    else:
        inner = list(where.rglob("*")) if where.is_dir() else [where]
    return [f"{one.name} {mode(one):o}" for one in inner if mode(one) & 0o077]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes to what a strange umask denies")
async def test_files_are_private_whatever_the_umask(umask: int, tmp_path: Path) -> None:
    """The directory, the journal and its companions, tables, a backup, and both kinds of export."""
    where = tmp_path / "m"
    async with filled(where) as runtime:
        names = {path.name for path in where.iterdir()}
        assert {"journal.db", "journal.db-wal", "journal.mark", "owner.json", "longterm"} <= names
        assert exposed(where) == [], f"umask {umask:o}"
        assert mode(where / "longterm") == 0o700
        await runtime.backup(tmp_path / "backup")
        await runtime.export(tmp_path / "all.jsonl")
        await runtime.export(tmp_path / "tables")
    assert mode(where) == mode(tmp_path / "backup") == mode(tmp_path / "tables") == 0o700
    assert mode(tmp_path / "all.jsonl") == 0o600
    assert exposed(tmp_path / "backup") == exposed(tmp_path / "tables") == []


async def test_an_existing_memory_is_made_private(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Directories of earlier versions could be read by every account. It is logged, once."""
    caplog.set_level("INFO", "remora")
    where = tmp_path / "m"
    async with filled(where):
        pass
    for path in (where, *where.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert "directory_made_private" not in caplog.text
    for _ in range(2):
        async with filled(where):
            assert exposed(where) == []
            assert mode(where / "longterm") == 0o700
    assert caplog.text.count("directory_made_private") == 1


async def test_a_directory_with_other_files_keeps_its_mode(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not remora's alone; only the files are private. Others who may write are reported, who
    may read are not.
    """
    async with Runtime(tmp_path / "m", config=PLAIN):
        pass
    assert "directory_writable_by_others" not in caplog.text
    where = tmp_path / "shared"
    where.mkdir()
    (where / "notes.txt").write_text("of somebody else")
    (where / "notes.txt").chmod(0o644)
    where.chmod(0o777)
    async with Runtime(where, config=PLAIN) as runtime:
        await runtime.session("alice", "s").append(user("mine"))
    assert mode(where) == 0o777
    assert mode(where / "notes.txt") == 0o644
    assert mode(where / "journal.db") == mode(where / "journal.mark") == 0o600
    assert "directory_writable_by_others" in caplog.text


@pytest.mark.parametrize(
    "name",
    ["owner.json", "remora.lock", "journal.mark", "journal.db", "journal.db-wal", "longterm"],
)
async def test_a_symbolic_link_is_refused(name: str, tmp_path: Path) -> None:
    """Who may write to the directory cannot lead a write to another file."""
    where, target = tmp_path / "m", tmp_path / "target"
    where.mkdir()
    if name == "longterm":
        target.mkdir()
    else:
        target.write_text("precious")
        target.chmod(0o644)
    (where / name).symlink_to(target)
    with pytest.raises(DirectoryUnusable, match=f"{name} is a symbolic link.*remove it"):
        async with Runtime(where, config=CONFIG):
            pass
    assert (where / name).is_symlink()
    if name == "longterm":
        assert list(target.iterdir()) == []
    else:
        assert target.read_text() == "precious"
        assert mode(target) == 0o644


@pytest.mark.parametrize("name", ["owner.log", "spawn.lock", "owner.lock", "owner.json"])
async def test_a_symbolic_link_is_refused_to_workers(name: str, tmp_path: Path) -> None:
    """Also where the owner of a memory writes: the error says which file it is."""
    where, target = tmp_path / "m", tmp_path / "target"
    where.mkdir()
    target.write_text("precious")
    (where / name).symlink_to(target)
    with pytest.raises(DirectoryUnusable, match=f"{name} is a symbolic link.*remove it"):
        async with remora.connect(where):
            pass
    assert target.read_text() == "precious"


async def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    """A directory is in its place, for instance: what is wrong is not the memory's directory."""
    (tmp_path / "m" / "spawn.lock").mkdir(parents=True)
    with pytest.raises(DirectoryUnusable, match=r"spawn\.lock"):
        async with remora.connect(tmp_path / "m"):
            pass


async def test_verify_names_symbolic_links(tmp_path: Path) -> None:
    """S4.29: those that a runtime refuses, those below, and those that lead to nothing."""
    where = tmp_path / "m"
    async with filled(where):
        pass
    assert (await verify(where, CONFIG)).findings == ()
    (where / "journal.mark").rename(tmp_path / "mark")
    (where / "journal.mark").symlink_to(tmp_path / "mark")
    (where / "owner.json").symlink_to(tmp_path / "nothing")
    (where / "longterm" / "more").symlink_to(tmp_path / "mark")
    (where / "notes").symlink_to(tmp_path / "mark")  # not remora's
    found = await verify(where, CONFIG)
    assert [one.where for one in found.findings if "symbolic link" in one.detail] == [
        "journal.mark",
        "longterm/more",
        "owner.json",
    ]


async def test_the_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    async with Runtime(tmp_path / "link", config=PLAIN) as runtime:
        await runtime.session("alice", "s").append(user("mine"))
    assert (tmp_path / "real" / "journal.db").exists()
