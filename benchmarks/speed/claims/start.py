"""How long a program waits before it can talk: `import remora`, and opening a directory of 1 GB.

*Import*: wall time of `python -c "import remora"`, and of `python -c pass` (*limit*); each the best of several, by turns.

*Open*: a journal of 1 GB of messages of 300 bytes, 50 to a session, made through `Session.append`; its tokens are estimated
under the tokenizer's name, since exact ones would take minutes and nothing here looks at them. Then a new process imports what it
needs, and times `async with Runtime(directory)` until its body is entered: at its default, long-term memory included, and for
*sessions alone* without. *Jobs*: at its default, where 1 000 sessions had folds under way when the last process ended;
`settle_s` is how much longer it takes until those are done, by the embedded summarizer. All files are in the page cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from benchmarks.speed.claim import Bar, Case
from benchmarks.speed.scale import in_turn, messages, progress
from remora import Config, Runtime
from remora.models.ports import Line
from remora.tokens import TiktokenCounter

NAME = "start"
TITLE = "Import and start"
WORK = (
    "`import remora` in a new interpreter, and the same interpreter with nothing to do (*limit*); `async with Runtime(…)` on a "
    "directory of 1 GB in a new process, at its default, without long-term memory, and with 1 000 folds left by the last run."
)
CONTESTANTS = ("remora", "limit")

_MESSAGES = 50
_OPEN = """
import sys, time, json, anyio
from remora import Config, Runtime
async def main(directory, long_term):
    begun = time.perf_counter()
    config = Config() if long_term == "True" else Config.from_dict({"long_term": {"enabled": False}})
    async with Runtime(directory, config=config) as runtime:
        opened = time.perf_counter()
        await runtime.settle()
        settled = time.perf_counter()
    print(json.dumps({"open_s": opened - begun, "settle_s": settled - opened}))
anyio.run(main, *sys.argv[1:])
"""


def cases(smoke: bool) -> Sequence[Case]:
    size: dict[str, int | float] = {"mb": 10 if smoke else 1_000}
    ours = ("remora",)
    found = [
        Case(NAME, "import", {"mb": 0, "times": 3 if smoke else 15}),
        Case(NAME, "open", size, limit_s=400.0, contestants=ours),
    ]
    if not smoke:
        found.append(Case(NAME, "open, sessions alone", size, limit_s=400.0, contestants=ours))
        found.append(Case(NAME, "open, 1 000 jobs", {**size, "jobs": 1_000}, limit_s=400.0, contestants=ours))
    return found


BARS = (
    Bar("import", "≤ 120 ms over a bare interpreter", "over_bare_ms", most=120.0),
    Bar("open", "≤ 1 s", "open_s", most=1.0),
    Bar("open, sessions alone", "≤ 1 s", "open_s", most=1.0),
    Bar("open, 1 000 jobs", "≤ 1 s plus resumed jobs", "open_s", most=1.0),
)


def _imports(times: int) -> dict[str, float]:
    def ms(code: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return (time.perf_counter() - begun) * 1e3

    subprocess.run([sys.executable, "-c", "import remora"], check=True)  # compiled, and in the page cache
    found = [(ms("import remora"), ms("pass")) for _ in range(times)]
    ours, bare = (min(one) for one in zip(*found, strict=True))
    return {"import_ms": ours, "over_bare_ms": ours - bare, "bare_ms": bare}


class _Estimate(TiktokenCounter):
    """A quarter of the length, under the tokenizer's name."""

    def count(self, text: str) -> int:
        return len(text) // 4 + 1


class _Never:
    """A summarizer that does not come back."""

    name = "never"

    async def summarize(self, previous: str | None, lines: Sequence[Line], *, max_tokens: int) -> str:  # noqa: ARG002
        await anyio.sleep_forever()
        raise AssertionError


async def _made(directory: Path, case: Case, seed: int) -> None:
    pool = messages(seed)
    config = Config.from_dict({"long_term": {"enabled": False}})
    wanted = case.sizes["mb"] * 1e6

    async with Runtime(directory, config=config, counter=_Estimate()) as runtime:
        done = 0

        async def make(number: int) -> None:
            nonlocal done
            start = number * 7 % (len(pool) - _MESSAGES)
            await runtime.session(f"user-{number // 10}", f"session-{number}").append(pool[start : start + _MESSAGES])
            done += 1
            if done % 5_000 == 0:
                progress(f"{done} sessions")

        count = int(wanted / (_MESSAGES * 390))
        await in_turn(count, 128, make)
    jobs = int(case.sizes.get("jobs", 0))
    if jobs:
        folding = Config.from_dict(
            {
                "long_term": {"enabled": False},
                "buffer": {"token_limit": 1_000},
                "supervisor": {"summarize_concurrency": jobs, "drain_s": 0.1},
            }
        )
        async with Runtime(directory, config=folding, counter=_Estimate(), summarizer=_Never()) as runtime:

            async def fold(number: int) -> None:
                await runtime.session(f"folding-{number}", "session").append(pool[:_MESSAGES])

            await in_turn(jobs, 128, fold)


def _opened(directory: Path, *, long_term: bool) -> dict[str, float]:
    arguments = [sys.executable, "-c", _OPEN, str(directory), str(long_term)]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(contestant: str, case: Case, directory: Path, seed: int, smoke: bool) -> dict[str, float]:  # noqa: ARG001
    if case.name == "import":
        found = _imports(int(case.sizes["times"]))
        return {"import_ms": found["bare_ms"]} if contestant == "limit" else found
    home = directory / "memory"
    anyio.run(_made, home, case, seed)
    if case.name == "open":
        _opened(home, long_term=True)  # long-term memory is made at the first start
    found = _opened(home, long_term=case.name != "open, sessions alone")
    return found | {"disk_mb": sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 1e6}
