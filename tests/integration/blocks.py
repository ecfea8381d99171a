"""Memory blocks and their configuration, for tests in a whole runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional  # noqa: UP035

import anyio
import msgspec

from remora import Config, Runtime, Session
from remora.actors.blocks.fit import GatheredBlocks
from remora.actors.blocks.state import block_progress
from remora.blocks import (
    BaseMemoryBlock,
    ChatMessage,
)
from remora.tokens import CallableCounter
from tests.harness import user

WORDS = CallableCounter(str.split)


# The document's example, its import line changed and nothing else.
class MentionCounter(BaseMemoryBlock[str]):
    """
    A memory block that counts the number of times a user mentions a specific name.
    """

    mention_name: str = "Logan"
    mention_count: int = 0

    async def _aget(self, messages: Optional[List[ChatMessage]] = None, **block_kwargs: Any) -> str:  # noqa: UP006, UP045
        return f"Logan was mentioned {self.mention_count} times."

    async def _aput(self, messages: List[ChatMessage]) -> None:  # noqa: UP006
        for message in messages:
            if self.mention_name in message.content:
                self.mention_count += 1

    async def atruncate(self, content: str, tokens_to_truncate: int) -> Optional[str]:  # noqa: UP045
        return ""


class Watch:
    """What blocks of all sessions were given, seen from outside: no msgpack, so it is configuration
    and shared.
    """

    def __init__(self) -> None:
        self.puts: list[tuple[str, list[ChatMessage]]] = []
        self.broken: set[str] = set()
        self.error: type[Exception] = ValueError
        self.asked = anyio.Event()
        self.failures = 0
        self.failed_often = anyio.Event()
        self.gate = anyio.Event()
        self.gate.set()


class Recording(BaseMemoryBlock[str]):
    watch: Any = None
    seqs: list[int] = []  # noqa: RUF012

    async def _aget(self, messages: list[ChatMessage] | None = None, **block_kwargs: Any) -> str:
        return f"{self.name} saw {len(self.seqs)}"

    async def _aput(self, messages: list[ChatMessage]) -> None:
        self.seqs.extend(one.seq or 0 for one in messages)
        if self.watch is not None:
            self.watch.asked.set()
            await self.watch.gate.wait()
            await anyio.lowlevel.checkpoint()
            if self.name in self.watch.broken:
                self.watch.failures += 1
                if self.watch.failures == 5:
                    self.watch.failed_often.set()
                raise self.watch.error("broken")
            self.watch.puts.append((self.name, messages))


def config(**sections: Any) -> Config:
    """Folds above 210 words, counted by a function; jobs are retried at once, twice."""
    tree: dict[str, Any] = {
        "buffer": {"token_limit": 300, "token_flush_size": 40, "summary_tokens": 80},
        "long_term": {"batch_ms": 5, "shards": 2},
        "supervisor": {"backoff_s": 0.01, "max_attempts": 2},
        "models": {"embedder": "none"},
    }
    for name, values in sections.items():
        tree[name] = {**tree.get(name, {}), **values}
    return Config.from_dict(tree)


def opened(where: Path, *blocks: BaseMemoryBlock[Any], **options: Any) -> Runtime:
    """A runtime that has these blocks, and counts words."""
    given = {"config": config(), "counter": WORDS, "blocks": blocks or None, **options}
    return Runtime(where, **given)


async def fill(runtime: Runtime, chat: Session, count: int = 12) -> list[int]:
    """Append more than the buffer holds, and wait for what follows. Returns the numbers of what is
    out of the buffer, from the first message of the session on.
    """
    if count:
        await chat.append([user(f"message {n} " + "x " * 20) for n in range(count)])
    await runtime.settle()
    return list(range(1, (await chat.inspect()).watermarks.archived_through + 1))


async def seen(chat: Session, name: str) -> list[int]:
    """Numbers that a `Recording` block has taken in, by its journalled state."""
    progress = block_progress((await chat.inspect()).blocks).get(name)
    if progress is None or not progress.state:
        return []
    found: list[int] = msgspec.msgpack.decode(progress.state)["seqs"]
    return found


async def gathered(runtime: Runtime, chat: Session, *messages: dict[str, Any]) -> GatheredBlocks:
    assert runtime.internals.planner.tiers.blocks is not None
    return await runtime.internals.planner.tiers.blocks.gather(
        chat.key, (await chat.inspect()).blocks, messages
    )


async def text_of(runtime: Runtime, chat: Session, name: str, *messages: dict[str, Any]) -> str:
    return next(
        (
            str(one.content)
            for one in (await gathered(runtime, chat, *messages)).contents
            if one.name == name
        ),
        "",
    )
