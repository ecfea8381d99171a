"""Step 6: a long conversation, in a context that fits."""

from __future__ import annotations

import asyncio

import remora

QUESTION = "What does day {day} of the journey cost?"
ANSWER = "Day {day} costs {price} euros: the train, the hotel in town {day}, and three meals."


async def main() -> None:
    config = remora.Config.from_dict({"buffer": {"token_limit": 1_000}})
    async with remora.Runtime("memory", config=config) as runtime:
        chat = runtime.session("alice", "journey")
        for day in range(1, 61):
            question, answer = QUESTION.format(day=day), ANSWER.format(day=day, price=100 + day)
            await chat.append(
                [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            )
        await runtime.settle()  # until summaries are written; a server need not wait
        stored, context = await chat.history(), await chat.load(max_tokens=500)
        print(f"{len(stored)} messages stored, fewer shown: {len(context.messages) < 60}")
        print(f"within 500 tokens: {context.tokens <= 500}")
        print(f"summary: {context.sources.summary.status}")
        print(f"recent messages: {context.sources.recent.status}")
        print(f"the last one: {context.messages[-1]['content']}")


if __name__ == "__main__":
    asyncio.run(main())
