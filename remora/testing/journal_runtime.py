"""The common part of the checks of a journal: a runtime over it, messages, a summarizer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from remora.api.runtime import Runtime
from remora.config import Config
from remora.models.ports import Line
from remora.storage.ports import Journal

OpenJournal: TypeAlias = Callable[[], Awaitable[Journal]]
"""Opens a journal: the same one each time."""

_PLAIN: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "long_term": {"enabled": False},
    "models": {"embedder": "none"},
}


class JoinedSummarizer:
    """A summary that leaves nothing out."""

    name = "joined"

    async def summarize(
        self,
        previous: str | None,
        lines: Sequence[Line],
        *,
        max_tokens: int,  # noqa: ARG002
    ) -> str:
        """The previous summary, and all lines."""
        return " ".join([*([previous] if previous else []), *(line.text for line in lines)])


@asynccontextmanager
async def open_runtime(opened: OpenJournal, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime without long-term memory over the journal."""
    async with Runtime.in_memory(
        config=Config.from_dict(_PLAIN), journal=opened, **options
    ) as runtime:
        yield runtime


def user_message(text: str) -> dict[str, Any]:
    """A message of the user's."""
    return {"role": "user", "content": text}
