"""The chat model of both LangChain subjects: summarizes with the benchmark's summarizer.

It answers "ok" to anything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class Model(BaseChatModel):
    """Answers by an async function of the prompt."""

    answer: Callable[[str], Awaitable[str]]

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def get_num_tokens(self, text: str) -> int:
        return len(text) // 4

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Any = None) -> int:  # noqa: ARG002
        return sum(self.get_num_tokens(str(message.content)) for message in messages)

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise RuntimeError("asked from a thread")

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        text = await self.answer("\n".join(str(message.content) for message in messages))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


async def ok(_: str) -> str:
    """An answer."""
    return "ok"
