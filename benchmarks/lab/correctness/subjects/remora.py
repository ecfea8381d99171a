"""remora in its default configuration.

That is SQLite with `synchronous=FULL`, LanceDB, and the embedded tokenizer and embedder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lab.correctness.protocol import DIMENSION, Setting, user_of
from remora import Config, Runtime, Session

LACKS: Mapping[str, str] = {}
_ROLES = ("user", "assistant")
_ENOUGH_TOKENS = 200_000


class _Embedder:
    name = "hashed-words"
    dimension = DIMENSION

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    async def embed(self, texts: Sequence[str]) -> Any:
        assert self._setting.embed is not None
        return np.array([self._setting.embed(text) for text in texts], dtype=np.float32).reshape(
            len(texts), DIMENSION
        )


class Remora:
    def __init__(self, directory: Path, setting: Setting) -> None:
        # Compaction begins at fold_ratio of the limit, which covers both tiers of memory.
        buffer = {"token_limit": math.ceil(setting.limit_tokens / 0.7)}
        config = Config.from_dict({"buffer": buffer})
        models: dict[str, Any] = {}
        if setting.summarize is not None:
            models["chat_model"] = setting.summarize
        if setting.embed is not None:
            models["embedder"] = _Embedder(setting)
        self.runtime = Runtime(directory, config=config, **models)

    def _session(self, session: str) -> Session:
        return self.runtime.session(user_of(session), session.partition("/")[2])

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:
        messages: list[dict[str, Any]] = [
            {"role": _ROLES[n % 2], "content": text} for n, text in enumerate(texts)
        ]
        await self._session(session).append(messages, key=key or None)

    async def load(self, session: str, query: str = "") -> list[str]:
        context = await self._session(session).load(query or None, max_tokens=_ENOUGH_TOKENS)
        return [str(message["content"]) for message in context.messages]

    async def buffered(self, session: str) -> list[str]:
        return [str(message.content) for message in await self._session(session).get_messages()]

    async def kept(self, session: str) -> list[str]:
        return [str(message.content) for message in await self._session(session).history()]

    async def delivered(self) -> list[str]:
        return [row.content for row in await (await self.runtime.internals.long_term()).rows("ann")]

    async def delete(self, user: str, sessions: Sequence[str]) -> None:  # noqa: ARG002 -- a user's sessions are the user's
        await self.runtime.user(user).forget()

    async def settle(self) -> None:
        await self.runtime.settle()

    async def close(self) -> None:
        await self.runtime.__aexit__(None, None, None)


async def opened(directory: Path, setting: Setting) -> Remora:
    """Open it."""
    subject = Remora(directory, setting)
    await subject.runtime.__aenter__()
    return subject
