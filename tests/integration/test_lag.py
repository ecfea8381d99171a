"""Long input is worked on in threads: what stays in order, and what a cancellation leaves."""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from benchmarks.lag.calls import BEFORE, CALLS, NOT_MEASURED, World, largest_calls, prepare
from remora import Config, Runtime
from remora.actors.policies import bm25
from remora.errors import InvalidMessage
from remora.testing import count_probes
from tests.verbs import public_coroutines, said

MOST_LINES = 100_000
"""Lines of Python that may run between two turns of the event loop: some 10 ms of work."""

LONG = "a long walk along the harbour " * 2_000


class Hook:
    """A redaction hook that waits where a text is long, as slow encoding does."""

    def __init__(self) -> None:
        self.reached, self.released = threading.Event(), threading.Event()

    def __call__(self, text: str) -> str:
        if len(text) > 1_000:
            self.reached.set()
            self.released.wait()
        return text


@pytest.mark.anyio
async def test_a_short_append_does_not_overtake_a_long_one(tmp_path: Path) -> None:
    """Appends of one session are in the order in which they were started (G2)."""
    hook = Hook()
    async with Runtime(tmp_path / "memory", redact=hook) as runtime:
        session = runtime.session("ada", "chat")
        with count_probes() as probes:
            long = asyncio.create_task(session.append(said(LONG)))
            await asyncio.to_thread(hook.reached.wait)
            others = [
                asyncio.create_task(runtime.session("ada", "chat").append(said(f"short {number}")))
                for number in range(5)
            ]
            elsewhere = await runtime.session("ada", "other").append(said("not held up"))
            assert elsewhere.seqs == (1,)
            assert not any(one.done() for one in others)
            hook.released.set()
            receipts = [await one for one in (long, *others)]
        assert [one.seqs for one in receipts] == [(number,) for number in range(1, 7)]
        history = await session.history()
        assert [one.content for one in history] == [LONG, *(f"short {n}" for n in range(5))]
        assert probes["append_waited_for_encoding"] == 5


@pytest.mark.anyio
async def test_long_and_short_appends_that_start_together_are_in_order(tmp_path: Path) -> None:
    """Whatever is encoded in a thread, and whatever is not; a long batch is refused as a short one
    is, and the next append follows.
    """
    async with Runtime(tmp_path / "memory") as runtime:
        session = runtime.session("ada", "chat")
        texts = [f"{number} " + "word " * (4_000 * (number % 3 == 0)) for number in range(30)]
        bad = [said(LONG), {"role": "nobody", "content": "x"}]
        refused = asyncio.create_task(session.append(bad))
        tasks = [asyncio.create_task(session.append(said(text))) for text in texts]
        with pytest.raises(
            InvalidMessage, match=r"message 1 .* 'nobody'; the roles are system, developer, "
        ):
            await refused
        receipts = [await one for one in tasks]
        assert [one.seqs for one in receipts] == [(number,) for number in range(1, 31)]
        assert [one.content for one in await session.history()] == texts


@pytest.mark.anyio
async def test_a_cancelled_long_append_writes_nothing(tmp_path: Path) -> None:
    """Cancelled in the thread, or behind another one; later appends are not held up."""
    for waiting in (False, True):
        hook = Hook()
        async with Runtime(tmp_path / f"{waiting}", redact=hook) as runtime:
            session = runtime.session("ada", "chat")
            first = asyncio.create_task(session.append(said(LONG)))
            await asyncio.to_thread(hook.reached.wait)
            second = asyncio.create_task(session.append(said("second")))
            third = asyncio.create_task(session.append(said("third")))
            await asyncio.sleep(0)
            cut = second if waiting else first
            cut.cancel()
            hook.released.set()
            await asyncio.wait([first, second, third])
            assert cut.cancelled()
            assert (await third).seqs == (2,)
            kept = [LONG, "third"] if waiting else ["second", "third"]
            assert [one.content for one in await session.history()] == kept
            assert (await session.append(said("fourth"))).seqs == (3,)


@pytest.mark.anyio
@pytest.mark.parametrize("in_memory", [True, False], ids=["memory", "store"])
async def test_words_of_long_texts_are_found_in_threads(tmp_path: Path, in_memory: bool) -> None:
    """On the event loop only those of short texts are, in any script.

    A long text is not indexed yet, is indexed again because a neighbour came, is indexed, or is
    the question.
    """
    longest = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal longest
        if event == "call" and frame.f_code is bm25.RECALL.split.__code__:
            longest = max(longest, len(frame.f_locals["text"]))

    config = Config.from_dict({"recall": {"cache": 0} if in_memory else {"hot_mb": 0}})
    async with Runtime(tmp_path / "memory", config=config) as runtime:
        for number, unit in enumerate(("什么时候去东京塔", "ﷺ", "word salad ")):
            text = (unit * 12_000)[:12_000]
            user, session = runtime.user(f"{number}"), runtime.session(f"{number}", "chat")
            longest = 0
            sys.setprofile(watch)
            try:
                for one in (text, "tea"):
                    await session.append(said(one))
                    await user.recall("tea")
                await user.recall(text)
                await session.flush()
                await runtime.settle()
                for question in ("tea", text):
                    assert await user.recall(question)
            finally:
                sys.setprofile(None)
            assert longest < 1_000, unit
            assert longest or not in_memory, "what is searched in the store is split in threads"


class CountingSelector(selectors.DefaultSelector):
    """An event loop's selector; counts the lines of Python that run between two of its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = self.most = 0

    def select(self, timeout: float | None = None) -> Any:
        self.most = max(self.most, self.lines)
        self.lines = 0
        return super().select(timeout)

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.lines += 1
        elif "/benchmarks/lag/" in frame.f_code.co_filename:  # makes the input
            return None
        return self.trace


def test_every_verb_has_a_largest_call() -> None:
    """A new verb is measured, or is named with the reason why not."""
    assert sorted([*CALLS, *NOT_MEASURED]) == sorted(public_coroutines())


@pytest.mark.nightly
def test_no_largest_call_holds_the_event_loop(tmp_path: Path) -> None:
    """Between two turns of the loop a call runs few lines, whatever it carries.

    Lines are counted rather than seconds, so that a busy machine changes nothing. Those of threads
    do not count; nor does the time of a single call into C, which `benchmarks.lag` measures.
    """
    selector = CountingSelector()
    held: dict[str, int] = {}

    async def main() -> None:
        async with Runtime(tmp_path / "memory") as runtime:
            world = World(
                runtime, tmp_path, messages=2_000, count=400, bytes=200_000, characters=4_000
            )
            await prepare(world)
            for verb, label, call in largest_calls():
                world.number += 1
                if (before := BEFORE.get(verb)) is not None:
                    await before(world)
                    await runtime.settle()
                await asyncio.sleep(0)
                selector.lines = selector.most = 0
                sys.settrace(selector.trace)
                try:
                    await call(world)
                    await runtime.settle()  # what it caused in the background counts, too
                    await asyncio.sleep(0)
                finally:
                    sys.settrace(None)
                held[f"{verb} {label}"] = selector.most

    traced = sys.gettrace()
    try:
        with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
            runner.run(main())
    finally:
        sys.settrace(traced)
    long = [f"{name}: {lines}" for name, lines in held.items() if lines > MOST_LINES]
    assert not long, "\n".join(long)
