"""LangGraph: a graph of one node over `MessagesState`, `AsyncSqliteSaver` on a file.

A turn is one `ainvoke` with a thread id. Long-term memory is an `AsyncSqliteStore`, whose
namespaces the application chooses: here ``(user, "memories")``. It is listed, not searched by
meaning: that needs an extension that not every Python's SQLite can load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.sqlite import AsyncSqliteStore

from benchmarks.lab.correctness.protocol import Setting, user_of

_NO_SUMMARIZER = "no summarizer of its own (see the middleware)"
LACKS: Mapping[str, str] = {
    "deliveries": "hands nothing to long-term memory by itself",
    "summarizer_raises": _NO_SUMMARIZER,
    "overflow": _NO_SUMMARIZER,
    "loads_meanwhile": _NO_SUMMARIZER,
    "append_behind_summary": _NO_SUMMARIZER,
}


def messages_of(texts: Sequence[str], key: str = "") -> list[AnyMessage]:
    """The texts, by turns the user's and the assistant's; a message's id is what LangGraph knows
    messages by.
    """
    kinds = (HumanMessage, AIMessage)
    return [
        kinds[n % 2](text, id=f"{key}/{n}" if key else str(uuid4())) for n, text in enumerate(texts)
    ]


class LangGraph:
    def __init__(self, directory: Path, setting: Setting) -> None:
        self._directory = directory
        self._setting = setting
        self._stack = AsyncExitStack()
        self._saver: AsyncSqliteSaver
        self._store: Any = None
        self._graph: Any

    async def open(self) -> None:
        self._saver = await self._stack.enter_async_context(
            AsyncSqliteSaver.from_conn_string(str(self._directory / "checkpoints.db"))
        )
        if self._setting.embed is not None:
            store = AsyncSqliteStore.from_conn_string(str(self._directory / "store.db"))
            self._store = await self._stack.enter_async_context(store)
            await self._store.setup()
        self._graph = self._built()

    def _built(self) -> Any:
        graph = StateGraph(MessagesState)
        graph.add_node("chat", lambda _: {"messages": []})
        graph.add_edge(START, "chat")
        graph.add_edge("chat", END)
        return graph.compile(checkpointer=self._saver)

    async def append(self, session: str, texts: Sequence[str], *, key: str = "") -> None:
        await self._graph.ainvoke({"messages": messages_of(texts, key)}, _thread(session))
        if self._store is not None:
            for text in texts:
                await self._store.aput((user_of(session), "memories"), str(uuid4()), {"text": text})

    async def load(self, session: str, query: str = "") -> list[str]:
        state = await self._graph.aget_state(_thread(session))
        texts = [str(message.content) for message in state.values.get("messages", [])]
        if self._store is not None and query:
            found = await self._store.asearch((user_of(session), "memories"), limit=100)
            texts += [item.value["text"] for item in found]
        return texts

    async def buffered(self, session: str) -> list[str]:
        return await self.load(session)

    async def kept(self, session: str) -> list[str]:
        states = [state async for state in self._graph.aget_state_history(_thread(session))]
        return [
            str(message.content) for state in states for message in state.values.get("messages", [])
        ]

    async def delivered(self) -> list[str]:
        return []

    async def delete(self, user: str, sessions: Sequence[str]) -> None:
        for session in sessions:
            await self._saver.adelete_thread(session)
        if self._store is not None:
            while found := await self._store.asearch((user, "memories"), limit=1_000):
                for item in found:
                    await self._store.adelete(item.namespace, item.key)

    async def settle(self) -> None:
        pass

    async def close(self) -> None:
        await self._stack.aclose()


def _thread(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


async def opened(directory: Path, setting: Setting) -> LangGraph:
    """Open it."""
    subject = LangGraph(directory, setting)
    await subject.open()
    return subject
