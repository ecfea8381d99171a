"""How often `find_sessions` finds a session that a user's next message rests on.

    python -m benchmarks.recall_sessions FILE [FILE …] [--json OUT]

FILE is one user of RealMem as it is published (``NAME_dialogues_256k.json``). Its sessions are
appended in their order, and each message that rests on earlier sessions is asked when its user
wrote it, before its session is appended: then no session exists that came later. A benchmark that
asks everything at the end measures something else, because the later sessions of the same project
match as well.

The same messages are asked of plain BM25 (`benchmarks.reference`), over messages, where a session
counts as its best message does, and over whole sessions. any@k is the share of the questions with a
needed session among the first k, share@k that of the needed sessions which are there. If a file is
not there, the exit code is 77.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import msgspec
import numpy as np

from benchmarks.recall import EXIT_SKIPPED
from benchmarks.reference import Bm25
from remora import Config, Message, Runtime

DEPTHS = (1, 5, 10, 20)


class Session(msgspec.Struct, frozen=True):
    """One session, and what is asked in it.

    Attributes:
        name: its id.
        messages: all of them.
        questions: each with the earlier sessions that its answer rests on.
    """

    name: str
    messages: Sequence[Message]
    questions: Sequence[tuple[str, frozenset[str]]]


def read_sessions(path: Path) -> Iterator[Session]:
    """The sessions of a user, in their order."""
    for one in json.loads(path.read_text(encoding="utf-8"))["dialogues"]:
        day = datetime.strptime(one["current_time"].split(" ")[0], "%Y-%m-%d").replace(tzinfo=UTC)
        turns = one["dialogue_turns"]
        messages = [
            Message(
                role=turn["speaker"].lower(),
                content=turn["content"],
                created_at=day + timedelta(hours=8, seconds=20 * number),
            )
            for number, turn in enumerate(turns)
        ]
        asked = [
            (turn["content"], frozenset(answer.get("memory_session_uuids") or ()))
            for turn, answer in pairwise(turns)
            if turn.get("is_query")
        ]
        yield Session(one["session_uuid"], messages, [pair for pair in asked if pair[1]])


async def ask(runtime: Runtime, name: str, sessions: Sequence[Session]) -> dict[str, list[Any]]:
    """The sessions that each method finds for each question of a user."""
    user = runtime.user(name)
    texts = [message.content for one in sessions for message in one.messages]
    homes = [one.name for one in sessions for _ in one.messages]
    by_message = Bm25([str(text) for text in texts])
    by_session = Bm25(["\n".join(str(m.content) for m in one.messages) for one in sessions])
    found: dict[str, list[Any]] = {"find_sessions": [], "BM25 messages": [], "BM25 sessions": []}
    messages = 0
    for number, session in enumerate(sessions):
        if session.questions:
            await runtime.settle()
        for question, _ in session.questions:
            there = await user.find_sessions(question, limit=max(DEPTHS))
            found["find_sessions"].append([one.session for one in there])
            best = np.argsort(-by_message.scores(question)[:messages], kind="stable").tolist()
            found["BM25 messages"].append(list(dict.fromkeys(homes[place] for place in best)))
            whole = np.argsort(-by_session.scores(question)[:number], kind="stable").tolist()
            found["BM25 sessions"].append([sessions[place].name for place in whole])
        await user.session(session.name).append(session.messages)
        messages += len(session.messages)
    return found


def judge(found: Sequence[Sequence[str]], needed: Sequence[frozenset[str]]) -> dict[str, float]:
    """The figures of one method."""
    figures = {}
    for depth in DEPTHS:
        shares = [
            len(wanted & {*names[:depth]}) / len(wanted)
            for names, wanted in zip(found, needed, strict=True)
        ]
        figures[f"any@{depth}"] = float(np.mean([share > 0 for share in shares]))
        figures[f"share@{depth}"] = float(np.mean(shares))
    return figures


async def measure(directory: Path, users: Mapping[str, Sequence[Session]]) -> dict[str, Any]:
    """The figures of each method over the questions of all users; the directory is empty."""
    given = Config.from_environment()
    recall = msgspec.structs.replace(given.recall, deadline_s=60.0)
    config = msgspec.structs.replace(given, recall=recall)
    every: dict[str, list[Any]] = {}
    needed: list[frozenset[str]] = []
    async with Runtime(directory, config=config) as runtime:
        for user, sessions in users.items():
            for method, some in (await ask(runtime, user, sessions)).items():
                every.setdefault(method, []).extend(some)
            needed += [wanted for one in sessions for _, wanted in one.questions]
    methods = {method: judge(found, needed) for method, found in every.items()}
    return {"questions": len(needed), "methods": methods}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="users of RealMem")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there, too")
    options = parser.parse_args()
    if away := [path for path in options.files if not path.exists()]:
        print(f"skipped: there is no file {away[0]}", file=sys.stderr)
        raise SystemExit(EXIT_SKIPPED)
    logging.getLogger("remora").setLevel(logging.ERROR)
    users = {path.stem: list(read_sessions(path)) for path in options.files}
    with tempfile.TemporaryDirectory() as directory:
        figures = anyio.run(measure, Path(directory), users)
    names = [f"{kind}@{depth}" for kind in ("any", "share") for depth in DEPTHS]
    print(f"{figures['questions']:,} questions")
    print(f"{'':<16}" + "".join(f"{name:>10}" for name in names))
    for method, one in figures["methods"].items():
        print(f"{method:<16}" + "".join(f"{one[name]:>10.3f}" for name in names))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
