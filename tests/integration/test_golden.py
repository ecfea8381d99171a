"""Golden journals: each released format's is opened by today's code, and reads as it did when it
was written.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.errors import JournalTooNew
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.schema import FORMAT
from tests.golden.reading import reading

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves copy files

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = sorted(int(path.name.removeprefix("format-")) for path in GOLDEN.glob("format-*"))


def differences(then: Any, now: Any, where: str = "") -> Iterator[str]:
    """Where `now` does not say what `then` said. What came since, a new field with its default, is
    no difference.
    """
    if isinstance(then, dict) and isinstance(now, dict):
        for name, value in then.items():
            if name in now:
                yield from differences(value, now[name], f"{where}.{name}")
            else:
                yield f"{where}.{name} is gone"
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for index, (before, after) in enumerate(zip(then, now, strict=True)):
            yield from differences(before, after, f"{where}[{index}]")
    elif where.endswith(".working_bytes") and sys.version_info >= (3, 12):
        if not 0.98 * then <= now <= then:  # each text is smaller by 8 bytes than in 3.11
            yield f"{where}: {then!r} is now {now!r}"
    elif then != now:
        yield f"{where}: {then!r} is now {now!r}"


@pytest.mark.parametrize("number", FORMATS)
async def test_golden_journal_reads_as_it_did(number: int, tmp_path: Path) -> None:
    """G3, G6: histories, contexts, keys, memories, jobs and settings of every released format,
    after migration and once more.
    """
    golden = GOLDEN / f"format-{number}"
    shutil.copyfile(golden / "journal.db", tmp_path / "journal.db")
    then = json.loads((golden / "reads-as.json").read_text(encoding="utf-8"))
    now = json.loads(json.dumps(await reading(tmp_path)))
    assert list(differences(then, now)) == []
    assert now["findings"] == []
    again = tmp_path / "again"
    again.mkdir()
    shutil.copyfile(golden / "journal.db", again / "journal.db")
    journal = await SqliteJournal.open(
        again / "journal.db", durability="power"
    )  # migrates, and is left at that
    await journal.aclose()
    now = json.loads(json.dumps(await reading(again)))
    assert list(differences(then, now)) == []


def test_every_format_has_its_golden_journal() -> None:
    """G3: from the first commit that writes it, and each is of the format that it is said to be of."""  # noqa: E501
    assert list(range(1, FORMAT + 1)) == FORMATS
    for number in FORMATS:
        with sqlite3.connect(
            f"file:{GOLDEN}/format-{number}/journal.db?mode=ro&immutable=1", uri=True
        ) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (number,)
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        assert (GOLDEN / f"format-{number}" / "journal.db").stat().st_size < 200_000


@pytest.mark.parametrize("number", FORMATS)
async def test_code_that_is_older_than_the_journal_refuses_it(number: int, tmp_path: Path) -> None:
    """G3: a journal of the next format is named as such by both numbers, and not a byte of it is
    changed.
    """
    path = tmp_path / "journal.db"
    shutil.copyfile(GOLDEN / f"format-{number}" / "journal.db", path)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    before = path.read_bytes()
    with pytest.raises(JournalTooNew, match="upgrade remora") as caught:
        await SqliteJournal.open(path, durability="power")
    assert (caught.value.found, caught.value.supported) == (FORMAT + 1, FORMAT)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["journal.db"]
