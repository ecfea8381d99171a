"""A summarizer of your own: a class with a name and one coroutine.

``python -m examples.first_day.t04_own_summarizer``
"""

from __future__ import annotations

import asyncio

import remora


class FirstWords:
    name = "first words"  # stored with each summary

    async def summarize(
        self, previous: str | None, lines: list[remora.Line], /, *, max_tokens: int
    ) -> str:
        words = [*(previous or "").split(), *(line.text.split()[0] for line in lines)]
        return " ".join(words[-max_tokens:])


async def main() -> None:
    policy = remora.BufferPolicy.window(2, fold="summary")
    async with remora.Runtime("memory", policy=policy, summarizer=FirstWords()) as runtime:
        chat = runtime.session("alice", "monday")
        for text in ("Hello there!", "Lisbon is sunny.", "Figaro sleeps.", "Good night."):
            await chat.append({"role": "user", "content": text})
        await chat.settle()  # summaries are written in the background
        for message in (await chat.load()).messages:
            print(f"{message['role']}: {message['content']}")


asyncio.run(main())
