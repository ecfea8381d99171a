"""Many sessions write over a disk that fails at times: a commit is submitted while another one
runs, in every interleaving of the event loop and the connection's thread.
"""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path

import anyio
import pytest

from remora.errors import CommitFailed, OutcomeUnknown, SessionQuarantined
from remora.runtime.passivation import RegistryLimits
from remora.storage.ports import SessionKey
from remora.testing import CommitFault
from remora.testing.simulation import SeededLoop, seams
from tests.harness import Kernel, append, user
from tests.simulation.rare import over_sqlite, reaching, shown

SEEDS = 30
SESSIONS = [SessionKey("alice", str(number)) for number in range(12)]
SENDERS = "abc"  # of each session
MESSAGES = 6  # of each sender


class Sent:
    """What senders were told.

    Attributes:
        stored, refused: the texts that were acknowledged, and those of which nothing was kept.
    """

    def __init__(self) -> None:
        self.stored: dict[SessionKey, list[str]] = defaultdict(list)
        self.refused: set[str] = set()

    async def send(self, core: Kernel, key: SessionKey, sender: str) -> None:
        """Send some messages, each when the one before was answered."""
        for number in range(MESSAGES):
            text = f"{key.session} {sender} {number}"
            try:
                await core.ask(key, append(user(text)))
            except (CommitFailed, SessionQuarantined):
                self.refused.add(text)
            except OutcomeUnknown:
                await anyio.sleep(0.01)
            else:
                self.stored[key].append(text)


def of_sender(sender: str, texts: list[str]) -> list[str]:
    return [text for text in texts if text.split()[1] == sender]


@pytest.mark.blocking  # SQLite's calls are steps of the loop
def test_many_senders_over_a_failing_disk(tmp_path: Path) -> None:
    """G1, G2, G3, G4: what was acknowledged is there, once, each sender's in its order, and what
    was refused is not, before a restart and after it.
    """

    failing = False

    async def main(path: Path) -> None:
        nonlocal failing
        sent = Sent()
        async with over_sqlite(path, limits=RegistryLimits(restart_intensity=1_000)) as core:
            failing = True
            async with anyio.create_task_group() as tasks:
                for key in SESSIONS:
                    for sender in SENDERS:
                        tasks.start_soon(sent.send, core, key, sender)
            failing = False
            before = {key: await shown(core, key) for key in SESSIONS}
        async with over_sqlite(path) as core:
            assert {key: await shown(core, key) for key in SESSIONS} == before
        for key, texts in before.items():
            assert len({*texts}) == len(texts)
            assert {*sent.stored[key]} <= {*texts}
            assert not sent.refused & {*texts}
            for sender in SENDERS:
                numbers = [int(text.split()[2]) for text in of_sender(sender, texts)]
                assert numbers == sorted(numbers)

    with reaching("commit_behind", "commit_behind_not_begun", "commit_unknown", "commit_refused"):
        for seed in range(SEEDS):
            rng = random.Random(seed)

            def fault(rng: random.Random = rng) -> CommitFault | None:
                kinds: tuple[CommitFault, ...] = ("refused", "lost", "kept")
                return rng.choice(kinds) if failing and rng.random() < 0.15 else None

            loop = SeededLoop(rng)  # type: ignore[abstract]
            try:
                with seams(loop, fault):
                    loop.run_until_complete(main(tmp_path / f"{seed}.db"))
            finally:
                loop.close()
