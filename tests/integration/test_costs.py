"""What 30,000 messages of the default install write, in counts: they say on a busy machine, too,
whether background work has become more.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.speed.text import role_of, texts
from remora import Runtime

pytestmark = pytest.mark.anyio

MESSAGES, SESSIONS, BATCH = 30_000, 16, 50


def written_bytes() -> int:
    """Bytes that this process has given to the system to write."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc/self/io")
async def test_commits_and_bytes_of_30_000_messages(tmp_path: Path) -> None:
    """A compaction is a few commits of the journal, and the rows of many sessions one of
    LanceDB's, however many jobs index them; and a message is not written more than so often.
    """
    said = texts(1, MESSAGES, 300)
    async with Runtime(tmp_path / "memory") as runtime:
        await runtime.ready()
        sessions = [runtime.session(f"user-{n}", "chat") for n in range(SESSIONS)]
        before = written_bytes()
        commits = runtime.statistics().log.commits
        for start in range(0, MESSAGES, BATCH):
            batch = [
                {"role": role_of(number), "content": said[number]}
                for number in range(start, start + BATCH)
            ]
            await sessions[start // BATCH % SESSIONS].append(batch)
        await runtime.settle()
        commits = runtime.statistics().log.commits - commits - MESSAGES // BATCH
        indexed = await (await runtime.internals.long_term()).statistics()
        times = (written_bytes() - before) / sum(map(len, said))
        assert await runtime.user("user-0").recall(said[0], limit=1)
    print(commits, indexed.commits, indexed.rows, times)
    assert indexed.rows == MESSAGES
