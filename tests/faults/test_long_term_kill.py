"""``kill -9`` of a process that adds, merges, deletes, compacts and erases on the bare store, again
and again.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remora.ids import user_key
from tests.lance import held, lance, put, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

KILLS = int(os.environ.get("REMORA_KILLS", "4"))
USERS = ("alice", "bob", "carol", "dora")

CHILD = """
import random, sys
import anyio
from pathlib import Path
from remora.ids import user_key
from tests.lance import lance, put, rows_of

base, seed = Path(sys.argv[1]), int(sys.argv[2])

def told(*what):
    print(*what, flush=True)

async def main():
    rng = random.Random(seed)
    async with lance(base, compact_fragments=3, keep_versions_s=0.01, index_user_rows=20) as store:
        for step in range(10**6):
            user = rng.choice(("alice", "bob", "carol", "dora"))
            match rng.randrange(12):
                case 0:
                    told("compacting"), await store.compact(), told("compacted")
                case 1 if user == "dora":
                    told("erasing", user), await store.erase(user_key(user)), told("erased", user)
                case 2:
                    (row,) = rows_of(user, [seed * 10**6 + rng.randrange(step + 1)])
                    told("deleting", row.id), await store.delete(user, [row.id]), told("deleted", row.id)
                case choice:
                    row = rows_of(user, [seed * 10**6 + step])
                    told("adding", row[0].id), await put(store, row, doubtful=choice == 3), told("added", row[0].id)

anyio.run(main)
"""  # noqa: E501


async def test_kill_the_writer(tmp_path: Path) -> None:
    """G3, G6, G7, G13: acknowledged rows are there once, deleted and erased ones are not; of the
    last verb it may be either.
    """
    rng = random.Random(11)
    base, expected = tmp_path / "lance", set[str]()
    for number in range(KILLS):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(base), str(number)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        lines = [child.stdout.readline()]  # it is open, and at work
        time.sleep(0.2 + rng.random())
        child.kill()
        lines += child.stdout.read().splitlines()
        child.stdout.close()
        child.wait()
        begun = _replay([line.split() for line in lines if line.strip()], expected)
        async with lance(base) as store:
            assert not store.refill_needed, number
            found = await held(store, USERS)
            assert len(found) == len(set(found)), number
            may_exist = {one for one in (expected | set(found)) if begun and _concerns(begun, one)}
            assert set(found) - may_exist == expected - may_exist, number
            assert sorted(await store.row_ids()) == found
            expected = set(found)
            if begun[:1] == ["adding"]:  # as the job does that was never told that it is done
                user, _, n = begun[1].rpartition("-")
                await put(store, rows_of(user, [int(n)]), may_exist=True)
                expected.add(begun[1])
            assert await held(store, USERS) == sorted(expected)
            assert list(await store.verify(deep=True)) == []
    async with lance(base) as store:
        for user in USERS:
            await store.erase(user_key(user))
        assert await held(store, USERS) == []
    files = [path for path in base.rglob("*") if path.is_file()]
    assert not [
        path
        for path in files
        if any(user_key(user).encode() in path.read_bytes() for user in USERS)
    ]
    assert not [path for path in files if path.name.startswith(".tmp")]


def _replay(lines: list[list[str]], expected: set[str]) -> list[str]:
    """Take what was acknowledged; returns what was begun and not acknowledged."""
    begun: list[str] = []
    for line in lines:
        match line:
            case ["added", id_]:
                expected.add(id_)
            case ["deleted", id_]:
                expected.discard(id_)
            case ["erased", user]:
                expected.difference_update([one for one in expected if one.startswith(user)])
        begun = [] if line[0].endswith("ed") else line
    return begun


def _concerns(begun: list[str], id_: str) -> bool:
    return begun[1:] == [id_] or (begun[0] == "erasing" and id_.startswith(begun[1]))
