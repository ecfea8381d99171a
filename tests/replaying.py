"""A server that replays conversations, and then appends some hundred messages a second.

    python -m tests.replaying DIRECTORY DATA

It prints what its memory has (`Replayed`) when others can look at it. A line on its input lets the
summary go on that it holds back; the end of its input ends it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from remora import Config, Line, Runtime
from remora.cli.replay import read_conversations
from remora.errors import ModelUnavailable
from remora.messages import plain_text
from tests.configs import LEAN_TREE, poison

TREE: dict[str, Any] = {
    **LEAN_TREE,
    "models": {"embedder": "wordllama", "timeout_s": 600},
    "buffer": {"token_limit": 600, "summary_tokens": 120},
    "supervisor": {"max_attempts": 1},
}
MODEL = "test-model"
MESSAGES = 240  # of the longest session
WRITERS = 4
_HELD, _FAILS = "(held)", "please fail"
_AFTER = 24  # messages after the one that fails: the page shows its newest 20 compactions at first
_LIVE = 50  # messages of a session that is written beside the page
_PAUSE_S = 0.01  # of a writer, after each


class Replayed(msgspec.Struct, frozen=True):
    """The user has the sessions ``whole``, ``fallback``, ``held`` and some that end in a number.

    Attributes:
        user: who said all that.
        texts: of the messages of ``whole``.
        pid: of the process.
        dead: how many dead letters there are.
    """

    user: str
    texts: list[str]
    pid: int
    dead: int


class Model:
    """Summarizes with the first words of what it is given; fails where it is told to.

    Once it is `armed`, summaries of the session ``held`` wait for `free`.
    """

    name = MODEL
    extracts = False

    def __init__(self) -> None:
        self.armed = False
        self.holds, self.free = anyio.Event(), anyio.Event()

    async def summarize(
        self, previous: str | None, lines: list[Line], /, *, max_tokens: int
    ) -> str:
        said = " ".join(line.text for line in lines)
        if _FAILS in said:
            raise ModelUnavailable("the model was told to fail")
        if self.armed and _HELD in said:
            self.holds.set()
            await self.free.wait()
        return f"They spoke about: {said[: max_tokens * 2]}"


async def own(directory: Path, data: Path) -> None:
    """Open the memory, fill it, and write until the input ends."""
    plans = read_conversations(data).sessions
    user = next(iter(plans)).user
    chats = [one.message for key, plan in plans.items() if key.user == user for one in plan]
    others = [one.message for key, plan in plans.items() if key.user != user for one in plan]
    model = Model()
    config = Config.from_dict(TREE)
    async with Runtime(
        directory, config=config, redact_long_term=poison, summarizer=model
    ) as runtime:
        whole = chats[:MESSAGES]
        await fill(runtime, user, "whole", whole)
        failing = {"role": "user", "content": _FAILS}
        await fill(runtime, user, "fallback", [failing, *islice(cycle(chats), _AFTER)])
        for number in range(3):
            await fill(runtime, user, f"talk {number}", chats[number * 5 :][:5])
        for number in range(2):
            bad = runtime.session("eve", f"bad {number}")
            await bad.append({"role": "user", "content": "poison"})
            await bad.flush()
        await runtime.settle()
        await hold(runtime, user, chats, model)
        history = await runtime.session(user, "whole").history()
        texts = [plain_text(one.to_chat()) for one in history]
        dead = len(await runtime.dead_letters())
        async with anyio.create_task_group() as tasks:
            for number in range(WRITERS):
                mine = others[number::WRITERS] or chats
                tasks.start_soon(write, runtime, f"writer {number}", mine)
            replayed = Replayed(user, texts, os.getpid(), dead)
            sys.stdout.write(msgspec.json.encode(replayed).decode() + "\n")
            sys.stdout.flush()
            while await anyio.to_thread.run_sync(sys.stdin.readline):
                model.free.set()
            model.free.set()
            tasks.cancel_scope.cancel()


async def fill(runtime: Runtime, user: str, session: str, chats: Sequence[Any]) -> None:
    """Append one message at a time, and index them."""
    chat = runtime.session(user, session)
    for message in chats:
        await chat.append(message)
    await chat.flush()
    await chat.append({"role": "user", "content": "And this is not indexed yet."})


async def hold(runtime: Runtime, user: str, chats: Sequence[Any], model: Model) -> None:
    """A session with a summary, whose next one is being made."""
    chat = runtime.session(user, "held")
    chats = [{"role": "user", "content": f"{plain_text(one)} {_HELD}"} for one in chats]
    for message in islice(cycle(chats), 50):
        await chat.append(message)
        await chat.settle()  # no summary is a fallback, whose lost messages a job would repair
    await runtime.settle()
    model.armed = True
    for message in cycle(chats):
        await chat.append(message)
        if (await chat.inspect()).pending:
            await model.holds.wait()
            return


async def write(runtime: Runtime, user: str, chats: Sequence[Any]) -> None:
    """Append without end, in one session after the other."""
    texts = (plain_text(one) or "none" for one in cycle(chats))  # without their times: it is now
    for number in count():
        chat = runtime.session(user, f"live {number}")
        for text in islice(texts, _LIVE):
            await chat.append({"role": "user", "content": text})
            await anyio.sleep(_PAUSE_S)


if __name__ == "__main__":
    anyio.run(own, Path(sys.argv[1]), Path(sys.argv[2]))
