"""``kill -9`` of a whole runtime within each kind of upkeep, on real SQLite and LanceDB.

    python -m tests.faults.upkeep_kills [--kills 15] [--seed 1] [KIND …]

A child process appends to some sessions and does one kind of upkeep again and again. It reports
each acknowledgement, and when each upkeep began and ended, through a pipe. The parent kills it at a
random moment of the upkeep. Then it verifies the directory, opens it, and compares it with what was
acknowledged; the next child starts on it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec

from remora import Config, Runtime
from remora.errors import RemoraError
from remora.ids import row_id
from remora.maintenance.verify import verify
from remora.services.upkeep import trim_archive
from remora.storage.ports import SessionKey
from remora.testing import HashEmbedder
from tests.faults.kills import work_and_kill

__all__ = ["KINDS", "KillFigures", "kill_within"]

USERS = ("ann", "bea", "cleo", "dan")
KEPT = 6  # archived messages of a session, where the archive is trimmed
CONFIG = Config.from_dict(
    {
        "tokens": {"counter": "heuristic"},
        "buffer": {"token_limit": 200, "summary_tokens": 60},
        "supervisor": {"backoff_s": 0.01},
        "retention": {"session_messages": KEPT, "interval_s": 3_600.0},
        "long_term": {
            "batch_ms": 2,
            "shards": 2,
            "compact_fragments": 3,
            "compact_interval_s": 3_600.0,
            "keep_versions_s": 0.01,
            "index_user_rows": 10,
        },
    }
)


# -- the child -------------------------------------------------------------------------------------


def _tell(*words: object) -> None:
    sys.stdout.write("\t".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def _talk(runtime: Runtime, run: int, rounds: int = 2, users: Sequence[str] = USERS) -> None:
    """Append to each user's session, a number at a time, and index it."""
    for number in range(rounds):
        for user in users:
            text = f"{user} {run}.{number}.{time.monotonic_ns()} likes bridges and gardens"
            _tell("sending", user, text)
            receipt = await runtime.session(user, "chat").append({"role": "user", "content": text})
            _tell("sent", user, receipt.seqs[0], text)
    for user in users:
        await runtime.session(user, "chat").flush()


async def _compact(runtime: Runtime, directory: Path, run: int) -> None:
    """Compaction of LanceDB, which builds the indices, too."""
    for _ in range(4):  # fragments
        await _talk(runtime, run, 1)
        await runtime.settle()
    _tell("begin", time.monotonic())
    await (await runtime.internals.long_term()).compact()


async def _trim(runtime: Runtime, directory: Path, run: int) -> None:
    """The archive is trimmed."""
    await _talk(runtime, run, 10)
    await runtime.settle()
    _tell("begin", time.monotonic())
    await trim_archive(runtime.internals.journal, runtime.config.retention, runtime.internals.clock)


async def _checkpoint(runtime: Runtime, directory: Path, run: int) -> None:
    """SQLite's log is checkpointed, while others append."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_talk, runtime, run)
        _tell("begin", time.monotonic())
        await runtime.internals.journal.checkpoint()


async def _erase(runtime: Runtime, directory: Path, run: int) -> None:
    """A user is forgotten, and their table rewritten."""
    await _talk(runtime, run, 1)
    await _talk(runtime, run, 1, ("zoe",))
    await runtime.settle()
    _tell("begin", time.monotonic())
    _tell("forgetting", "zoe")
    await runtime.user("zoe").forget()
    _tell("forgot", "zoe")


async def _back_up(runtime: Runtime, directory: Path, run: int) -> None:
    """The directory is copied."""
    await _talk(runtime, run, 1)
    _tell("begin", time.monotonic())
    await runtime.backup(directory.parent / f"backup-{run}-{time.monotonic_ns()}")


async def _rebuild(runtime: Runtime, directory: Path, run: int) -> None:
    """Long-term memory, which was lost, is filled again from the journal."""
    _tell("begin", time.monotonic())
    await runtime.internals.long_term()
    await runtime.reembedded()
    await _talk(runtime, run, 1)


KINDS: dict[str, Callable[[Runtime, Path, int], Awaitable[None]]] = {
    "compaction": _compact,
    "trim": _trim,
    "checkpoint": _checkpoint,
    "erasure": _erase,
    "backup": _back_up,
    "rebuild": _rebuild,
}


async def _child(kind: str, directory: Path, run: int) -> None:
    async with Runtime(directory, config=CONFIG, embedder=HashEmbedder()) as runtime:
        while True:
            await KINDS[kind](runtime, directory, run)
            _tell("end", time.monotonic())
            if kind == "rebuild":  # there is one a start
                await anyio.sleep_forever()


# -- the parent ------------------------------------------------------------------------------------


class KillFigures(msgspec.Struct):
    """What came of the kills within one kind of upkeep.

    Attributes:
        kind: of upkeep.
        kills: how often the child was killed.
        within: how many of them after the upkeep had begun, and before its end was told.
        acknowledged: messages in all.
        wrong: what was lost, doubled, damaged or refused.
        seconds: how long it took.
    """

    kind: str
    kills: int = 0
    within: int = 0
    acknowledged: int = 0
    wrong: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class _Evidence:
    """What the child told."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[int, str]] = {}
        self.unsure: dict[str, set[str]] = {}
        self.forgetting: set[str] = set()
        self.forgotten: set[str] = set()  # texts

    def take(self, line: str) -> None:
        match line.split("\t"):
            case ["sending", user, text]:
                self.unsure.setdefault(user, set()).add(text)
            case ["sent", user, seq, text]:
                self.unsure[user].discard(text)
                self.sent.setdefault(user, {})[int(seq)] = text
            case ["forgetting", user]:
                self.forgetting.add(user)
            case ["forgot", user]:
                self.forgetting.discard(user)
                self.forgotten.update(self.sent.pop(user, {}).values())


def _kill(
    kind: str, directory: Path, run: int, pause_s: float, evidence: _Evidence
) -> tuple[bool, list[float]]:
    """Kill a child; whether within the upkeep, and how long each that it ended took."""
    told = work_and_kill(
        *("-m", "tests.faults.upkeep_kills", "--child", kind, directory, run),
        when="begin",
        # the first upkeep of a process, or a later one
        count=1 if kind == "rebuild" else 1 + run % 2,
        pause_s=pause_s,
    )
    for line in told:
        evidence.take(line)
    lines = [line.split("\t") for line in told if line.startswith(("begin", "end"))]
    at_s = [float(at_s) for _, at_s in lines]
    return len(at_s) % 2 == 1, [end - begin for begin, end in zip(at_s[::2], at_s[1::2])]  # noqa: B905 -- the last has no end


def kill_within(kind: str, base: Path, kills: int, *, seed: int = 1) -> KillFigures:
    """Kill a child so many times within one kind of upkeep, and check after each."""
    rng = random.Random(f"{seed}/{kind}")
    figures, evidence, began = KillFigures(kind), _Evidence(), time.monotonic()
    directory = base / "memory"
    took_s = [1.0 if kind == "rebuild" else 0.05]
    if kind == "rebuild":
        anyio.run(_fill, directory, evidence)
    for run in range(kills):
        if kind == "rebuild" and directory.exists():
            shutil.rmtree(directory / "longterm", ignore_errors=True)
        within, more_s = _kill(kind, directory, run, rng.uniform(0.0, max(took_s[-4:])), evidence)
        took_s += more_s
        figures.kills += 1
        figures.within += within
        wrong = anyio.run(_check, kind, directory, evidence)
        if kind == "backup":
            wrong += anyio.run(_check_backups, base)
        figures.wrong += [f"kill {run}: {one}" for one in wrong]
    figures.acknowledged = sum(map(len, evidence.sent.values()))
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


async def _fill(directory: Path, evidence: _Evidence) -> None:
    """Messages of which a rebuild takes a while."""
    async with Runtime(directory, config=CONFIG, embedder=HashEmbedder()) as runtime:
        for number in range(40):
            for user in USERS:
                texts = [f"{user} {number}.{place} likes bridges" for place in range(4)]
                messages: list[dict[str, Any]] = [
                    {"role": "user", "content": text} for text in texts
                ]
                receipt = await runtime.session(user, "chat").append(messages)
                evidence.sent.setdefault(user, {}).update(zip(receipt.seqs, texts, strict=True))


async def _check(kind: str, directory: Path, evidence: _Evidence) -> list[str]:
    """What is wrong with the directory: before a start finds it, and after."""
    try:
        found = await verify(directory, CONFIG, deep=True)
        # the next start fills a lost directory again, and finishes erasures
        told = {"rebuild": {one.kind for one in found.findings}, "erasure": {"erasure"}}
        wrong = [f"verify: {o}" for o in found.findings if o.kind not in told.get(kind, ())]
        async with Runtime(directory, config=CONFIG, embedder=HashEmbedder()) as runtime:
            await runtime.internals.long_term()
            await runtime.reembedded()
            await _finish_erasures(runtime, evidence)
            wrong += [one async for one in _compare(runtime, evidence)]
            wrong += [f"dead letter: {job.error}" for job in await runtime.dead_letters()]
    except RemoraError as e:
        return [f"refused: {type(e).__name__}: {e}"]
    wrong.extend(_traces(directory, evidence))
    return wrong


async def _finish_erasures(runtime: Runtime, evidence: _Evidence) -> None:
    """Wait for erasures that the kill interrupted; one of which nobody heard is asked for again."""
    for user in list(evidence.forgetting):
        while True:
            try:
                await runtime.user(user).forget()
                break
            except RemoraError as e:
                if not getattr(e, "retryable", False):
                    raise
                await anyio.sleep(0.05)
        evidence.take(f"forgot\t{user}")
        evidence.forgotten |= evidence.unsure.pop(user, set())


async def _compare(runtime: Runtime, evidence: _Evidence) -> Any:
    """What is lost or doubled."""
    for user in evidence.sent:
        await runtime.session(user, "chat").flush()
    await runtime.settle()
    rows = list(await (await runtime.internals.long_term()).row_ids())
    if len(rows) != len(set(rows)):
        yield f"{len(rows) - len(set(rows))} rows are doubled"
    for user, sent in evidence.sent.items():
        key, chat = SessionKey(user, "chat"), runtime.session(user, "chat")
        history = {one.seq or 0: str(one.content) for one in await chat.history()}
        if len(set(history.values())) != len(history):
            yield f"{user}: a message is doubled"
        first = min(history, default=0)
        lost = [seq for seq in sent if seq >= first and history.get(seq) != sent[seq]]
        if lost:
            yield f"{user}: messages {lost} are lost"
        trimmed = [seq for seq in sent if seq < first]
        if trimmed and len(history) < KEPT:
            yield f"{user}: {len(trimmed)} messages were trimmed, {len(history)} are left"
        strangers = {
            text
            for seq, text in history.items()
            if seq not in sent and text not in evidence.unsure.get(user, ())
        }
        if strangers:
            yield f"{user}: nobody sent {strangers}"
        sent.update(history)
        evidence.unsure.pop(user, None)
        missing = [seq for seq in sent if row_id(key, seq) not in rows]
        if missing:
            yield f"{user}: messages {missing} are not in long-term memory"


def _traces(directory: Path, evidence: _Evidence) -> Iterator[str]:
    """What is left of forgotten users, in any file."""
    if not evidence.forgotten:
        return
    for path in directory.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if any(text.encode() in data for text in evidence.forgotten):
            yield f"{path.name} has words of a forgotten user"


async def _check_backups(base: Path) -> list[str]:
    """Each backup that is there is whole."""
    wrong = []
    for path in sorted(base.iterdir()):
        if path.name == "memory":
            continue
        if ".new-" not in path.name:  # what a killed backup had begun is not there yet
            found = await verify(path, CONFIG, deep=True)
            wrong += [f"{path.name}: {one}" for one in found.findings]
        shutil.rmtree(path)
    return wrong


def main() -> int:
    """Returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--kills", type=int, default=15, help="of each kind (default: 15)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        kind, directory, run = asked.child
        anyio.run(_child, kind, Path(directory), int(run))
        return 0
    wrong = 0
    for kind in asked.kinds or KINDS:
        with tempfile.TemporaryDirectory(prefix="remora-kills-") as base:
            figures = kill_within(kind, Path(base), asked.kills, seed=asked.seed)
        _tell(
            f"{kind}: {figures.kills} kills, {figures.within} within, "
            f"{figures.acknowledged} messages, {len(figures.wrong)} wrong, {figures.seconds} s",
            *(f"\n  {one}" for one in figures.wrong),
        )
        wrong += len(figures.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
