"""A process that records, changes and deletes memories until it is killed.

    python -m tests.faults.memory_kills DIRECTORY RUN

It says what it is going to do with which memory, and when it has heard the end of it.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import anyio

from remora import Config, Runtime
from remora.testing import HashEmbedder

__all__ = ["CONFIG", "text_of"]

CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "long_term": {"batch_ms": 1, "shards": 2},
        "supervisor": {"backoff_s": 0.01},
    }
)


def text_of(fact: int, version: int) -> str:
    return f"fact {fact} in version {version} is about bridges"


async def main(directory: Path, run: int) -> None:
    rng = random.Random(run)
    async with Runtime(directory, config=CONFIG, embedder=HashEmbedder()) as runtime:
        alice = runtime.user("alice")
        known = {one.key: one for one in await alice.remembered(limit=None)}
        for number in range(1_000):
            fact = rng.randrange(12)
            key, version = f"fact-{fact}", run * 1_000 + number + 1
            there = known.get(key)
            deletes = there is not None and rng.random() < 0.25
            print("doing", fact, 0 if deletes else version, flush=True)  # noqa: T201
            if there is None:
                (id_,) = await alice.remember(text_of(fact, version), key=key)
                found = await alice.memory(id_)
                assert found is not None
                known[key] = found
            elif deletes:
                assert await alice.delete_memories(there.id) == 1
                del known[key]
            else:
                known[key] = await alice.update_memory(there.id, text_of(fact, version))
            print("done", fact, 0 if deletes else version, flush=True)  # noqa: T201
            if rng.random() < 0.2:
                await alice.settle()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]), int(sys.argv[2]))
