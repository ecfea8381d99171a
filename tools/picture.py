"""Draw what was said, and the context that a model gets, from a real run.

    python -m tools.picture

writes docs/context.svg. Two conversations are stored, then a context is loaded for the question
that the second one ends with. The picture has no script and nothing from elsewhere, and its colours
fit light and dark pages.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from remora import Config, Message, Runtime
from remora.messages import Role
from remora.recall.context import Context
from tools.svg import picture

__all__ = ["Card", "draw", "main", "run"]

TARGET = Path(__file__).resolve().parent.parent / "docs" / "context.svg"
BUDGET = 700  # tokens
CONFIG: dict[str, Any] = {"buffer": {"token_limit": 180, "summary_tokens": 60}}
ORDER = {"order": "A-4711", "item": "desk lamp", "status": "shipped", "arrives": "3 December"}
MONDAY: tuple[dict[str, Any], ...] = (
    {"role": "user", "content": "I moved to Lisbon last week. Always answer in one sentence."},
    {"role": "assistant", "content": "Noted: Lisbon, and one sentence."},
    {"role": "user", "content": "Where is the lamp that I ordered?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call-1",
                "type": "function",
                "function": {"name": "find_order", "arguments": '{"customer": "alice"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": json.dumps(ORDER)},
    {"role": "assistant", "content": "It was shipped, and arrives on 3 December."},
)
FRIDAY = (
    "I want to plan a dinner for six on Saturday.",
    "Good. Do your guests eat everything?",
    "Rita is vegetarian, and Tom cannot eat nuts.",
    "Then I suggest a mushroom risotto without nuts, and a fig tart.",
    "The tart sounds good. The oven is small, though, so one tray at most.",
    "A tart for six fits on one tray if it is thin.",
    "Fine. Please put rice, mushrooms and figs on the list.",
    "They are on the list: rice, mushrooms, figs.",
    "And candles, the long white ones.",
    "Candles are on the list.",
)
QUESTION = "Will order A-4711 reach me in Lisbon before my dinner?"
KINDS = {
    "instruction": "a standing instruction",
    "summary": "the summary",
    "recent": "recent messages",
    "recalled": "recalled from Monday",
    "card": "kept in the history, not needed here",
}
_DATE = re.compile(r"\(?\d{1,2} \w+ \d{4}\)?,? ?")
_COLUMN, _LINE, _PAD, _GAP, _TOP = 384, 17, 8, 6, 62
_CHARACTERS = 45  # of a line
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; }
.head { font: 600 15px system-ui, sans-serif; } .note { font: 13px system-ui, sans-serif;
  fill: #57606a; }
.card { fill: #f6f8fa; } .instruction { fill: #8250df; } .summary { fill: #8c959f; }
.recent { fill: #2f7f85; } .recalled { fill: #d98c1f; } .question { fill: #24292f; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; } .note { fill: #a9afb6; } .card { fill: #1f242b; }
  .instruction { fill: #b48cf2; } .recent { fill: #4fb3ba; } .recalled { fill: #e0a23f; }
  .question { fill: #e6edf3; }
}
"""


class Card(NamedTuple):
    """A message in the picture: its kind, a key of `KINDS` or ``question``, and what it says."""

    kind: str
    text: str


async def run() -> Context:
    """Store both conversations, and load the context for the question."""
    question = Message(role="user", content=QUESTION)
    async with Runtime.in_memory(config=Config.from_dict(CONFIG)) as runtime:
        alice = runtime.user("alice")
        await alice.session("monday").append(MONDAY)
        friday = alice.session("friday")
        for number, text in enumerate(FRIDAY):
            role: Role = "assistant" if number % 2 else "user"
            await friday.append(Message(role=role, content=text))
        await runtime.settle()
        await friday.append(question)
        return await friday.load(query=QUESTION, max_tokens=BUDGET)


def shown(context: Context) -> list[Card]:
    """The messages of the context, in order, without tags and dates."""
    cards = []
    for message in context.messages:
        said = str(message["content"])
        kind = "recent"
        if "<user_instructions>" in said:
            kind = "instruction"
        elif "<recalled>" in said:
            kind = "recalled"
        elif context.summary is not None and context.summary in said:
            kind, said = "summary", context.summary
        elif said == QUESTION:
            kind = "question"
        lines = [one for one in said.splitlines() if one.startswith("- ")] or [said]
        for line in lines:
            text = _DATE.sub("", line.removeprefix("- "))
            cards.append(
                Card(kind, text if kind in {"recalled", "summary"} else _said(message, text))
            )
    return cards


def _said(message: Any, text: str) -> str:
    return f"{message['role']}: {text}"


def told(context: Context) -> list[tuple[str, list[Card]]]:
    """The conversations; each message has the kind of what became of it in the context."""
    by_text = {one.text: one.kind for one in shown(context)}

    def kind(text: str) -> str:
        found = [one for said, one in by_text.items() if text in said.replace('\\"', '"')]
        return found[-1] if found else ""

    monday = [
        Card(kind(one["content"]), _said(one, one["content"]))
        for one in MONDAY
        if one["content"] is not None
    ]
    friday = [
        Card(kind(text), f"{'assistant' if number % 2 else 'user'}: {text}")
        for number, text in enumerate(FRIDAY)
    ]
    return [("Monday", monday), ("Friday", [*friday, Card("question", f"user: {QUESTION}")])]


def draw(context: Context) -> str:
    """The picture: what was said at the left, what the model gets at the right."""
    parts: list[str] = []
    left, top = 12, _TOP
    for name, cards in told(context):
        parts.append(f'<text class="note" x="{left}" y="{top + 2}">{name}</text>')
        top = _column(parts, cards, left, top + 12) + 14
    right = left + _COLUMN + 36
    end = _column(parts, shown(context), right, _TOP + 14)
    top, end = max(top, end), end + 20
    for kind, text in KINDS.items():
        parts.append(f'<rect class="{kind}" x="{right}" y="{end}" width="12" height="12" rx="2"/>')
        parts.append(f'<text class="note" x="{right + 20}" y="{end + 11}">{text}</text>')
        end += 20
    width, height = right + _COLUMN + 12, max(top, end) + 6
    title = (
        "At the left: two conversations of a user, one on Monday about an order, one on Friday "
        f"about a dinner. At the right: the {context.tokens} tokens that the model gets for the "
        "last question: the user's standing instruction, a summary of the older messages of "
        "Friday, its recent messages, and what was recalled from Monday: the tool's result with "
        "the order, and the message that names Lisbon."
    )
    allowed = f"{context.tokens} tokens, of {BUDGET} allowed"
    heads = [
        f'<text class="head" x="{left}" y="28">What was said</text>',
        f'<text class="head" x="{right}" y="28">What the model gets</text>',
        f'<text class="note" x="{right}" y="{_TOP + 2}">{allowed}</text>',
    ]
    return picture(width, height, title, _STYLE, [*heads, *parts])


def _column(parts: list[str], cards: Sequence[Card], x: int, y: int) -> int:
    """Draw the cards below each other; returns where they end."""
    for card in cards:
        lines = textwrap.wrap(card.text.replace('\\"', '"'), _CHARACTERS)[:4]
        height = len(lines) * _LINE + _PAD
        parts.append(
            f'<rect class="card" x="{x}" y="{y}" width="{_COLUMN}" height="{height}" rx="4"/>'
        )
        if card.kind:
            parts.append(
                f'<rect class="{card.kind}" x="{x}" y="{y}" width="4" height="{height}" rx="2"/>'
            )
        for number, line in enumerate(lines):
            parts.append(f'<text x="{x + 14}" y="{y + 16 + number * _LINE}">{escape(line)}</text>')
        y += height + _GAP
    return y


def main() -> None:
    """Write the picture."""
    TARGET.write_text(draw(anyio.run(run)), encoding="utf-8")


if __name__ == "__main__":
    main()
