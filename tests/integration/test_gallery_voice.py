"""The voice loop of the gallery, and callers that listen, interrupt it and hang up."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from examples.gallery.voice_caller import Caller
from remora import Runtime
from tests.configs import LEAN
from tests.gallery import environment
from tests.processes import bound, free_port
from tests.programs import ROOT, run_program

pytestmark = [pytest.mark.anyio, pytest.mark.blocking]


@contextmanager
def running_loop(directory: Path) -> Iterator[int]:
    """The port of a server whose memory this is; it is killed in the end."""
    port = free_port()
    words = ("-m", "examples.gallery.voice_loop", str(directory), str(port))
    with subprocess.Popen(
        bound(sys.executable, *words),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == f"ready for calls on 127.0.0.1:{port}\n"
            yield port
        finally:
            process.kill()


@asynccontextmanager
async def calling(port: int, call: str) -> AsyncIterator[Caller]:
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        caller = Caller(stream)
        await caller.send(user="alice", call=call)
        yield caller


def test_a_caller_interrupts(tmp_path: Path) -> None:
    """The programs as a newcomer starts them: what was spoken of a reply is what was said."""
    with running_loop(tmp_path / "memory") as port:
        call = ("examples.gallery.voice_caller", port)
        first = run_program(*call, "I live in Lisbon.", "Tell me about Lisbon. | 4", "Go on.")
        second = run_program(*call, "Where do I live?")
    times = re.compile(r"  \(context \d+\.\d ms, first word \d+\.\d ms\)\n")
    assert times.sub("", first.stdout).splitlines() == [
        "user: I live in Lisbon.",
        "agent: Noted.",
        "user: Tell me about Lisbon.",
        "agent: This is sentence 1 —",
        "user: Go on.",
        "agent: Noted.",
    ]
    assert len(times.findall(first.stdout)) == 3
    assert "agent: I know this: I live in Lisbon.\n" in second.stdout


async def test_contexts_are_loaded_before_the_user_has_finished(tmp_path: Path) -> None:
    """Without that, a reply has the conversation; what was interrupted is stored as such."""
    with running_loop(tmp_path / "memory") as port:
        async with calling(port, "one") as caller:
            cut = await caller.say("Tell me about cats.", patience=4)
            assert (cut["done"], cut["prepared"]) == ("This is sentence 1 —", True)
            await caller.say("My cat is called Figaro.")
            await caller.send(said="What is my cat called?", id="not heard before it was said")
            words = [(await caller.receive())["word"] for _ in range(8)]
            assert "".join(words) == "I know this: My cat is called Figaro."
            await caller.send(spoken=len(words))
            assert (await caller.receive())["prepared"] is False
    async with Runtime(tmp_path / "memory", config=LEAN) as runtime:
        said = await runtime.session("alice", "one").history()
        assert [(one.content, one.metadata) for one in said[:2]] == [
            ("Tell me about cats.", None),
            ("This is sentence 1 —", {"interrupted": True}),
        ]


async def test_a_caller_hangs_up_and_calls_again(tmp_path: Path) -> None:
    """The same id is answered once; what was spoken before is stored."""
    with running_loop(tmp_path / "memory") as port:
        await hang_up_and_call_again(port)


async def hang_up_and_call_again(port: int) -> None:
    async with calling(port, "one") as caller:
        await caller.send(said="I have a cat.", id="request-1")
        assert (await caller.receive())["word"] == "Noted."
        await caller.send(spoken=1)
        assert (await caller.receive())["done"] == "Noted."
        await caller.send(said="I have a cat.", id="request-1")
        again = await caller.receive()
        assert (again["done"], again["repeated"]) == ("Noted.", True)
        await caller.send(said="Tell me about cats.", id="request-2")
        await caller.receive()
        await caller.send(spoken=1)
    async with calling(port, "one") as caller:
        await caller.send(said="Tell me about cats.", id="request-2")
        again = await caller.receive()
        assert (again["done"], again["repeated"]) == ("This —", True)
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
    async with calling(port, "two") as caller:
        assert (await caller.say("Hello."))["done"] == "Noted."
