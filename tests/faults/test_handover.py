"""A crash at every step between a fold and its watermark, on real SQLite and LanceDB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from remora import Runtime
from remora.storage.lance.store import LanceStore
from tests.handover import (
    CONFIG,
    POLICIES,
    WatchedEmbedder,
    WatchedSqliteJournal,
    WatchedSummarizer,
    Witness,
    brought_to_its_end,
    converse,
    crash_copy,
    mark_claims_no_more_than_there_is,
)

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.blocking,
]  # copies directories on the event loop, so that nothing moves meanwhile

MOST = 36  # images that are opened, at least one of each kind of step


async def test_a_crash_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G3, G4, G6, G7: killed at any step, LanceDB has each flushed message once after the next
    start, and no job is lost.
    """
    directory, count = tmp_path / "memory", 0

    def capture() -> Path:
        nonlocal count
        count += 1
        crash_copy(directory, tmp_path / f"image-{count}")
        return tmp_path / f"image-{count}"

    witness = Witness(None)
    add = LanceStore.add

    async def watched_add(self: LanceStore, rows: Any, vectors: Any, *, may_exist: bool) -> None:
        witness.at("before rows are added")
        async with anyio.create_task_group() as tasks:

            async def meanwhile() -> None:
                for _ in range(3):
                    await anyio.sleep(0.003)
                    witness.at("while rows are added")

            tasks.start_soon(meanwhile)
            await add(self, rows, vectors, may_exist=may_exist)
            tasks.cancel_scope.cancel()
        witness.at("all rows are added")

    async def opened() -> WatchedSqliteJournal:
        journal = await WatchedSqliteJournal.open(directory / "journal.db", durability="power")
        assert isinstance(journal, WatchedSqliteJournal)
        journal.witness = witness
        return journal

    policy = POLICIES["running summary"]
    models: Any = {"summarizer": WatchedSummarizer(witness), "embedder": WatchedEmbedder(witness)}
    with monkeypatch.context() as patched:
        patched.setattr(LanceStore, "add", watched_add)
        async with Runtime(
            directory, config=CONFIG, journal=opened, policy=policy, **models
        ) as runtime:
            witness.capture = capture
            await converse(runtime, witness)
            witness.capture = None
    kinds = {image.step: image for image in witness.images}
    assert {
        "before the summarizer",
        "while rows are added",
        "all rows are added",
        "Flushed, JobDone committed",
    } <= kinds.keys()
    others = [image for image in witness.images if image is not kinds[image.step]]
    chosen = [*kinds.values(), *others[:: max(len(others) // max(MOST - len(kinds), 1), 1)]][:MOST]
    assert len(chosen) == MOST
    for image in chosen:
        async with Runtime(image.kept, config=CONFIG, policy=policy, **models) as runtime:
            await mark_claims_no_more_than_there_is(
                runtime.internals.journal, await runtime.internals.long_term(), image.step
            )
            await brought_to_its_end(runtime, image)
