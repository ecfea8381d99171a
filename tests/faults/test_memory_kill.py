"""Memories that were changed and deleted, through ``kill -9``, a backup that is restored, and long-
term memory that is made again: what was acknowledged holds, and nothing earlier comes back.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Runtime
from remora.maintenance.backup import backup
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from remora.testing import HashEmbedder
from tests.copies import copy_memory
from tests.faults.memory_kills import CONFIG, text_of

pytestmark = pytest.mark.blocking

FACT = re.compile(r"fact (\d+) in version (\d+)")
Versions = dict[int, set[int]]
"""By fact, the versions that it may have; 0: it is deleted, or never was."""


def run_and_kill(directory: Path, run: int, after: int, versions: Versions) -> None:
    """Kill the process when it has done so many changes, and note what it said."""
    command = [sys.executable, "-m", "tests.faults.memory_kills", str(directory), str(run)]
    done = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            what, *numbers = line.split()
            fact, version = map(int, numbers)
            if what == "doing":
                versions.setdefault(fact, {0}).add(version)
                continue
            versions[fact] = {version}
            done += 1
            if done == after:
                child.kill()


async def shown(runtime: Runtime) -> set[tuple[int, int]]:
    """Facts and versions, wherever remora shows them; the journal's own are in all of them."""
    alice = runtime.user("alice")
    texts = [one.text for one in await alice.remembered(limit=None)]
    kept = read(texts)
    texts += [one.text for one in await alice.recall("bridges", limit=1_000)]
    texts += [one.text for one in await alice.memories()]
    texts += (await alice.export_arrow()).column("content").to_pylist()
    assert read(texts) == kept
    return kept


def read(texts: list[Any]) -> set[tuple[int, int]]:
    return {(int(fact), int(version)) for text in texts for fact, version in FACT.findall(text)}


async def judge(directory: Path, versions: Versions, **options: Any) -> set[tuple[int, int]]:
    """Open a directory; what it shows is what was acknowledged, before and after it is indexed."""
    options.setdefault("embedder", HashEmbedder())
    async with Runtime(directory, config=CONFIG, **options) as runtime:
        before = await shown(runtime)
        await runtime.reembedded()
        await runtime.settle()
        assert await shown(runtime) == before
        rows = (await runtime.user("alice").export_arrow()).column("content").to_pylist()
        assert sorted(rows) == sorted(text_of(*one) for one in before)
    for fact, allowed in versions.items():
        assert dict(before).get(fact, 0) in allowed
    assert {fact for fact, _ in before} <= versions.keys()
    return before


def test_changes_survive_kills_backups_and_rebuilding(tmp_path: Path) -> None:
    """G3, G4, G7: killed, restored from a backup of a killed directory, its tables lost and filled
    again, repaired, and embedded by another embedder: each memory says what it said last.
    """
    directory, versions = tmp_path / "memory", Versions()
    for run, after in enumerate((24, 18)):
        run_and_kill(directory, run, after, versions)

    async def check() -> None:
        await backup(directory, tmp_path / "backup", CONFIG)
        for name in ("lost", "repaired", "reembedded"):
            copy_memory(tmp_path / "backup", tmp_path / name)
        kept = await judge(directory, versions)
        assert len(kept) > 3
        assert await judge(tmp_path / "backup", versions) == kept
        for name in ("lost", "repaired"):
            for tables in (tmp_path / name).glob("longterm*"):
                shutil.rmtree(tables)
        assert await judge(tmp_path / "lost", versions) == kept
        await repair(tmp_path / "repaired", CONFIG)
        assert await judge(tmp_path / "repaired", versions) == kept
        assert (await verify(tmp_path / "repaired", CONFIG)).clean
        other = HashEmbedder(96)
        assert await judge(tmp_path / "reembedded", versions, embedder=other, reembed=True) == kept

    anyio.run(check)
