"""What a buffer's size costs in tokens, and what a summary saves (S0.27).

    python -m benchmarks.sizing [--file CHATS.jsonl] [--summary-tokens 400] [--json FILE]

Each user's conversations of the demonstration (or of a file in the replay format) are appended
message by message, one after another in one session. Before every answer of the assistant the
prompt is loaded, as an agent would. Counted are the prompt's tokens by tiktoken (o200k_base), how
many messages the buffer has word for word at the end, and how many of the user's details (names in
the middle of a sentence, numbers) are in the last prompt. Summaries are the embedded extract's; a
model's are denser.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

import anyio

import remora
from remora import BufferPolicy, Config, Runtime
from remora.cli.replay import Conversations, read_conversations

DEMO = Path(remora.__file__).parent / "cli" / "demo.jsonl"
POLICIES = {
    "window 4 (BufferPreset.SHORT)": BufferPolicy.window(4),
    "window 10 (BufferPreset.COMPLEX)": BufferPolicy.window(10),
    "window 12 (BufferPreset.TECHNICAL)": BufferPolicy.window(12),
    "window 50": BufferPolicy.window(50),
    "window 4, with summary": BufferPolicy.window(4, fold="summary"),
    "summary buffer, 500 tokens": BufferPolicy.summary_buffer(500),
    "summary buffer, 1 000 tokens": BufferPolicy.summary_buffer(1_000),
    "summary buffer, 2 000 tokens": BufferPolicy.summary_buffer(2_000),
    "keep all": BufferPolicy.keep_all(),
}
DETAIL = re.compile(r"(?<=[a-z,;:] )[A-Z][a-zé]+|\d[\d.,:-]*\d|\d")


def details(texts: list[str]) -> set[str]:
    """Names in the middle of a sentence, and numbers."""
    return {found for text in texts for found in DETAIL.findall(text)}


async def one_policy(
    policy: BufferPolicy, conversations: Conversations, summary_tokens: int
) -> dict[str, Any]:
    """Prompt sizes at every answer, and what the last prompt of each user reaches back to."""
    config = Config.from_dict(
        {
            "long_term": {"enabled": False},
            "models": {"embedder": "none"},
            "buffer": {"summary_tokens": summary_tokens},
        }
    )
    prompts: list[int] = []
    reach: list[int] = []
    summary: list[int] = []
    known: list[float] = []
    async with Runtime.in_memory(config=config, policy=policy) as runtime:
        for user, sessions in conversations.users.items():
            chat, told = runtime.session(user, "all"), []
            for session in sessions:
                for message in (planned.message for planned in conversations.sessions[session]):
                    if message["role"] == "assistant":
                        await (
                            chat.settle()
                        )  # a summary has come by the time the next prompt is built
                        prompts.append((await chat.load()).tokens)
                    elif message["role"] == "user":
                        told.append(message["content"])
                    await chat.append(message)
            await chat.settle()
            context = await chat.load()
            reach.append(await chat.size())
            shown = "\n".join(str(message["content"]) for message in context.messages)
            wanted = details(told)
            known.append(sum(detail in shown for detail in wanted) / len(wanted))
            summary.append(
                runtime.internals.counter.count(context.summary) if context.summary else 0
            )
    return {
        "prompts": len(prompts),
        "mean": round(statistics.mean(prompts)),
        "largest": max(prompts),
        "total": sum(prompts),
        "verbatim_messages": round(statistics.mean(reach), 1),
        "summary_tokens": round(statistics.mean(summary)),
        "details": round(statistics.mean(known), 3),
    }


async def measure(path: Path, summary_tokens: int) -> dict[str, dict[str, Any]]:
    conversations = await anyio.to_thread.run_sync(read_conversations, path)
    return {
        name: await one_policy(policy, conversations, summary_tokens)
        for name, policy in POLICIES.items()
    }


def table(figures: dict[str, dict[str, Any]]) -> str:
    whole = figures["keep all"]["total"]
    titles = (
        "policy",
        "tokens a prompt",
        "largest",
        "all prompts",
        "of keep all",
        "word for word",
        "summary",
        "details",
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    lines.extend(
        f"| {name} | {one['mean']:,} | {one['largest']:,} | {one['total']:,} | "
        f"{one['total'] / whole:.0%} | "
        f"{one['verbatim_messages']} | {one['summary_tokens'] or '-'} | {one['details']:.0%} |"
        for name, one in figures.items()
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--file", type=Path, default=DEMO)
    parser.add_argument("--summary-tokens", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = anyio.run(measure, options.file, options.summary_tokens)
    print(table(figures))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
