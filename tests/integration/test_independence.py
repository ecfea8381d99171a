"""Nothing blocks, and nothing is tied to a provider."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading

import pytest

from remora import Config, Runtime, Session, User
from remora.storage.memory import MemoryStore
from remora.testing import HashEmbedder

pytestmark = pytest.mark.anyio
PLAIN = Config.from_dict({"long_term": {"enabled": False}, "models": {"embedder": "none"}})


class ThreadCounter:
    """Counts by length, and notes in which thread."""

    name = "thread"
    message_overhead = 4

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def count(self, text: str) -> int:
        self.threads.add(threading.get_ident())
        return len(text) // 4 + 1


async def test_large_messages_are_counted_in_a_thread() -> None:
    """S4.02: 200 kB at once leave the event loop to others, when they are appended and when
    long-term memory counts them with date and speaker; what is small is counted where it is.
    """
    counter, here = ThreadCounter(), {threading.get_ident()}
    async with Runtime.in_memory(
        counter=counter, embedder=HashEmbedder(), store=MemoryStore(64)
    ) as runtime:
        small, large = runtime.session("alice", "small"), runtime.session("alice", "large")
        counter.threads.clear()
        await small.append({"role": "user", "content": "hello"})
        assert counter.threads == here
        counter.threads.clear()
        await large.append({"role": "user", "content": "word " * 40_000})
        await large.flush()
        await large.settle()
        assert counter.threads
        assert not counter.threads & here
        assert await runtime.user("alice").recall("word")


async def test_the_guard_notices_blocking() -> None:
    """S4.02: every test fails whose event loop is blocked by a file, a socket or a sleep: this one
    would.
    """
    import time  # noqa: PLC0415

    with pytest.raises(Exception, match="Blocking call"):
        time.sleep(0.001)


@pytest.mark.parametrize("handle", [Session, User])
def test_verbs_are_async(handle: type) -> None:
    """S4.02: what a handle does is awaited; the others make handles and iterators, no I/O."""
    made = {"session", "agent", "exclusive", "follow", "tools", "turn"}
    verbs = {
        name
        for name, value in inspect.getmembers(handle, inspect.isfunction)
        if not name.startswith("_")
    }
    plain = {name for name in verbs if not inspect.iscoroutinefunction(getattr(handle, name))}
    assert plain <= made
    assert {"append", "load", "clear"} <= verbs or {"remember", "recall", "prune"} <= verbs


@pytest.mark.cold
def test_no_provider_in_the_core() -> None:
    """S4.03: a fold, a flush and a recall with models of the caller's own import no provider, no
    HTTP client and no framework.
    """
    program = """
import asyncio, sys, remora

async def complete(prompt):
    return "They spoke of Lisbon."

def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]

async def main():
    config = remora.Config.from_dict({"models": {"embedding_dimension": 2}})
    policy = remora.BufferPolicy.window(2, fold="summary")
    async with remora.Runtime.in_memory(config=config, chat_model=complete, embedder=embed, policy=policy) as runtime:
        chat = runtime.session("alice", "chat")
        for n in range(6):
            await chat.append({"role": "user", "content": f"I moved to Lisbon, part {n}."})
        await chat.flush()
        await chat.settle()
        print((await chat.load()).summary, len(await runtime.user("alice").recall("Where to?")))

asyncio.run(main())
providers = {"openai", "agents", "anthropic", "langchain_core", "llama_index", "mem0", "httpx", "httpx2", "wordllama"}
print(sorted(providers & set(sys.modules)))
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["They spoke of Lisbon. 5", "[]"]
