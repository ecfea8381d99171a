"""The journal's queries find their rows by an index: none may read more than it returns."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.ids import SessionKey
from remora.storage.lookups import IdLookup, KeyLookup, PastLookup
from remora.storage.sqlite.journal import SqliteJournal
from tests.sqlite import Connections, change_rows


@pytest.mark.anyio
async def test_no_query_of_the_hot_path_scans(tmp_path: Path, connections: Connections) -> None:
    """G10: activation, keyed retries and history search; a scan would slow with the journal's size."""  # noqa: E501
    path = tmp_path / "journal.db"
    journal = await SqliteJournal.open(path, durability="none")
    try:
        asked: list[str] = []
        key = SessionKey("alice", "one")
        await change_rows(
            path,
            "INSERT INTO actors (sid, user, session, created_us) VALUES (1, 'alice', 'one', 0)",
        )
        _, reader = connections
        await reader.set_trace_callback(asked.append)
        await journal.hydrate([key])
        await journal.fetch(key, KeyLookup(b"x" * 16))
        await journal.fetch(key, IdLookup(("one", "two"), 0))
        await journal.fetch(key, PastLookup(7))
        await journal.read(key, 1, 10)
        await journal.memories("alice", ["one"])
        plans = []
        for sql in tuple(asked):  # these are traced as well
            plan = [row[3] for row in await reader.execute_fetchall(f"EXPLAIN QUERY PLAN {sql}")]
            plans.append(plan)
            small = (
                "SCAN w ",
                "SCAN (subquery",
                *(["SCAN s"] if "asked AS MATERIALIZED" in sql else []),
            )  # who was asked for
            scans = [
                step for step in plan if step.startswith("SCAN") and not step.startswith(small)
            ]
            assert not scans, (sql, plan)
        assert len(plans) == 9
    finally:
        await journal.aclose()
