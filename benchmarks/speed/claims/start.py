"""How long a program waits for `import remora`, and for opening a directory of 1 GB.

*Import*: wall time of `python -c "import remora"`, and of `python -c pass` (*limit*); each the best
of several, in turn.

*Open*: a journal of 1 GB of messages of 300 bytes, 50 per session. A new process imports what it
needs, and times `async with Runtime(directory)` until its body is entered, the best of three:
without long-term memory (`sessions_s`); with the defaults and an empty long-term memory (`open_s`);
with the defaults and 1 000 sessions whose compaction was running when the last process ended
(`open_with_jobs_s`, once). `jobs_s` is how much longer those take, by the embedded summarizer. All
files are in the page cache.

*First second*: in a new process, on an empty directory, 64 sessions append, each when its last
message is durable, from the moment at which the runtime's body is entered; in the first second, and
in three seconds after ten. *remora-bare* has no long-term memory, whose library is loaded then.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from benchmarks.speed.claim import Case
from benchmarks.speed.scale import filled, in_turn, messages
from remora import Config, Runtime
from remora.models.ports import Line

NAME = "start"
TITLE = "Import and start"
WORK = (
    "`import remora` in a new interpreter, and a bare interpreter (*limit*). `Runtime(…)` opens a "
    "directory of 1 GB. `of_steady` compares the appends of the first second with those of a later "
    "one, with 64 sessions."
)
CONTESTANTS = ("remora", "remora-bare", "limit")
FASTER = {"remora-bare": "it opens no long-term memory"}

_MESSAGES = 50
_ROW_BYTES = 380
"""What a message of 300 bytes takes in the file."""
_OPEN = """
import sys, time, json, anyio
from remora import Config, Runtime
async def main(directory, long_term):
    begun = time.perf_counter()
    config = Config.from_dict({"long_term": {"enabled": long_term == "True"}})
    async with Runtime(directory, config=config) as runtime:
        opened = time.perf_counter()
        await runtime.settle()
        drained = time.perf_counter()
    print(json.dumps({"open_s": opened - begun, "settle_s": drained - opened}))
anyio.run(main, *sys.argv[1:])
"""
_FIRST = """
import sys, time, json, anyio
from remora import Config, Runtime
async def main(directory, configuration, later, box):
    times = []
    later, box = float(later), float(box)
    text = "What was said of the harbour, the ferry and the price of the tickets. " * 4
    async with Runtime(directory, config=Config.from_dict(json.loads(configuration))) as runtime:
        begun = time.perf_counter()
        async def call(number):
            session = runtime.session(f"user-{number}", "chat")
            while (at := time.perf_counter() - begun) < later + box:
                await session.append({"role": "user", "content": f"{at} {text}"})
                times.append(time.perf_counter() - begun)
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(call, number)
    first = sum(at < 1 for at in times)
    steady = sum(later <= at < later + box for at in times) / box
    print(json.dumps({"of_steady": first / steady, "first_per_s": first, "steady_per_s": steady}))
anyio.run(main, *sys.argv[1:])
"""


def cases(smoke: bool) -> Sequence[Case]:
    mb, jobs = (3, 5) if smoke else (1_000, 1_000)
    return [
        Case(NAME, "import", {"times": 2 if smoke else 15}, contestants=("remora", "limit")),
        Case(NAME, "open", {"mb": mb, "jobs": jobs}, limit_s=300.0, contestants=("remora",)),
        Case(
            NAME,
            "first second",
            {"later_s": 1 if smoke else 10, "box_s": 0.2 if smoke else 3},
            least_repeats=1 if smoke else 7,
            contestants=("remora", "remora-bare"),
        ),
    ]


def _compiled(directory: Path) -> dict[str, str]:
    """An environment in which modules are compiled once, as an installed package is, wherever this
    one is not.
    """
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }
    return environment | {"PYTHONPYCACHEPREFIX": str(directory / "compiled")}


def _ms(code: str, environment: dict[str, str]) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return (time.perf_counter() - begun) * 1e3


def _imports(times: int, environment: dict[str, str]) -> dict[str, float]:
    _ms("import remora", environment)  # compiled, and in the page cache
    found = [(_ms("import remora", environment), _ms("pass", environment)) for _ in range(times)]
    ours, bare = (min(one) for one in zip(*found, strict=True))
    return {"import_ms": ours, "over_bare_ms": ours - bare, "bare_ms": bare}


class _Never:
    """A summarizer that does not come back."""

    name = "never"

    async def summarize(
        self,
        previous: str | None,  # noqa: ARG002
        lines: Sequence[Line],  # noqa: ARG002
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        await anyio.sleep_forever()
        raise AssertionError


async def _leave_summarizing(directory: Path, jobs: int, seed: int) -> None:
    """As many sessions whose compaction will not have ended."""
    pool = messages(seed, _MESSAGES)
    config = Config.from_dict(
        {
            "long_term": {"enabled": False},
            "buffer": {"token_limit": 1_000},
            "supervisor": {"summarize_concurrency": jobs, "drain_s": 0.1},
        }
    )
    async with Runtime(directory, config=config, summarizer=_Never()) as runtime:

        async def compact(number: int) -> None:
            await runtime.session(f"compacting-{number}", "session").append(pool)

        await in_turn(jobs, 128, compact)


def _opened(directory: Path, environment: dict[str, str], *, long_term: bool) -> dict[str, float]:
    return _last_line(_OPEN, [str(directory), str(long_term)], environment)


def _last_line(
    code: str, arguments: Sequence[str], environment: dict[str, str]
) -> dict[str, float]:
    """What a new process prints last, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        check=True, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    contestant: str, case: Case, directory: Path, seed: int, smoke: bool
) -> dict[str, float]:
    if case.name == "import":
        times = int(case.sizes["times"])
        environment = _compiled(directory)
        return (
            {"import_ms": min(_ms("pass", environment) for _ in range(times))}
            if contestant == "limit"
            else _imports(times, environment)
        )
    home, environment = directory / "memory", _compiled(directory)
    if case.name == "first second":
        configuration = {"long_term": {"enabled": contestant == "remora"}}
        words = [json.dumps(configuration), str(case.sizes["later_s"]), str(case.sizes["box_s"])]
        return _last_line(_FIRST, [str(home), *words], environment)
    jobs, mb = int(case.sizes["jobs"]), case.sizes["mb"]
    anyio.run(filled, home, int(mb * 1e6 / (_MESSAGES * _ROW_BYTES)), _MESSAGES, seed)
    times = 1 if smoke else 3
    default = alone = min(
        _opened(home, environment, long_term=False)["open_s"] for _ in range(times)
    )
    if not smoke:
        _opened(home, environment, long_term=True)  # long-term memory is made at the first start
        default = min(_opened(home, environment, long_term=True)["open_s"] for _ in range(times))
    anyio.run(_leave_summarizing, home, jobs, seed)
    resumed = _opened(home, environment, long_term=not smoke)
    return {
        "open_s": default,
        "sessions_s": alone,
        "open_with_jobs_s": resumed["open_s"],
        "jobs_s": resumed["settle_s"],
        "disk_mb": sum(file.stat().st_size for file in home.rglob("*") if file.is_file()) / 1e6,
    }
