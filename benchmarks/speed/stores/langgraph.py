"""LangGraph: a graph of one node over `MessagesState`, `AsyncSqliteSaver` on a file.

An append is `aupdate_state`, a load `aget_state` and a trim; a turn is one `ainvoke`, whose node
trims and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from benchmarks.speed.stores.store import Store, counted
from benchmarks.speed.text import counter, role_of

_ANSWERS: dict[str, str] = {}


class LangGraph(Store):
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = counter()
        self._stack = AsyncExitStack()
        self._sessions: set[str] = set()
        self._graph: Any = None

    async def open(self) -> None:
        saver = await self._stack.enter_async_context(
            AsyncSqliteSaver.from_conn_string(str(self._file))
        )

        def chat(state: MessagesState) -> dict[str, list[AnyMessage]]:
            shown = self._trimmed(state["messages"])
            return {"messages": [AIMessage(_ANSWERS[str(shown[-1].content)])]}

        graph = StateGraph(MessagesState)
        graph.add_node("chat", chat)
        graph.add_edge(START, "chat")
        graph.add_edge("chat", END)
        self._graph = graph.compile(checkpointer=saver)

    def _trimmed(self, messages: Sequence[AnyMessage]) -> list[AnyMessage]:
        return counted(messages, lambda message: str(message.content), self._count)

    async def append(self, session: str, role: str, text: str) -> None:
        self._sessions.add(session)
        await self._graph.aupdate_state(
            _thread(session), {"messages": [_message(role, text)]}, as_node="chat"
        )

    async def load(self, session: str) -> Sequence[Any]:
        state = await self._graph.aget_state(_thread(session))
        return self._trimmed(state.values.get("messages", []))

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        self._sessions.add(session)
        messages = [_message(role_of(n), text) for n, text in enumerate(texts)]
        await self._graph.aupdate_state(_thread(session), {"messages": messages}, as_node="chat")

    async def turn(self, session: str, question: str, answer: str) -> None:
        _ANSWERS[question] = answer
        await self._graph.ainvoke({"messages": [HumanMessage(question)]}, _thread(session))

    async def close(self) -> int:
        stored = 0
        for session in self._sessions:
            stored += len(
                (await self._graph.aget_state(_thread(session))).values.get("messages", [])
            )
        await self._stack.aclose()
        return stored


def _message(role: str, text: str) -> AnyMessage:
    return HumanMessage(text) if role == "user" else AIMessage(text)


def _thread(session: str) -> Any:
    return {"configurable": {"thread_id": session}}


async def opened(contestant: str, directory: Path) -> Store:  # noqa: ARG001
    store = LangGraph(directory / "checkpoints.db")
    await store.open()
    return store
