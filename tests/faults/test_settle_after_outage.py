"""Background work after a store that refused everything for a long time, as a full disk does."""

from __future__ import annotations

import anyio
import msgspec
import pytest

from remora.config import SupervisorConfig
from remora.testing import count_probes
from remora.testing.simulation import CONFIG, Fault, World

pytestmark = pytest.mark.blocking
SESSIONS = 40
_OUTAGE_S = 600.0
_PATIENCE_S = 15.0  # of virtual time: a minute and more, if each job sat out its own pause


def test_settle_returns_soon_after_the_store_works_again() -> None:
    """G7, G11: after ten minutes of outage each job's pause is a minute or more; one of them tries
    more often, and the others follow it. Nothing is lost or doubled.
    """
    config = msgspec.structs.replace(CONFIG, supervisor=SupervisorConfig())  # its real pauses
    took_s: list[float] = []

    async def life(world: World) -> None:
        async with world.runtime(config=config) as runtime:
            chats = [runtime.session(f"user-{number}", "chat") for number in range(SESSIONS)]
            for chat in chats:
                await chat.append({"role": "user", "content": "the disk is full"})
                await chat.flush()
            await anyio.sleep(_OUTAGE_S)
            assert runtime.statistics().supervisor.queues["flush"].done == 0
            world.calm()
            began_s = anyio.current_time()
            await runtime.settle()
            took_s.append(anyio.current_time() - began_s)
            store = await runtime.internals.long_term()
            assert len(set(await store.row_ids())) == SESSIONS
            assert len(list(await store.row_ids())) == SESSIONS

    plan = [Fault("store", 0, "refused", times=20_000)]
    with count_probes() as counts:
        for seed in range(2):
            World(seed, plan=plan).run(life)
    assert max(took_s) < _PATIENCE_S
    assert counts["stalled_jobs_resumed"]
