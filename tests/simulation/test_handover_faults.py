"""Commits that fail, refused or in doubt, between a fold and its watermark; clients send again what
they did not hear of.
"""

from __future__ import annotations

import random
from typing import Any

import anyio
import pytest

from remora import Runtime, Session
from remora.errors import CommitFailed, OutcomeUnknown
from remora.ids import SessionKey, row_id
from remora.testing import FaultyJournal, HashEmbedder
from tests.handover import (
    CONFIG,
    POLICIES,
    WatchedStore,
    WatchedSummarizer,
    Witness,
    mark_claims_no_more_than_there_is,
    turn,
)
from tests.simulation.rare import on_asyncio

pytestmark = [pytest.mark.anyio, on_asyncio]

KEYS = tuple(SessionKey(f"user-{n % 2}", f"chat-{n}") for n in range(4))


async def persistent(chat: Session, verb: str, *arguments: Any, **options: Any) -> Any:
    while True:
        try:
            return await getattr(chat, verb)(*arguments, **options)
        except (CommitFailed, OutcomeUnknown):
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("seed", range(6))
async def test_commits_fail_on_the_way(seed: int, policy: str) -> None:
    """G3, G4, G7, G11: whatever commits fail, and however, each message is in the history and in
    long-term memory once.
    """
    rng = random.Random(seed)
    faulty = True
    journal = FaultyJournal(
        lambda: rng.choice([None, None, None, "refused", "lost", "kept"]) if faulty else None
    )
    store = WatchedStore(Witness(None))
    models: Any = {"summarizer": WatchedSummarizer(Witness(None)), "embedder": HashEmbedder()}
    async with Runtime.in_memory(
        config=CONFIG, journal=journal, store=store, policy=POLICIES[policy], **models
    ) as runtime:

        async def talk(key: SessionKey) -> None:
            chat = runtime.session(*key)
            for number in range(5):
                await persistent(chat, "append", turn(number), key=f"turn-{number}")
                if rng.random() < 0.3:
                    await persistent(chat, "flush")

        async with anyio.create_task_group() as tasks:
            for key in KEYS:
                tasks.start_soon(talk, key)
        faulty = False
        for key in KEYS:
            await runtime.session(*key).flush()
        await runtime.settle()
        assert list(await journal.jobs()) == []
        assert await runtime.dead_letters() == []
        await mark_claims_no_more_than_there_is(journal, store, "the end")
        wanted = []
        for key in KEYS:
            seqs = [message.seq or 0 for message in await runtime.session(*key).history()]
            assert seqs == list(range(1, 21))
            assert (await runtime.session(*key).load()).pending == 0
            wanted += [row_id(key, seq) for seq in seqs]
        entries = [
            row.id
            for key in KEYS[:2]
            for row in await store.rows(key.user)
            if row.memory_type == "summary"
        ]
        assert sorted(await store.row_ids()) == sorted([*wanted, *entries])
    assert store.doubled == []
