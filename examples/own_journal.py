"""A journal of your own: the in-memory journal, which also lists the records that it is given.

A journal over PostgreSQL has the same methods; `Runtime(journal=…)` takes it, or an async function
that opens it.
"""

from __future__ import annotations

import asyncio

import remora
from remora.storage.memory import MemoryJournal
from remora.storage.ports import Write


class AuditedJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.audit: list[str] = []

    def write(self, write: Write) -> None:
        self.audit.extend(type(record).__name__ for record in write.records)
        super().write(write)


async def open_journal() -> AuditedJournal:
    return AuditedJournal()  # a connection pool would be opened here


async def main() -> None:
    journal = await open_journal()
    async with remora.Runtime.in_memory(journal=journal) as runtime:
        await runtime.session("ana", "chat").append({"role": "user", "content": "hello"})
    print("made durable:", ", ".join(journal.audit))


if __name__ == "__main__":
    asyncio.run(main())
