"""Code of the application that raises what is no `Exception`, calls remora, or answers junk."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt
import pytest

from remora import Config, Runtime
from remora.errors import (
    ConfigError,
    DirectoryUnusable,
    InvalidInput,
    ModelUnavailable,
    RedactionFailed,
    ReentrantAsk,
)
from remora.messages import ChatDict
from remora.tokens import HeuristicCounter
from tests.configs import LEAN, LEAN_TREE
from tests.harness import user

SMALL: dict[str, Any] = {
    **LEAN_TREE,
    "models": {"embedder": "none", "embedding_dimension": 16},
    "buffer": {"token_limit": 100, "summary_tokens": 40},
    "supervisor": {"backoff_s": 0.01, "max_backoff_s": 0.02, "drain_s": 600.0},
}
WITHOUT_LONG_TERM = Config.from_dict({**SMALL, "long_term": {"enabled": False}})


class PanicError(BaseException):
    """What an extension module raises."""


class RaisingCounter(HeuristicCounter):
    """Counts as `HeuristicCounter` does, except for texts with the word ``trap``."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        super().__init__()
        self.name = "raising"
        self._answer = answer

    def count(self, text: str) -> int:
        answer: int = self._answer() if "trap" in text else super().count(text)
        return answer


def panic() -> Any:
    raise PanicError("panic")


@pytest.mark.parametrize("kind", [GeneratorExit, SystemExit, KeyboardInterrupt, PanicError])
def test_a_model_that_raises_what_is_no_exception(kind: type[BaseException]) -> None:
    """Whatever a chat model raises in the background, all go on, and the summary is made without
    it; whoever needs an embedder that does gets `ModelUnavailable`.
    """
    calls = 0

    async def chat(_: Sequence[ChatDict]) -> str:
        nonlocal calls
        calls += 1
        raise kind

    async def embed(_: Sequence[str]) -> npt.NDArray[np.float32]:
        raise kind

    async def main() -> None:
        plug_ins: dict[str, Any] = {"chat_model": chat, "embedder": embed}
        async with Runtime.in_memory(config=WITHOUT_LONG_TERM, **plug_ins) as runtime:
            talk = runtime.session("ann", "chat")
            for number in range(12):
                await talk.append(user(f"{number} " + "word " * 20))
            await talk.settle()
            with pytest.raises(ModelUnavailable, match=kind.__name__):
                await runtime.user("ann").learn("a fact")
            await runtime.session("bea", "chat").append(user("hello"))
            assert len(await talk.history()) == 12
            assert (await talk.load()).summary is not None

    asyncio.run(main())
    assert calls


ENDED_BY_A_SIGNAL = """
import asyncio, os, signal, sys
from remora import Config, Runtime

class End:
    def __call__(self, *_):
        sys.exit(7)

signal.signal(signal.SIGTERM, End())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

async def embed(texts):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    for _ in range(10):
        await asyncio.sleep(0)
    return [[1.0] * 16 for _ in texts]

async def main():
    config = Config.from_dict({"tokens": {"counter": "heuristic"}, "long_term": {"enabled": False},
        "models": {"embedding_dimension": 16}})
    async with Runtime.in_memory(config=config, embedder=embed) as runtime:
        await runtime.user("ann").learn("a fact")
    print("not ended")

asyncio.run(main())
"""


@pytest.mark.blocking
@pytest.mark.parametrize(("name", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 7)])
def test_a_signal_within_a_plug_in_ends_the_program(name: str, code: int) -> None:
    """Ctrl-C, and a handler that calls `sys.exit`, end a program also while a plug-in runs."""
    command = [sys.executable, "-c", ENDED_BY_A_SIGNAL, name]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert "not ended" not in ended.stdout


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("words", [1, 20_000], ids=["short", "in a thread"])
def test_a_redaction_hook_or_scorer_that_ends_the_program(
    tmp_path: Path, kind: type[BaseException], words: int
) -> None:
    """They run in the caller's own call: what they raise ends it, and nothing of it is written."""

    def redact(text: str) -> str:
        if text.startswith("hook"):
            raise kind
        return text

    def score(message: ChatDict) -> float:
        if str(message["content"]).startswith("score"):
            raise kind
        return 0.5

    async def append(first: str) -> None:
        async with Runtime(tmp_path, config=LEAN, redact=redact, scorer=score) as runtime:
            await runtime.session("ann", "chat").append([user("kept"), user(first * words)])

    async def read() -> list[Any]:
        async with Runtime(tmp_path, config=LEAN) as runtime:
            return [one.content for one in await runtime.session("ann", "chat").history()]

    for first in ("hook ", "score "):
        with pytest.raises(kind):
            asyncio.run(append(first))
        assert asyncio.run(read()) == []
    asyncio.run(append("fine"))
    assert asyncio.run(read()) == ["kept", "fine" * words]


def test_a_hook_that_ends_in_a_job_is_quoted_nowhere() -> None:
    """In the background it is a failure of the job, as the hook may end with a user's words."""

    def redact(text: str) -> str:
        raise SystemExit(text)

    async def main() -> list[str]:
        config = Config.from_dict({**SMALL, "supervisor": {"max_attempts": 1, "drain_s": 600.0}})
        async with Runtime.in_memory(config=config, redact_long_term=redact) as runtime:
            await runtime.session("ann", "chat").append(user("the violin is under the stairs"))
            await runtime.session("ann", "chat").flush()
            await runtime.settle()
            return [one.error for one in await runtime.dead_letters()]

    (error,) = asyncio.run(main())
    assert "redact raised SystemExit" in error
    assert "violin" not in error


@pytest.mark.anyio
async def test_an_embedder_that_asks_for_vectors_of_its_own() -> None:
    """It gets `ReentrantAsk`, and its caller an error, instead of waiting for itself for ever."""
    inner: list[Exception] = []

    async def ask(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        try:
            await runtime.user("ann").recall("other " + texts[0][:5])
        except Exception as e:
            inner.append(e)
            raise
        return np.ones((len(texts), 16), dtype=np.float32)

    runtime = Runtime.in_memory(config=Config.from_dict(SMALL), embedder=ask)
    async with runtime:
        for verb in (runtime.user("ann").recall, runtime.user("ann").learn):
            with pytest.raises(ModelUnavailable, match="ReentrantAsk"):
                await verb("word")
            assert isinstance(inner.pop(), ReentrantAsk)


@pytest.mark.anyio
async def test_an_embedder_that_erases() -> None:
    """Erasing from within an embedder is refused; a task that it started may erase later."""
    later: list[Awaitable[Any]] = []

    async def ask(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if not later:
            later.append(asyncio.ensure_future(forget_later()))
            await runtime.user("ann").forget()
        return np.ones((len(texts), 16), dtype=np.float32)

    async def forget_later() -> None:
        await learned.wait()
        await runtime.user("ann").forget()

    learned = asyncio.Event()
    runtime = Runtime.in_memory(config=WITHOUT_LONG_TERM, embedder=ask)
    async with runtime:
        with pytest.raises(ModelUnavailable, match="ReentrantAsk"):
            await runtime.user("ann").learn("a fact")
        await runtime.user("ann").learn("a fact")
        learned.set()
        await later[0]
        assert await runtime.user("ann").search_working("a fact") == []


ANSWERS: dict[str, Callable[[], Any]] = {
    "nan": lambda: float("nan"),
    "huge": lambda: 2**80,
    "text": lambda: "7",
    "negative": lambda: -5,
    "raises": panic,
}


@pytest.mark.anyio
async def test_a_counter_that_counts_nothing(tmp_path: Path) -> None:
    """A counter that never gives a number is refused on opening; one that sometimes does not, with
    the message that it was asked about, and nothing of that is written.
    """
    for name, answer in ANSWERS.items():
        counter = RaisingCounter(answer)
        directory = tmp_path / name
        async with Runtime(directory, config=WITHOUT_LONG_TERM, counter=counter) as runtime:
            talk = runtime.session("ann", "chat")
            await talk.append(user("hello"))
            with pytest.raises(InvalidInput, match="token counter raising"):
                await talk.append([user("well"), user("a trap")])
            assert [message.content for message in await talk.history()] == ["hello"], name
        count = staticmethod(lambda _, answer=answer: answer())
        bad = type("Bad", (), {"name": "bad", "message_overhead": 3, "count": count})()
        with pytest.raises(ConfigError, match="token counter bad"):
            async with Runtime(directory, config=WITHOUT_LONG_TERM, counter=bad):
                pass


@pytest.mark.anyio
async def test_a_redaction_hook_that_raises_what_is_no_exception() -> None:
    """The message is refused, and the runtime goes on."""

    def redact(text: str) -> str:
        if "trap" in text:
            panic()
        return text

    async with Runtime.in_memory(config=WITHOUT_LONG_TERM, redact=redact) as runtime:
        talk = runtime.session("ann", "chat")
        with pytest.raises(RedactionFailed, match="PanicError"):
            await talk.append(user("a trap"))
        await talk.append(user("hello"))
        assert [message.content for message in await talk.history()] == ["hello"]


@pytest.mark.anyio
async def test_a_directory_that_long_term_memory_does_not_take(tmp_path: Path) -> None:
    """It is refused on opening, before anything is there; the journal alone takes it."""
    for name, problem in (
        ("new\nline", "control"),
        ("tab\t", "control"),
        ("\x7f", "control"),
        ("\udcff", "UTF-8"),
    ):
        directory = tmp_path / name
        with pytest.raises(DirectoryUnusable, match=problem):
            async with Runtime(directory, config=Config.from_dict(SMALL)):
                pass
        assert not await anyio.Path(directory).exists()
        async with Runtime(directory, config=WITHOUT_LONG_TERM) as runtime:
            await runtime.session("ann", "chat").append(user("hello"))
            assert len(await runtime.session("ann", "chat").history()) == 1
