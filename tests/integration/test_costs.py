"""What 30,000 messages of the default install write, in counts: they say on a busy machine, too,
whether background work has become more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from benchmarks.speed.text import role_of, texts
from remora import Runtime

pytestmark = pytest.mark.anyio

MESSAGES, SESSIONS, BATCH = 30_000, 16, 50


SAID = texts(1, MESSAGES, 300)


async def written_bytes() -> int:
    """Bytes that this process has given to the system to write."""
    text = await anyio.Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in text.splitlines())["wchar"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc/self/io")
async def test_commits_and_bytes_of_30_000_messages(tmp_path: Path) -> None:
    """A compaction is a few commits of the journal, and the rows of many sessions one of
    LanceDB's, however many jobs index them; and a message is not written more than so often.
    """
    async with Runtime(tmp_path / "memory") as runtime:
        await runtime.ready()
        sessions = [runtime.session(f"user-{n}", "chat") for n in range(SESSIONS)]
        before = await written_bytes()
        commits = runtime.statistics().log.commits
        for start in range(0, MESSAGES, BATCH):
            batch: list[dict[str, Any]] = [
                {"role": role_of(number), "content": SAID[number]}
                for number in range(start, start + BATCH)
            ]
            await sessions[start // BATCH % SESSIONS].append(batch)
        for session in sessions:
            await session.flush()
        await runtime.settle()
        commits = runtime.statistics().log.commits - commits - MESSAGES // BATCH
        indexed = await (await runtime.internals.long_term()).statistics()
        times = (await written_bytes() - before) / sum(map(len, SAID))
        assert await runtime.user("user-0").recall(SAID[0], limit=1)
    assert indexed.rows == MESSAGES
    # measured: 100, 40 and 10 times; twice as many compactions, at most, where jobs do not wait
    assert commits < 600, f"{commits} commits of the journal beside those of the appends"
    assert indexed.commits < 150, f"{indexed.commits} commits of long-term memory"
    assert times < 15, f"{times:.1f} times the text was written"


async def test_commits_of_a_thousand_short_sessions(tmp_path: Path) -> None:
    """Four messages of each of a thousand users are indexed in a few commits of each table."""
    users = 1_000
    async with Runtime(tmp_path / "memory") as runtime:
        await runtime.ready()

        async def talk(user: int) -> None:
            chat = runtime.session(f"user-{user}", "chat")
            said: list[dict[str, Any]] = [
                {"role": role_of(n), "content": f"{SAID[4 * user + n]} {user} {n}"}
                for n in range(4)
            ]
            await chat.append(said)
            await chat.flush()

        commits = runtime.statistics().log.commits
        async with anyio.create_task_group() as tasks:
            for user in range(users):
                tasks.start_soon(talk, user)
        await runtime.settle()
        commits = runtime.statistics().log.commits - commits
        store = await runtime.internals.long_term()
        indexed = await store.statistics()
        assert sorted(await store.row_ids()) == sorted(set(await store.row_ids()))
        (best, *_) = await runtime.user("user-7").recall(SAID[28], limit=1)
        assert best.text == f"{SAID[28]} 7 0"
    assert indexed.rows == 4 * users
    # measured: 30 and 16 to 30; 250 where each job is a commit's
    assert commits < 200, f"{commits} commits of the journal"
    assert indexed.commits < 100, f"{indexed.commits} commits of long-term memory"
