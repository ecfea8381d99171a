"""remora as the session of the OpenAI Agents SDK; offline, with the SDK's scripted model.

Needs ``remora[openai-agents]``.
"""

from __future__ import annotations

import asyncio

from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message

import remora
from remora.adapters.openai_agents import RemoraSession


async def main() -> None:
    model = ScriptedModel([[assistant_message("Hello Charlie!")], [assistant_message("Charlie.")]])
    agent = Agent(name="assistant", instructions="You are a helpful assistant.", model=model)
    quiet = RunConfig(tracing_disabled=True)
    async with remora.Runtime.in_memory() as runtime:
        session = RemoraSession(runtime.session("charlie", "chat"))
        await Runner.run(agent, "My name is Charlie.", session=session, run_config=quiet)
        result = await Runner.run(agent, "What is my name?", session=session, run_config=quiet)
        print(result.final_output)
        assert model.last_call is not None
        print(f"the second run saw {len(model.last_call.input)} items")


if __name__ == "__main__":
    asyncio.run(main())
