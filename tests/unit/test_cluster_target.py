"""What workers connect to: a name that another process can load, and a directory that may be
shared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from remora import Config, Runtime
from remora.cluster.place import Place, file_system
from remora.cluster.target import digest_of, read_target
from remora.errors import ConfigError, DirectoryUnusable, InvalidInput, RemoraError
from remora.testing import HashEmbedder

pytestmark = pytest.mark.blocking

MODULE = """
import asyncio
from remora import Runtime
from remora.storage.memory import MemoryJournal
def memory(): return Runtime("here")
class Box:
    @staticmethod
    def memory(): return Runtime("there")
def in_memory(): return Runtime.in_memory()
def journal(): return Runtime("here", journal=MemoryJournal())
async def coroutine(): return Runtime("here")
def wants(name): return Runtime(name)
def text(): return "here"
def broken(): raise ConnectionError("no such host")
value = 5
made = Runtime("here")
def same(): return made
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of an application's; returns its name."""
    (tmp_path / "anapp.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "anapp"
    sys.modules.pop("anapp", None)


def test_targets(module: str, tmp_path: Path) -> None:
    """Functions, directories and files; paths become absolute, as owners work elsewhere."""
    target = read_target(f"{module}:memory")
    assert target.text == "anapp:memory"
    assert target.directory == tmp_path / "here"
    assert read_target(f"{module}:Box.memory").directory == tmp_path / "there"
    target = read_target("somewhere")
    assert target.text == str(target.directory) == str(tmp_path / "somewhere")
    for text in ("./some.where", "some-where.d", ".hidden"):
        assert read_target(text).directory == tmp_path / text
    assert read_target(Path("some.where:else")).directory == tmp_path / "some.where:else"
    Path("conf.yaml").write_text("directory: elsewhere\ncluster: {shards: 3}\n")
    target = read_target(Path("conf.yaml"))
    assert target.text == str(tmp_path / "conf.yaml")
    assert target.directory == tmp_path / "elsewhere"
    assert target.config.cluster.shards == 3
    Path("anapp:memory").mkdir()
    assert read_target("anapp:memory").directory == tmp_path / "anapp:memory"


REFUSED: list[tuple[Any, str]] = [
    (lambda: Runtime("here"), "not a lambda"),
    (Runtime("here"), "move Runtime"),
    (Config(), "path of the file"),
    (digest_of, '"remora.cluster.target:digest_of"'),
    (HashEmbedder(), r"an object \(HashEmbedder\)"),
    (None, "an object"),
    (b"here", "an object"),
    ("", "no target"),
    ("a\0b", "no target"),
    ("__main__:memory", "a module of its own"),
    ("anapp.no:memory", "there is no module 'anapp.no'|not a package"),
    ("nowhere.at.all:memory", "there is no module 'nowhere'"),
    ("anapp:nothing", "has no nothing"),
    ("anapp:in_memory", "give it a directory"),
    ("anapp:journal", "passes journal="),
    ("anapp:coroutine", "write `def`"),
    ("anapp:wants", "without arguments"),
    ("anapp:text", "returned str"),
    ("anapp:value", "no function"),
    ("anapp:made", "name a function"),
    ("anapp.py", "is a file"),
    ("missing.yaml", "cannot read"),
    ("anapp.memory", 'write "anapp:memory", and .* "./anapp.memory"'),
    ("my.app.memory.runtimee", 'write "my.app.memory:runtimee"'),
    ("bad:", "neither module:function nor a path"),
    (":x", "neither module:function nor a path"),
    ("../anapp.py:memory", "neither module:function nor a path"),
]


def test_what_cannot_cross_is_refused(module: str) -> None:
    """The error says what to write instead; an error of the application is its own."""
    for target, said in REFUSED:
        with pytest.raises(InvalidInput, match=said):
            read_target(target)
        assert [path.name for path in Path().iterdir() if path.is_dir()] in ([], ["__pycache__"])
    with pytest.raises(ConnectionError, match="no such host"):
        read_target(f"{module}:broken")


@pytest.mark.anyio
async def test_an_open_runtime_is_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_LONG_TERM__ENABLED", "false")
    import anapp  # type: ignore[import-not-found]  # noqa: PLC0415  # made above

    async with anapp.made:
        with pytest.raises(InvalidInput, match="return a new one"):
            read_target(f"{module}:same")


def test_digests(tmp_path: Path) -> None:
    """They differ with every key, secrets among them, and say nothing of them. Durability none is
    refused: somebody else's answer would depend on a process that may die.
    """
    secret = {"models": {"api_key": "${{ secrets.KEY }}"}}
    trees: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({}, {}),
        ({"buffer": {"token_limit": 5}}, {}),
        (secret, {"KEY": "one"}),
        (secret, {"KEY": "two"}),
    ]
    digests = [digest_of(Config.from_dict(tree, secrets=secrets)) for tree, secrets in trees]
    assert len(set(digests)) == len(trees)
    assert digest_of(Config()) == digests[0]
    file = tmp_path / "conf.yaml"
    file.write_text("journal: {durability: none}\n")
    with pytest.raises(ConfigError, match="process or power"):
        read_target(file)


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /home rw,relatime shared:5 - nfs4 host:/home rw
31 30 0:41 / /home/with\\040blank rw - cifs //host/x rw
32 27 0:42 / /data rw - xfs /dev/vdb rw
33 27 0:43 / /data rw - fuse.sshfs host: rw
"""


def test_file_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest mount point decides, and of two the later. A network's is refused."""
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    kinds = {
        "/var/x": "ext4",
        "/home": "nfs4",
        "/home/me/memory": "nfs4",
        "/homeless": "ext4",
        "/home/with blank/x": "cifs",
        "/data/x": "fuse.sshfs",
    }
    assert {path: file_system(Path(path), mounts) for path in kinds} == kinds
    assert file_system(tmp_path, tmp_path / "none") == ""
    monkeypatch.setattr("remora.cluster.place.file_system", lambda _: "nfs4")
    with pytest.raises(DirectoryUnusable, match=r"network file system \(nfs4\)"):
        Place(tmp_path / "memory").prepare()


def test_the_log_is_bounded(tmp_path: Path) -> None:
    """What it held is kept once; both files are private."""
    import os  # noqa: PLC0415

    place = Place(tmp_path)
    descriptor = place.open_log()
    try:
        for _ in range(3):
            os.write(descriptor, b"line\n" * 300_000)
            os.write(descriptor, b"last\n")
            place.bound_log()
            assert place.log.stat().st_size == 0
        old = tmp_path / "owner.log.1"
        assert old.stat().st_size == 1 << 20
        assert old.read_bytes().endswith(b"last\n")
        assert old.stat().st_mode & 0o177 == 0
        os.write(descriptor, b"next\n")
        place.bound_log()
        assert place.read_log_end() == "next\n"
    finally:
        os.close(descriptor)


def test_what_others_wrote_is_no_owner(tmp_path: Path) -> None:
    """A plain runtime's file, a damaged one."""
    place = Place(tmp_path)
    assert place.read_owner() is None
    for text in ('{"pid": 5, "since": "2026"}', "", "[]", "{", "\xff"):
        (tmp_path / "owner.json").write_text(text, encoding="latin-1")
        assert place.read_owner() is None
    assert issubclass(DirectoryUnusable, RemoraError)
