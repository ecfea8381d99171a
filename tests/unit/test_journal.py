"""The journal's queries find their rows by an index: none may read more than it returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora.ids import SessionKey
from remora.storage.records import IdLookup, KeyLookup, PastLookup
from remora.storage.sqlite.journal import SqliteJournal


@pytest.mark.anyio
async def test_no_query_of_the_hot_path_scans(tmp_path: Path) -> None:
    """G10: activation, keyed retries and history search; a scan would slow with the journal's size."""  # noqa: E501
    journal: Any = await SqliteJournal.open(tmp_path / "journal.db", durability="none")
    try:
        asked: list[tuple[str, Any]] = []
        read = journal._read

        async def noted(sql: str, parameters: Any = ()) -> Any:
            asked.append((sql, parameters))
            return await read(sql, parameters)

        journal._read = noted
        key = SessionKey("alice", "one")
        await journal._writer.execute(
            "INSERT INTO actors (sid, user, session, created_us) VALUES (1, 'alice', 'one', 0)"
        )
        await journal.hydrate([key])
        await journal.fetch(key, KeyLookup(b"x" * 16))
        await journal.fetch(key, IdLookup(("one", "two"), 0))
        await journal.fetch(key, PastLookup(7))
        await journal.read(key, 1, 10)
        await journal.memories("alice", ["one"])
        plans = []
        for sql, parameters in asked:
            plan = [
                row[3]
                for row in await journal._reader.execute_fetchall(
                    f"EXPLAIN QUERY PLAN {sql}", parameters
                )
            ]
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
