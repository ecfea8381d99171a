"""Draws sixty appends as an animated strip, from a real run.

    python -m tools.strip

writes docs/strip.svg: one cell a message, coloured by where the message is, after each append of a
session with a small buffer. It has no script and nothing from elsewhere, its colours fit light and
dark pages, and it stands still, at the end of the run, for readers who want less motion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import anyio

from remora import Config, Runtime
from tools.svg import picture

__all__ = ["Look", "draw", "main", "run"]

TARGET = Path(__file__).resolve().parent.parent / "docs" / "strip.svg"
APPENDS = 60
STEP_S = 0.25
REST_S = 3.0  # at the end, before it begins again
COLUMNS, CELL, GAP, LEFT, TOP = 30, 18, 4, 4, 34
STATES = {"buffer": "in the buffer", "summarizing": "being summarized", "archived": "summarized"}
CONFIG: dict[str, Any] = {
    "tokens": {"counter": "heuristic"},
    "models": {"embedder": "none"},
    "long_term": {"enabled": False},
    "buffer": {"token_limit": 240, "summary_tokens": 60},
}
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #57606a; }
svg { --buffer: #2f7f85; --summarizing: #d98c1f; --archived: #8c959f; }
@media (prefers-color-scheme: dark) {
  text { fill: #a9afb6; }
  svg { --buffer: #4fb3ba; --summarizing: #e0a23f; }
}
.buffer { fill: var(--buffer); } .summarizing { fill: var(--summarizing); }
.archived { fill: var(--archived); }
.c { animation-duration: %(length)ss; animation-iteration-count: infinite;
  animation-timing-function: step-end; }
@media (prefers-reduced-motion: reduce) { .c { animation: none; } }
"""


class Look(NamedTuple):
    """A session at one moment: its last message, and the two watermarks."""

    last: int
    archived: int
    summarizing: int


async def run() -> list[Look]:
    """What a session is after each append, and when the background work that it caused is done."""
    looks: list[Look] = []
    async with Runtime.in_memory(config=Config.from_dict(CONFIG)) as runtime:
        chat = runtime.session("alice", "chat")
        for number in range(APPENDS):
            role = "assistant" if number % 2 else "user"
            text = f"Message {number + 1} is about the cat Figaro, who likes box {number + 1}."
            message: dict[str, Any] = {"role": role, "content": text}
            await chat.append(message)
            for settled in (False, True):
                if settled:
                    await runtime.settle()
                marks = (await chat.inspect()).watermarks
                looks.append(Look(number + 1, marks.archived_through, marks.summarizing_through))
    return looks


def state_of(look: Look, seq: int) -> str | None:
    """Where a message is; None before it is."""
    if seq > look.last:
        return None
    if seq <= look.archived:
        return "archived"
    return "summarizing" if seq <= look.summarizing else "buffer"


def draw(looks: list[Look]) -> str:
    """The picture: each cell's colour changes when its message's state did."""
    length = len(looks) * STEP_S / 2 + REST_S
    rules, cells = [STYLE % {"length": f"{length:g}"}], []
    for seq in range(1, APPENDS + 1):
        frames, before = [], ""
        for number, look in enumerate(looks):
            state = state_of(look, seq) or "none"
            if state != before:
                share = number * STEP_S / 2 / length * 100
                frames.append((share, state))
                before = state
        rules.append(f"@keyframes m{seq} {{ {' '.join(_frame(*one) for one in frames)} }}")
        row, column = divmod(seq - 1, COLUMNS)
        x, y = LEFT + column * (CELL + GAP), TOP + row * (CELL + GAP)
        name = f'class="c {before}" style="animation-name: m{seq}"'
        cells.append(f'<rect {name} x="{x}" y="{y}" width="{CELL}" height="{CELL}" rx="3"/>')
    width = LEFT * 2 + COLUMNS * (CELL + GAP) - GAP
    height = TOP + 2 * (CELL + GAP) + 4
    legend, x = [], LEFT
    for state, text in zip(
        STATES, ("in the buffer", "being summarized", "summarized"), strict=True
    ):
        legend.append(f'<rect class="{state}" x="{x}" y="8" width="12" height="12" rx="2"/>')
        legend.append(f'<text x="{x + 18}" y="19">{text}</text>')
        x += 40 + 8 * len(text)
    title = (
        f"{APPENDS} messages are appended to a session. When its buffer is full, the oldest are "
        "summarized in the background; the newest stay as they are."
    )
    style = rules[0] + "\n".join(rules[1:])
    return picture(width, height, title, style, [*legend, *cells])


def _frame(share: float, state: str) -> str:
    if state == "none":
        return f"{share:.2f}% {{ opacity: 0; }}"
    return f"{share:.2f}% {{ opacity: 1; fill: var(--{state}); }}"


def main() -> None:
    """Write the picture."""
    TARGET.write_text(draw(anyio.run(run)), encoding="utf-8")


if __name__ == "__main__":
    main()
