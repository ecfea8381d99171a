"""OpenAI Agents SDK: `SQLiteSession` on a file, one object for a session.

Summaries are made by `OpenAIResponsesCompactionSession` around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agents import SQLiteSession
from agents.memory import OpenAIResponsesCompactionSession

from benchmarks.lab.correctness.protocol import Setting

_NO_MEMORY = "sessions only: no long-term memory"
LACKS: Mapping[str, str] = {"deliveries": _NO_MEMORY, "strangers_secret": _NO_MEMORY}
_ROLES = ("user", "assistant")


def _text(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class OpenAIAgents:
    def __init__(self, directory: Path, setting: Setting) -> None:
        self._file = directory / "sessions.db"
        self._setting = setting
        self._plain: dict[str, SQLiteSession] = {}
        self._sessions: dict[str, Any] = {}
        self._client: Any = SimpleNamespace(responses=SimpleNamespace(compact=self._compact))

    async def _compact(self, *, input: Sequence[Any], **_: Any) -> Any:  # noqa: A002 -- the API's own name
        assert self._setting.summarize is not None
        summary = await self._setting.summarize("\n".join(_text(item) for item in input))
        return SimpleNamespace(
            output=[{"type": "message", "role": "assistant", "content": summary}], usage=None
        )

    def _full(self, context: Mapping[str, Any]) -> bool:
        return (
            sum(len(_text(item)) // 4 for item in context["session_items"])
            > self._setting.limit_tokens
        )

    def _session(self, session: str) -> Any:
        if session not in self._sessions:
            plain = self._plain[session] = SQLiteSession(session, self._file)
            self._sessions[session] = plain
            if self._setting.summarize is not None:
                self._sessions[session] = OpenAIResponsesCompactionSession(
                    session, plain, client=self._client, should_trigger_compaction=self._full
                )
        return self._sessions[session]

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:  # noqa: ARG002 -- it has none
        handle = self._session(session)
        await handle.add_items(
            [{"role": _ROLES[n % 2], "content": text} for n, text in enumerate(texts)]
        )
        if self._setting.summarize is not None:
            await handle.run_compaction({})

    async def load(self, session: str, query: str = "") -> list[str]:  # noqa: ARG002
        return [_text(item) for item in await self._session(session).get_items()]

    async def buffered(self, session: str) -> list[str]:
        return await self.load(session)

    async def kept(self, session: str) -> list[str]:
        return await self.load(session)

    async def delivered(self) -> list[str]:
        return []

    async def delete(self, user: str, sessions: Sequence[str]) -> None:  # noqa: ARG002
        for session in sessions:
            await self._session(session).clear_session()

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        for session in self._plain.values():
            session.close()


async def opened(directory: Path, setting: Setting) -> OpenAIAgents:
    """Open it."""
    return OpenAIAgents(directory, setting)
