"""Step 8: the model itself saves and recalls, with tools."""

from __future__ import annotations

import asyncio
import json

import remora


async def main() -> None:
    async with remora.Runtime("memory") as runtime:
        tools = runtime.user("alice").tools(edit=True)
        offered = tools.openai()  # tools= of chat.completions.create; also .anthropic(), .gemini()
        print([tool["function"]["name"] for tool in offered])
        # what a model asks for in its tool calls
        print(await tools.call("save_to_memory", '{"content": ["Alice has a dog called Rex."]}'))
        found = await tools.call("recall_from_memory", '{"keywords": ["dog"], "limit": 1}')
        print(json.loads(found)["memories"][0]["content"])
        print(await tools.call("recall_from_memory", '{"keywords": 7}'))


if __name__ == "__main__":
    asyncio.run(main())
