"""The journal's file and its owner: bytes that flip, logs that are cut short, writers that were
overtaken, readers that stay.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from remora import Runtime
from remora.errors import JournalDamaged, RuntimeClosed, StorageError
from remora.ids import key_digest
from remora.storage.lookups import IdLookup, KeyLookup
from remora.storage.ports import SessionKey, UserKey
from remora.storage.records import SavedSession
from remora.storage.sqlite.journal import SqliteJournal
from remora.storage.sqlite.verify import check_journal
from tests.configs import PLAIN
from tests.copies import copy_memory
from tests.faults.journals import ALICE, ONE, TWO, altered, journal_at, two_sessions
from tests.golden.make import make
from tests.harness import user

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]  # the tests themselves read and write files


SET = "UPDATE messages SET"
MESSAGES = {
    f"{SET} chat = replace(chat, 'message 4', 'message 5') WHERE pos = (1 << 32) + 4": 4,
    f"{SET} tokens = tokens + 1 WHERE pos = (1 << 32) + 5": 5,
    f"{SET} at_us = at_us + 1 WHERE pos = (1 << 32) + 3": 3,
    f"{SET} importance = importance + 1e-9 WHERE pos = (1 << 32) + 2": 2,
    f"{SET} meta = x'80' WHERE pos = (1 << 32) + 2": 2,
    f"{SET} id = 'm3' WHERE pos = (1 << 32) + 2": 2,
    f"{SET} role = 2 WHERE pos = (1 << 32) + 6": 6,
    f"{SET} role = 77 WHERE pos = (1 << 32) + 6": 6,
    f"{SET} batch = 2 WHERE pos = (1 << 32) + 1": 1,
    f"{SET} pos = (1 << 32) + 9 WHERE pos = (1 << 32) + 6": None,
    f"{SET} pos = (1 << 32) + 9 WHERE pos = (1 << 32) + 4": 4,
    "DELETE FROM messages WHERE pos = (1 << 32) + 3": 3,
    "DELETE FROM messages WHERE pos = (1 << 32) + 4": 4,
    "UPDATE actors SET summarized = 3 WHERE sid = 1": None,
    "UPDATE actors SET created_us = 1 WHERE sid = 1": None,
    "UPDATE summaries SET text = 'another' WHERE sid = 1": None,
    "UPDATE state_items SET value = x'c2' WHERE sid = 1": None,
}
"""What is done to the rows of a session, and the number of the message that is named."""


async def damaged(tmp_path: Path, damage: str) -> Path:
    """A directory with a journal of two sessions, to which something was done."""
    whole = tmp_path / "whole"
    if not whole.exists():
        whole.mkdir()
        async with journal_at(whole / "journal.db") as journal:
            await two_sessions(journal)
    shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
    copy = copy_memory(whole, tmp_path / "damaged")
    altered(copy / "journal.db", damage)
    return copy


async def test_flipped_bytes_are_named(tmp_path: Path) -> None:
    """G3, G11: a row that is not what was written fails whoever reads it, by session and message;
    no other session notices.
    """
    for damage, number in MESSAGES.items():
        directory = await damaged(tmp_path, damage)
        async with journal_at(directory / "journal.db") as journal:
            findings = await journal.verify()
            assert findings, damage
            for one in findings:
                assert "'alice'" in one.where, findings
                assert "'one'" in one.where, findings
            errors: list[Exception] = []
            (image,) = await journal.hydrate([ONE])
            if isinstance(image, Exception):
                errors.append(image)
            for read in (
                journal.read(ONE, 1, 9),
                journal.fetch(ONE, KeyLookup(key_digest("k"))),
                journal.fetch(ONE, IdLookup(("m2", "m3"), 0)),
                journal.buffer_start(ONE, 6),
                journal.state_items(ONE),
            ):
                try:
                    await read
                except JournalDamaged as e:
                    errors.append(e)
            assert errors, damage
            for error in errors:
                assert isinstance(error, JournalDamaged)
                assert ONE.words in str(error)
            if number is not None:
                assert any(f"message {number} " in str(error) for error in errors), (damage, errors)
            assert [entry.seq for entry in await journal.read(TWO, 1, 9)] == [1, 2, 3]
            (image,) = await journal.hydrate([TWO])
            assert isinstance(image, SavedSession)
        async with Runtime(directory, config=PLAIN) as runtime:
            assert (await runtime.session(*TWO).append(user("on"))).seqs == (4,)
            if number is not None:
                with pytest.raises(JournalDamaged):
                    await runtime.session(*ONE).history()


async def test_flipped_bytes_of_a_user_are_named(tmp_path: Path) -> None:
    """G3, G11, S4.33: what was recorded, and what was granted, is what was recorded and granted, or
    an error.
    """
    for damage, reads_memories in {
        "UPDATE memories SET content = 'hates bridges'": True,
        "UPDATE memories SET importance = 0.25": True,
        "UPDATE state_items SET value = x'a57772697465' WHERE sid = 3": False,
        "UPDATE state_items SET name = 'ann' WHERE sid = 3": False,
    }.items():
        directory = await damaged(tmp_path, damage)
        async with journal_at(directory / "journal.db") as journal:
            with pytest.raises(JournalDamaged, match=UserKey("alice").words):
                await (journal.memories("alice") if reads_memories else journal.state_items(ALICE))
            assert [one.where for one in await journal.verify()] == ["user 'alice'"], damage
            assert await journal.read(ONE, 1, 9)


async def test_any_flipped_byte(tmp_path: Path) -> None:
    """G3: whichever byte flips, what is read is what was written, or fails; in an index or a tree,
    at least `verify` says so.
    """
    rng = random.Random(11)
    await make(tmp_path)
    path = tmp_path / "journal.db"
    content = path.read_bytes()
    used = [
        at for at, byte in enumerate(content) if byte and at > 100
    ]  # free space is of no interest
    truth = await everything(path)
    named = same = 0
    for number in range(60):
        at = rng.choice(used)
        flipped = bytearray(content)
        flipped[at] ^= 1 << rng.randrange(8)
        where = tmp_path / f"flip-{number}"
        where.mkdir()
        (where / "journal.db").write_bytes(flipped)
        try:
            findings = check_journal(where / "journal.db")
            found = await everything(where / "journal.db")
        except StorageError:
            named += 1
        else:
            wrong = {
                key: value for key, value in found.items() if value not in (truth.get(key), None)
            }
            assert not wrong or findings, (at, wrong)
            named += bool(findings)
            same += not findings
        shutil.rmtree(where)
    assert named > 10, (named, same)
    assert same > 0  # free space, or bytes of what is not unchangeable


async def everything(path: Path) -> dict[Any, Any]:
    """What can be read of each actor; None for an error."""
    found: dict[Any, Any] = {}
    journal = await SqliteJournal.open(path, durability="process")
    try:
        keys = [key for key, _ in await journal.indexed_through()]
        for key in keys:
            found[key] = None
            with contextlib.suppress(StorageError):
                if isinstance(key, SessionKey):
                    found[key] = [
                        *await journal.read(key, 1, 99),
                        *await journal.state_items(key),
                        await journal.buffer_start(key, 99),
                    ]
                else:
                    memories = await journal.memories(key.user)
                    found[key] = [*memories, *await journal.state_items(key)]
    finally:
        await journal.aclose()
    return found


async def test_what_reads_a_journal_that_is_closed(tmp_path: Path) -> None:
    """G11: a call that was under way when its runtime closed hears that."""
    journal = await SqliteJournal.open(tmp_path / "journal.db", durability="process")
    await journal.aclose()
    with pytest.raises(RuntimeClosed, match="the journal is closed"):
        await journal.setting("embedder")
    with pytest.raises(RuntimeClosed):
        await journal.memories("alice", ["a"])
