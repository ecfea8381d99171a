"""What crashes and broken disks do to the real journal: states enumerated. Longer under the profile
``soak``.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from remora.config import Durability
from remora.errors import CommitFailed, OutcomeUnknown
from remora.runtime.log import commit_records
from remora.storage.ports import SessionKey
from remora.storage.records import Appended, Opened, SavedSession, StateChanged, StateItem
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.schema import FORMAT
from remora.storage.sqlite.verify import check_journal
from tests.faults.crash_states import crash_states
from tests.faults.recorded import (
    RecordedDisk,
    crash_state,
    disk_full,
    exchanged,
    journal_on,
    states,
    sync_failed,
)
from tests.golden.make import said
from tests.golden.reading import reading

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves write files

SOAK = os.environ.get("REMORA_HYPOTHESIS") == "soak"
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("durability", ["power", "process", "none"])
async def test_crash_states(durability: Durability) -> None:
    """G3, G4: after a power cut or a kill at any step, nothing acknowledged at ``power`` is lost,
    and no transaction is torn.
    """
    figures = await crash_states(
        durability, 1_500 if SOAK else 120, seed=random.randrange(1 << 30) if SOAK else 1
    )
    assert (figures.torn, figures.other, figures.false_alarms) == (0, {}, 0), figures
    if durability == "power":
        assert (figures.lost, figures.named) == (0, 0), figures
    else:
        assert figures.lost, "what these levels do not promise was never put to the test"
        assert figures.named, "no loss was noticed"


@pytest.mark.parametrize(
    ("fault", "error"), [(disk_full, CommitFailed), (sync_failed, OutcomeUnknown)]
)
async def test_what_was_refused_is_not_there(
    fault: Any, error: type[Exception], tmp_path: Path
) -> None:
    """G3, G4: CommitFailed is a proof: even a crash at that moment leaves nothing of it;
    OutcomeUnknown leaves both open.
    """
    rng, at, tried = random.Random(4), 1, 0
    while tried < 8:
        disk, seen = RecordedDisk(), itertools.count(1)

        def failing(
            what: str, name: str, _: int, seen: Iterator[int] = seen, at: int = at
        ) -> Exception | None:
            meant = name.endswith("-wal") and what == ("write" if fault is disk_full else "sync")
            return fault() if meant and next(seen) == at else None

        directory = tmp_path / f"run-{at}"
        directory.mkdir()
        outcomes: list[str] = []
        async with journal_on(disk, directory / "journal.db", durability="power") as journal:
            await commit_records(journal, [Opened(1, "alice", "one", 0)])
            disk.fault = failing
            for number in range(4):
                try:
                    changed = StateChanged(1, (StateItem("block", str(number), b"x"),))
                    appended = Appended(1, said(number + 1, number + 1), None)
                    await commit_records(journal, [appended, changed])
                    outcomes.append("kept")
                except error:
                    outcomes.append("failed")
                    moment = len(disk.steps)
                    break
            disk.fault = None
        if outcomes[-1] == "kept":
            assert tried, "the fault was never met"
            break
        for loss in ("kill", "nothing", "all", "some", "some"):
            where = directory / f"{loss}-{rng.random()}"
            path = _laid_out(crash_state(disk.steps[:moment], loss, rng), where)
            assert check_journal(path) == []
            after = await SqliteJournal.open(path, durability="none")
            (image,) = await after.hydrate([SessionKey("alice", "one")])
            assert isinstance(image, SavedSession)
            there = [entry.seq for entry in image.entries]
            state_items = [state_item.name for state_item in image.state_items]
            await after.aclose()
            kept = outcomes.count("kept")
            assert there[:kept] == list(range(1, kept + 1))
            assert len(state_items) == len(there)
            assert len(there) == kept if error is CommitFailed else len(there) <= kept + 1
        at, tried = at + (3 if fault is disk_full else 1), tried + 1


@pytest.mark.parametrize("mode", ["delete", "wal"])
async def test_migration_that_is_cut_short(mode: str, tmp_path: Path) -> None:
    """G3, G4: a power cut at any step of a migration leaves the old format or the new one, and
    each reads as it did.
    """
    golden = (GOLDEN / f"format-{FORMAT - 1}" / "journal.db").read_bytes()
    path = _laid_out({"journal.db": golden}, tmp_path / "first")
    with closing(sqlite3.connect(path)) as database:
        assert database.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode,)
    disk = RecordedDisk()
    before = path.read_bytes()
    with exchanged(disk, path):
        journal = await SqliteJournal.open(path, durability="power")
        await journal.aclose()
    end = [step[:2] for step in disk.steps].index(("write", "journal.mark"))
    steps: list[Any] = [("write", "journal.db", 0, before), ("sync", "journal.db", 0, b"")]
    then = await reading(_laid_out({"journal.db": golden}, tmp_path / "then").parent)
    formats = set()
    for number, _loss, files in states(
        [*steps, *disk.steps[:end]], len(steps), random.Random(1), most=400 if SOAK else 25
    ):
        where = tmp_path / f"state-{number}-{random.random()}"
        formats.add(_format(_laid_out(files, where)))
        assert await reading(where) == then
        shutil.rmtree(where)
    assert formats == {FORMAT - 1, FORMAT}


def _laid_out(files: Mapping[str, bytes], where: Path) -> Path:
    where.mkdir()
    for name, content in files.items():
        (where / name).write_bytes(content)
    return where / "journal.db"


def _format(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        ((number,),) = database.execute("PRAGMA user_version")
    return int(number)
