"""remora as LangChain's chat message history; offline, with a scripted model of langchain-core.

Needs ``remora[langchain]``.
"""

from __future__ import annotations

import asyncio

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage

import remora
from remora.adapters.langchain import RemoraChatMessageHistory


async def main() -> None:
    model = FakeListChatModel(responses=["Hello Charlie!", "Charlie."])
    async with remora.Runtime.in_memory() as runtime:
        history = RemoraChatMessageHistory(runtime.session("charlie", "chat"))
        for text in ("My name is Charlie.", "What is my name?"):
            await history.aadd_messages([HumanMessage(text)])
            reply = await model.ainvoke(await history.aget_messages())
            await history.aadd_messages([reply])
        print([message.content for message in await history.aget_messages()])


if __name__ == "__main__":
    asyncio.run(main())
