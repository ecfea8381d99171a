"""LangChain: `ConversationSummaryBufferMemory`, one object per session, in memory (its default)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from langchain_classic.memory import ConversationSummaryBufferMemory
from langchain_core.messages import AIMessage, HumanMessage

from benchmarks.lab.correctness.protocol import Setting
from benchmarks.lab.correctness.subjects.langchain_models import Model, ok

_NO_MEMORY = "a buffer and a summary: no long-term memory"
LACKS: Mapping[str, str] = {
    "deliveries": _NO_MEMORY,
    "strangers_secret": _NO_MEMORY,
    "left_on_disk": "in memory: nothing on disk",
}
_KINDS = (HumanMessage, AIMessage)


class LangChainMemory:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._sessions: dict[str, ConversationSummaryBufferMemory] = {}

    def _session(self, session: str) -> ConversationSummaryBufferMemory:
        if session not in self._sessions:
            self._sessions[session] = ConversationSummaryBufferMemory(
                llm=Model(answer=self._setting.summarize or ok),
                max_token_limit=self._setting.limit_tokens,
                return_messages=True,
            )
        return self._sessions[session]

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:  # noqa: ARG002 -- it has none
        # What asave_context does, for messages of any number.
        memory = self._session(session)
        await memory.chat_memory.aadd_messages(
            [_KINDS[n % 2](text) for n, text in enumerate(texts)]
        )
        await memory.aprune()

    async def load(self, session: str, query: str = "") -> list[str]:  # noqa: ARG002
        variables = await self._session(session).aload_memory_variables({})
        return [str(message.content) for message in variables["history"]]

    async def buffered(self, session: str) -> list[str]:
        return [str(message.content) for message in self._session(session).chat_memory.messages]

    async def kept(self, session: str) -> list[str]:
        return await self.load(session)

    async def delivered(self) -> list[str]:
        return []

    async def delete(self, user: str, sessions: Sequence[str]) -> None:  # noqa: ARG002
        for session in sessions:
            await self._session(session).aclear()

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def opened(directory: Path, setting: Setting) -> LangChainMemory:  # noqa: ARG001
    """Open it."""
    return LangChainMemory(setting)
