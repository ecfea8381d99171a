"""``kill -9`` of a process that stores and erases attachments: a reference never points to nothing.

    python -m tests.faults.test_attachments DIRECTORY

is such a process. It says which messages were acknowledged, and which users are forgotten.
"""

from __future__ import annotations

import itertools
import sys
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from remora import Config, Runtime
from tests.faults.kills import kills_of, work_and_kill

# processes are waited for, and files are looked at, while nothing else runs
pytestmark = [pytest.mark.anyio, pytest.mark.blocking]

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"enabled": False},
        "models": {"embedder": "none"},
        "attachments": {"min_kb": 1},
    }
)


def sound(number: int) -> bytes:
    return Random(number).randbytes(20_000)


def message(number: int) -> dict[str, Any]:
    data = {"data": b64encode(sound(number)).decode(), "format": "wav"}
    return {"role": "user", "content": [{"type": "input_audio", "input_audio": data}]}


async def work(directory: Path) -> None:
    """Appends of several senders at once; every third user is forgotten again."""
    async with Runtime(directory, config=CONFIG) as runtime:

        async def send(user: str, number: int) -> None:
            await runtime.session(user, "one").append(message(number), key=f"{number}")
            print("stored", user, number, flush=True)  # noqa: T201

        for turn in itertools.count():
            async with anyio.create_task_group() as tasks:
                for number in range(6):
                    tasks.start_soon(send, f"user{turn}", 6 * turn + number // 2)
            if turn % 3 == 2:
                await runtime.user(f"user{turn - 1}").forget()
                print("forgot", f"user{turn - 1}", flush=True)  # noqa: T201


@kills_of(40)
async def test_no_reference_points_to_nothing(kills: int, tmp_path: Path) -> None:
    """G3, G4, G13: what was acknowledged is there with its bytes; what was forgotten is not."""
    rng = Random(kills)
    for turn in range(kills):
        where = tmp_path / f"{turn}"
        said = work_and_kill(
            "-m",
            "tests.faults.test_attachments",
            where,
            when=rng.choice(["stored", "forgot"]),
            count=rng.randint(1, 5),
            pause_s=rng.choice([0.0, rng.random() / 20]),
        )
        words = [line.split() for line in said]
        gone = {one[1] for one in words if one[0] == "forgot"}
        stored = {(one[1], int(one[2])) for one in words if one[0] == "stored"}
        known = [sha256(sound(number)).hexdigest() for number in range(200)]
        async with Runtime(where, config=CONFIG) as runtime:
            await runtime.settle()
            kept: set[str] = set()
            for user in [one.user for one in await runtime.users()]:
                assert user not in gone
                for one in await runtime.session(user, "one").history():
                    content = one.content
                    assert isinstance(content, list)
                    found = content[0]["input_audio"]["data"]
                    number = next(n for n in range(200) if message(n)["content"] == content)
                    assert found == b64encode(sound(number)).decode()
                    stored.discard((user, number))
                    kept.add(known[number])
            assert {user for user, _ in stored} <= gone | {
                f"user{int(user[4:])}" for user, _ in stored if int(user[4:]) % 3 == 1
            }, "an erasure may have begun"
            left = {path.name for path in where.rglob("attachments/*/*")}
            for user in gone:
                (number,) = {6 * int(user[4:])}
                assert known[number] not in left - kept


if __name__ == "__main__":
    anyio.run(work, Path(sys.argv[1]))
