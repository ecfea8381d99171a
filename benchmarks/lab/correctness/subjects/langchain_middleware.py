"""LangChain agents: `create_agent` with `SummarizationMiddleware`.

State is in an `AsyncSqliteSaver` on a file; a turn is one `ainvoke`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware

from benchmarks.lab.correctness.protocol import Setting
from benchmarks.lab.correctness.subjects.langchain_models import Model, ok
from benchmarks.lab.correctness.subjects.langgraph import LangGraph

LACKS: Mapping[str, str] = {
    "deliveries": "hands nothing to long-term memory by itself",
    "strangers_secret": "as LangGraph",
}


class LangChainMiddleware(LangGraph):
    def _built(self) -> Any:
        middleware: list[Any] = []
        if self._setting.summarize is not None:
            limit = self._setting.limit_tokens
            middleware = [
                SummarizationMiddleware(
                    model=Model(answer=self._setting.summarize),
                    trigger=("tokens", limit),
                    keep=("tokens", limit // 2),
                )
            ]
        return create_agent(
            Model(answer=ok), tools=[], middleware=middleware, checkpointer=self._saver
        )


async def opened(directory: Path, setting: Setting) -> LangChainMiddleware:
    """Open it."""
    subject = LangChainMiddleware(directory, Setting(setting.limit_tokens, setting.summarize))
    await subject.open()
    return subject
