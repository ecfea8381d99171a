"""``kill -9`` while long-term memory is made anew for another embedder, on real SQLite and LanceDB."""  # noqa: E501

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from remora import Config, Runtime
from remora.testing import HashEmbedder

pytestmark = pytest.mark.blocking

CONFIG = Config.from_dict({"long_term": {"batch_ms": 1}, "tokens": {"counter": "heuristic"}})
PROGRAM = """
import sys
import anyio
from remora import Config, Runtime
from remora.testing import HashEmbedder

class Slow(HashEmbedder):
    async def embed(self, texts):
        await anyio.sleep(0.01)
        return await super().embed(texts)

async def main():
    config = Config.from_dict({"long_term": {"batch_ms": 1}, "tokens": {"counter": "heuristic"}})
    async with Runtime(sys.argv[1], config=config, embedder=Slow(96), reembed=True) as runtime:
        await runtime.reembedded(lambda done, total: print(done, flush=True))
        print("complete", flush=True)

anyio.run(main)
"""


def test_kill_and_go_on(tmp_path: Path) -> None:
    """G4, G7, G12: killed again and again, in the end each row is there once, and the directory of
    before is gone.
    """
    rng = random.Random(11)

    async def fill() -> list[str]:
        async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder()) as runtime:
            for number in range(120):
                chat = runtime.session(f"u{number % 7}", f"s{number}")
                await chat.append(
                    [
                        {"role": "user", "content": f"Sentence {place} of {number}"}
                        for place in range(5)
                    ]
                )
                await chat.flush()
            await runtime.user("u1").remember(["Prefers metric units", "Keeps bees"])
            await runtime.settle()
            return sorted(await (await runtime.internals.long_term()).row_ids())

    wanted = anyio.run(fill)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    root = Path(__file__).parents[2]
    killed = 0
    for _ in range(4):
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=root
        )
        assert child.stdout is not None
        first = child.stdout.readline()  # it has begun
        assert first
        time.sleep(rng.random() * 0.6)
        if child.poll() is None:
            killed += 1
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert killed >= 2, "it was over before it was killed: make it slower"
    whole = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=300, cwd=root
    )
    assert whole.stdout.endswith("complete\n")

    async def check() -> None:
        async with Runtime(tmp_path, config=CONFIG, embedder=HashEmbedder(96)) as runtime:
            assert runtime.reembedding is None
            store = await runtime.internals.long_term()
            assert sorted(await store.row_ids()) == wanted
            _, vectors = await store.embedded_rows("u1")
            assert vectors is not None
            assert vectors.shape[1] == 96

    anyio.run(check)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("longterm")] == [
        "longterm-2"
    ]
