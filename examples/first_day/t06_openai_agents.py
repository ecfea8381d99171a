"""The OpenAI Agents SDK: its session, memory tools, and what the user said in other chats.

``pip install "./remora[openai-agents]"``, then
``OPENAI_API_KEY=… python -m examples.first_day.t06_openai_agents``
"""

from __future__ import annotations

import asyncio

from agents import Agent, Runner, function_tool

import remora
from remora.adapters.openai_agents import RemoraSession


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        alice = runtime.user("alice")
        await alice.remember("Alice lives in Lisbon.")
        question = "What is the weather where I live?"
        known = remora.quote_memories(await alice.recall(question))
        agent = Agent(
            name="assistant",
            instructions=f"You are a helpful assistant.\n{known}",
            tools=[function_tool(tool) for tool in alice.tools()],
        )
        session = RemoraSession(alice.session("friday"))
        result = await Runner.run(agent, question, session=session)
        print(result.final_output)


asyncio.run(main())
