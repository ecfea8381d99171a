"""How long a backup and a verification of a full directory take, and how much memory they need.

python -m benchmarks.backup [--users 1000] [--messages 300] [--dir DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

from remora import Config, Runtime
from remora.maintenance.backup import backup
from remora.maintenance.verify import verify

CONFIG = Config.from_dict(
    {
        "models": {"embedder": "none"},
        "tokens": {"counter": "heuristic"},
        "journal": {"durability": "process"},
    }
)
WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "nobody",
    "at",
    "all",
    "looks",
    "out",
)


async def fill(directory: Path, users: int, messages: int) -> None:
    async with Runtime(directory, config=CONFIG) as runtime:
        for start in range(0, users, 100):
            chats = [
                runtime.session(f"user-{number}", "chat")
                for number in range(start, min(start + 100, users))
            ]
            texts: list[dict[str, Any]] = [
                {"role": "user", "content": f"{n} " + " ".join(WORDS[n % 7 :] + WORDS[: n % 5])}
                for n in range(messages)
            ]
            await runtime.append_many([(chat, texts, None) for chat in chats])
            async with anyio.create_task_group() as tasks:
                for chat in chats:
                    tasks.start_soon(chat.flush)
            await runtime.settle()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def measure(directory: Path, users: int, messages: int) -> dict[str, Any]:
    if not (directory / "journal.db").exists():
        await fill(directory, users, messages)
    found: dict[str, Any] = {"rows": users * messages, "peak_mb_filled": peak_mb()}
    for name, deep in (("verify_s", False), ("verify_deep_s", True)):
        begun = time.perf_counter()
        checked = await verify(directory, CONFIG, deep=deep)
        found[name] = time.perf_counter() - begun
        assert checked.clean, checked.findings[:3]
    begun = time.perf_counter()
    report = await backup(directory, directory.with_name("copy"), CONFIG)
    found |= {
        "backup_s": time.perf_counter() - begun,
        "backup_bytes": report.bytes,
        "peak_mb": peak_mb(),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=300)
    parser.add_argument(
        "--dir", type=Path, help="keep the directory here, and use it if it is there"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = (arguments.dir or Path(temporary)) / "memory"
        directory.parent.mkdir(parents=True, exist_ok=True)
        print(
            json.dumps(
                {
                    "cpus": os.cpu_count(),
                    **anyio.run(measure, directory, arguments.users, arguments.messages),
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
