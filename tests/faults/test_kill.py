"""``kill -9`` in the middle of a replay, again and again, on real SQLite and LanceDB: nothing is
lost, nothing is there twice.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.killing import kill_again_and_again
from remora import Config, Runtime
from remora.cli.reader import read_conversations
from remora.ids import row_id

KILLS = 3


def test_kill_and_replay(tmp_path: Path) -> None:
    """G3, G4, G7, S5.02, S1.11: after any number of kills, one whole run gives the state that an
    unharmed run gives.
    """
    rng = random.Random(7)
    file, directory = tmp_path / "chats.jsonl", tmp_path / "memory"
    with file.open("w") as out:
        for user in range(6):
            for session in range(4):
                messages = []
                for n in range(12):
                    call = {
                        "id": "c",
                        "type": "function",
                        "function": {"name": "look", "arguments": "{}"},
                    }
                    messages += [
                        {
                            "role": "user",
                            "content": f"Question {n} of {user}.{session} about gardens and "
                            "bridges",
                        },
                        {"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "c", "content": f"result {n}"},
                        {
                            "role": "assistant",
                            "content": f"Answer {n}: the bridge is {rng.randrange(900)} m long.",
                        },
                    ]
                out.write(
                    json.dumps({"user": f"u{user}", "session": f"s{session}", "messages": messages})
                    + "\n"
                )
    command = [
        sys.executable,
        "-m",
        "remora",
        "replay",
        str(file),
        "--dir",
        str(directory),
        "--token-limit",
        "300",
    ]
    for _ in range(KILLS):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        wal = directory / "journal.db-wal"
        before = wal.stat().st_size if wal.exists() else 0
        # not before it writes: a kill during start-up would prove nothing
        while (
            child.poll() is None
            and time.monotonic() < deadline
            and (not wal.exists() or wal.stat().st_size <= before)
        ):
            time.sleep(0.01)
        time.sleep(rng.random() * 0.8)
        child.send_signal(signal.SIGKILL)
        child.wait()
    whole = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "each once" in whole.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert " 0 added" in again.stdout

    import anyio  # noqa: PLC0415

    async def check() -> None:
        wanted = read_conversations(file)
        async with Runtime(
            directory, config=Config.from_dict({"buffer": {"token_limit": 300}})
        ) as runtime:
            await runtime.settle()
            rows: list[str] = []
            for key, planned in wanted.sessions.items():
                history = await runtime.session(*key).history()
                assert [m.to_chat() for m in history] == [
                    {"content": None, **p.message} for p in planned
                ]
                rows.extend(row_id(key, m.seq or 0) for m in history)
            assert sorted(await (await runtime.internals.long_term()).row_ids()) == sorted(rows)
            assert (await runtime.counts()).dead_jobs == 0

    anyio.run(check)


def test_kill_under_load(tmp_path: Path) -> None:
    """G2, G3, G4, G7, G8: killed while sixteen sessions talk and fold, what the killer heard of is
    there, once and whole.
    """
    report = kill_again_and_again(tmp_path, 4, seed=3, each=4)
    assert report.wrong == []
    assert report.kills == 4
    assert report.verdict.acknowledged > 50
    assert report.resumed_s
