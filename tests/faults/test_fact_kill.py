"""Facts through ``kill -9``: while the model is asked, when it has answered, and in between."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from remora import Runtime
from remora.maintenance.backup import backup
from remora.maintenance.repair import repair
from remora.maintenance.verify import verify
from tests.copies import copy_memory
from tests.facts import FactModel
from tests.faults.fact_kills import CONFIG, SESSIONS

pytestmark = pytest.mark.blocking


def run_and_kill(directory: Path, run: int, word: str, after: int) -> list[str]:
    """Kill the process when it has said a word so often; what was acknowledged."""
    command = [sys.executable, "-m", "tests.faults.fact_kills", str(directory), str(run)]
    said, seen = [], 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            what, _, text = line.strip().partition(" ")
            if what == "said":
                said.append(text)
            seen += what == word
            if seen == after:
                child.kill()
    return said


async def facts_of(directory: Path) -> Counter[str]:
    """All facts, once all of them are extracted; each is there once, wherever it is shown."""
    async with Runtime(directory, config=CONFIG, chat_model=FactModel()) as runtime:
        for name in SESSIONS:
            await runtime.session("alice", name).flush()
        await runtime.reembedded()
        await runtime.settle()
        alice = runtime.user("alice")
        listed = Counter([one.text for one in await alice.remembered(types="fact", limit=None)])
        assert Counter([one.text for one in await alice.memories("fact")]) == listed
        holding = [one.text for one in await alice.recall("n0 n1 n2 n3", types="fact", limit=100)]
        assert max(Counter(text.split()[0] for text in holding).values()) == 1
        return listed


def test_each_fact_is_there_once_whenever_the_process_is_killed(tmp_path: Path) -> None:
    """G3, G4, G7: no fact is lost and none is there twice; a copy has the same, and so has one that
    is repaired after its tables were lost.
    """
    directory, said = tmp_path / "memory", list[str]()
    for run, (word, after) in enumerate((("asked", 3), ("answered", 4), ("said", 9))):
        said += run_and_kill(directory, run, word, after)
    copy_memory(directory, tmp_path / "killed")

    async def check() -> None:
        facts = await facts_of(directory)
        assert set(facts.values()) == {1}
        assert set(said) <= facts.keys()  # of the last one, the answer may not have come
        assert len(facts) <= len(said) + 3
        await backup(directory, tmp_path / "backup", CONFIG)
        assert (await verify(tmp_path / "backup", CONFIG)).clean
        for tables in (tmp_path / "backup").glob("longterm*"):
            shutil.rmtree(tables)
        await repair(tmp_path / "backup", CONFIG)
        assert await facts_of(tmp_path / "backup") == facts
        assert await facts_of(tmp_path / "killed") == facts

    anyio.run(check)
