"""remora: durable as it is by default (`synchronous=FULL`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.stores.store import BUDGET, Store, rows_in
from benchmarks.speed.text import role_of
from remora import Config, Runtime, Session

CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "remora": {},
    "remora-uvloop": {},
    # Peers neither summarize nor hand anything to long-term memory.
    "remora-bare": {"long_term": {"enabled": False}, "buffer": {"policy": "keep_all"}},
    # What any faster counter could gain at most: it takes a quarter of the length.
    "remora-heuristic": {
        "long_term": {"enabled": False},
        "buffer": {"policy": "keep_all"},
        "tokens": {"counter": "heuristic"},
    },
    # A budget that a short run exceeds, so that sessions are compacted.
    "remora-folds": {"long_term": {"enabled": False}, "buffer": {"token_limit": BUDGET}},
}


class Remora(Store):
    def __init__(self, contestant: str, directory: Path) -> None:
        self._directory = directory
        self._remembers = contestant in {"remora", "remora-uvloop"}
        self._summarizes = self._remembers or contestant == "remora-folds"
        self._runtime = Runtime(directory, config=Config.from_dict(CONFIGURATIONS[contestant]))
        self._sessions: dict[str, Session] = {}

    async def open(self) -> None:
        await self._runtime.__aenter__()
        if self._remembers:
            await (
                self._runtime.internals.long_term()
            )  # opened at first use, which is to be before anything is measured

    @property
    def commits(self) -> int:
        return self._runtime.statistics().log.commits

    def _session(self, session: str) -> Session:
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = self._runtime.session(f"user-{session}", session)
        return found

    async def append(self, session: str, role: str, text: str) -> None:
        await self._session(session).append(dict[str, Any](role=role, content=text))

    async def load(self, session: str) -> Sequence[Any]:
        return (await self._session(session).load(max_tokens=BUDGET)).messages

    async def fill(self, session: str, texts: Sequence[str]) -> None:
        messages: list[dict[str, Any]] = [
            {"role": role_of(n), "content": text} for n, text in enumerate(texts)
        ]
        for at in range(0, len(messages), 500):
            await self._session(session).append(messages[at : at + 500])

    async def settle(self) -> None:
        if self._summarizes:
            await self._runtime.settle()

    async def close(self) -> int:
        await self._runtime.__aexit__(None, None, None)
        journal = self._directory / "journal.db"
        return rows_in(journal, "messages")


async def opened(contestant: str, directory: Path) -> Store:
    store = Remora(contestant, directory / "remora")
    await store.open()
    return store
