"""Long-term memory that is damaged is named at the start, and filled again from the journal, beside
a runtime that serves.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Config, Runtime
from remora.testing import HashEmbedder
from tests.lance import data_files, newest, record_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "long_term": {"batch_ms": 1, "shards": 2},
        "tokens": {"counter": "heuristic"},
        "recall": {"deadline_s": 60},
    }
)


def _zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


async def _rows(runtime: Runtime) -> list[str]:
    return sorted(await (await runtime.internals.long_term()).row_ids())


@pytest.mark.parametrize(
    "damage",
    [Path.unlink, _zeroed],
    ids=["a data file is missing", "the newest manifest is zeroed"],
)
async def test_it_is_filled_again(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    """G6, G7: what was flushed and recorded is each there once again, without anybody asking; the
    damage is in the log.
    """
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        for user in ("ana", "ben", "cleo", "dora"):
            chat = runtime.session(user, "s")
            for n in range(4):
                await chat.append(
                    {"role": "user", "content": f"{user} keeps {n} bees near Coimbra"}
                )
                await chat.flush()
                await runtime.settle()
            await runtime.user(user).remember(f"{user} sells honey")
        await runtime.settle()
        before = await _rows(runtime)
    assert len(before) == 20
    base = tmp_path / "longterm"
    for name in ("mem_000", "mem_001"):
        if (base / f"{name}.synced.json").exists() and record_of(base, name).files:
            if damage is _zeroed:
                _zeroed(newest(base, name))
            else:
                data_files(base, name)[0].unlink()
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        await runtime.reembedded()
        assert await _rows(runtime) == before
        assert "ben keeps 3 bees near Coimbra" in {
            hit.text for hit in await runtime.user("ben").recall("bees", limit=9)
        }
    assert any("table_quarantined" in line for line in caplog.messages)
    caplog.clear()
    async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
        assert runtime.reembedding is None
        assert await _rows(runtime) == before
    assert not any("long_term_damaged" in line for line in caplog.messages)
