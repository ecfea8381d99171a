"""An agent's turn loop under a hundred seeds, with faults and power cuts.

Run: python examples/simulated_agent.py.
"""

from __future__ import annotations

import logging
from typing import Any

from remora import Runtime
from remora.errors import CommitFailed, MailboxFull, OutcomeUnknown
from remora.testing.simulation import Fault, World

QUESTIONS = ("Where is the harbour?", "When does the ferry leave?", "And the last one?")


class Agent:
    """Answers each question once, over any number of restarts."""

    def __init__(self) -> None:
        self.answered: list[str] = []

    async def live(self, world: World) -> None:
        """Run the process once: ask all questions; keys show which were answered before."""
        async with world.runtime() as runtime:
            for number, question in enumerate(QUESTIONS):
                await self.turn(runtime, number, question)
            self.answered = [
                str(message.content)
                for message in await runtime.session("alice", "harbour").history()
            ]

    async def turn(self, runtime: Runtime, number: int, question: str) -> None:
        """Ask and answer under a key each, so that a retry stores nothing twice."""
        chat = runtime.session("alice", "harbour")
        for part, role, text in ((0, "user", question), (1, "assistant", f"Answer {number}.")):
            while True:
                try:
                    message: dict[str, Any] = {"role": role, "content": text}
                    await chat.append(message, key=f"{number}.{part}")
                    break
                except (CommitFailed, MailboxFull, OutcomeUnknown):
                    # retry with the same key: it is stored once
                    continue


def main() -> None:
    """Play a hundred seeds, each with a failing disk and a power cut."""
    logging.disable(logging.CRITICAL)
    expected = [
        text
        for number, question in enumerate(QUESTIONS)
        for text in (question, f"Answer {number}.")
    ]
    cuts = 0
    for seed in range(100):
        agent = Agent()
        plan = [Fault("commit", seed % 7, ("refused", "lost", "kept")[seed % 3])]
        world = World(seed, plan=plan, cuts=(30 + 2 * seed,))
        world.run(agent.live)
        assert agent.answered == expected, f"seed {seed}: {agent.answered}"
        cuts += world.life
    print(f"100 seeds, {cuts} power cuts: every message once, in order")


if __name__ == "__main__":
    main()
