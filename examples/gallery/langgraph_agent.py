"""A LangGraph agent with tools and pictures, whose threads know what other threads said and found.

``pip install langgraph "./remora[langgraph]"``, then, in the clone::

    python -m examples.gallery.langgraph_agent graph-memory monday "What is in order A-4711?"
    python -m examples.gallery.langgraph_agent graph-memory monday "Is it this one?" picture.png
    python -m examples.gallery.langgraph_agent graph-memory friday "Where is my bicycle?"

The checkpointer stores a thread's messages as those of a session, so the model is given a context
of remora: the newest messages, a summary of older ones, and what other threads have on the question
(results of tools, too), within a budget. A run that was cut is finished first. The model follows
rules; a real one is LangChain's ``init_chat_model("openai:gpt-4.1-mini")`` in place of ``Model()``.
"""

from __future__ import annotations

import base64
import json
import mimetypes
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    convert_to_openai_messages,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import remora
from examples.gallery.model import text_of, think
from remora.adapters.langgraph_checkpoints import RemoraSaver

BUDGET = 8_000  # tokens
ORDERS = {"A-4711": "A-4711: a red bicycle, with the carrier in Porto"}


@tool
async def look_up_order(number: str) -> str:
    """Look up what was ordered, and where it is."""
    return ORDERS.get(number, f"there is no order {number}")


class Model(BaseChatModel):
    """The model of the gallery, as LangChain calls models."""

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:
        words: list[str] = []
        calls: list[dict[str, Any]] = []
        chat: Any = convert_to_openai_messages(messages)
        async for chunk in think(chat, options["tools"]):
            words.append(text_of(chunk))
            for call in chunk.choices[0].delta.tool_calls or ():
                name, arguments = (
                    call["function"]["name"],
                    json.loads(call["function"]["arguments"]),
                )
                calls.append({"name": name, "args": arguments, "id": call["id"]})
        reply = AIMessage("".join(words), tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError("call ainvoke: it is asynchronous")

    @property
    def _llm_type(self) -> str:
        return "rules"


def build_agent(session: remora.Session, user: remora.User, model: BaseChatModel) -> Any:
    """A graph of a model and its tools, for one thread of a user."""
    able = model.bind_tools([look_up_order])

    async def agent(state: MessagesState) -> dict[str, Any]:
        asked = next(one for one in reversed(state["messages"]) if isinstance(one, HumanMessage))
        context = await session.load(str(asked.text), max_tokens=BUDGET)
        return {"messages": [await able.ainvoke(list(context.messages))]}

    builder = StateGraph(MessagesState)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([look_up_order]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile(checkpointer=RemoraSaver(user, messages="messages"))


async def ask(user: remora.User, thread: str, text: str, picture: Path | None = None) -> str:
    content: list[Any] = [{"type": "text", "text": text}]
    if picture is not None:
        kind = mimetypes.guess_type(picture)[0]
        data = base64.b64encode(await anyio.Path(picture).read_bytes()).decode()
        content.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
    session, config = user.session(thread), {"configurable": {"thread_id": thread}}
    graph = build_agent(session, user, Model())
    async with session.exclusive():  # one run of a thread at a time
        if (await graph.aget_state(config)).next:  # it was cut
            await graph.ainvoke(None, config, durability="sync")
        # each step is stored before the next one, which reads it
        done = await graph.ainvoke({"messages": [HumanMessage(content)]}, config, durability="sync")
    return str(done["messages"][-1].text)


async def main(directory: str, thread: str, text: str, picture: str | None = None) -> None:
    async with remora.Runtime(directory) as runtime:
        print(await ask(runtime.user("alice"), thread, text, Path(picture) if picture else None))


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
