"""Messages that are in no context, when they come faster than they are summarized.

    python -m benchmarks.overdraft [--json FILE]

Eight writers, or one, append to one session, whose buffer is small and whose chat model is slow,
fails for a while, or is missing. The model is perfect: its summary names every message that it was
given. Afterwards each message is looked for in the context, and in the range that
`sources["summary"]` calls degraded. A message in neither is an error (exit code 1).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

import anyio
import msgspec

from benchmarks.shared import run
from remora import Config, Runtime, Session
from remora.errors import ModelUnavailable

__all__ = ["CASES", "Case", "Measured", "measure"]

_TAG = re.compile(r"Q\d+\.")


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One load: `model` is slow, down for the first half, or none."""

    name: str
    writers: int = 8
    each: int = 25
    token_limit: int = 400
    model: str = "slow"
    delay_s: float = 0.2
    overdraft: str = "extract"


class Measured(msgspec.Struct, frozen=True):
    """What a case gave; counts of messages."""

    name: str
    messages: int
    degraded_half_way: int
    missing: int
    degraded: int
    unexplained: int
    status: str
    slowest_append_ms: float


CASES = (
    Case(name="8 writers, 400 tokens, model 0.2 s"),
    Case(name="the same, overdraft: wait", overdraft="wait"),
    Case(name="8 writers, 4000 tokens, model 2 s", each=100, token_limit=4_000, delay_s=2.0),
    Case(name="8 writers, 400 tokens, model down for the first half", model="down"),
    Case(name="no chat model, 400 tokens", writers=1, each=200, model="none"),
    Case(name="no chat model, 4000 tokens", writers=1, each=400, token_limit=4_000, model="none"),
)


async def measure(case: Case, directory: Path) -> Measured:
    """Run one case in an empty directory."""
    up = case.model == "slow"

    async def perfect(prompt: str) -> str:
        await anyio.sleep(case.delay_s)
        if not up:
            raise ModelUnavailable("down")
        return " ".join(dict.fromkeys(_TAG.findall(prompt)))

    config = Config.from_dict(
        {
            "buffer": {
                "token_limit": case.token_limit,
                "overdraft": case.overdraft,
                "summary_tokens": 800 if case.model == "none" else 8_000,
            },
            "long_term": {"enabled": False},
            "supervisor": {"max_attempts": 2, "breaker_failures": 1_000},
        }
    )
    slowest = 0.0
    chat_model = None if case.model == "none" else perfect
    async with Runtime(directory, config=config, chat_model=chat_model) as runtime:
        chat = runtime.session("alice", "chat")

        async def write(first: int, count: int) -> None:
            nonlocal slowest
            for number in range(first, first + count):
                text = f"Q{number}. I told you about the garden, the harbour and my sister's day"
                begun = time.perf_counter()
                await chat.append({"role": "user", "content": text})
                slowest = max(slowest, time.perf_counter() - begun)

        halves = (case.each // 2, case.each - case.each // 2)
        found = None
        for half, count in enumerate(halves):
            async with anyio.create_task_group() as tasks:
                for writer in range(case.writers):
                    tasks.start_soon(write, writer * 1_000 + half * halves[0], count)
            await chat.settle()
            found = found if half else (await chat.inspect()).degraded
            up = True
        return await _compare(case, chat, found.count if found else 0, slowest)


async def _compare(case: Case, chat: Session, half_way: int, slowest: float) -> Measured:
    context = await chat.load(max_tokens=200_000)
    text = " ".join(str(one["content"]) for one in context.messages)
    said = await chat.history()
    missing = [one.seq or 0 for one in said if _TAG.findall(str(one.content))[0] not in text]
    source = context.sources["summary"]
    lost = source.degraded
    named = range(lost.first, lost.last + 1) if lost else range(0)
    return Measured(
        case.name,
        len(said),
        half_way,
        len(missing),
        lost.count if lost else 0,
        sum(seq not in named for seq in missing),
        source.status,
        slowest * 1_000,
    )


async def main(path: Path | None) -> int:
    """Measure all cases, and print a table."""
    results = []
    line = "| {} | {} | {} | {} | {} | {} | {} |\n"
    sys.stdout.write(
        line.format(
            "case", "messages", "lost half way", "missing at the end", "degraded", "status",
            "slowest append, ms",
        )
    )  # fmt: skip
    for case in CASES:
        with tempfile.TemporaryDirectory() as directory:
            one = await measure(case, Path(directory) / "memory")
        results.append(one)
        sys.stdout.write(
            line.format(
                one.name, one.messages, one.degraded_half_way, one.missing, one.degraded,
                one.status, f"{one.slowest_append_ms:.0f}",
            )
        )  # fmt: skip
    if path is not None:
        await anyio.Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    return int(any(one.unexplained for one in results))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.exit(run(lambda: main(arguments.json), loop="asyncio"))
